"""What a model's vectors are, beside what sentence-transformers makes of the same files."""

import copy
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
    Router,
    Transformer,
)

from cocondenser_jax import representation as module
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import read_object, write_json
from cocondenser_jax.model_folder import model as model_module
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.model_folder.modules import MODULES, SETTINGS, from_files, to_files
from cocondenser_jax.representation import (
    SPELLINGS,
    Given,
    Representation,
    from_json,
    is_falling,
    join_title,
    passage_prompt,
    query_prompt,
    title_separator,
    to_json,
    with_given,
)
from cocondenser_jax.retriever.search.models import load, load_retriever, towers
from tests.lines import whole
from tests.world import write_retriever

EVERYTHING = Representation(
    pooling="mean",
    dense=(
        module.Dense(32, 48),
        module.Dense(48, 16, bias=False, activation="torch.nn.modules.linear.Identity"),
    ),
    normalized=True,
    similarity="cosine",
    sizes=(8,),
    prompts=(("query", "query: "), ("document", "passage: ")),
    default_prompt="query",
    include_prompt=False,
    max_length=24,  # the network's positions
    query_length=17,
)


@pytest.fixture(scope="module")
def saved(research_folders, tmp_path_factory):
    """A folder of the library with every module that the record describes."""
    backbone = Transformer(
        str(research_folders["bert"]), model_kwargs={"add_pooling_layer": False}, query_length=17
    )
    identity = torch.nn.Identity()
    layers = [Dense(32, 48), Dense(48, 16, bias=False, activation_function=identity), Normalize()]
    model = SentenceTransformer(
        modules=[backbone, Pooling(32, "mean", include_prompt=False), *layers],
        prompts=dict(EVERYTHING.prompts),
        default_prompt_name="query",
        truncate_dim=8,
    )
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_of_the_library_is_described(saved, monkeypatch, is_there):
    monkeypatch.setattr(model_module, "has_pytorch", lambda: is_there)
    found = open_model(saved).representation
    assert dict(found.prompts) == dict(EVERYTHING.prompts)
    assert found._replace(prompts=EVERYTHING.prompts) == EVERYTHING


@pytest.mark.parametrize("is_there", [True, False])
def test_a_size_that_leaves_nothing_out_is_no_cut(
    saved, research_folders, tmp_path, monkeypatch, is_there
):
    """Vectors that a Normalize module ends keep their length."""
    plain = write_retriever(research_folders["bert"], tmp_path / "plain", "mean")
    monkeypatch.setattr(model_module, "has_pytorch", lambda: is_there)
    for source, full_size in ((saved, 16), (plain, 32)):
        folder = shutil.copytree(source, tmp_path / str(full_size))
        settings = read_object(folder / SETTINGS) | {"similarity_fn_name": "dot"}
        for size, sizes in ((full_size, ()), (full_size - 1, (full_size - 1,))):
            write_json(folder / SETTINGS, settings | {"truncate_dim": size})
            assert open_model(folder).representation.sizes == sizes
    assert open_model(tmp_path / "16").representation.normalized


def test_the_files_that_are_written_make_the_same_model(saved, tmp_path, monkeypatch):
    folder = shutil.copytree(saved, tmp_path / "model")
    before = SentenceTransformer(str(saved))
    for path in folder.rglob("*.json"):
        if not path.name.startswith("tokenizer") and path != folder / "config.json":
            path.unlink()
    described = EVERYTHING._replace(max_length=20, passage_length=18, scale=50.0)
    files = to_files(described, 32, 24, has_pooler=True)
    shutil.copy(
        saved / "tokenizer_config.json", folder
    )  # what that says of the length is overruled
    for name, content in files.items():
        write_json(folder / name, content)
    for is_there in (True, False):
        monkeypatch.setattr(model_module, "has_pytorch", lambda is_there=is_there: is_there)
        assert open_model(folder).representation == described
    model = SentenceTransformer(str(folder))
    assert model.max_seq_length == 20
    assert (model.similarity_fn_name, model.truncate_dim) == ("cosine", 8)
    texts = ["words", "late"]
    assert not np.array_equal(model.encode(texts), model.encode(texts, prompt=""))
    for encode in ("encode_query", "encode_document", "encode"):
        vectors = getattr(model, encode)(texts)
        np.testing.assert_array_equal(vectors, getattr(before, encode)(texts))
        assert vectors.shape == (2, 8)
    long = "Early layers know the words, late layers know the text."
    np.testing.assert_array_equal(model.encode_query(long), before.encode_query(long))
    assert not np.array_equal(model.encode_document(long), before.encode_document(long))
    before[0].document_length = 18
    np.testing.assert_array_equal(model.encode_document(long), before.encode_document(long))


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_the_prompt_of_passages_has_the_name_that_the_library_looks_up(name):
    """With "passage" alone, what it reads would lack the prompt that training put there."""
    files = to_files(
        Representation(prompts=((name, "text: "), ("query", "q: "))), 32, 24, has_pooler=False
    )
    prompts = files[SETTINGS]["prompts"]
    assert prompts == {name: "text: ", "query": "q: ", "document": "text: "}
    assert to_files(Representation(), 32, 24, has_pooler=False)[SETTINGS]["prompts"] == {}


def test_what_is_cut_is_written_at_its_first_size_alone():
    """The others are of the training."""
    for sizes, expected in (((24, 8), 24), ((32, 8), None), ((), None)):
        files = to_files(Representation(sizes=sizes), 32, 24, has_pooler=False)
        assert files[SETTINGS].get("truncate_dim") == expected


@pytest.mark.parametrize("scale", [0, -1.0, "20", True, float("nan"), float("inf"), None])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_scale_that_is_no_positive_number_is_refused(
    saved, tmp_path, monkeypatch, scale, is_there
):
    monkeypatch.setattr(model_module, "has_pytorch", lambda: is_there)
    folder = shutil.copytree(saved, tmp_path / "model")
    settings = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps(settings | {"score_scale": scale}))
    said = rf"{SETTINGS} where score_scale is {scale!r}; expected a number above 0"
    with pytest.raises(UserError, match=said):
        open_model(folder)


@pytest.mark.parametrize("kind", ["SparseEncoder", "x", None])
def test_a_model_of_another_kind_is_refused(saved, tmp_path, kind):
    """sentence-transformers would take its network alone, and pool by the mean."""
    folder = shutil.copytree(saved, tmp_path / "model")
    settings = json.loads((folder / SETTINGS).read_text())
    write_json(folder / SETTINGS, settings | {"model_type": kind})
    with pytest.raises(
        UserError,
        match=whole(
            f"TMP/model is a {kind!r} by its config_sentence_transformers.json; expected"
            " SentenceTransformer"
        ),
    ):
        open_model(folder)


def test_a_folder_without_modules_has_no_settings(research_folders, tmp_path):
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    expected = SentenceTransformer(str(folder)).encode_query(["early layers"])
    write_json(folder / SETTINGS, {"prompts": {"query": "words know "}, "truncate_dim": 8})
    np.testing.assert_array_equal(
        SentenceTransformer(str(folder)).encode_query(["early layers"]), expected
    )
    assert open_model(folder).representation == open_model(research_folders["bert"]).representation


def test_a_network_that_the_library_cannot_name_is_refused(research_folders, tmp_path):
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"architectures": True})
    with pytest.raises(
        UserError,
        match=whole("TMP/model has a config.json where architectures is True; expected a list"),
    ):
        open_model(folder)


@pytest.mark.parametrize(("said", "expected"), [([], False), (0, False), ("no", True)])
def test_any_truth_value_includes_a_prompt_as_in_the_library(saved, tmp_path, said, expected):
    folder = shutil.copytree(saved, tmp_path / "model")
    path = folder / "1_Pooling" / "config.json"
    write_json(path, json.loads(path.read_text()) | {"include_prompt": said})
    assert open_model(folder).representation.include_prompt is expected


def test_what_is_scaled_to_length_1_is_the_vector_of_the_text(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    path = folder / "4_Normalize" / "config.json"
    said = json.loads(path.read_text())
    for name in ("module_input_name", "module_output_name"):
        assert said[name] == "sentence_embedding"
        write_json(path, said | {name: "token_embeddings"})
        with pytest.raises(
            UserError,
            match=whole(
                f"TMP/model has a Normalize module with {name} 'token_embeddings'; expected"
                " 'sentence_embedding'"
            ),
        ):
            open_model(folder)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(24, 24), (10**30, None), (0, None), (24.0, None), (None, None)],  # 10**30 means no limit
)
def test_texts_are_limited_by_the_tokenizer_only_where_that_has_a_limit(limit, expected):
    files = {"tokenizer_config.json": {"model_max_length": limit}}
    assert from_files(None, lambda name: files.get(name, {})).max_length == expected


def test_what_a_modules_file_leaves_out_is_what_the_library_takes(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    off = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **off})
    write_json(folder / "2_Dense" / "config.json", {"in_features": 32, "out_features": 48})
    library = SentenceTransformer(str(folder))
    described = open_model(folder).representation
    assert described.pooling == library[1].pooling_mode == "mean"
    assert described.dense[0] == module.Dense(32, 48)
    assert library[2].linear.bias is not None
    assert described.dense[0].activation_name == type(library[2].activation_function).__name__


def test_sizes_fall_where_each_is_smaller_than_the_one_before_it():
    assert all(map(is_falling, [(), (8,), (32, 20, 7)]))
    assert not any(map(is_falling, [(8, 8), (7, 8)]))


def test_queries_have_the_prompt_of_their_name():
    assert query_prompt({"query": "q: ", "document": "d: "}) == "q: "
    assert query_prompt({"query": None}) == query_prompt({"document": "d: "}) == ""


def test_what_a_user_says_stands_in_place_of_what_the_folder_says():
    assert with_given(EVERYTHING, Given()) == EVERYTHING
    assert with_given(EVERYTHING, Given(pooling="cls")) == EVERYTHING._replace(pooling="cls")
    by_dot = with_given(EVERYTHING, Given(similarity="dot"))
    assert by_dot == EVERYTHING._replace(normalized=False, similarity="dot")
    assert with_given(EVERYTHING, Given(similarity="cosine")) == EVERYTHING
    assert with_given(Representation(), Given(similarity="cosine")).is_cosine
    assert with_given(EVERYTHING, Given(dimensions=4)).sizes == (4,)
    named = Representation(prompts=(("query", "q: "), ("passage", "p: "), ("title", "t: ")))
    changed = with_given(named, Given(query_prompt="", passage_prompt="d: "))
    assert dict(changed.prompts) == {"document": "d: ", "title": "t: "}
    assert dict(with_given(named, Given(passage_prompt="")).prompts).keys() == {"query", "title"}
    joined = with_given(named, Given(title_separator="[SEP]"))
    assert dict(joined.prompts) == dict(named.prompts) | {"title_separator": "[SEP]"}
    assert with_given(joined, Given(title_separator="")).prompts == named.prompts
    assert title_separator(dict(joined.prompts)) == "[SEP]"
    assert title_separator(dict(named.prompts)) == " "
    assert with_given(EVERYTHING, Given(passage_prompt="")).default_prompt == "query"
    assert with_given(EVERYTHING, Given(query_prompt="")).default_prompt is None


@pytest.mark.parametrize(
    ("given", "scale"),
    [
        (Given(similarity="dot"), 0.0),
        (Given(similarity="cosine"), 100.0),
        (Given(pooling="cls"), 100.0),
        (Given(dimensions=4), 100.0),
    ],
)
def test_a_scale_belongs_to_a_similarity(given, scale):
    published = Representation("mean", similarity="cosine", scale=100.0)
    assert with_given(published, given).scale == scale


def test_two_towers_are_described_where_they_make_the_same_vectors(saved, tmp_path):
    folder = tmp_path / "towers"
    load_retriever(saved, two_towers=True).save_pretrained(str(folder))
    opened = open_model(folder)
    assert opened.representation == EVERYTHING
    assert {task: each.path.name for task, each in opened.networks.items()} == {
        "document": "document_0_Transformer",
        "query": "query_0_Transformer",
    }
    with pytest.raises(
        UserError, match=whole("TMP/towers has two towers (a Router): expected one")
    ):
        _ = opened.network
    router_file = folder / "router_config.json"
    router = json.loads(router_file.read_text())
    kinds = router["structure"]
    write_json(router_file, router | {"structure": kinds | {"other": kinds["query"]}})
    assert [*towers(load(open_model(folder)))] == ["document", "query"]
    for structure, said in (
        (
            kinds | {"query": kinds["query"][:-1]},
            "makes the vectors of queries otherwise than those of passages",
        ),
        (
            {"query": kinds["query"]},
            "has no router_config.json with routes named document and query",
        ),
    ):
        write_json(router_file, router | {"structure": structure})
        with pytest.raises(UserError, match=whole(f"TMP/towers {said}")):
            open_model(folder)


def test_modules_that_follow_two_towers_are_those_of_both(saved, tmp_path):
    inner = SentenceTransformer(str(saved))
    towers = [[*copy.deepcopy(inner)][:2], [*inner][:2]]
    towers[0][0].max_seq_length = 5  # of queries, which another tower cuts: that is no other vector
    modules = [Router.for_query_document(*towers), Dense(32, 16), Normalize()]
    model = SentenceTransformer(modules=modules, similarity_fn_name="dot")
    model.save_pretrained(str(tmp_path / "model"))
    described = open_model(tmp_path / "model").representation
    assert (described.dense, described.normalized) == ((module.Dense(32, 16),), True)
    assert described.max_length == inner.max_seq_length != 5


def test_only_how_texts_are_read_is_taken_from_other_vectors():
    read = {"prompts": (("query", "q: "),), "default_prompt": "query"}
    read |= {"max_length": 9, "query_length": 8, "passage_length": 7}
    other = Representation("cls", scale=3.0, sizes=(4,))._replace(**read)
    assert EVERYTHING.reading_as(other) == EVERYTHING._replace(**read)


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
        {"sizes": ["8"]},
        {"sizes": [0]},
        {"prompts": {"query": 1}},
        {"default_prompt": []},
        {"default_prompt": 1},
        {"include_prompt": 1},
        {"scaled_before_dense": None},
        {"max_length": "8"},
        {"query_length": 0},
        {"passage_length": 2.0},
        {"dense": [{"in_features": 0, "out_features": 8}]},
        {"dense": [{"in_features": 8, "out_features": "8"}]},
        {"dense": [{"in_features": 8, "out_features": 8, "bias": "no"}]},
        {"dense": [{"in_features": 8, "out_features": 8, "activation": 1}]},
        {"color": "red"},
    ],
)
def test_other_values_are_no_representation(change):
    with pytest.raises(ValueError, match="is no representation"):
        from_json({**to_json(EVERYTHING), **change})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            MODULES,
            [{"type": "sentence_transformers.models.Asym", "path": ""}],
            "has no router_config.json with routes named",
        ),
        (MODULES, [{"type": "x.Module", "path": ""}], "has a module 'x.Module', which needs code"),
        (MODULES, [], "makes its vectors by no modules; expected Transformer, Pooling"),
        (MODULES, [{"path": ""}], "has a modules.json without the type and path"),
        (
            MODULES,
            [
                {"type": "sentence_transformers.models.Transformer", "path": "0" * 300},
                {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
            ],
            "cannot be read as its modules.json says: File name too long",
        ),
        (MODULES, {"type": "x"}, "has a modules.json without the type and path"),
        (
            SETTINGS,
            {"similarity_fn_name": "euclidean"},
            "compares vectors by 'euclidean'; expected",
        ),
        (SETTINGS, [], f"{SETTINGS}: expected a JSON object"),
        (SETTINGS, {"prompts": ["query"]}, "cannot be loaded as a bi-encoder"),
        (SETTINGS, {"truncate_dim": "8"}, f"has a {SETTINGS} where truncate_dim is '8'; expected"),
        (SETTINGS, {"truncate_dim": []}, f"has a {SETTINGS} where truncate_dim is []; expected"),
        (
            "sentence_bert_config.json",
            {"max_seq_length": "16"},
            "has a sentence_bert_config.json where max_seq_length is '16'; expected",
        ),
        (
            "sentence_bert_config.json",
            {"document_length": 16.0},
            "has a sentence_bert_config.json where document_length is 16.0; expected",
        ),
        (
            "sentence_bert_config.json",
            {"query_length": []},
            "has a sentence_bert_config.json where query_length is []; expected",
        ),
        ("2_Dense/config.json", {"in_features": 3}, "cannot be loaded as a bi-encoder"),
    ],
)
def test_a_folder_that_is_none_of_the_librarys_ends_in_one_line(
    saved, tmp_path, name, content, said
):
    folder = shutil.copytree(saved, tmp_path / "model")
    write_json(folder / name, content)
    with pytest.raises(UserError, match=f"{re.escape(str(folder))}.{re.escape(said)}"):
        open_model(folder)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (SETTINGS, {"prompts": ["query"]}, f"has no JSON object in {SETTINGS}: prompts"),
        (SETTINGS, {"truncate_dim": "8"}, f"has a {SETTINGS} where truncate_dim is '8'; expected"),
        (
            "sentence_bert_config.json",
            {"max_seq_length": 0},
            "has a sentence_bert_config.json where",
        ),
        ("sentence_bert_config.json", {}, "is written in another form"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pools otherwise than by cls"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True},
            "pools otherwise than by cls",
        ),
        ("2_Dense/config.json", {"in_features": 3}, "has a Dense module without in_features and"),
    ],
)
def test_another_form_needs_pytorch_once(saved, tmp_path, name, content, said, monkeypatch):
    folder = shutil.copytree(saved, tmp_path / "model")
    write_json(folder / name, content)
    monkeypatch.setattr(model_module, "has_pytorch", lambda: False)
    with pytest.raises(UserError) as error:
        open_model(folder)
    assert f"{folder} {said}" in str(error.value)
    assert "`cocondenser resolve`" in str(error.value)


@pytest.mark.parametrize(("length", "written"), [(None, 64), (16, 16), (64, 64), (100, 64)])
def test_no_more_tokens_are_written_than_the_network_reads(length, written):
    files = to_files(Representation(max_length=length), 32, longest=64, has_pooler=False)
    assert files["sentence_bert_config.json"]["max_seq_length"] == written


@pytest.mark.parametrize(
    ("title", "text", "expected"),
    [
        ("", "Birds fly.", "Birds fly."),
        ("Birds", "", "Birds|"),
        ("Birds of prey", "Birds of prey\nhunt.", "Birds of prey\nhunt."),
        ("Birds of prey", " Birds  of prey \nhunt.", " Birds  of prey \nhunt."),
        ("Birds", "Birds of prey\nhunt.", "Birds|Birds of prey\nhunt."),
        ("Birds", "Birds fly.", "Birds|Birds fly."),
        ("Birds", "birds\nfly.", "Birds|birds\nfly."),
    ],
)
def test_a_title_that_is_the_first_line_is_not_read_twice(title, text, expected):
    assert join_title(title, text, "|") == expected


def test_a_title_below_blank_lines_is_not_read_twice():
    text = "\n \n Birds of prey\nhunt."
    assert join_title("Birds of prey", text, "|") == text
