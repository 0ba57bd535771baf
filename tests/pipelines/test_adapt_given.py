"""The model as published is what its folder, its name and the user say, in one folder."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from cocondenser_jax.cli import main
from cocondenser_jax.convert.from_torch import read_shape
from cocondenser_jax.corpus.sources import documents_sha256
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import read_object
from cocondenser_jax.model_folder.folder import read_representation
from cocondenser_jax.pipelines import adapt as module
from cocondenser_jax.representation import SPELLINGS, Given
from tests.world import WORDS, write_qrels, write_records

TEXTS = [" ".join(WORDS[:4]), " ".join(WORDS[2:9])]
FLAGS = [
    "--pooling=cls",
    "--similarity=cosine",
    "--query_prompt=hgf ",
    "--passage_prompt=abc: ",
    "--dimensions=8",
]


@pytest.fixture
def publish(tmp_path, monkeypatch, capsys):
    """Runs `adapt` up to its proposals; returns its workdir."""

    def stop(*_):
        raise UserError("no further")

    monkeypatch.setattr(module, "propose_training", stop)
    corpus = tmp_path / "corpus.jsonl"
    write_records(corpus, [{"text": " ".join(WORDS)}])

    def run(model, *flags):
        workdir = tmp_path / "run"
        words = ["adapt", f"--corpus={corpus}", f"--model={model}", f"--workdir={workdir}"]
        assert main([*words, "--config.data.length=16", "--config.init_head=true", *flags]) == 2
        assert capsys.readouterr().err.endswith("no further\n")
        return workdir

    return run


def test_a_corpus_that_has_changed_since_is_refused(model_folder, tmp_path, publish, capsys):
    workdir = publish(model_folder)
    corpus = tmp_path / "corpus.jsonl"
    assert read_object(workdir / "started.json")["corpus_sha256"] == documents_sha256(str(corpus))
    assert publish(model_folder) == workdir
    started = (workdir / "started.json").read_text()
    words = ["adapt", f"--corpus={corpus}", f"--model={model_folder}", f"--workdir={workdir}"]
    words += ["--config.data.length=16", "--config.init_head=true"]
    text = " ".join(WORDS)
    for record in ({"text": text[:-1]}, {"text": text, "title": "A"}, {"text": text, "_id": "7"}):
        write_records(corpus, [record])
        assert main(words) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"{workdir} was started with corpus_sha256='" in error
        assert (workdir / "started.json").read_text() == started
    words[1] = f"--corpus={tmp_path / 'moved.jsonl'}"
    write_records(tmp_path / "moved.jsonl", [{"text": text}])
    assert main(words) == 2
    assert capsys.readouterr().err.endswith("no further\n")


def test_a_start_reads_the_corpus_once_and_what_a_killed_one_left_is_made_again(
    model_folder, tmp_path, publish, monkeypatch, capsys
):
    """Between the store and the settings that it was made with, a kill leaves that store alone."""
    monkeypatch.setattr(module, "documents_sha256", pytest.fail)
    workdir = publish(model_folder)
    for name in ("started.json", "seconds.json"):
        (workdir / name).unlink()
    shutil.rmtree(workdir / "published")
    (workdir / "store").rename(workdir / "store.unstarted")
    (workdir / "store.unstarted.partial").mkdir()
    corpus = tmp_path / "corpus.jsonl"
    write_records(corpus, [{"text": " ".join(WORDS), "_id": "other"}])
    assert publish(model_folder) == workdir
    assert open_store(workdir / "store").document_id(0) == "other"
    assert not (workdir / "store.unstarted").exists()
    for name in ("started.json", "seconds.json"):
        (workdir / name).unlink()
    shutil.rmtree(workdir / "published")
    kept = read_object(workdir / "store" / "manifest.json")  # perhaps the user's own store
    words = ["adapt", f"--corpus={corpus}", f"--model={model_folder}", f"--workdir={workdir}"]
    words += ["--config.data.length=16", "--config.init_head=true"]
    assert main(words) == 2
    assert f"{workdir} already exists" in capsys.readouterr().err
    assert read_object(workdir / "store" / "manifest.json") == kept


@pytest.mark.parametrize("broken", ['{"text": 1', '{"text": ""}'])
def test_a_corpus_that_cannot_be_read_leaves_no_folder(model_folder, tmp_path, capsys, broken):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": "abc"}) + "\n" + broken + "\n")
    words = ["adapt", f"--corpus={corpus}", f"--model={model_folder}"]
    words += [f"--workdir={tmp_path / 'run'}", "--config.data.length=16", "--config.init_head=true"]
    assert main(words) == 2
    assert f"{corpus}" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def assert_same_vectors(folder, library):
    """Compares the library's vectors of a folder, with lengths where it compares by cosine."""
    published = SentenceTransformer(str(folder))
    for name in ("encode_query", "encode_document"):
        theirs, ours = (getattr(model, name)(TEXTS) for model in (library, published))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert published.similarity_fn_name == library.similarity_fn_name


@pytest.mark.effect("adapt --pooling", "adapt --similarity", "adapt --query_prompt")
@pytest.mark.effect("adapt --passage_prompt", "adapt --dimensions")
@pytest.mark.parametrize("is_plain", [True, False])
def test_what_is_given_is_written_into_the_published_folder(
    model_folder, tmp_path, publish, is_plain
):
    library = SentenceTransformer(
        modules=[Transformer(str(model_folder)), Pooling(32, "cls")],
        prompts={"query": "hgf ", "document": "abc: "},
        similarity_fn_name="cosine",
        truncate_dim=8,
    )
    start = model_folder
    if not is_plain:
        start = tmp_path / "start"
        layers = [Transformer(str(model_folder)), Pooling(32, "mean")]
        SentenceTransformer(modules=layers, similarity_fn_name="dot").save_pretrained(str(start))
    workdir = publish(start, *FLAGS)
    published = workdir / "published" / "model"
    assert_same_vectors(published, library)
    expected = SPELLINGS["cls"]._replace(similarity="cosine", sizes=(8,))
    trained = read_shape(published).representation
    assert trained._replace(prompts=(), max_length=None) == expected
    assert dict(trained.prompts) == {"query": "hgf ", "document": "abc: "}
    given = json.loads((workdir / "started.json").read_text())["given"]
    assert Given(**given) == Given("cls", "cosine", "hgf ", "abc: ", dimensions=8)


def test_a_folder_that_is_silent_is_written_down_as_the_library_takes_it(model_folder, publish):
    library = SentenceTransformer(str(model_folder), model_kwargs={"add_pooling_layer": False})
    published = publish(model_folder) / "published" / "model"
    assert library.similarity_fn_name == "cosine"
    assert_same_vectors(published, library)
    assert read_representation(published) == read_representation(model_folder)


def test_a_known_model_has_its_prompts_and_scale(model_folder, tmp_path, publish):
    prompts = {"query": "query: ", "document": "passage: "}
    layers = [Transformer(str(model_folder)), Pooling(32, "mean"), Normalize()]
    library = SentenceTransformer(modules=layers, prompts=prompts)
    start = tmp_path / "e5-small-v2"
    SentenceTransformer(modules=layers).save_pretrained(str(start))
    workdir = publish(start)
    assert_same_vectors(workdir / "published" / "model", library)
    overrides = json.loads((workdir / "started.json").read_text())["overrides"]
    assert overrides[0] == "--config.model.scale=100.0"
    shutil.rmtree(workdir)
    workdir = publish(start, "--query_prompt=", "--passage_prompt=", "--config.model.scale=5")
    library.prompts = {"query": "", "document": ""}
    assert_same_vectors(workdir / "published" / "model", library)
    overrides = json.loads((workdir / "started.json").read_text())["overrides"]
    assert [word for word in overrides if "scale" in word] == ["--config.model.scale=5"]


def test_inner_products_instead_of_cosines_leave_the_lengths(model_folder, tmp_path, publish):
    layers = [Transformer(str(model_folder)), Pooling(32, "mean")]
    library = SentenceTransformer(modules=layers, similarity_fn_name="dot")
    start = tmp_path / "start"
    SentenceTransformer(modules=[*layers, Normalize()]).save_pretrained(str(start))
    assert_same_vectors(publish(start, "--similarity=dot") / "published" / "model", library)


@pytest.mark.parametrize(
    ("pooling", "config", "backend", "reason"),
    [
        ("max", {}, "torch", " (for JAX: pools by max; expected cls or mean)"),
        (
            "cls",
            {"hidden_act": "relu"},
            "torch",
            " (for JAX: hidden_act is 'relu'; only 'gelu' is supported)",
        ),
        ("mean", {}, "jax", ""),
    ],
)
def test_the_backend_is_chosen_by_what_jax_computes(
    model_folder, tmp_path, publish, caplog, pooling, config, backend, reason
):
    start = tmp_path / "start"
    layers = [Transformer(str(model_folder)), Pooling(32, pooling)]
    SentenceTransformer(modules=layers).save_pretrained(str(start))
    path = start / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with caplog.at_level("INFO"):
        workdir = publish(start)
    assert f"adapt: trained by --backend={backend}{reason}" in caplog.messages
    assert json.loads((workdir / "started.json").read_text())["backend"] == backend
    assert_same_vectors(workdir / "published" / "model", SentenceTransformer(str(start)))


def test_what_is_wrong_is_said_of_the_users_folder_before_anything_is_written(
    model_folder, tmp_path, capsys
):
    corpus = tmp_path / "corpus.jsonl"
    write_records(corpus, [{"text": " ".join(WORDS)}])
    words = ["adapt", f"--corpus={corpus}", f"--model={model_folder}", f"--workdir={tmp_path}/run"]
    assert main([*words, "--dimensions=33"]) == 2
    assert (
        f"cocondenser: {model_folder}: the sizes of vectors are 33; exp" in capsys.readouterr().err
    )
    layers = [Transformer(str(model_folder)), Pooling(32, "max")]
    SentenceTransformer(modules=layers).save_pretrained(str(tmp_path / "max"))
    words[2] = f"--model={tmp_path}/max"
    assert main([*words, "--backend=jax"]) == 2
    said = f"cocondenser: {tmp_path}/max pools by max; expected cls or mean (or --backend=torch)"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("relevant", "refused", "warned"),
    [
        (["p0", "p1"], "no further", ""),
        (
            ["p0", "elsewhere"],
            "no further",
            "1 of the 2 passages that the judgments of test find relevant",
        ),
        (["p2", "p2"], "data has no judgment of test with a score above 0: all metrics", ""),
        (["x0", "x1"], "data has none of the 2 passages that its judgments of test find", ""),
    ],
)
def test_judgments_must_name_passages_of_the_collection(
    model_folder, tmp_path, monkeypatch, caplog, relevant, refused, warned
):
    def stop(source, tokenizer, length, out):
        raise UserError("no further")

    monkeypatch.setattr(module, "write_store", stop)
    data = tmp_path / "data"
    rows = [{"_id": f"p{i}", "title": "", "text": WORDS[i]} for i in range(3)]
    write_records(data / "corpus.jsonl", rows)
    write_records(data / "queries.jsonl", [{"_id": f"q{i}", "text": WORDS[i]} for i in (0, 1)])
    judgments = {f"q{i}": {name: 1, "p2": 0} for i, name in enumerate(relevant)}
    write_qrels(data / "qrels" / "test.tsv", judgments)
    settings = ["--config.data.length=16", "--config.init_head=true"]
    with pytest.raises(UserError, match=refused):
        module.adapt(
            tmp_path / "run", str(data / "corpus.jsonl"), str(model_folder), data, settings
        )
    assert not (tmp_path / "run").exists()
    lines = [r.getMessage() for r in caplog.records if "find relevant" in r.getMessage()]
    assert len(lines) == bool(warned)
    assert all(warned in line for line in lines)
