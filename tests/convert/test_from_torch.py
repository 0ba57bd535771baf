"""Folders of every age and layout are read alike; incomplete ones are refused in one line."""

import dataclasses
import json
import logging
import math
import pickle
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM

from cocondenser_jax.convert.from_torch import load_folder, read_shape
from cocondenser_jax.convert.names import tensor_names, to_tensors
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import AS_IN_PAPERS
from tests.lines import whole


@pytest.fixture
def folder(research_folder, tmp_path):
    """A copy to change."""
    return Path(shutil.copytree(research_folder, tmp_path / "model"))


@pytest.fixture
def bert_folder(research_folders, tmp_path):
    return Path(shutil.copytree(research_folders["bert"], tmp_path / "model"))


def equal(ours, theirs):
    leaves = zip(jax.tree.leaves_with_path(ours), jax.tree.leaves_with_path(theirs), strict=True)
    return all(p == q and x.dtype == y.dtype and np.array_equal(x, y) for (p, x), (q, y) in leaves)


def rewrite(folder, change):
    """Replaces the weights by change(weights)."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_flax_to_hugging_face_and_back_is_bit_identical(folder, tmp_path):
    """From parameters that Flax drew, with a shape that no default would restore."""
    config, _ = load_folder(str(folder))
    config = dataclasses.replace(
        config, n_head_layers=1, skip_from=2, late_mlm=False, hidden_dropout_prob=0.25
    )
    rng = np.random.default_rng(6)
    params = jax.tree.map(
        lambda x: np.asarray(x) + rng.normal(size=x.shape).astype(np.float32),
        init_params(config, 5),
    )
    out = tmp_path / "out"
    export_folder(params, config, folder, out, {})

    back_config, back = load_folder(str(out))

    assert back_config == config
    assert equal(back, jax.tree.map(np.asarray, params))
    assert read_shape(open_model(out, plain=AS_IN_PAPERS)) == config
    head = load_file(out / "condenser_head.safetensors")
    assert f"c_head.0.{'attn.Wo' if config.backbone.rotary else 'output.dense'}.weight" in head
    assert head.keys() < to_tensors(params, config).keys()


def test_every_parameter_of_the_model_has_a_name(folder):
    config, params = load_folder(str(folder))
    paths = {"/".join(k.key for k in path) for path, _ in jax.tree.leaves_with_path(params)}
    names = tensor_names(config)
    assert names.keys() == paths
    stacked = 2 * 4 if config.backbone.rotary else 0  # queries, keys and values of four layers
    assert len(set(names.values())) == len(names) - stacked


def test_the_research_checkpoint_gives_the_shape(folder):
    config, _ = load_folder(str(folder))
    assert (config.n_head_layers, config.skip_from, config.late_mlm) == (2, 1, True)
    assert config.pad_token_id == config.backbone.offset_by_padding
    assert config.layer_norm_eps == (1e-12 if config.model_type == "bert" else 1e-5)
    if config.backbone.rotary:
        assert (config.local_attention, config.global_attn_every_n_layers) == (6, 2)
        assert (config.global_rope_theta, config.local_rope_theta) == (160_000.0, 10_000.0)
    assert config.num_hidden_layers == 2
    assert config.max_length == 24


@pytest.mark.parametrize(
    ("kind", "says_nothing"), [("bert", 0), ("roberta", 1), ("xlm-roberta", 1)]
)
def test_a_config_may_leave_out_the_padding(research_folders, tmp_path, kind, says_nothing):
    folder = Path(shutil.copytree(research_folders[kind], tmp_path / "model"))
    edit_config(folder, pad_token_id=3)
    assert read_shape(open_model(folder, plain=AS_IN_PAPERS)).pad_token_id == 3
    edit_config(folder, pad_token_id=None)
    assert read_shape(open_model(folder, plain=AS_IN_PAPERS)).pad_token_id == says_nothing
    values = json.loads((folder / "config.json").read_text())
    del values["pad_token_id"]
    write_json(folder / "config.json", values)
    assert read_shape(open_model(folder, plain=AS_IN_PAPERS)).pad_token_id == says_nothing
    assert AutoConfig.from_pretrained(folder).pad_token_id == says_nothing  # transformers' own


def old_pytorch_file(folder):
    """As TensorFlow's conversion wrote it: gamma and beta, tied copies, a pooler, NSP."""
    state = load_file(folder / "model.safetensors")
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in state.items()
    }
    words = next(v for name, v in state.items() if re.search("(word|tok)_embeddings", name))
    if "decoder.bias" in state:  # ModernBERT is younger; its tied copy is all there can be
        torch.save(state | {"decoder.weight": words}, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        return
    mlm = "cls.predictions" if "cls.predictions.bias" in state else "lm_head"
    backbone = next(name for name in state if "word_embeddings" in name).split(".")[0]
    state[f"{mlm}.decoder.weight"] = words
    state[f"{mlm}.decoder.bias"] = state.pop(f"{mlm}.bias")
    state[f"{backbone}.pooler.dense.weight"] = torch.ones(32, 32)
    state[f"{backbone}.embeddings.position_ids"] = torch.arange(24)[None]
    state["cls.seq_relationship.weight"] = torch.ones(2, 32)
    state["classifier.weight"] = torch.ones(2, 32)
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def without_prefix(folder):
    rewrite(
        folder,
        lambda state: {
            re.sub(r"^(bert|roberta|mpnet|model)\.", "", k): v for k, v in state.items()
        },
    )


def test_the_shape_of_a_folder_is_read_without_its_weights(folder):
    loaded, _ = load_folder(str(folder))  # its head is in model.pt
    (folder / "model.safetensors").unlink()
    assert read_shape(open_model(folder, plain=AS_IN_PAPERS)) == loaded
    head = torch.load(folder / "model.pt")
    kept = {k: v for k, v in head.items() if k.startswith("c_head.0.")}
    kept["co_target"] = torch.arange(4)  # a buffer of the release's coCondenser
    torch.save(kept, folder / "model.pt")
    assert read_shape(open_model(folder, plain=AS_IN_PAPERS)) == dataclasses.replace(
        loaded, n_head_layers=1
    )
    (folder / "model.pt").unlink()
    assert read_shape(open_model(folder, plain=AS_IN_PAPERS)) == dataclasses.replace(
        loaded, n_head_layers=0
    )


@pytest.mark.parametrize("layout", [old_pytorch_file, without_prefix])
def test_other_layouts_of_the_same_weights(folder, layout, caplog):
    config, params = load_folder(str(folder))
    layout(folder)
    other_config, other = load_folder(str(folder))
    assert other_config == config
    assert equal(params, other)
    assert not caplog.records


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_widened(bert_folder, dtype):
    exact = load_file(bert_folder / "model.safetensors")
    rewrite(bert_folder, lambda state: {k: v.to(dtype) for k, v in state.items()})
    _, params = load_folder(str(bert_folder))
    words = exact["bert.embeddings.word_embeddings.weight"].to(dtype).float().numpy()
    np.testing.assert_array_equal(params["embeddings"]["word"]["embedding"], words)
    assert params["embeddings"]["word"]["embedding"].dtype == np.float32


def test_a_missing_head_is_never_made_up_silently(folder, caplog):
    (folder / "model.pt").unlink()
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/model has no Condenser head; --config.init_head=true starts with a new, random one"
        ),
    ):
        load_folder(str(folder))

    with caplog.at_level(logging.WARNING):
        config, params = load_folder(str(folder), n_head_layers=1, init_head_seed=3)

    assert caplog.messages == [
        f"{folder} has no Condenser head: starting with a random one (seed 3)"
    ]
    assert config.n_head_layers == 1
    kernel = params["head_0"]["mlp_in"]["kernel"]
    assert kernel.shape == (32, 96 if config.backbone.rotary else 48)
    assert np.std(kernel) == pytest.approx(0.02, rel=0.1)
    if not config.backbone.rotary:
        assert np.abs(params["head_0"]["mlp_in"]["bias"]).max() == 0.0
    _, again = load_folder(str(folder), n_head_layers=1, init_head_seed=3)
    _, other = load_folder(str(folder), n_head_layers=1, init_head_seed=4)
    assert equal(params, again)
    assert not np.array_equal(kernel, other["head_0"]["mlp_in"]["kernel"])


def test_a_plain_encoder_lacks_the_mlm_projection(bert_folder, caplog):
    rewrite(bert_folder, lambda state: {k: v for k, v in state.items() if "cls." not in k})
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/model has no MLM projection; --config.init_head=true starts with a new, random one"
        ),
    ):
        load_folder(str(bert_folder))
    with caplog.at_level(logging.WARNING):
        config, params = load_folder(str(bert_folder), init_head_seed=0)
    # The Condenser head was there.
    said = f"{bert_folder} has no MLM projection: starting with a random one (seed 0)"
    assert caplog.messages == [said]
    np.testing.assert_array_equal(params["mlm"]["norm"]["scale"], np.ones(32))
    drawn = to_tensors(init_params(config, 0), config)["cls.predictions.transform.dense.weight"]
    np.testing.assert_array_equal(params["mlm"]["dense"]["kernel"].T, drawn)
    # One that is not trained is not worth a word.
    caplog.clear()
    (bert_folder / "model.pt").unlink()
    load_folder(str(bert_folder), init_head_seed=0, trains_mlm=False)
    said = f"{bert_folder} has no Condenser head: starting with a random one (seed 0)"
    assert caplog.messages == [said]


def test_missing_tensors_are_counted_and_named(bert_folder):
    rewrite(
        bert_folder, lambda state: {k: v for k, v in state.items() if "attention.self" not in k}
    )
    first = "bert.encoder.layer.0.attention.self"
    names = f"{first}.key.bias, {first}.key.weight, {first}.query.bias, ..."
    with pytest.raises(UserError, match=whole(f"TMP/model: 12 tensors are missing: {names}")):
        load_folder(str(bert_folder), init_head_seed=0)


def test_misshapen_tensors_are_counted_and_named(bert_folder):
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    rewrite(bert_folder, lambda state: state | {name: state[name].T.contiguous()})
    said = f"TMP/model: 1 tensors have another shape: {name} is (32, 48), expected (48, 32)"
    with pytest.raises(UserError, match=whole(said)):
        load_folder(str(bert_folder))


def test_a_tensor_that_is_not_finite_is_named(bert_folder):
    name = "bert.encoder.layer.1.intermediate.dense.weight"

    def with_one(state):
        state[name][3, 5] = math.nan
        return state

    rewrite(bert_folder, with_one)
    with pytest.raises(UserError, match=whole(f"TMP/model: 1 tensors are not finite: {name}")):
        load_folder(str(bert_folder))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"),
        ("bert.embeddings.LayerNorm.weight", "embeddings.LayerNorm.weight"),
    ],
)
def test_two_values_of_one_tensor_are_refused(bert_folder, name, other):
    """transformers takes the other one of them."""
    rewrite(bert_folder, lambda state: state | {other: state[name].clone()})
    load_folder(str(bert_folder))
    rewrite(bert_folder, lambda state: state | {other: 2 * state[name]})
    said = f"TMP/model: its weights have {name} under two names, with other values"
    with pytest.raises(UserError, match=whole(said)):
        load_folder(str(bert_folder))


@pytest.mark.parametrize(
    ("file", "dtype"),
    [
        ("model.safetensors", torch.int8),
        ("pytorch_model.bin", torch.uint8),
        ("model.safetensors", torch.bool),
    ],
)
def test_codes_that_no_setting_names_are_no_weights(bert_folder, file, dtype):
    """Some programs that quantize leave config.json as it was."""
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    rewrite(bert_folder, lambda state: state | {name: (127 * state[name]).to(dtype)})
    if file.endswith("bin"):
        state = load_file(bert_folder / "model.safetensors")
        torch.save(state, bert_folder / file)
        (bert_folder / "model.safetensors").unlink()
    with pytest.raises(
        UserError,
        match=whole(
            f"TMP/model: 1 tensors hold integers, like quantized weights: {name}; expected"
            " the unquantized model"
        ),
    ):
        load_folder(str(bert_folder))


def test_an_adapter_beside_the_weights_is_not_left_out(bert_folder):
    """The library adds it to them."""
    write_json(bert_folder / "adapter_config.json", {"peft_type": "LORA"})
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/model has an adapter beside its weights, which only PyTorch would "
            "apply: merge it into them (PEFT's merge_and_unload)"
        ),
    ):
        load_folder(str(bert_folder))


def test_a_head_of_which_a_part_is_missing(bert_folder):
    state = torch.load(bert_folder / "model.pt", weights_only=True)
    state.pop("c_head.1.output.dense.weight")
    torch.save(state, bert_folder / "model.pt")
    with pytest.raises(
        UserError, match=whole("TMP/model: 1 tensors are missing: c_head.1.output.dense.weight")
    ):
        load_folder(str(bert_folder), init_head_seed=0)


def test_the_head_that_is_there_is_read_as_it_is(bert_folder):
    write_json(bert_folder / "condenser.json", {"n_head_layers": 2, "skip_from": 2})
    config, _ = load_folder(str(bert_folder), n_head_layers=3, skip_from=1, init_head_seed=0)
    assert (config.n_head_layers, config.skip_from) == (2, 2)
    # What no head says, or no head is there for, is as asked.
    (bert_folder / "condenser.json").unlink()
    assert load_folder(str(bert_folder), skip_from=2)[0].skip_from == 2
    write_json(bert_folder / "condenser.json", {"n_head_layers": 2, "skip_from": 2})
    (bert_folder / "model.pt").unlink()
    config, _ = load_folder(str(bert_folder), n_head_layers=3, skip_from=1, init_head_seed=0)
    assert (config.n_head_layers, config.skip_from) == (3, 1)


def test_layers_that_the_config_does_not_have_are_reported(bert_folder, caplog):
    edit_config(bert_folder, num_hidden_layers=1)
    load_folder(str(bert_folder))
    layer = "bert.encoder.layer.1.attention.output"
    names = f"{layer}.LayerNorm.bias, {layer}.LayerNorm.weight, {layer}.dense.bias, ..."
    assert caplog.messages == [f"{bert_folder}: 16 tensors are not used: {names}"]


@pytest.fixture
def decoder(folder):
    """The name of a family's matrix after its MLM transformation, as transformers has it."""
    model = AutoModelForMaskedLM.from_pretrained(folder)
    last = model.get_output_embeddings()
    return next(name for name, module in model.named_modules() if module is last)


def test_an_untied_projection_is_refused(folder, decoder):
    n_words = len(load_folder(str(folder))[1]["embeddings"]["word"]["embedding"])
    rewrite(folder, lambda state: state | {f"{decoder}.weight": torch.ones(n_words, 32)})
    with pytest.raises(
        UserError,
        match=whole(
            f"TMP/model: {decoder}.weight differs from the word "
            "embeddings; only tied MLM projections are supported"
        ),
    ):
        load_folder(str(folder))


def test_a_decoder_bias_of_its_own_is_refused(folder, decoder):
    """transformers ties the two, and then takes one of them for both."""
    bias = f"{decoder.removesuffix('decoder')}bias"
    if bias == "bias":  # of ModernBERT's there is one alone
        return
    rewrite(folder, lambda state: state | {f"{decoder}.bias": state[bias].clone()})
    load_folder(str(folder))
    rewrite(folder, lambda state: state | {f"{decoder}.bias": state[bias] + 0.5})
    with pytest.raises(
        UserError,
        match=whole(
            f"TMP/model: {decoder}.bias differs from {bias};"
            " only one bias of the MLM projection is supported"
        ),
    ):
        load_folder(str(folder))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "distilbert"},
            (
                "TMP/model/config.json: model_type is 'distilbert'; expected bert or "
                "roberta or xlm-roberta or modernbert or mpnet"
            ),
        ),
        (
            {"position_embedding_type": "relative_key"},
            (
                "TMP/model/config.json: position_embedding_type is 'relative_key'; only "
                "'absolute' is supported"
            ),
        ),
        (
            {"hidden_act": "relu"},
            "TMP/model/config.json: hidden_act is 'relu'; only 'gelu' is supported",
        ),
        (
            {"is_decoder": True},
            "TMP/model/config.json: is_decoder is True; only False is supported",
        ),
        (
            {"hidden_size": None},
            "TMP/model/config.json: hidden_size is None; expected a whole number",
        ),
        (
            {"num_hidden_layers": ""},
            "TMP/model/config.json: num_hidden_layers is ''; expected a whole number",
        ),
        (
            {"num_hidden_layers": 1 << 31},
            "TMP/model: num_hidden_layers is 2147483648; expected a whole number from 1 to 1,000",
        ),
        (
            {"hidden_size": 0},
            "TMP/model: hidden_size is 0; expected a whole number from 1 to 10,000,000",
        ),
        (
            {"num_attention_heads": 5},
            "TMP/model: hidden_size 32 is not a multiple of num_attention_heads 5",
        ),
    ],
)
def test_networks_that_are_not_ours_are_refused(bert_folder, values, message):
    edit_config(bert_folder, **values)
    with pytest.raises(UserError, match=whole(message)):
        load_folder(str(bert_folder))


def test_nothing_that_is_loaded_is_executed(bert_folder, tmp_path):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    for name in ("pytorch_model.bin", "model.pt"):
        with (bert_folder / name).open("wb") as file:
            pickle.dump({"bert.x": Payload()}, file, protocol=2)
    with pytest.raises(UserError, match=r"cannot read .*model\.pt as a file of tensors"):
        load_folder(str(bert_folder))
    (bert_folder / "model.pt").unlink()
    (bert_folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"cannot read .*pytorch_model\.bin as a file of tensors"):
        load_folder(str(bert_folder))
    assert not (tmp_path / "executed").exists()


def test_broken_files_give_one_line(bert_folder):
    (bert_folder / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(UserError, match=r"cannot read .*model\.safetensors"):
        load_folder(str(bert_folder))
    (bert_folder / "model.safetensors").unlink()
    with pytest.raises(
        UserError,
        match=whole("TMP/model: no weights; expected model.safetensors or pytorch_model.bin"),
    ):
        load_folder(str(bert_folder))
    (bert_folder / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is not valid JSON"):
        load_folder(str(bert_folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "/no/such/folder",
            whole("/no/such/folder: no such folder, and not the name of a model on the hub"),
        ),
        ("nobody/no-such-model", "no network, and not in the hub's cache"),  # HF_HUB_OFFLINE is set
    ],
)
def test_models_that_are_nowhere(name, message):
    with pytest.raises(UserError, match=message) as error:
        load_folder(name)
    assert "\n" not in str(error.value)


MODERN = {
    **{"model_type": "modernbert", "vocab_size": 93, "hidden_size": 32, "num_attention_heads": 4},
    **{"num_hidden_layers": 4, "intermediate_size": 48, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "local_attention": 10, "norm_eps": 1e-6},
}
OLD = {"global_attn_every_n_layers": 2, "global_rope_theta": 1e5, "local_rope_theta": 1e3}
KINDS = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]


def ropes(global_base, local_base, kind="default"):
    bases = {"full_attention": global_base, "sliding_attention": local_base}
    factor = {} if kind == "default" else {"factor": 2.0}
    return {k: {"rope_theta": v, "rope_type": kind, **factor} for k, v in bases.items()}


@pytest.mark.parametrize("form", [OLD, {"layer_types": KINDS, "rope_parameters": ropes(1e5, 1e3)}])
def test_old_and_new_configs_of_modernbert_are_read_alike(tmp_path, form):
    config = ModelConfig(
        model_type="modernbert",
        vocab_size=93,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        layer_norm_eps=1e-6,
        local_attention=10,
        global_attn_every_n_layers=2,
        global_rope_theta=1e5,
        local_rope_theta=1e3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        skip_from=2,
    )
    params = init_params(config, 0)
    save_file(
        {k: torch.tensor(v) for k, v in to_tensors(params, config).items()},
        tmp_path / "model.safetensors",
    )
    write_json(tmp_path / "config.json", MODERN | form)
    read, again = load_folder(str(tmp_path))
    assert read == config
    assert equal(again, jax.tree.map(np.asarray, params))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        *(
            ({name: True}, f"TMP/config.json: {name} is True; only False is supported")
            for name in ("mlp_bias", "norm_bias", "attention_bias", "classifier_bias")
        ),
        ({"decoder_bias": False}, "TMP/config.json: decoder_bias is False; only True is supported"),
        (
            {"classifier_activation": "silu"},
            "TMP/config.json: classifier_activation is 'silu'; only 'gelu' is supported",
        ),
        (
            {"layer_types": KINDS[::-1]},
            f"TMP/config.json: layer_types is {KINDS[::-1]}; expected full_attention in every"
            " n-th from 0",
        ),
        (
            {"rope_parameters": ropes(1e5, 1e3, "linear")},
            "TMP/config.json: rope_type is 'linear'; expected 'default'",
        ),
        (
            {"hidden_activation": "silu"},
            "TMP/config.json: hidden_activation is 'silu'; only 'gelu' is supported",
        ),
    ],
)
def test_other_modernberts_are_refused(tmp_path, values, said):
    write_json(tmp_path / "config.json", MODERN | values)
    with pytest.raises(UserError, match=whole(said)):
        load_folder(str(tmp_path))


def test_what_transformers_does_not_read_ends_in_one_line(tmp_path):
    write_json(tmp_path / "config.json", MODERN | {"norm_eps": "small"})
    with pytest.raises(UserError, match=r"^/\S+/config\.json: .*norm_eps") as error:
        load_folder(str(tmp_path))
    assert "\n" not in str(error.value)


def test_weights_of_a_type_that_numpy_lacks_end_in_one_line(bert_folder):
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    rewrite(bert_folder, lambda state: state | {name: state[name].to(torch.float8_e4m3fn)})
    with pytest.raises(UserError, match=r"cannot read .*model\.safetensors: .*float8_e4m3fn"):
        load_folder(str(bert_folder))
