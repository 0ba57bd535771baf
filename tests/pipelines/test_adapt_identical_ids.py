"""`adapt --data` where the queries of the test are passages, as in ArguAna and Quora."""

import json
import shutil

import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.retriever.data.trec import read_run
from tests.world import write_qrels, write_records

N = 60


@pytest.fixture
def data(words, tmp_path):
    """Passage i is the query i, and the answer to it is the next one, which shares its words."""
    rng = np.random.default_rng(3)
    texts = []
    for _ in range(N // 2):
        own = rng.choice(words, 8, replace=False)
        sentences = " ".join(own[:7]), " ".join(own[1:])
        texts += [f"{first}. {second}." for first, second in (sentences, sentences[::-1])]
    records = [{"_id": f"a{i}", "text": text} for i, text in enumerate(texts)]
    folder = tmp_path / "data"
    write_records(folder / "corpus.jsonl", records)
    write_records(folder / "queries.jsonl", records[:10])
    write_qrels(folder / "qrels" / "test.tsv", {f"a{i}": {f"a{i ^ 1}": 1} for i in range(10)})
    return folder


@pytest.fixture
def adapt_to(data, model_folder, tmp_path, train_by):
    """Gives a function that adapts with other flags; its training changes nothing."""
    train_by(lambda config, run, model: shutil.copytree(model_folder, model))

    def run(name, *flags):
        words = [f"--corpus={data}", f"--model={model_folder}", f"--workdir={tmp_path / name}"]
        flags = ("--config.data.length=64", "--config.data.batch_size=8", *flags)
        return main(["adapt", *words, *flags])

    return run


def scores(workdir):
    rows = json.loads((workdir / "test" / "results.json").read_text())
    return {row["name"]: row["metrics"]["nDCG@10"] for row in rows}


@pytest.mark.timeout(900)
@pytest.mark.effect("adapt --ignore_identical_ids")
def test_queries_that_are_passages_are_left_out_of_every_ranking(
    adapt_to, data, tmp_path, caplog, capsys
):
    flag = "--ignore_identical_ids"
    assert adapt_to("with", f"--data={data}") == 0
    assert "10 of 10 queries have a result with their own id" in caplog.text
    assert flag in caplog.text
    caplog.clear()
    assert adapt_to("without", f"--data={data}", flag) == 0
    assert "their own id" not in caplog.text
    found, expected = scores(tmp_path / "with"), scores(tmp_path / "without")
    assert [*found] == [*expected]
    # The answer has the sentences of the query. Of BM25's equal scores, every second is first.
    assert found["BM25"] == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert expected["BM25"] == 1.0
    assert all(value > found[name] for name, value in expected.items())
    runs = [*(tmp_path / "without").rglob("*.trec")]
    assert {run.name for run in runs} == {"bm25.trec", "dense.trec", "fused.trec"}
    assert not any(query in names for run in runs for query, names in read_run(run).items())
    capsys.readouterr()
    assert adapt_to("with", f"--data={data}", flag) == 2
    assert "started with ignore_identical_ids=False" in capsys.readouterr().err


def test_where_it_has_no_effect_or_drops_answers_it_is_refused(adapt_to, data, tmp_path, capsys):
    flag = "--ignore_identical_ids"
    assert adapt_to("new", flag) == 2
    assert f"{flag} goes with --data" in capsys.readouterr().err
    write_qrels(data / "qrels" / "test.tsv", {"a0": {"a1": 1}, "a1": {"a1": 1}})
    assert adapt_to("new", flag, f"--data={data}") == 2
    assert "1 queries have a relevant passage with their own id (a1)" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
