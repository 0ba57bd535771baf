"""`adapt` with vectors of several sizes, of the model's card or the settings, and dense layers."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)

from cocondenser_jax.cli import main
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.pipelines.agreement import Choice, Decision, Sample
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_queries
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.trec import read_qrels
from tests.world import write_records, write_retriever

pytestmark = pytest.mark.timeout(900)
SETTINGS = ["--config.train.steps=2", "--config.data.length=32", "--config.checkpoint.every=1"]
SETTINGS += ["--config.data.batch_size=8", "--config.optimizer.learning_rate=0.01"]


@pytest.fixture
def model(model_folder, tmp_path):
    """A model whose card names the sizes 32 and 8, as sentence-transformers writes it."""
    folder = write_retriever(model_folder, tmp_path / "model", "mean")
    trained = SentenceTransformer(str(folder))
    loss = MatryoshkaLoss(trained, MultipleNegativesRankingLoss(trained), [32, 8])
    arguments = json.dumps(loss.get_config_dict(), indent=4)
    (folder / "README.md").write_text(f"* Loss: with these parameters:\n```json\n{arguments}\n```")
    return folder


@pytest.fixture
def data(beir, tmp_path):
    folder = shutil.copytree(beir, tmp_path / "data")
    (folder / "qrels" / "train.tsv").rename(folder / "qrels" / "test.tsv")
    return folder


@pytest.fixture
def corpus(words, tmp_path):
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(40):
        own = rng.choice(words, 8)
        sentences = [" ".join(rng.choice(own, 6)).capitalize() for _ in range(3)]
        rows.append({"text": ". ".join(sentences) + "."})
    return write_records(tmp_path / "texts.jsonl", rows)


@pytest.fixture
def keeps_all(monkeypatch):
    """Lets `adapt` keep all of the change, whatever agrees."""
    run = {"0": {"0": 1.0}}  # a span, by its number
    decision = Decision(Choice(1.0, {}), Sample({"0": "text"}, {"0": "text"}), run, run, run)
    monkeypatch.setattr(adapting, "choose_alpha", lambda *_: decision)


@pytest.mark.parametrize("given", [[], ["--config.model.sizes=[32,16,4]"]])
def test_every_size_is_trained_and_has_a_row(model, corpus, data, tmp_path, keeps_all, given):
    workdir = tmp_path / "adapted"
    command = ["adapt", f"--corpus={corpus}", f"--model={model}", f"--workdir={workdir}"]
    command += [f"--data={data}", *SETTINGS, *given]
    assert main(command) == 0
    smaller = [16, 4] if given else [8]
    run = json.loads((workdir / "pretraining" / "run.json").read_text())
    assert run["config"]["model"]["sizes"] == [32, *smaller]
    assert run["model"]["representation"]["sizes"] == [32, *smaller]

    results = workdir / "test" / "results.json"
    rows = {row["name"]: row for row in json.loads(results.read_text())}
    parts = [f"{name}, {size} of 32" for name in ("published", "adapted") for size in smaller]
    assert [name for name in rows if " of " in name] == parts
    assert [row["part"] for name, row in rows.items() if " of " not in name] == [""] * 5
    qrels = read_qrels(data / "qrels" / "test.tsv")
    queries = read_queries(data)
    passages = {passage.id: passage_text(passage) for passage in read_corpus(data)}
    for part in parts:
        name, _, size = part.removesuffix(" of 32").partition(", ")
        library = SentenceTransformer(str(workdir / name / "model"), truncate_dim=int(size))
        texts = ([queries[query] for query in qrels], [*passages.values()])
        scores = library.similarity(*map(library.encode, texts)).tolist()
        ranked = {
            q: dict(zip(passages, s, strict=True)) for q, s in zip(qrels, scores, strict=True)
        }
        expected = evaluate_run(qrels, ranked, ["nDCG@10"])["mean"]["nDCG@10"]
        assert rows[part]["metrics"]["nDCG@10"] == pytest.approx(expected, abs=2e-3)
    # They are tested against the best of whole vectors.
    assert all(rows[part]["tests"] for part in parts)
    n_passages = len(passages)
    assert [rows[part]["vectors"] for part in parts] == [[n_passages, s] for s in smaller] * 2
    assert main(command) == 0  # nothing is left to do


def test_a_card_is_not_asked_where_sizes_are_given(model, corpus, tmp_path, keeps_all, caplog):
    caplog.set_level("INFO", logger="cocondenser_jax")
    for given, expected in (([], [32, 8]), (["--config.model.sizes=[]"], [])):
        workdir = tmp_path / f"run{len(given)}"
        command = ["adapt", f"--corpus={corpus}", f"--model={model}", f"--workdir={workdir}"]
        caplog.clear()
        assert main([*command, *SETTINGS, *given]) == 0
        run = json.loads((workdir / "pretraining" / "run.json").read_text())
        assert run["config"]["model"]["sizes"] == expected
        said = [each for each in caplog.messages if "that its folder names: 32,8 numbers" in each]
        assert len(said) == (not given)


def test_dense_layers_are_adapted_too(model_folder, corpus, tmp_path, keeps_all):
    layers = [{"out_features": 24}, {"out_features": 12, "bias": False}]
    published = write_retriever(model_folder, tmp_path / "model", "mean", layers, truncate_dim=10)
    workdir = tmp_path / "adapted"
    command = ["adapt", f"--corpus={corpus}", f"--model={published}", f"--workdir={workdir}"]
    assert main([*command, *SETTINGS]) == 0
    before, trained, after = (
        SentenceTransformer(str(folder)).state_dict()
        for folder in (published, workdir / "model", workdir / "adapted" / "model")
    )
    dense = ["2.linear.weight", "2.linear.bias", "3.linear.weight"]
    assert [name for name in before if "linear" in name] == dense
    assert trained.keys() == after.keys()
    for name in dense:
        assert not before[name].equal(trained[name])
        np.testing.assert_allclose(after[name], trained[name], rtol=0, atol=1e-6)
    adapted = SentenceTransformer(str(workdir / "adapted" / "model"))
    assert adapted.encode("a word").shape == (10,)
    assert adapted.similarity_fn_name == "cosine"


@pytest.mark.parametrize("sizes", ["[16,8]", "[64,32]", "[32,8,16]", "[32,0]"])
def test_sizes_that_do_not_begin_with_the_models_are_refused(
    model, corpus, tmp_path, capsys, sizes
):
    workdir = tmp_path / "adapted"
    command = ["adapt", f"--corpus={corpus}", f"--model={model}", f"--workdir={workdir}"]
    assert main([*command, *SETTINGS, f"--config.model.sizes={sizes}"]) == 2
    assert "config.model.sizes is " in capsys.readouterr().err.splitlines()[-1]
    assert not workdir.exists()
