"""The quickstart on the docstrings of one package, with a few steps of each training."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from cocondenser_jax.collection.trec import read_qrels
from cocondenser_jax.configs import quickstart as pretraining
from cocondenser_jax.configs import quickstart_finetune as finetuning
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.errors import UserError
from cocondenser_jax.quickstart import pipeline, task
from cocondenser_jax.quickstart.pipeline import Outcome, quickstart


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """A quickstart on one package, with a small model and a few steps."""
    pretraining_config, finetuning_config = pretraining.get_config, finetuning.get_config

    def small(argument: str = "cocondenser") -> ConfigDict:
        config = pretraining_config(argument).unlock()
        config.train.steps = 3
        config.data.documents_per_step = 16
        config.model.hidden_size = 16
        config.model.intermediate_size = 16
        return config.lock()

    def short(argument: str = "") -> ConfigDict:
        config = finetuning_config(argument).unlock()
        config.max_steps = 2
        config.batch_size = 4
        return config.lock()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "read_docstrings", lambda: read_docstrings(["optax"]))
        patch.setattr(task, "N_TEST_QUERIES", 30)
        patch.setattr(pipeline, "VOCAB_SIZE", 600)
        patch.setattr(pretraining, "get_config", small)
        patch.setattr(finetuning, "get_config", short)
        yield


@pytest.fixture(scope="module")
def finished(small: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    workdir = tmp_path_factory.mktemp("quickstart") / "run"
    return workdir, quickstart(workdir)


def test_the_folder_holds_what_was_promised(finished: tuple[Path, Outcome]) -> None:
    workdir, outcome = finished
    for name in ("model/model.safetensors", "retriever/modules.json", "index/index.faiss"):
        assert (workdir / name).is_file()
    assert [row.name for row in outcome.rows] == ["BM25", "no pre-training", "coCondenser"]
    results = json.loads((workdir / "results.json").read_text())
    for row, result in zip(outcome.rows, results, strict=True):
        assert result["mrr_at_10"] == row.mrr_at_10
        assert 0.0 <= row.mrr_at_10 <= row.recall_at_100 <= 1.0
        assert row.seconds > 0.0
    assert outcome.rows[0].mrr_at_10 > 0.2  # BM25 needs no training
    assert "coCondenser" in (workdir / "report.html").read_text()
    assert len(outcome.examples) == 3
    assert all(len(example.hits) == 3 for example in outcome.examples)


def test_held_out_first_paragraphs_are_in_no_training_text(
    finished: tuple[Path, Outcome],
) -> None:
    data = finished[0] / "data"
    queries = {query["_id"]: query["text"] for query in lines(data / "queries.jsonl")}
    texts = {
        " ".join(line["text"].split("\n\n")[0].split()) for line in lines(data / "pretrain.jsonl")
    }
    test, train = (read_qrels(data / "qrels" / f"{split}.tsv") for split in ("test", "train"))
    assert len(test) == 30
    assert not test.keys() & train.keys()
    assert not {queries[query] for query in test} & texts
    assert {queries[query] for query in train} <= texts
    passages = {line["_id"]: line["text"] for line in lines(data / "corpus.jsonl")}
    for query, judged in (test | train).items():
        assert set(judged) == {query}
        assert queries[query] not in passages[query]


def test_called_again_it_trains_nothing(finished: tuple[Path, Outcome]) -> None:
    workdir, outcome = finished
    trained = [workdir / "model", workdir / "retriever", workdir / "index", workdir / "store"]
    before = [path.stat().st_mtime_ns for path in trained]
    again = quickstart(workdir)
    assert [path.stat().st_mtime_ns for path in trained] == before
    for old, new in zip(outcome.rows, again.rows, strict=True):
        assert (old.name, old.mrr_at_10, old.recall_at_100) == (
            new.name, new.mrr_at_10, new.recall_at_100,
        )  # fmt: skip


def test_the_whole_comparison_adds_a_condenser_and_two_seeds(
    finished: tuple[Path, Outcome],
) -> None:
    workdir, outcome = finished
    rows = quickstart(workdir, compare_all=True).rows
    names = ("no pre-training", "Condenser", "coCondenser")
    expected = ["BM25", *(f"{name}, seed {seed}" for seed in range(3) for name in names)]
    assert [row.name for row in rows] == expected
    assert rows[3].mrr_at_10 == outcome.rows[2].mrr_at_10  # seed 0 is not trained again


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="already holds something else"):
        quickstart(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
