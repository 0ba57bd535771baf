"""What a model's vectors are, beside what sentence-transformers makes of the same files."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)

from cocondenser_jax import representation as module
from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import (
    MODULES,
    SETTINGS,
    SPELLINGS,
    Representation,
    from_files,
    from_json,
    json_files,
    passage_prompt,
    to_files,
    to_json,
)
from cocondenser_jax.storage.files import write_json
from cocondenser_jax.storage.model_folder import read_representation

EVERYTHING = Representation(
    pooling="mean",
    dense=(
        module.Dense(32, 48),
        module.Dense(48, 16, bias=False, activation="torch.nn.modules.linear.Identity"),
    ),
    normalized=True,
    similarity="cosine",
    sizes=(8,),
    prompts=(("document", "passage: "), ("query", "query: ")),
)


@pytest.fixture(scope="module")
def saved(research_folders, tmp_path_factory):
    """A folder of the library with every module that the record describes."""
    backbone = Transformer(str(research_folders["bert"]), model_kwargs={"add_pooling_layer": False})
    identity = torch.nn.Identity()
    layers = [Dense(32, 48), Dense(48, 16, bias=False, activation_function=identity), Normalize()]
    model = SentenceTransformer(
        modules=[backbone, Pooling(32, "mean"), *layers],
        prompts=dict(EVERYTHING.prompts),
        truncate_dim=8,
    )
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(str(folder))
    return folder


def test_a_folder_of_the_library_is_described(saved):
    assert read_representation(saved) == EVERYTHING


def test_the_files_that_are_written_make_the_same_model(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    before = SentenceTransformer(str(saved))
    for name in [MODULES, *json_files(json.loads((saved / MODULES).read_text()))]:
        (folder / name).unlink(missing_ok=True)
    described = EVERYTHING._replace(max_length=20)
    files = to_files(described, 32, 24, {"add_pooling_layer": False})
    for name, content in files.items():
        write_json(folder / name, content)
    assert read_representation(folder) == described
    model = SentenceTransformer(str(folder))
    assert model.max_seq_length == 20
    assert (model.similarity_fn_name, model.truncate_dim) == ("cosine", 8)
    texts = ["words", "late"]
    for encode in ("encode_query", "encode_document"):
        vectors = getattr(model, encode)(texts)
        np.testing.assert_array_equal(vectors, getattr(before, encode)(texts))
        assert vectors.shape == (2, 8)


def test_what_a_folder_says_of_pooling_and_similarity():
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}]
    pooling = {"1/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}}

    def read(modules, **settings):
        return from_files(modules, {**pooling, SETTINGS: settings})

    assert read(modules, similarity_fn_name="dot") == SPELLINGS["mean"]
    for silent in (read(modules), read(modules, similarity_fn_name=None)):
        assert silent == SPELLINGS["mean"]._replace(similarity="cosine")
    named = read(modules, similarity_fn_name="cosine")
    assert (named.normalized, named.is_cosine, named.score_scale) == (False, True, 20.0)
    normalized = read([*modules, {"type": "x.Normalize", "path": "2"}], similarity_fn_name="dot")
    assert (normalized.similarity, normalized.is_cosine) == ("dot", True)
    plain = read(None, similarity_fn_name="cosine", prompts={"query": "q: ", "document": ""})
    assert plain == Representation(prompts=(("query", "q: "),))


def test_passages_have_the_first_prompt_that_is_not_empty():
    assert passage_prompt({"query": "q: "}) == ""
    assert passage_prompt({"document": "", "passage": "p: ", "corpus": "c: "}) == "p: "
    assert passage_prompt({"passage": "p: ", "document": "d: "}) == "d: "


def test_the_scale_is_one_for_inner_products_twenty_for_cosines_or_as_given():
    scales = {name: each.score_scale for name, each in SPELLINGS.items()}
    assert scales == {"cls": 1.0, "mean": 1.0, "cls-cosine": 20.0, "mean-cosine": 20.0}
    assert SPELLINGS["mean-cosine"]._replace(scale=100.0).score_scale == 100.0


@pytest.mark.parametrize("given", [*SPELLINGS.values(), EVERYTHING])
def test_json_holds_every_field(given):
    values = json.loads(json.dumps(to_json(given)))
    assert values.keys() == Representation._field_defaults.keys()
    assert from_json(values) == given
    assert hash(from_json(values)) == hash(given)


@pytest.mark.parametrize(
    "change",
    [
        {"pooling": 1},
        {"normalized": "yes"},
        {"similarity": "euclidean"},
        {"scale": "1"},
        {"dense": [{}]},
        {"dense": 1},
        {"prompts": []},
        {"sizes": None},
        {"color": "red"},
    ],
)
def test_other_values_are_no_representation(change):
    with pytest.raises(ValueError, match="is no representation"):
        from_json({**to_json(EVERYTHING), **change})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (MODULES, [{"type": "x.Router", "path": ""}], "makes its vectors by Router; expected"),
        (MODULES, [], "makes its vectors by no modules; expected Transformer, Pooling"),
        (MODULES, [{"path": ""}], "has a modules.json without the type and path"),
        (MODULES, {"type": "x"}, "has a modules.json without the type and path"),
        (
            SETTINGS,
            {"similarity_fn_name": "euclidean"},
            "compares vectors by 'euclidean'; expected",
        ),
        (SETTINGS, [], f"has no JSON object in {SETTINGS}"),
        (SETTINGS, {"prompts": ["query"]}, f"has no JSON object in {SETTINGS}: prompts"),
        (SETTINGS, {"truncate_dim": "8"}, f"has a {SETTINGS} where truncate_dim is '8'; expected"),
        ("1_Pooling/config.json", None, "has no JSON object in 1_Pooling/config.json"),
        ("2_Dense/config.json", {"in_features": 3}, "has a Dense module without in_features and"),
        (
            "sentence_bert_config.json",
            {"max_seq_length": 0},
            "has a sentence_bert_config.json where",
        ),
    ],
)
def test_a_folder_that_is_none_of_the_librarys_ends_in_one_line(
    saved, tmp_path, name, content, said
):
    folder = shutil.copytree(saved, tmp_path / "model")
    write_json(folder / name, content)
    with pytest.raises(UserError, match=re.escape(f"{folder} {said}")):
        read_representation(folder)
