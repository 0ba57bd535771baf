"""Pools of negatives: what is in them, in which order, and what was left out and why."""

import itertools
import math

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data import trec
from cocondenser_jax.retriever.data.folder import read_candidates, with_positives
from cocondenser_jax.retriever.search.mine import Denoising, make_pool, mine
from tests.lines import whole
from tests.world import write_qrels, write_records

QRELS = {"q1": {"a": 1, "b": 0}, "q2": {"c": 2}, "q3": {"a": 0}}
BM25 = {"q1": "abcdef", "q2": "cab"}
DENSE = {"q1": "gcah", "q2": "c"}


@pytest.fixture
def folder(tmp_path):
    """Judgments, and two runs whose scores have nothing in common."""
    write_qrels(tmp_path / "qrels" / "train.tsv", QRELS)
    write_records(tmp_path / "queries.jsonl", ({"_id": query, "text": "x"} for query in QRELS))
    for name, run, scale in (("bm25", BM25, 20.0), ("dense", DENSE, -0.1)):
        # A negative scale: scores still fall with the rank, from -0.1 down.
        trec.write_run(
            tmp_path / f"{name}.trec",
            {
                query: {p: scale / r if scale > 0 else scale * r for r, p in enumerate(best, 1)}
                for query, best in run.items()
            },
        )
    return tmp_path


def pools(path):
    return {
        query: [passage for passage, _ in trec.ranked(scores)]
        for query, scores in trec.read_run(path).items()
    }


def test_one_run_without_what_is_relevant(folder):
    out = folder / "pool.trec"
    metrics = mine([folder / "bm25.trec"], folder, "train", out)
    assert pools(out) == {"q1": list("bcdef"), "q2": list("ab")}
    assert {line.split()[5] for line in out.read_text().splitlines()} == {"negatives"}
    assert metrics == {
        "queries": 2,  # q3 has no positive, so nothing trains on its negatives
        "queries without negatives": 0,
        "negatives": 7,
        "negatives per query, mean": 3.5,
        "negatives per query, least": 2,
        "excluded, relevant": 2,
        "excluded, the query's id": 0,
        "excluded, a relevant one's text": 0,
    }
    # What is written reads as any run does, and as the candidates of the run it came from.
    qrels = with_positives(QRELS)
    candidates = read_candidates(out, qrels, "abcdef", 200)
    assert candidates == read_candidates(folder / "bm25.trec", qrels, "abcdef", 200)


def test_a_query_that_is_a_passage_is_not_its_negative(folder):
    qrels = {"a": {"b": 1}, "c": {"c": 1, "d": 0}, "d": {"a": 1}, "e": {"a": 1}}
    write_qrels(folder / "qrels" / "train.tsv", qrels)
    records = [{"_id": query, "text": f"x {query}"} for query in "acde"]
    write_records(folder / "queries.jsonl", records)
    run = {query: {p: 9.0 - i for i, p in enumerate(f"{query}abc")} for query in "de"}
    run |= {"a": {"a": 3.0, "b": 2.0, "c": 1.0}, "c": {"c": 3.0, "a": 2.0}}
    trec.write_run(folder / "found.trec", run)
    metrics = mine([folder / "found.trec"], folder, "train", folder / "pool.trec")
    expected = {"a": ["c"], "c": ["a"], "d": list("bc"), "e": list("bc")}
    assert pools(folder / "pool.trec") == expected
    assert metrics["excluded, relevant"] == 4
    assert metrics["excluded, the query's id"] == 3


def test_a_passage_with_the_text_of_a_relevant_one_is_no_negative(folder, caplog):
    mine([folder / "bm25.trec"], folder, "train", folder / "pool.trec")
    said = f"{folder} has no passages: negatives may have the text of a relevant passage"
    assert [line for line in caplog.messages if "passages" in line] == [said]
    caplog.clear()
    texts = {"a": "Some  text", "b": "other", "c": "third", "d": "some text ", "f": "Third"}
    rows = ({"_id": p, "title": "", "text": texts.get(p, f"text {p}")} for p in "abcdef")
    write_records(folder / "corpus.jsonl", rows)
    metrics = mine([folder / "bm25.trec"], folder, "train", folder / "pool.trec")
    assert pools(folder / "pool.trec") == {"q1": list("bcef"), "q2": list("ab")}
    assert metrics["excluded, a relevant one's text"] == 1
    assert not [line for line in caplog.messages if "passages" in line]


def test_runs_take_turns(folder):
    out = folder / "pool.trec"
    metrics = mine([folder / "bm25.trec", folder / "dense.trec"], folder, "train", out)
    # Ranks of q1 in BM25: b 2, c 3, d 4, e 5, f 6; dense: g 1, c 2, h 4.
    assert pools(out) == {"q1": list("gbcdhef"), "q2": list("ab")}
    assert metrics["negatives"] == 9
    assert metrics["excluded, relevant"] == 2


def test_depth_is_a_rank_of_each_run(folder):
    runs, out = [folder / "bm25.trec", folder / "dense.trec"], folder / "pool.trec"
    mine(runs, folder, "train", out, depth=2)
    assert pools(out) == {"q1": list("gbc"), "q2": list("a")}


def test_a_query_may_be_without_negatives(folder, caplog):
    (folder / "few.trec").write_text("q1 Q0 a 1 2.0 t\nq2 Q0 a 1 1.0 t\nq2 Q0 b 2 0.5 t\n")
    metrics = mine([folder / "few.trec"], folder, "train", folder / "pool.trec")
    assert pools(folder / "pool.trec") == {"q2": ["a", "b"]}
    assert metrics["queries without negatives"] == 1
    assert metrics["negatives per query, least"] == 0
    of_passages = [line for line in caplog.messages if "few.trec" in line]
    assert of_passages == []
    (folder / "few.trec").write_text("q2 Q0 a 1 1.0 t\nq2 Q0 b 2 0.5 t\n")
    assert mine([folder / "few.trec"], folder, "train", folder / "pool.trec") == metrics | {
        "excluded, relevant": 0
    }
    of_passages = [line for line in caplog.messages if "few.trec" in line]
    assert of_passages == [f"{folder}/few.trec has no passage for 1 of 2 queries"]


def test_scores_of_a_cross_encoder_exclude(folder):
    teacher = folder / "teacher.trec"
    # Logits of these probabilities, a little less than 0.1 and a little more among them.
    chances = {"b": 0.0999, "c": 0.01, "d": 0.1001, "e": 0.9, "a": 0.001}
    logits = {p: math.log(chance / (1 - chance)) for p, chance in chances.items()}
    teacher.write_text("".join(f"q1 Q0 {p} 0 {s} t\n" for p, s in logits.items()))
    metrics = mine(
        [folder / "bm25.trec"],
        folder,
        "train",
        folder / "pool.trec",
        denoising=Denoising(teacher, below=0.1),
    )
    assert pools(folder / "pool.trec") == {"q1": ["b", "c"]}
    assert {k: v for k, v in metrics.items() if k.startswith("excluded")} == {
        "excluded, relevant": 2,
        "excluded, the query's id": 0,
        "excluded, a relevant one's text": 0,
        "excluded, not scored": 3,  # f of q1; a and b of q2, which the teacher does not know
        "excluded, scored too high": 2,
    }


def test_a_probability_at_the_threshold_is_too_high(folder):
    (folder / "teacher.trec").write_text(
        "".join(f"q1 Q0 {p} 1 {logit} t\n" for p, logit in (("b", 0.0), ("c", -0.001)))
    )
    denoising = Denoising(folder / "teacher.trec", below=0.5)  # of a logit of 0
    mine([folder / "bm25.trec"], folder, "train", folder / "pool.trec", denoising=denoising)
    assert pools(folder / "pool.trec") == {"q1": ["c"]}


def test_a_threshold_that_is_no_probability_is_refused(folder):
    teacher = folder / "bm25.trec"
    arguments = [teacher], folder, "train", folder / "pool.trec"
    for below in (0.0, 1.0, -2.2):
        with pytest.raises(
            UserError,
            match=whole(f"--denoise_below={below}: expected a probability above 0, below 1"),
        ):
            mine(*arguments, denoising=Denoising(teacher, below))
    assert not (folder / "pool.trec").exists()


def test_pools_agree_with_sets_and_sorting():
    rng = np.random.default_rng(0)
    passages = [f"d{i}" for i in range(30)]
    best = [{f"q{q}": list(rng.permutation(passages)[:20]) for q in range(10)} for _ in range(3)]
    bad = {(f"q{q}", passage) for q in range(10) for passage in rng.choice(passages, 8)}
    joined = [{query: " ".join(found) for query, found in run.items()} for run in best]
    excluded = {"bad": 0}
    pool = dict(make_pool(best[0], joined, {"bad": lambda q, p: (q, p) in bad}, excluded))
    below = {q: set(itertools.chain(*(run[q] for run in best))) for q in best[0]}
    assert {q: set(scores) for q, scores in pool.items()} == {
        q: {p for p in below[q] if (q, p) not in bad} for q in below
    }
    assert excluded == {"bad": sum((q, p) in bad for q in below for p in below[q])}
    for query, scores in pool.items():
        for passage, score in scores.items():
            ranks = [run[query].index(passage) + 1 for run in best if passage in run[query]]
            assert score == 1 / min(ranks)
        assert list(scores.values()) == sorted(scores.values(), reverse=True)


def test_a_run_of_other_queries_is_refused(folder):
    (folder / "other.trec").write_text("p1 Q0 a 1 1.0 t\n")
    with pytest.raises(
        UserError,
        match=whole("TMP/other.trec has no passage for any of the 2 queries of the split"),
    ):
        mine([folder / "other.trec"], folder, "train", folder / "pool.trec")
    assert not (folder / "pool.trec").exists()


def test_a_pool_without_a_negative_is_refused(folder):
    """As where the cross-encoder scored other queries: nothing would be trained against."""
    out = folder / "pool.trec"
    trec.write_run(folder / "scores.trec", {"other": {"a": -9.0}})
    said = (
        "TMP/bm25.trec: no negative is left for any of the 2 queries of the split (2 relevant,"
        " 0 the query's id, 0 a relevant one's text, 7 not scored, 0 scored too high)"
    )
    with pytest.raises(UserError, match=whole(said)):
        mine(
            [folder / "bm25.trec"],
            folder,
            "train",
            out,
            denoising=Denoising(folder / "scores.trec", below=0.1),
        )
    assert not out.exists()
