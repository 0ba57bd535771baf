"""A real checkpoint, all-MiniLM-L6-v2, fine-tuned on SciFact and BoolQ."""

from collections.abc import Callable
from typing import NamedTuple

from experiments.data import BOOLQ, BOOLQ_ALL, MINILM, SCIFACT
from papers import commands
from papers.commands import Settings
from papers.steps import Step

CONFIG = "configs/finetune.py"
CROSS_ENCODER_CONFIG = "configs/cross_encoder.py"
METRICS = "MRR@10,Recall@20,Recall@100,nDCG@10"
BFLOAT16 = "--precision=bfloat16"


class Task(NamedTuple):
    """A collection, with its epochs of fine-tuning and its number of reranked passages."""

    name: str
    data: Step
    epochs: int
    cross_encoder_epochs: int
    n_reranked: int


SCIFACT_TASK = Task("scifact", SCIFACT, epochs=3, cross_encoder_epochs=2, n_reranked=50)
BOOLQ_TASK = Task("boolq", BOOLQ, epochs=1, cross_encoder_epochs=1, n_reranked=20)


class Both(NamedTuple):
    """The runs of the test queries of both collections."""

    scifact: Step
    boolq: Step


def _both(run: Callable[[Task], Step]) -> Both:
    return Both(run(SCIFACT_TASK), run(BOOLQ_TASK))


# ---- rankings ----


def bm25() -> Both:
    """BM25."""
    return _both(lambda task: bm25_run(task.name, task.data, "test"))


def bm25_run(name: str, data: Step, split: str) -> Step:
    """The run of BM25 on a split of a collection."""
    out = f"$WORK/tuned/{name}/bm25.{split}.trec"
    command = commands.bm25(data.out, out, f"--split={split}", "--depth=200")
    return Step(out, [command], needs=[data])


def untuned(pooling: str, length: int) -> Both:
    """The published MiniLM, with mean or CLS pooling."""
    return _both(
        lambda task: untuned_run(task.name, task.data, pooling, length, precision="bfloat16")
    )


def untuned_run(name: str, data: Step, pooling: str, length: int, precision: str) -> Step:
    """The run of the published MiniLM, or of its CLS vector with inner products."""
    out = f"$WORK/tuned/{name}/{pooling}-{length}-{precision}.test.trec"
    embeddings = f"{out}.embeddings"
    encoding = [f"--pooling={pooling}", f"--max_length={length}", f"--precision={precision}"]
    if pooling == "cls":
        encoding.append("--similarity=dot")
    retrieve = commands.retrieve(
        embeddings, MINILM.out, data.out, out, "--split=test", "--depth=200"
    )
    return Step(
        out,
        [commands.encode(MINILM.out, data.out, embeddings, *encoding), retrieve],
        needs=[MINILM, data],
    )


def round1() -> Both:
    """Round 1, with negatives from BM25."""
    return _both(lambda task: run_of(_round1(task), task.data))


def round2() -> Both:
    """Round 2, with mined negatives, too."""
    return _both(lambda task: run_of(_round2(task), task.data))


def hard_batches() -> Both:
    """Round 2 with adaptive batches."""
    return _both(
        lambda task: run_of(
            _trained(task, "hard", _mined(task), {"data.batches": "hard"}), task.data
        )
    )


def soft_labels() -> Both:
    """Round 2, distilled from the scores of a cross-encoder."""
    return _both(lambda task: run_of(_taught(task), task.data))


def bm25_reranked() -> Both:
    """The first passages of BM25, reranked by a cross-encoder."""
    return _both(lambda task: _reranked(task, "lexical", bm25_run(task.name, task.data, "test")))


def round2_reranked() -> Both:
    """The first passages of round 2, reranked by a cross-encoder."""
    return _both(lambda task: _reranked(task, "tuned_run", run_of(_round2(task), task.data)))


def all_by_bm25() -> Step:
    """BM25 on all paragraphs of BoolQ's articles."""
    return bm25_run("boolq-all", BOOLQ_ALL, "test")


def all_by_round2() -> Step:
    """Round 2 on all paragraphs of BoolQ's articles."""
    retriever = _round2(BOOLQ_TASK)
    model = f"{retriever.out}/retriever"
    out = "$WORK/tuned/boolq/all.test.trec"
    embeddings = f"{out}.embeddings"
    encode = commands.encode(model, BOOLQ_ALL.out, embeddings, "--max_length=128", BFLOAT16)
    retrieve = commands.retrieve(
        embeddings, model, BOOLQ_ALL.out, out, "--split=test", "--depth=200"
    )
    return Step(out, [encode, retrieve], needs=[retriever, BOOLQ_ALL])


# ---- training ----


def _round1(task: Task) -> Step:
    return _trained(task, "round1", bm25_run(task.name, task.data, "train"), {})


def _round2(task: Task) -> Step:
    return _trained(task, "round2", _mined(task), {})


def _taught(task: Task) -> Step:
    teacher = _teacher(task)
    settings: Settings = {"loss.name": "soft_labels", "loss.teacher_run": teacher.out}
    return _trained(task, "soft", _mined(task), settings, teacher)


def _trained(task: Task, name: str, negatives: Step, settings: Settings, *more_needs: Step) -> Step:
    out = f"$WORK/tuned/{task.name}/{name}"
    shared: Settings = {
        "model.folder": MINILM.out,
        "model.pooling": "cls",
        "model.similarity": "dot",
        "data.folder": task.data.out,
        "data.negatives_run": negatives.out,
        "data.negatives_per_query": 1,
        "data.batch_size": 32,
        "optimizer.learning_rate": "2e-5",
        "train.epochs": task.epochs,
        "train.precision": "bfloat16",
    }
    return Step(
        out,
        [commands.finetune(CONFIG, out, {**shared, **settings})],
        needs=[MINILM, task.data, negatives, *more_needs],
        done="retriever",
    )


def _mined(task: Task) -> Step:
    lexical = bm25_run(task.name, task.data, "train")
    dense = run_of(_round1(task), task.data, "train")
    out = f"$WORK/tuned/{task.name}/pool.trec"
    command = commands.mine([lexical.out, dense.out], task.data.out, 100, out)
    return Step(out, [command], needs=[task.data, lexical, dense])


def _cross_encoder(task: Task) -> Step:
    negatives = _mined(task)
    out = f"$WORK/tuned/{task.name}/ce"
    settings: Settings = {
        "model.folder": MINILM.out,
        "data.folder": task.data.out,
        "data.negatives_run": negatives.out,
        "data.negatives_per_query": 3,
        "data.negatives_depth": 100,
        "optimizer.learning_rate": "1e-4",
        "train.epochs": task.cross_encoder_epochs,
        "train.precision": "bfloat16",
    }
    command = commands.finetune(CROSS_ENCODER_CONFIG, out, settings)
    return Step(out, [command], needs=[MINILM, task.data, negatives], done="cross_encoder")


def _teacher(task: Task) -> Step:
    judge, pool = _cross_encoder(task), _mined(task)
    out = f"$WORK/tuned/{task.name}/teacher.trec"
    flags = "--split=train", "--depth=10", "--with_positives", BFLOAT16
    command = commands.rerank(f"{judge.out}/cross_encoder", task.data.out, pool.out, out, *flags)
    return Step(out, [command], needs=[judge, task.data, pool])


# ---- measurements ----


def run_of(retriever: Step, data: Step, split: str = "test", precision: str = "bfloat16") -> Step:
    """The run of a fine-tuned retriever."""
    model, embeddings = f"{retriever.out}/retriever", f"{retriever.out}/embeddings"
    out = f"{retriever.out}/{split}.trec"
    encode = commands.encode(model, data.out, embeddings, f"--precision={precision}")
    retrieve = commands.retrieve(
        embeddings, model, data.out, out, f"--split={split}", "--depth=200"
    )
    return Step(out, [encode, retrieve], needs=[retriever, data])


def _reranked(task: Task, name: str, run: Step) -> Step:
    judge = _cross_encoder(task)
    out = f"$WORK/tuned/{task.name}/reranked.{name}.test.trec"
    flags = "--split=test", f"--depth={task.n_reranked}", BFLOAT16
    command = commands.rerank(f"{judge.out}/cross_encoder", task.data.out, run.out, out, *flags)
    return Step(out, [command], needs=[judge, task.data, run])


def scifact(runs: Both) -> Step:
    """Measures rankings of SciFact's test queries."""
    return measured(runs.scifact, SCIFACT)


def boolq(runs: Both) -> Step:
    """Measures rankings of BoolQ's test questions."""
    return measured(runs.boolq, BOOLQ)


def all_boolq(run: Step) -> Step:
    """Measures a run over all paragraphs."""
    return measured(run, BOOLQ_ALL)


def measured(run: Step, data: Step) -> Step:
    """Measures a run of the test queries of a collection."""
    out = f"{run.out}.json"
    command = commands.evaluate(run.out, f"{data.out}/qrels/test.tsv", METRICS, out)
    return Step(out, [command], needs=[run, data])
