"""What a model folder's vectors are, in sentence-transformers' words and in ours."""

import dataclasses
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from cocondenser_jax.convert.from_torch import load_folder, read_shape
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import read_json, write_json
from cocondenser_jax.model_folder import model as model_module
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import AS_IN_PAPERS, SPELLINGS, Representation
from tests.lines import whole
from tests.world import encode_in_flax, write_retriever


@pytest.fixture
def bert_folder(research_folders, tmp_path):
    return Path(shutil.copytree(research_folders["bert"], tmp_path / "model"))


SHORT = Representation("mean", sizes=(8,))
# Of inner products: vectors of length 1 lose it where they are cut.
CASES = SPELLINGS | {"mean-8": SHORT, "mean-unit-8": SHORT._replace(normalized=True)}


@pytest.mark.parametrize("representation", CASES.values(), ids=CASES)
def test_a_representation_goes_to_sentence_transformers_and_back(
    bert_folder, representation, monkeypatch
):
    config, params = load_folder(str(bert_folder))
    config = dataclasses.replace(config, representation=representation)
    out = bert_folder.parent / "out"
    export_folder(params, config, bert_folder, out, {})
    assert read_shape(open_model(out, plain=AS_IN_PAPERS)).representation == representation
    # The folder names a limit, that of the network's positions.
    assert open_model(out).representation == representation._replace(max_length=24)
    model = SentenceTransformer(str(out))
    assert model.similarity_fn_name == representation.similarity
    saved = bert_folder.parent / "saved"
    model.save_pretrained(str(saved))  # the names of today's release
    assert read_shape(open_model(saved, plain=AS_IN_PAPERS)).representation == representation
    assert (
        load_folder(str(saved), n_head_layers=0, init_head_seed=0)[0].representation
        == representation
    )
    texts = ["the words of a text", "another"]
    tokens = model.tokenizer(texts, padding=True, return_tensors="np")
    ours = encode_in_flax(config, params, tokens["input_ids"], tokens["attention_mask"])
    np.testing.assert_allclose(model.encode(texts), ours, rtol=0, atol=1e-5)

    assert_programs_of_the_card_agree(out, monkeypatch)


@pytest.mark.parametrize("task", ["document", "query"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_card_leaves_out_prompts_that_are_not_pooled(bert_folder, pooling, task, monkeypatch):
    config, params = load_folder(str(bert_folder))
    representation = Representation(pooling, prompts=((task, "the words "),), include_prompt=False)
    config = dataclasses.replace(config, representation=representation)
    out = bert_folder.parent / "out"
    export_folder(params, config, bert_folder, out, {})
    card = (out / "README.md").read_text()
    assert "(without [CLS] and the prompt where it has one)" in card
    assert_programs_of_the_card_agree(out, monkeypatch)


def test_the_card_says_what_comes_before_texts(bert_folder, monkeypatch):
    config, params = load_folder(str(bert_folder))
    prompts = (("query", "the\n"), ("passage", 'words "a": '))
    config = dataclasses.replace(config, representation=Representation("mean", prompts=prompts))
    out = bert_folder.parent / "out"
    export_folder(params, config, bert_folder, out, {})
    card = (out / "README.md").read_text()
    assert 'Queries begin with `"the\\n"`, passages with `"words \\"a\\": "`.' in card
    assert_programs_of_the_card_agree(out, monkeypatch)


@pytest.mark.parametrize(
    ("pooling", "said"),
    [
        ({"pooling_mode": "max"}, "pools by max; expected cls or mean"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            "pools by max+mean; expected cls or mean",
        ),
        (
            None,
            "has a Dense layer that ends in torch.nn.modules.activation.Softsign; expected"
            " Identity, Tanh, ReLU, GELU of torch.nn",
        ),
    ],
)
def test_other_vectors_are_refused_unless_the_settings_name_one(bert_folder, pooling, said):
    folder = bert_folder.parent / "published"
    layers = [] if pooling else [{"out_features": 8, "activation_function": torch.nn.Softsign()}]
    write_retriever(bert_folder, folder, "cls", layers)
    if pooling:
        write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32} | pooling)
    options = {"n_head_layers": 0, "init_head_seed": 0}
    with pytest.raises(
        UserError, match=whole(f"TMP/published {said} (or --config.model.representation=cls)")
    ):
        load_folder(str(folder), **options)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "the words: "}})
    mean = SPELLINGS["mean"]
    config, _ = load_folder(str(folder), representation=mean, **options)
    assert config.representation == mean._replace(prompts=(("query", "the words: "),))


IDENTITY = torch.nn.Identity()
LAYERS = [  # LaBSE's, leaf's and EmbeddingGemma's
    ("cls", [{"out_features": 32}, True]),
    ("mean", [{"out_features": 48, "bias": False, "activation_function": IDENTITY}]),
    ("mean", [{"out_features": 64}, {"out_features": 16, "bias": False}, True]),
]


@pytest.mark.parametrize(
    ("pooling", "layers", "size"), [(*LAYERS[0], None), (*LAYERS[1], 12), (*LAYERS[2], 12)]
)
def test_dense_layers_go_from_sentence_transformers_and_back(
    research_folders, tmp_path, monkeypatch, pooling, layers, size
):
    published = tmp_path / "published"
    write_retriever(research_folders["bert"], published, pooling, layers, truncate_dim=size)
    config, params = load_folder(str(published), n_head_layers=0, init_head_seed=0)
    assert config.vector_size == (size or layers[-2 if layers[-1] is True else -1]["out_features"])
    out = tmp_path / "out"
    export_folder(params, config, published, out, {})
    again, back = load_folder(str(out), n_head_layers=0)
    cosine = config.representation._replace(normalized=True)  # as it is written
    assert again == dataclasses.replace(config, representation=cosine)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(one, other)
    for path in published.glob("*_Dense/model.safetensors"):
        exported = load_file(out / path.relative_to(published))
        for name, value in load_file(path).items():
            assert torch.equal(exported.pop(name), value)
        assert not exported
    assert not [name for name in load_file(out / "model.safetensors") if "linear" in name]

    texts = ["a text", "another text"]  # of the card
    models = [SentenceTransformer(str(folder)) for folder in (published, out)]
    assert models[1].truncate_dim == size
    before, after = (model.encode(texts, normalize_embeddings=True) for model in models)
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)
    program = card_program(out, "transformers", monkeypatch)
    np.testing.assert_allclose(program["vectors"].detach(), before, rtol=0, atol=1e-5)


def test_the_card_cuts_vectors_to_their_first_size(bert_folder, monkeypatch):
    config, params = load_folder(str(bert_folder))
    config = dataclasses.replace(config, representation=SHORT._replace(sizes=(20, 8)))
    out = bert_folder.parent / "out"
    export_folder(params, config, bert_folder, out, {})
    assert card_program(out, "transformers", monkeypatch)["vectors"].shape[1] == 20


def assert_programs_of_the_card_agree(folder, monkeypatch):
    """Runs both programs of a model's card, and compares their vectors."""
    libraries = "sentence_transformers", "transformers"
    vectors, with_transformers = (
        card_program(folder, library, monkeypatch)["vectors"] for library in libraries
    )
    np.testing.assert_allclose(vectors, with_transformers.detach(), rtol=0, atol=1e-5)


def card_program(folder, library, monkeypatch):
    """Runs the program of a model's card that uses a library; returns its names."""
    monkeypatch.chdir(folder.parent)  # the card names the model by its folder
    programs = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len(programs) == 2
    names = {}
    exec(next(each for each in programs if f"\nfrom {library} import" in f"\n{each}"), names)
    return names


@pytest.fixture
def labse(research_folders, tmp_path):
    return write_retriever(research_folders["bert"], tmp_path / "labse", *LAYERS[0])


@pytest.mark.parametrize(
    ("file", "dtype"), [("model.safetensors", torch.bfloat16), ("pytorch_model.bin", torch.float16)]
)
def test_a_dense_layer_is_read_from_either_file_and_in_any_precision(labse, dtype, file):
    exact = load_file(labse / "2_Dense" / "model.safetensors")
    (labse / "2_Dense" / "model.safetensors").unlink()
    stored = {name: value.to(dtype) for name, value in exact.items()}
    save = save_file if file.endswith("safetensors") else torch.save
    save(stored, labse / "2_Dense" / file)
    _, params = load_folder(str(labse), n_head_layers=0, init_head_seed=0)
    kernel = params["dense_0"]["kernel"]
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, stored["linear.weight"].float().numpy().T)
    np.testing.assert_array_equal(params["dense_0"]["bias"], stored["linear.bias"].float())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"in_features": 16}, "cannot be loaded as a bi-encoder"),
        ({"out_features": 8}, "cannot be loaded as a bi-encoder"),
        (
            {"use_residual": True},
            whole("TMP/labse has a Dense module with use_residual True; expected False"),
        ),
        (
            {"module_input_name": "token_embeddings"},
            whole(
                "TMP/labse has a Dense module with module_input_name 'token_embeddings'; "
                "expected 'sentence_embedding'"
            ),
        ),
        (None, "cannot be loaded as a bi-encoder"),
    ],
)
def test_a_dense_layer_that_cannot_be_computed_is_refused(labse, changes, said):
    config = labse / "2_Dense" / "config.json"
    if changes is None:
        (labse / "2_Dense" / "model.safetensors").unlink()
    else:
        write_json(config, read_json(config) | changes)
    with pytest.raises(UserError, match=said):
        load_folder(str(labse), n_head_layers=0, init_head_seed=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"in_features": 16}, "a Dense layer makes 32 numbers of 16, but the vectors before it"),
        ({"out_features": 8}, r"2 tensors have another shape: dense\.0\.linear\.bias is \(32,\)"),
        (
            {"activation_function": "own.code.Tanh"},
            r"ends in own\.code\.Tanh; expected Identity, Tanh, ReLU, GELU of torch\.nn",
        ),
        (None, "2_Dense: no weights; expected model.safetensors or pytorch_model.bin"),
    ],
)
def test_without_pytorch_such_a_dense_layer_is_refused_too(labse, changes, said, monkeypatch):
    monkeypatch.setattr(model_module, "has_pytorch", lambda: False)
    test_a_dense_layer_that_cannot_be_computed_is_refused(labse, changes, said)
