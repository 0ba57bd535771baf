"""Models that are known by their names, where their folders are silent."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from cocondenser_jax.model_folder.folder import read_representation
from cocondenser_jax.model_folder.known_models import find_known_model
from cocondenser_jax.model_folder.modules import SETTINGS
from cocondenser_jax.representation import AS_IN_PAPERS, Given
from cocondenser_jax.retriever.search.models import load_retriever
from tests.world import WORDS

TEXTS = [" ".join(WORDS[:4]), " ".join(WORDS[2:9])]
TO_SEARCH = "Represent this sentence for searching relevant passages: "
OF_E5 = {"query": "query: ", "document": "passage: "}


@pytest.mark.parametrize(
    ("name", "prompts", "scale"),
    [
        *(
            (f"e5-{size}{version}", OF_E5, 100)
            for size in ("small", "large")
            for version in ("", "-v2")
        ),
        ("multilingual-e5-small", OF_E5, 100),
        ("bge-small-en-v1.5", {"query": TO_SEARCH}, 0),
        ("bge-large-zh", {"query": "为这个句子生成表示以用于检索相关文章："}, 0),
        (
            "nomic-embed-text-v1.5",
            {"query": "search_query: ", "document": "search_document: "},
            0,
        ),
        ("modernbert-embed-base", {"query": "search_query: ", "document": "search_document: "}, 0),
        ("snowflake-arctic-embed-m-v1.5", {"query": TO_SEARCH}, 0),
        ("snowflake-arctic-embed-xs", {"query": TO_SEARCH}, 0),
        ("Snowflake-Arctic-Embed-L-v2.0", {"query": "query: "}, 0),
        ("mxbai-embed-large-v1", {"query": TO_SEARCH}, 0),
        ("mdbr-leaf-mt", {"query": TO_SEARCH}, 0),
    ],
)
def test_prompts_and_scale_by_name(name, prompts, scale):
    found, known = find_known_model(["models", name])
    said = {"query": known.prompts.query_prompt, "document": known.prompts.passage_prompt}
    assert found == name
    assert {task: text for task, text in said.items() if text} == prompts
    assert known.scale == scale


@pytest.mark.parametrize(
    "name",
    ["bge-m3", "bge-reranker-base", "e5-mistral-7b-instruct", "multilingual-e5-large-instruct"],
)
def test_other_models_of_the_same_makers_are_not_taken_for_them(name):
    assert find_known_model([name, f"my-{name}", "e5-small-v2-finetuned"]) is None


@pytest.fixture
def published(model_folder, tmp_path):
    """Makes a folder with modules, at a path, with what its settings say."""

    def make(path, settings, origin=None):
        folder = tmp_path / path
        modules = [Transformer(str(model_folder)), Pooling(32, "mean"), Normalize()]
        SentenceTransformer(modules=modules).save_pretrained(str(folder))
        (folder / SETTINGS).write_text(json.dumps(settings))
        if origin:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": origin}))
        return folder

    return make


def lines(caplog):
    name = "cocondenser_jax.model_folder.folder"
    return [record.getMessage() for record in caplog.records if record.name == name]


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("e5-small-v2", None),
        ("hub/models--intfloat--e5-small-v2/snapshots/0123abc", None),
        ("mine", "intfloat/e5-small-v2"),
        ("mine", "./e5-small-v2/"),
    ],
)
def test_a_silent_folder_has_the_prompts_of_its_name(published, caplog, path, origin):
    folder = published(path, {}, origin)
    library = SentenceTransformer(str(folder), prompts=OF_E5)
    for _ in range(2):
        model = load_retriever(folder)
    for ours, theirs in (
        (model.encode_query, library.encode_query),
        (model.encode_document, library.encode_document),
    ):
        np.testing.assert_allclose(ours(TEXTS), theirs(TEXTS), atol=1e-6)
    assert read_representation(folder).score_scale == 100
    (line,) = lines(caplog)  # said once
    assert "those of e5-small-v2 are used, 'query: ' for queries and 'passage: ' for" in line
    assert "--query_prompt and --passage_prompt" in line


def test_what_the_folder_or_the_user_says_goes_before_what_is_known(published, caplog):
    own = published("e5-base", {"prompts": {"query": "q: "}})
    assert dict(read_representation(own).prompts) == {"query": "q: "}
    none = published("mine", {"prompts": {}}, "intfloat/e5-base")  # trained further, without
    assert read_representation(none).prompts == ()
    assert not lines(caplog)
    silent = published("e5-large", {"prompts": {"query": "", "document": None}})
    given = read_representation(silent, Given(query_prompt="", passage_prompt="p: "))
    assert dict(given.prompts) == {"document": "p: "}
    assert not lines(caplog)
    assert dict(read_representation(silent, Given(query_prompt="")).prompts) == {
        "document": "passage: "
    }


def test_pooling_and_similarity_of_a_known_folder_without_modules(model_folder, tmp_path, caplog):
    for name, expected in (("contriever", ("mean", "dot")), ("co-condenser-marco", ("cls", "dot"))):
        folder = shutil.copytree(model_folder, tmp_path / name)
        for plain in (Given(), AS_IN_PAPERS):
            found = read_representation(folder, plain=plain)
            assert (found.pooling, found.similarity) == expected
        (line,) = lines(caplog)
        assert f"are assumed, as in {name}; --pooling and --similarity" in line
        caplog.clear()
        cosine = read_representation(folder, Given(similarity="cosine"))
        assert (cosine.pooling, cosine.similarity) == (expected[0], "cosine")
    assert read_representation(model_folder, plain=AS_IN_PAPERS).pooling == "cls"
