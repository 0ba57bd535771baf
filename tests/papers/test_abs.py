"""The study of adaptive batches: its beam search and its loss by hand, its splits."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import torch

from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_split
from cocondenser_jax.retriever.data.trec import read_run, write_run
from cocondenser_jax.retriever.train import bi_encoder, hard_batches, losses, samplers
from papers import abs_beam, abs_data, abs_rank
from tests.world import as_flags, read_metrics


def make_candidates(n, k, seed):
    rng = np.random.default_rng(seed)
    passages_NxK = np.array([rng.permutation(n)[:k] for _ in range(n)])
    # Whole numbers, so that sums are exact in any order, and so large that few tie.
    scores_NxK = rng.integers(1, 1 << 20, (n, k)).astype(np.float32)
    rows_NxK = np.repeat(np.arange(n), k).reshape(n, k)
    cells = scores_NxK.ravel(), (rows_NxK.ravel(), passages_NxK.ravel())
    return scipy.sparse.csr_array(cells, shape=(n, n))


def slow_beam(h, near, n, batch_size, seed, k=3):
    """Section 3.2 of the study; h is the hardness of a batch, near says which pairs may join it."""
    left = np.random.default_rng((seed, 0)).permutation(n).tolist()
    batches = []
    for _ in range(n // batch_size):
        batch = left[:batch_size]
        while True:
            places = sorted(range(batch_size), key=lambda i: -h(batch[:i] + batch[i + 1 :]))[:k]
            found = []
            for i in places:
                others = [d for d in range(n) if d in left and d not in batch and near(batch, d)]
                replaced = [[*batch[:i], d, *batch[i + 1 :]] for d in others]
                found += sorted(replaced, key=lambda candidate: -h(candidate))[:k]
            best = max(found, key=h, default=batch)
            if h(best) <= h(batch):
                break
            batch = best
        batches.append(batch)
        left = [pair for pair in left if pair not in batch]
    return batches


@pytest.mark.parametrize("with_conflicts", [False, True])
@pytest.mark.parametrize(("n", "depth"), [(23, 3), (23, 22), (20, 9)])
def test_beam_search_is_the_studys(n, depth, with_conflicts):
    for seed in range(4):
        candidates = make_candidates(n, depth, seed)
        scores_NxN = hard_batches.pair_scores(candidates).toarray()
        conflict_NxN = np.zeros((n, n), bool)
        if with_conflicts:
            upper_NxN = np.triu(np.random.default_rng(seed).random((n, n)) < 0.2, 1)
            conflict_NxN = upper_NxN | upper_NxN.T

        value_NxN = scores_NxN - 1e9 * conflict_NxN

        def h(batch, value_NxN=value_NxN):
            return sum(value_NxN[pair] for pair in itertools.combinations(batch, 2))

        def near(batch, pair, value_NxN=value_NxN):
            return value_NxN[batch, pair].any()

        conflicts = scipy.sparse.csr_array(conflict_NxN | np.eye(n, dtype=bool))
        found = abs_beam.beam_batches(candidates, 5, seed=seed, conflicts=conflicts)
        assert found.tolist() == slow_beam(h, near, n, 5, seed)


def test_a_run_has_the_batches_of_the_script(model_folder, beir, tmp_path, monkeypatch):
    by_epoch = []

    def recorded(*arguments, **options):
        by_epoch.append(make(*arguments, **options))
        return by_epoch[-1]

    make = abs_beam.beam_batches
    monkeypatch.setattr(abs_beam, "beam_batches", recorded)
    config = {
        "model.folder": model_folder,
        "model.passage_length": 16,
        "data.folder": beir,
        "data.batch_size": 4,
        "train.epochs": 2,
    }
    words = ["--config=configs/finetune.py:adaptive", f"--workdir={tmp_path}/run"]
    assert abs_beam.main([*words, *as_flags(config)]) == 0
    assert len(by_epoch) == 2
    for epoch, batches_MxB in enumerate(by_epoch):
        path = tmp_path / "run" / "batches" / f"epoch-{epoch:04d}.npz"
        assert hard_batches.load_batches(path).tolist() == batches_MxB.tolist()
    assert samplers.greedy_batches is hard_batches.greedy_batches


def ranking_loss(queries_QxD, passages_PxD, positives, weights, bias):
    """Equation 14: the mean over queries; positives are rows of the passages."""
    total = 0.0
    for query, positive in zip(queries_QxD, positives, strict=True):
        logits = [
            sum(w * x for w, x in zip(weights, [*query, *passage], strict=True)) + bias
            for passage in passages_PxD
        ]
        exps = [math.exp(max(logit, 0.0)) for logit in logits]
        total -= math.log(exps[positive] / sum(exps))
    return total / len(queries_QxD)


def test_learned_scores_are_their_formula():
    rng = np.random.default_rng(2)
    queries, passages = rng.normal(size=(4, 5)), rng.normal(size=(12, 5))
    scorer = torch.nn.Linear(10, 1)
    with torch.autocast("cpu", torch.bfloat16):
        scores = abs_rank.learned_scores(torch.tensor(queries), torch.tensor(passages), scorer)
    expected = ranking_loss(
        queries, passages, range(0, 12, 3), scorer.weight[0].tolist(), scorer.bias.item()
    )
    own_QxG = torch.arange(12).view(4, 3)
    assert losses.contrastive(scores, own_QxG).item() == pytest.approx(expected, rel=1e-6)
    assert scores.min() == 0


def test_a_run_is_taught_and_evaluated_by_learned_scores(
    model_folder, beir, tmp_path, monkeypatch, capsys
):
    made = []

    class Noted(abs_rank.LearnedScores):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append((self, self.scorer.weight.detach().clone()))

    monkeypatch.setattr(abs_rank, "LearnedScores", Noted)
    config = {
        "model.folder": model_folder,
        "model.passage_length": 16,
        "data.folder": beir,
        "data.batch_size": 4,
        "data.negatives_per_query": 0,
        "train.max_steps": 2,
        "optimizer.learning_rate": 1e-3,
        "eval.every": 2,
        "eval.split": "train",
    }
    words = ["--config=configs/finetune.py", f"--workdir={tmp_path}/run", *as_flags(config)]
    assert abs_rank.main(words) == 0
    ((loss, before),) = made
    assert not torch.allclose(loss.scorer.weight, before, atol=1e-5)
    assert bi_encoder.InBatchLoss is losses.InBatchLoss
    queries, qrels = read_split(beir, "train")
    passages = {p.id: passage_text(p) for p in read_corpus(beir)}
    expected = ranking_loss(
        loss.model.encode_query(list(queries.values())),
        loss.model.encode_document(list(passages.values())),
        [list(passages).index(next(iter(qrels[query]))) for query in queries],
        loss.scorer.weight[0].tolist(),
        loss.scorer.bias.item(),
    )
    found = [line["eval_loss"] for line in read_metrics(tmp_path / "run") if "eval_loss" in line]
    assert found == [pytest.approx(expected, rel=1e-4)]
    with pytest.raises(SystemExit, match="2"):
        abs_rank.main(words)
    assert "run already exists, and cannot be resumed" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        abs_rank.main([*words, f"--workdir={tmp_path}/other"])
    assert "expected one process" in capsys.readouterr().err


@pytest.fixture
def marco(tmp_path):
    """Thirty passages, a training query, six queries of dev.small, and a run of these but one."""
    folder = tmp_path / "marco"
    folder.mkdir()
    (folder / "corpus.tsv").write_text(
        "".join(f"p{i}\ttitle {i}\tthe text {i}\n" for i in range(30))
    )
    for split, queries in (("train", ["t0"]), ("dev.small", [f"q{i}" for i in range(6)])):
        texts = (f"{query}\twhat is {query}\n" for query in queries)
        (folder / f"queries.{split}.tsv").write_text("".join(texts))
        judged = (f"{q}\t0\tp{i}\t1\n{q}\t0\tp{i + 10}\t1\n" for i, q in enumerate(queries))
        (folder / f"qrels.{split}.tsv").write_text("".join(judged))
    run = {f"q{i}": {f"p{i + k}": 9.0 - k for k in range(8)} for i in range(5)}
    write_run(tmp_path / "dev.trec", run)
    return folder, tmp_path / "dev.trec", {query: list(found) for query, found in run.items()}


def test_the_studys_splits(marco, tmp_path, monkeypatch, capsys):
    data, run_file, run = marco
    monkeypatch.setattr(abs_data, "DEPTH", 6)
    monkeypatch.setattr(abs_data, "N_OTHERS", 4)
    out = tmp_path / "study"
    abs_data.main([f"--data={data}", f"--run={run_file}", f"--out={out}", "--dev=2", "--test=3"])
    assert (out / "corpus.tsv").samefile(data / "corpus.tsv")
    assert read_split(out, "train") == read_split(data, "train")
    queries, dev = read_split(out, "dev")
    assert len(dev) == 2
    _, relevant = read_split(data, "dev.small")
    drawn = read_run(out / "dev.trec")
    for query, judged in dev.items():
        assert queries[query] == f"what is {query}"
        assert list(judged.items()) == [(next(iter(relevant[query])), 1)]
        others = {*run.get(query, [])[:6]} - {*relevant[query]}
        assert {*drawn.get(query, ())} <= others
        assert len(drawn.get(query, ())) == min(4, len(others))
    _, test = read_split(out / "test", "test")
    assert len(test) == 3
    assert not {*test} & {*dev}
    assert test == {query: relevant[query] for query in test}
    ranked = {p for query in test for p in [*run.get(query, [])[:6], *relevant[query]]}
    everything = {p.id: p for p in read_corpus(data)}
    assert list(read_corpus(out / "test")) == [p for p in everything.values() if p.id in ranked]
    assert f"{len(ranked)} passages" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        abs_data.main([f"--data={data}", f"--run={run_file}", f"--out={out}-2", "--test=6"])
    assert "dev.small has 6 queries: expected 1506" in capsys.readouterr().err
    assert not (tmp_path / "study-2").exists()
