"""Evaluation during fine-tuning: its figures, the best model, early stopping, resuming."""

import json
import logging
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.configs import finetune as finetune_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import write_checksums
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_queries
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.trec import write_run
from cocondenser_jax.retriever.search import models
from cocondenser_jax.retriever.train import trainer
from cocondenser_jax.retriever.train.evaluation import DevEvaluator
from cocondenser_jax.retriever.train.losses import InBatchLoss
from cocondenser_jax.retriever.train.settings import DevSettings
from cocondenser_jax.retriever.train.tasks import finetune, resolve
from cocondenser_jax.retriever.train.training_data import read_training
from tests import lines
from tests.world import change_settings, read_metrics, write_beir, write_qrels


@pytest.fixture(scope="module")
def data(beir, tmp_path_factory):
    """The collection, and judgments of some of its queries as a second split."""
    folder = tmp_path_factory.mktemp("data") / "beir"
    shutil.copytree(beir, folder)
    write_qrels(folder / "qrels" / "held-out.tsv", QRELS)
    return folder


@pytest.fixture(scope="module")
def texts(beir):
    return read_queries(beir), {p.id: passage_text(p) for p in read_corpus(beir)}


QRELS = {"q1": {"d1": 1, "d40": 2, "d41": 0}} | {f"q{i}": {f"d{i}": 1} for i in range(2, 12)}


def evaluate_by_hand(model, queries, passages, qrels, candidates, cutoff, score):
    """The definition, query by query; the ranking is judged by trec_eval."""
    losses, run = [], {}
    for query, grades in qrels.items():
        names = candidates[query]
        query_D = model.encode_query(queries[query]).astype(np.float64)
        vectors = model.encode_document([passages[name] for name in names]).astype(np.float64)
        scores = {name: score(query_D, v) for name, v in zip(names, vectors, strict=True)}
        run[query] = dict(sorted(scores.items(), key=lambda item: -item[1])[:cutoff])
        relevant = [name for name, grade in grades.items() if grade > 0]
        rest = [score for name, score in scores.items() if name not in relevant]
        for name in relevant:
            exps = np.exp(np.array([scores[name], *rest]) - scores[name])
            losses.append(np.log(exps.sum()))
    return np.mean(losses), evaluate_run(qrels, run, (f"MRR@{cutoff}",))["mean"][f"MRR@{cutoff}"]


def make_config(model_folder, data, settings):
    config = finetune_config.get_config()
    change_settings(
        config,
        {
            "model.folder": str(model_folder),
            "data.folder": str(data),
            "data.negatives_per_query": 0,
            "data.batch_size": 4,
            "model.query_length": 8,
            "model.passage_length": 16,
            "train.epochs": 3,
            "optimizer.learning_rate": 1e-2,
            "log_every": 1,
            "checkpoint.every": 4,
            "eval.every": 2,
            "eval.split": "held-out",
        },
    )
    change_settings(config, settings)
    return config


def make_search(model_folder, data, settings):
    resolved = resolve(make_config(model_folder, data, settings), Path(data, "run"))
    training = read_training(resolved.data, resolved.trainer.stored)
    model = models.load_retriever(model_folder, 8, 16)
    settings_of_loss = resolved.loss._replace(scale=resolved.loss.scale or 1.0)  # inner products
    loss = InBatchLoss(model, training.judgments, settings_of_loss)
    return DevEvaluator(resolved.dev, training.passages, loss.score)


def test_the_collection_is_ranked(model_folder, data, texts):
    model = models.load_retriever(model_folder, 8, 16)
    names = {query: list(texts[1]) for query in QRELS}
    found = make_search(model_folder, data, {"loss.scale": 0.5})(model)
    score = lambda query_D, passage_D: 0.5 * float(query_D @ passage_D)  # noqa: E731
    loss, mrr = evaluate_by_hand(model, *texts, QRELS, names, 10, score)
    assert 0 < mrr < 0.5
    assert found == {"loss": pytest.approx(loss, rel=1e-5), "MRR@10": pytest.approx(mrr)}


@pytest.fixture(scope="module")
def with_own(data, texts, tmp_path_factory):
    """The collection with passages that are queries: q3 and q4, which is judged relevant to q4.

    Another passage has the id of the query q5.
    """
    folder = tmp_path_factory.mktemp("own") / "beir"
    shutil.copytree(data, folder)
    own = {query: texts[0][query] for query in ("q3", "q4")} | {"q5": "abcde fgh"}
    with (folder / "corpus.jsonl").open("a") as file:
        file.writelines(json.dumps({"_id": q, "text": t}) + "\n" for q, t in own.items())
    qrels = QRELS | {"q4": {"q4": 1}}
    write_qrels(folder / "qrels" / "held-out.tsv", qrels)
    return folder, qrels, {**texts[1], **own}


@pytest.mark.parametrize("depth", [0, 20])
def test_a_query_that_is_a_passage_is_not_ranked(model_folder, with_own, texts, tmp_path, depth):
    folder, qrels, passages = with_own
    candidates = {query: list(passages) for query in qrels}
    candidates["q3"].remove("q3")
    candidates["q5"].remove("q5")
    settings = {}
    if depth:
        run = {query: {query: 9.0, "q3": 8.0, "d50": 1.0} for query in ("q3", "q5")}
        write_run(tmp_path / "dev.trec", run)
        settings = {"eval.run": str(tmp_path / "dev.trec")}
        pool = [*dict.fromkeys(p for q in qrels for p in [*qrels[q], "q3", "d50"])]
        pool.remove("d41")
        candidates = dict.fromkeys(qrels, pool) | {
            "q3": ["d3", "d50"],
            "q5": ["d5", "q3", "d50"],
        }
    model = models.load_retriever(model_folder, 8, 16)
    score = lambda query_D, passage_D: float(query_D @ passage_D)  # noqa: E731
    cutoff = 100 if depth else 10
    search = make_search(model_folder, folder, settings)
    expected = evaluate_by_hand(model, texts[0], passages, qrels, candidates, cutoff, score)
    found = search(model)
    assert [*found.values()] == pytest.approx(expected, rel=1e-5)


def test_a_copy_of_a_relevant_passage_is_not_ranked(model_folder, data, texts, tmp_path):
    folder = shutil.copytree(data, tmp_path / "beir")
    with (folder / "corpus.jsonl").open("a") as file:
        for query, grades in QRELS.items():
            for passage in grades:
                copy = {"_id": f"{query}-{passage}", "text": texts[1][passage].upper()}
                file.write(json.dumps(copy) + "\n")
    model = models.load_retriever(model_folder, 8, 16)
    expected = make_search(model_folder, data, {})(model)
    found = make_search(model_folder, folder, {})(model)
    # The copies of other queries' passages count as those do.
    assert found["MRR@10"] <= expected["MRR@10"]
    search = make_search(model_folder, folder, {})
    for query, left_out in zip(QRELS, search._left_out_Q, strict=True):
        relevant = {passage for passage, grade in QRELS[query].items() if grade > 0}
        names = {search._passage_ids[row] for row in left_out}
        assert {f"{query}-{passage}" for passage in relevant} <= names


@pytest.fixture(scope="module")
def dev_run(data):
    """Twelve passages for each query but the last one, the first of them relevant."""
    rng = np.random.default_rng(0)
    run = {}
    for query, grades in list(QRELS.items())[:-1]:
        others = [f"d{i}" for i in rng.permutation(60) if grades.get(f"d{i}", 0) <= 0]
        run[query] = {name: 20.0 - i for i, name in enumerate([*list(grades)[:1], *others[:11]])}
    write_run(data / "dev.trec", run)
    return data / "dev.trec", run


def candidates_of(run):
    """The run's passages and the relevant ones; of a query that it lacks, those of all."""
    relevant = {q: [p for p, grade in found.items() if grade > 0] for q, found in QRELS.items()}
    everything = [*chain(*run.values()), *chain(*relevant.values())]
    return {q: {*run.get(q, everything), *relevant[q]} for q in QRELS}


@pytest.mark.effect("retriever eval.run")
def test_the_passages_of_a_run_are_ranked(model_folder, data, texts, dev_run):
    model = models.load_retriever(model_folder, 8, 16)
    path, run = dev_run
    score = lambda query_D, passage_D: float(query_D @ passage_D)  # noqa: E731
    loss, mrr = evaluate_by_hand(model, *texts, QRELS, candidates_of(run), 100, score)
    found = make_search(model_folder, data, {"eval.run": str(path)})(model)
    assert found == {"loss": pytest.approx(loss, rel=1e-5), "MRR@100": pytest.approx(mrr)}
    whole = make_search(model_folder, data, {})(model)
    assert whole["loss"] > found["loss"], "the collection is harder to rank"
    rounded = make_search(model_folder, data, {"train.precision": "bfloat16"})(model)
    assert whole["loss"] != rounded["loss"] == pytest.approx(whole["loss"], rel=0.02)
    (data / "unknown.trec").write_text("q1 Q0 nowhere 1 1.0 x\n")
    said = "…/unknown.trec names 1 passages that the data does not have: nowhere"
    with pytest.raises(UserError, match=lines.whole(said)):
        make_search(model_folder, data, {"eval.run": str(data / "unknown.trec")})


class Collapsed:
    """A model all of whose numbers are one."""

    device = models.torch.device("cpu")

    def __init__(self, of_queries, of_passages):
        self._of_queries = of_queries
        self._of_passages = of_passages

    def encode_query(self, texts, **options):
        return np.full((len(texts), 4), self._of_queries, np.float32)

    def encode_document(self, texts, **options):
        return np.full((len(texts), 4), self._of_passages, np.float32)


def test_a_collapsed_model_ranks_nothing_first(model_folder, data, texts):
    search = make_search(model_folder, data, {})
    assert search(Collapsed(0.0, 0.0))["MRR@10"] == 0
    search._cutoff = last = len(texts[1])  # the rank of a query's only relevant passage; q1 has two
    expected = (1 / (last - 1) + 10 / last) / 11
    assert search(Collapsed(0.0, 0.0))[f"MRR@{last}"] == pytest.approx(expected)


def test_a_model_that_has_diverged_is_not_evaluated(model_folder, data, tmp_path):
    evaluate = make_search(model_folder, data, {})
    with pytest.raises(UserError, match=f"first that of query {next(iter(QRELS))}: training has"):
        evaluate(Collapsed(np.nan, 0.0))
    with pytest.raises(
        UserError,
        match=lines.whole(
            "60 of 60 vectors are not finite, first that of passage d0: training has "
            "diverged; try a lower config.optimizer.learning_rate, or "
            "config.train.precision=float32"
        ),
    ):
        evaluate(Collapsed(0.0, np.inf))
    write_run(tmp_path / "dev.trec", {"q2": {"d7": 1.0}})
    evaluate = make_search(model_folder, data, {"eval.run": str(tmp_path / "dev.trec")})
    with pytest.raises(UserError, match="first that of passage d1: training has"):
        evaluate(Collapsed(0.0, np.inf))  # of those that are ranked


def evaluations(workdir, measure="eval_MRR@10"):
    found = [line for line in read_metrics(workdir) if "eval_loss" in line]
    return {line["step"]: (line[measure], line["eval_loss"]) for line in found}


def trained(workdir):
    """Returns what a run logged of its steps, and its weights."""
    keys = ("step", "loss", "grad_norm", "eval_loss", "eval_MRR@100")
    lines = [{key: line[key] for key in keys if key in line} for line in read_metrics(workdir)]
    files = sorted((workdir / "retriever").rglob("model.safetensors"))
    return lines, [file.read_bytes() for file in files]


@pytest.fixture(scope="module")
def whole(model_folder, data, tmp_path_factory):
    """A run that evaluates every second step, and what it returns."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    config = make_config(model_folder, data, {"checkpoint.every": 0})  # saved if it is the best
    return workdir, finetune(config, workdir)


@pytest.mark.effect("retriever eval.every", "retriever eval.split")
def test_the_best_model_is_kept(whole, data):
    workdir, result = whole
    found = evaluations(workdir)
    assert list(found) == list(range(2, 19, 2))
    best = max(found, key=lambda step: found[step][0])
    assert 2 < best < 18, "a run whose last model is the best shows nothing"
    assert (result["best_step"], result["eval_MRR@10"]) == (best, found[best][0])
    model = SentenceTransformer(str(workdir / "retriever"))
    again = make_search(workdir / "retriever", data, {})(model)
    assert again["MRR@10"] == found[best][0]
    assert result["eval_loss"] == found[best][1]
    assert again["loss"] == pytest.approx(found[best][1], rel=1e-5)


def test_evaluating_changes_nothing_in_training(whole, model_folder, data, tmp_path):
    finetune(make_config(model_folder, data, {"eval.every": 0}), tmp_path / "run")
    losses = [
        {
            line["step"]: (line["loss"], line["grad_norm"])
            for line in read_metrics(run)
            if "loss" in line
        }
        for run in (whole[0], tmp_path / "run")
    ]
    assert losses[0] == losses[1]


class Killed(BaseException):
    """Stands for the end of the process."""


def kill(*args, **kwargs):
    raise Killed


def test_a_killed_run_ends_as_if_it_had_not_been(
    model_folder, data, dev_run, tmp_path, monkeypatch, caplog
):
    """With all that evaluating and hard batches add to what is restored."""
    config = make_config(
        model_folder,
        data,
        {
            "data.batches": "hard",
            "data.batch_scores": "bm25",
            "optimizer.learning_rate": 1e-3,
            "checkpoint.every": 6,
            "eval.run": str(dev_run[0]),
            "seed": 2,
        },
    )
    caplog.set_level(logging.INFO, trainer.__name__)
    result = finetune(config, tmp_path / "whole")
    found = evaluations(tmp_path / "whole", "eval_MRR@100")
    best, last = result["best_step"], result["steps"]
    assert f"saving the best model: step {best}" in caplog.messages
    assert best == max(found, key=lambda step: found[step][0])
    assert 3 < best < last
    assert best % 6, "a checkpoint is due there anyway"

    step_end, run = trainer._MetricsCallback.on_step_end, tmp_path / "run"
    for killed in (3, best + 1, last):

        def end(self, args, state, control, killed=killed, **kwargs):
            step_end(self, args, state, control, **kwargs)
            if state.global_step == killed:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(trainer._MetricsCallback, "on_step_end", end)
            with pytest.raises(Killed):
                finetune(config, run)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "new_folder", kill)
        with pytest.raises(Killed):
            finetune(config, run)
    finetune(config, run)
    assert trained(run) == trained(tmp_path / "whole")


def test_a_run_resumes_with_the_same_judgments_and_run_only(
    model_folder, data, dev_run, tmp_path, monkeypatch
):
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "queries.jsonl").unlink()
    for split in ("train", "held-out"):
        rows = "".join(f"{query}\t{text}\n" for query, text in read_queries(data).items())
        (folder / f"queries.{split}.tsv").write_text(rows)
    config = make_config(model_folder, folder, {"eval.run": str(folder / dev_run[0].name)})
    monkeypatch.setattr(trainer, "run", kill)
    with pytest.raises(Killed):
        finetune(config, tmp_path / "run")
    for kind, name, line in (
        ("eval_judgments", "qrels/held-out.tsv", "q2\td3\t1\n"),
        ("eval_queries", "queries.held-out.tsv", "q99\tanother\n"),
        ("eval_run", dev_run[0].name, "q11 Q0 d1 1 1.0 x\n"),
    ):
        before = (folder / name).read_text()
        (folder / name).write_text(before + line)
        with pytest.raises(UserError, match=rf"was started with sha256\.{kind}=.*: choose a new"):
            finetune(config, tmp_path / "run")
        (folder / name).write_text(before)


def test_a_checkpoint_needs_the_best_until_then(tmp_path):
    for step in (2, 4):
        folder = tmp_path / "checkpoints" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text('{"best_global_step": 2}')
        (folder / "weights").write_text("x")
        write_checksums(folder)
    assert trainer._prepare_resume(tmp_path / "checkpoints") == 4
    (tmp_path / "checkpoints" / "checkpoint-2" / "weights").write_text("y")
    with pytest.raises(
        UserError,
        match=lines.whole(
            "TMP: none of its checkpoints (2, 4) is intact; to start again, choose a new folder"
        ),
    ):
        trainer._prepare_resume(tmp_path / "checkpoints")
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-2")
    with pytest.raises(
        UserError,
        match=lines.whole(
            "TMP: none of its checkpoints (4) is intact; to start again, choose a new folder"
        ),
    ):
        trainer._prepare_resume(tmp_path / "checkpoints")


def test_a_best_model_that_is_damaged_is_not_saved(model_folder, data, tmp_path, monkeypatch):
    def damage(*args, **kwargs):
        for weights in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
            weights.write_bytes(b"")

    monkeypatch.setattr(trainer._MetricsCallback, "on_train_end", damage)
    config = make_config(model_folder, data, {"train.max_steps": 4})
    with pytest.raises(
        UserError,
        match=lines.whole(
            "TMP/run/checkpoints/checkpoint-4 is damaged (model.safetensors is not what was saved)"
        ),
    ):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run" / "retriever").exists()


@pytest.mark.parametrize(
    ("judgments", "message"),
    [
        (
            "",
            lines.whole(
                "TMP/data has no judgments of split 'other': it has qrels/held-out.tsv, "
                "qrels/train.tsv"
            ),
        ),
        ("query-id\tcorpus-id\tscore\nq1\td99\t1\n", "names 1 passages that the data does not"),
        (
            "query-id\tcorpus-id\tscore\nq1\td1\t0\n",
            lines.whole("no judgment has a score above 0: there is no positive to train on"),
        ),
    ],
)
def test_a_split_that_does_not_fit_leaves_nothing(model_folder, data, tmp_path, judgments, message):
    shutil.copytree(data, tmp_path / "data")
    if judgments:
        (tmp_path / "data" / "qrels" / "other.tsv").write_text(judgments)
    config = make_config(model_folder, tmp_path / "data", {"eval.split": "other"})
    with pytest.raises(UserError, match=message):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_all_passages_of_a_long_run_are_ranked(tmp_path):
    """Not only as many as the cutoff has."""
    passages = {f"p{i}": f"text {i}" for i in range(130)}
    folder = write_beir(tmp_path / "data", [*passages.values()], ["a query"], {"dev": [0]})
    write_run(tmp_path / "dev.trec", {"q0": {name: -float(name[1:]) for name in passages}})
    settings = DevSettings(folder, 1, "dev", str(tmp_path / "dev.trec"), "float32")
    evaluator = DevEvaluator(settings, passages, None)
    assert len(evaluator._others_Q[0]) == 129  # without the relevant one
