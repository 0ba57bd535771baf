"""Each backbone from text to a checkpoint that PyTorch agrees with; one of them from end to end.

And each family's record, beside the classes of transformers.
"""

import inspect
import json
import shutil

import jax
import numpy as np
import pytest
import transformers

from checks.verify import main as verify
from cocondenser_jax.backbones import (
    _OTHERS_OFFSET_BY_PADDING,
    BACKBONES,
    find_backbone,
    first_position,
)
from cocondenser_jax.cli import main
from cocondenser_jax.convert.from_torch import load_folder, read_shape
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.representation import AS_IN_PAPERS
from tests.lines import whole
from tests.world import write_records

pytestmark = pytest.mark.usefixtures("one_length")

WORDS = "The CLS vector has to carry meaning of whole passage Early layers know words text".split()
SIZES = (
    "model.hidden_size=32 model.num_hidden_layers=3 model.num_attention_heads=4 model.skip_from=1"
    " model.intermediate_size=48 model.max_position_embeddings=26 model.n_head_layers=1"
    " data.length=24 data.batch_size=8 train.chunk_size=0 train.dtype=float32 train.steps=1"
    " probe.every=0"
).split()


@pytest.fixture
def store(research_folder, tmp_path):
    """Twelve documents, with the tokenizer of a published model of this type."""
    rng = np.random.default_rng(0)
    texts = (". ".join(" ".join(rng.choice(WORDS, 8)) for _ in range(9)) + "." for _ in range(12))
    source, out = tmp_path / "text.jsonl", tmp_path / "store"
    write_records(source, ({"text": text} for text in texts))
    command = ["corpus", f"--corpus={source}", f"--tokenizer={research_folder}", f"--out={out}"]
    assert main([*command, "--max_length=24"]) == 0
    return out


@pytest.fixture
def pretrain(store):
    """The command of a run of one step, without its folder."""
    command = ["pretrain", "--config=configs/default.py", f"--config.data.store={store}"]
    return [*command, *(f"--config.{setting}" for setting in SIZES)]


# BERT's run is verified in tests/checks/test_verify.py, RoBERTa's beside PyTorch in
# tests/pretrain/test_loop.py.
@pytest.mark.parametrize("model_type", ["xlm-roberta", "modernbert", "mpnet"], indirect=True)
def test_a_family_from_text_to_what_pytorch_computes(model_type, pretrain, tmp_path):
    scratch = tmp_path / "scratch"
    assert main([*pretrain, f"--workdir={scratch}", f"--config.model.model_type={model_type}"]) == 0
    assert load_run(scratch)[0].model_type == model_type
    assert verify([f"--run_dir={scratch}", "--documents=2"]) == 0
    if model_type == "modernbert":
        assert_model_goes_on(scratch, pretrain, tmp_path)


def assert_model_goes_on(scratch, pretrain, tmp_path):
    """Converts a run, and goes on from the model with a rate of 0: all weights stay."""
    model, again = tmp_path / "model", tmp_path / "again"
    assert main(["convert", f"--run_dir={scratch}", f"--out={model}"]) == 0
    pretrain = [*pretrain, f"--config.warm_start={model}", "--config.optimizer.learning_rate=0"]
    assert main([*pretrain, f"--workdir={again}"]) == 0
    config, params, _ = load_run(scratch)
    for found, others in (load_folder(str(model)), load_run(again)[:2]):
        assert found == config
        for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_record_of_a_family_is_what_transformers_builds(model_type, research_folder):
    backbone = BACKBONES[model_type]
    assert find_backbone(model_type) == backbone
    model = transformers.AutoModel.from_pretrained(research_folder)
    names = [*model.state_dict()]
    modules = dict(model.named_modules())

    def some(word):
        return any(word in name for name in names)

    assert backbone.biases == some(".bias")
    assert backbone.token_types == some("token_type_embeddings")
    assert backbone.position_table == some("position_embeddings")
    assert (backbone.relative_bias > 0) == some("relative_attention_bias")
    if backbone.relative_bias:
        assert backbone.relative_bias == model.encoder.relative_attention_bias.num_embeddings
    assert backbone.final_norm == some("final_norm")
    assert backbone.rotary == any("Rotary" in type(module).__name__ for module in modules.values())
    assert backbone.local_attention == hasattr(model.config, "local_attention")
    assert backbone.pooler == ("add_pooling_layer" in inspect.signature(type(model)).parameters)
    first = next(x for name, x in modules.items() if name.endswith(("intermediate.dense", "Wi")))
    assert first.out_features == 48 * (2 if backbone.gated else 1)
    assert getattr(transformers, backbone.tokenizer_class)


@pytest.mark.parametrize(
    "model_type",
    [*BACKBONES, *_OTHERS_OFFSET_BY_PADDING, "distilbert", "electra", "deberta-v2", "mobilebert"],
)
def test_positions_start_where_those_of_transformers_do(model_type):
    config = transformers.AutoConfig.for_model(
        model_type,
        **{"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9},
        **{"intermediate_size": 8, "pad_token_id": 3},
    )
    model = transformers.AutoModel.from_config(config)
    tables = [x for name, x in model.named_modules() if name.endswith("position_embeddings")]
    unused = tables[0].padding_idx if tables else None
    assert first_position(model_type, 3) == (0 if unused is None else unused + 1)


def test_what_transformers_fixes_of_mpnet_is_refused(research_folders, tmp_path):
    folder = shutil.copytree(research_folders["mpnet"], tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())

    def shape(**changes):
        (folder / "config.json").write_text(json.dumps(values | changes))
        return read_shape(open_model(folder, plain=AS_IN_PAPERS))

    assert shape(pad_token_id=None).pad_token_id == 1
    with pytest.raises(UserError, match=whole("TMP/model: pad_token_id is 3; mpnet models need 1")):
        shape(pad_token_id=3)
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/model/config.json: relative_attention_num_buckets is 64; only 32 is supported"
        ),
    ):
        shape(relative_attention_num_buckets=64)


def test_what_names_no_backbone():
    assert [find_backbone(value) for value in ("t5", "", None, [], {})] == [None] * 5
    assert first_position("t5", None) == 0


def test_all_families_whose_positions_start_behind_padding_are_known():
    """Written out: the tests above have the names of the package's own tuple."""
    names = "camembert data2vec-text esm ibert layoutlmv3 lilt longformer luke markuplm"
    names += " mpnet roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod"
    assert {name: first_position(name, 1) for name in names.split()} == dict.fromkeys(
        names.split(), 2
    )
