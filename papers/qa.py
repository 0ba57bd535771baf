"""Natural Questions and TriviaQA in DPR's files: about 60,000 questions, 21,015,324 passages."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from papers import commands, costs, models, vectors
from papers.commands import Settings
from papers.data import DPR
from papers.steps import Step
from papers.vectors import Passages, Search

N_QUESTIONS = 60_000
N_HARD_QUESTIONS = 128_519
N_PASSAGES = 21_015_324
PASSAGE = 42.7e9  # floating-point operations to encode one of 256 tokens, by BERT-base
TWO_PASSAGES = 90.5e9  # and a question of 32
CHARACTERS = 620  # of a passage and its title
WORDS = 103
# While it trains two towers: passages, and at most 200 negatives of each question.
SCRATCH = 2 * costs.TRAINING_BYTES + costs.stored_bytes(
    N_PASSAGES, CHARACTERS, N_HARD_QUESTIONS * 200
)
PASSAGES = Passages(DPR, DPR.out, N_PASSAGES, CHARACTERS, PASSAGE)

Name = Literal["nq", "trivia"]
Split = Literal["train", "questions"]
N_TESTED = {"nq": 3_610, "trivia": 11_313}


class Both(NamedTuple):
    """The runs of the test questions of both data sets."""

    nq: Step
    trivia: Step


def _both(run: Callable[[Name], Step]) -> Both:
    return Both(run("nq"), run("trivia"))


# ---- rankings ----


def bm25() -> Both:
    """BM25 with Lucene's formula, k1 0.9 and b 0.4.

    This is not DPR's BM25, whose figures the papers quote: with the same formula and parameters,
    Pyserini gets 0.630 and 0.782 on NQ, 0.764 and 0.831 on TriviaQA
    (castorini.github.io/pyserini, 2cr/odqa). DPR reports 0.591, 0.737, 0.669 and 0.767: they differ
    by more than the tolerance of the tables.
    """
    return _both(_bm25_run)


def _bm25_run(name: Name) -> Step:
    data = questions(name, "questions")
    out = f"$WORK/qa/{name}/bm25.trec"
    n_tested = N_TESTED[name]
    return Step(
        out,
        [commands.bm25(data.out, out, "--depth=100")],
        needs=[data],
        core_seconds=costs.bm25(n_tested, N_PASSAGES, WORDS),
        bytes=costs.run_bytes(n_tested * 100),
    )


def round1(model: str, queries: int = 0) -> Both:
    """Round 1: 128 questions, 1 BM25 negative, 40 epochs, 1e-5, two towers, as DPR trains.

    DPR's command has no weight decay, clips the norm of the gradient to 2 and warms up for 1,237
    steps; here they are 0.01, 1 and a tenth of all, 1,840. 40 epochs for any number of questions
    (Condenser, A.1).
    """
    return _both(lambda name: dense(trained_once(name, model, queries), name, "questions"))


def trained_once(name: Name, model: str, queries: int = 0) -> Step:
    """The retriever of round 1."""
    start = models.find(model)
    data = questions(name, "train")
    out = f"$WORK/qa/{name}/{model}-{queries}/round1"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": data.out,
        "data.negatives_run": f"{data.out}/negatives.trec",
        "data.train_queries": queries,
        "train.epochs": 40,
    }
    return Step(
        out,
        [commands.finetune(f"configs/finetune.py:{name}", out, settings)],
        needs=[start, data],
        done="retriever",
        flop=(queries or N_QUESTIONS) * 40 * 4 * TWO_PASSAGES,
        bytes=2 * costs.MODEL_BYTES,
        scratch=SCRATCH,
    )


def round2(model: str) -> Both:
    """Round 2, again from the pre-trained model, with negatives mined by its round 1.

    The authors publish their mined negatives for Natural Questions in DPR's format (hn.json.gz, see
    docs/repeat_the_papers.md), which saves encoding 21 million passages, searching and mining.
    """
    return _both(lambda name: dense(_trained_twice(name, model, model), name, "questions"))


def round2_published(model: str) -> Both:
    """Round 2 with the negatives of Condenser's paper (4.3).

    They are published by DPR for Natural Questions, and mined by Condenser for TriviaQA.
    """
    nq = _trained_on_published(model)
    trivia = _trained_twice("trivia", model, miner="condenser")
    return Both(dense(nq, "nq", "questions"), dense(trivia, "trivia", "questions"))


def _trained_twice(name: Name, model: str, miner: str) -> Step:
    """The release has 20 epochs of two files, BM25's and mined negatives.

    Here a question draws from both, so 40.
    """
    start = models.find(model)
    data = questions(name, "train")
    negatives = _mined(name, miner)
    out = f"$WORK/qa/{name}/{model}-0/round2"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": data.out,
        "data.negatives_run": negatives.out,
        "data.train_queries": 0,
    }
    return Step(
        out,
        [commands.finetune(f"configs/finetune.py:{name}", out, settings)],
        needs=[start, data, negatives],
        done="retriever",
        flop=N_QUESTIONS * 40 * 4 * TWO_PASSAGES,
        bytes=2 * costs.MODEL_BYTES,
        scratch=SCRATCH,
    )


def _mined(name: Name, model: str) -> Step:
    """What round 1 ranks high complements the negatives of BM25 (coCondenser, 3.4)."""
    data = questions(name, "train")
    run = dense(trained_once(name, model), name, "train")
    out = f"$WORK/qa/{name}/{model}-0/negatives.trec"
    runs = [f"{data.out}/negatives.trec", run.out]
    drop = commands.words(
        "python -m papers.answers drop",
        f"--run={out}.all",
        f"--answers={data.out}/answers.jsonl",
        f"--corpus={data.out}",
        f"--out={out}",
    )
    mine = commands.mine(runs, data.out, 100, f"{out}.all", "--split=train")
    n_results = N_QUESTIONS * 200
    return Step(
        out,
        [mine, drop],
        needs=[data, run],
        core_seconds=costs.mining(2 * n_results, 2 * n_results)
        + costs.matching(n_results * CHARACTERS),
        bytes=2 * costs.run_bytes(n_results),
    )


def _trained_on_published(model: str) -> Step:
    """20 x 128,519 / 128 = 20,081 steps (Condenser, 4.3)."""
    start = models.find(model)
    data = _published()
    out = f"$WORK/qa/nq/{model}/round2-dpr"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": data.out,
        "data.negatives_run": f"{data.out}/negatives.trec",
        "train.epochs": 20,
    }
    return Step(
        out,
        [commands.finetune("configs/finetune.py:nq", out, settings)],
        needs=[start, data],
        done="retriever",
        flop=N_HARD_QUESTIONS * 20 * 4 * TWO_PASSAGES,
        bytes=2 * costs.MODEL_BYTES,
        scratch=SCRATCH,
    )


# ---- data ----


def questions(name: Name, split: Split) -> Step:
    """A data folder with answers and, for training, judgments and BM25's negatives."""
    if split == "train":
        return _folder(f"$WORK/qa/{name}/train", f"biencoder-{name}-train.json.gz")
    return _folder(f"$WORK/qa/{name}/test", f"{name}-test.qa.csv")


def _published() -> Step:
    """Natural Questions with DPR's own hard negatives: all questions, and most of them again.

    58,880 have negatives of BM25, and 69,639 those that DPR itself ranked high.
    """
    files = "biencoder-nq-train.json.gz", "biencoder-nq-adv-hn-train.json.gz"
    return _folder("$WORK/qa/nq/hard", *files)


def _folder(out: str, *files: str) -> Step:
    command = commands.words(
        "python -m papers.dpr",
        f"--passages={DPR.out}/psgs_w100.tsv.gz",
        *(f"--questions={DPR.out}/{file}" for file in files),
        f"--out={out}",
    )
    return Step(out, [command], needs=[DPR])


# ---- measurements ----


def nq(ranked: Both) -> Step:
    """Measures the accuracy among the first k on Natural Questions."""
    return _accuracy("nq", ranked.nq)


def trivia(ranked: Both) -> Step:
    """Measures the accuracy among the first k on TriviaQA."""
    return _accuracy("trivia", ranked.trivia)


def _accuracy(name: Name, run: Step) -> Step:
    data = questions(name, "questions")
    out = f"{run.out}.json"
    command = commands.words(
        "python -m papers.answers evaluate",
        f"--run={run.out}",
        f"--answers={data.out}/answers.jsonl",
        f"--corpus={data.out}",
        "--top_k=5,20,100",
        f"--json_out={out}",
    )
    return Step(
        out,
        [command],
        needs=[run, data],
        core_seconds=costs.matching(N_TESTED[name] * 100 * CHARACTERS),
    )


def dense(retriever: Step, name: Name, split: Split) -> Step:
    """The run of a retriever."""
    data = questions(name, split)
    n_queries = N_QUESTIONS if split == "train" else N_TESTED[name]
    search = Search(data, data.out, n_queries, 100)
    return vectors.run(retriever, PASSAGES, search, f"{retriever.out}/qa_{split}.trec")


def attention(model: str) -> Step:
    """The attention of CLS, before and after fine-tuning (Condenser, figure 2)."""
    start = models.find(model)
    retriever = trained_once("nq", model)
    out = f"$WORK/attention/{model}.svg"
    command = commands.words(
        "python -m papers.figures.attention",
        f"--model={start.out}",
        f"--model={retriever.out}/retriever",
        f"--texts={DPR.out}",
        "--n_texts=1000",
        f"--out={out}",
        f"--json_out={out}.json",
    )
    return Step(out, [command], needs=[start, retriever, DPR])
