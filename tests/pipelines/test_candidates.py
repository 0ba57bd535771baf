"""The quickstart's rows and retrievers, on runs and models made by hand."""

import json

import pytest

from cocondenser_jax.pipelines import quickstart as module
from cocondenser_jax.pipelines.quickstart import Candidate, compare_candidates
from cocondenser_jax.retriever.compare.trial import Trial
from cocondenser_jax.retriever.data.ranking import DEFAULT_METRICS, evaluate_run
from cocondenser_jax.retriever.data.significance import compare
from cocondenser_jax.retriever.data.trec import read_qrels, read_run

N_QUERIES = 12


def write_run(path, ranks):
    """Writes a run that has the relevant passage of each query, d0 of q0, at a rank from 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for query, rank in enumerate(ranks):
        passages = [f"x{n}" for n in range(1, 10)]
        passages.insert(rank - 1, f"d{query}")
        lines += [f"q{query} Q0 {p} {n} {-n} t" for n, p in enumerate(passages, start=1)]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def compared(tmp_path):
    """A finished comparison: work folder, data, and candidates, of which the first is far worse."""
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(N_QUERIES))
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    texts = "".join(json.dumps({"_id": f"q{i}", "text": "x"}) + "\n" for i in range(N_QUERIES))
    (data / "queries.jsonl").write_text(texts)
    work = tmp_path / "work"
    candidates = [
        Candidate("bad", work / "compare" / "bad", []),
        Candidate("good", work / "compare" / "good", []),
        Candidate("best", work, [work / "models" / name for name in "ab"]),
    ]
    write_run(work / "bm25.trec", [4] * N_QUERIES)
    write_run(candidates[0].folder / "test.trec", [9] * N_QUERIES)
    write_run(candidates[1].folder / "test.trec", [2, 1] * (N_QUERIES // 2))
    write_run(candidates[2].folder / "test.trec", [1] * (N_QUERIES - 2) + [2] * 2)
    results = ["bm25.trec"]
    for each in ("compare/bad/", "compare/good/", ""):
        results += [f"{each}retriever", f"{each}index", f"{each}test.trec"]
    results += ["models/a", "models/b"]
    seconds = {name: float(2**i) for i, name in enumerate(results)}
    (work / "seconds.json").write_text(json.dumps(seconds))
    return work, data, candidates


def test_each_row_is_tested_against_the_last(compared):
    work, data, candidates = compared
    rows = compare_candidates(work, Trial(data, metrics=DEFAULT_METRICS), candidates)
    assert [row.name for row in rows] == ["BM25", "bad", "good", "best"]
    qrels = read_qrels(data / "qrels" / "test.tsv")
    files = [work / "bm25.trec", *(each.folder / "test.trec" for each in candidates)]
    results = [evaluate_run(qrels, read_run(file)) for file in files]
    for row, result in zip(rows, results, strict=True):
        assert row.metrics == result["mean"]
    for row, result in zip(rows[:-1], results[:-1], strict=True):
        tested = compare(result["per_query"], results[-1]["per_query"])
        for measure in ("MRR@10", "nDCG@10"):
            assert row.tests[measure] == tested[measure]
    # Against the first, "good" would be as sure as "bad" is against the last.
    p_values = [row.tests["MRR@10"]["randomization_p"] for row in rows[1:3]]
    assert p_values[0] < 0.01 < 0.1 < p_values[1]
    assert rows[3].tests == {}


def test_seconds_are_those_of_all_that_a_row_took(compared):
    work, data, candidates = compared
    rows = compare_candidates(work, Trial(data), candidates)
    seconds = [row.seconds for row in rows]
    assert seconds == [1, 2 + 4 + 8, 16 + 32 + 64, 128 + 256 + 512 + 1024 + 2048]


def test_a_retriever_is_fine_tuned_on_the_data(beir, model_folder, tmp_path, monkeypatch):
    candidate = Candidate("one", tmp_path / "one", [tmp_path / "earlier", model_folder])
    configs = []

    def finetune(config, workdir):
        configs.append(config)
        (workdir / "retriever").mkdir(parents=True)

    monkeypatch.setattr(module, "finetune", finetune)
    monkeypatch.setattr(module, "rank_by_vectors", lambda *_: None)
    (candidate.folder / "index").mkdir(parents=True)
    module._search(tmp_path, candidate, Trial(beir))
    [config] = configs
    assert (config.model.folder, config.data.folder) == (str(model_folder), str(beir))
    assert (candidate.folder / "retriever").is_dir()
