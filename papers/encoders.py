"""Sentence encoders: the STS Benchmark, and triplets of Wikipedia's sections."""

from typing import NamedTuple

from papers import commands, models
from papers.data import SECTIONS, STSBENCHMARK
from papers.steps import Epochs, Step, best, choices, label, most


class Task(NamedTuple):
    """A task on which sentence encoders are trained and evaluated."""

    name: str  # of papers/sentences.py
    data: Step
    file: str  # of a split, in the data
    held_out: str  # the split to choose the number of epochs by
    metric: str
    grid: tuple[int, ...]  # numbers of epochs to choose from
    n_rows: int  # to train on
    flop: float  # floating-point operations to encode the texts of a row, by BERT-base


STSB = Task(
    name="stsb",
    data=STSBENCHMARK,
    file="sts-{split}.csv",
    held_out="dev",
    metric="Spearman",
    grid=(4, 8),
    n_rows=5_749,
    flop=2 * 10.3e9,
)
TRIPLETS = Task(
    name="sections",
    data=SECTIONS,
    file="{split}.csv",
    held_out="validation",
    metric="Accuracy",
    grid=(1, 4, 8),
    n_rows=1_800_000,
    flop=3 * 20.8e9,
)


def stsb(model: str, rows: int = 0) -> Step:
    """The STS Benchmark after training on some of its pairs, 4 epochs (the draft, 5.2)."""
    return _tested(STSB, model, rows, 4)


def stsb_few(model: str, rows: int) -> Step:
    """The same with BERT's best number of epochs (Condenser, A.1)."""
    return _tested(STSB, model, rows, _best_epochs(STSB, rows))


def sections(model: str, rows: int = 0, epochs: int = 1) -> Step:
    """Wikipedia's sections after training on some of their triplets (the draft, 5.2)."""
    return _tested(TRIPLETS, model, rows, epochs)


def sections_few(model: str, rows: int) -> Step:
    """The same with BERT's best number of epochs (Condenser, A.1)."""
    return _tested(TRIPLETS, model, rows, _best_epochs(TRIPLETS, rows))


def _best_epochs(task: Task, rows: int) -> Epochs:
    def on_held_out(epochs: int) -> Step:
        encoder = _encoder(task, "bert", rows, epochs)
        return _evaluated(task, encoder, task.held_out, f"{encoder.out}.dev.json")

    return best(on_held_out, of=task.grid, metric=task.metric)


def _tested(task: Task, model: str, rows: int, epochs: Epochs) -> Step:
    encoder = _encoder(task, model, rows, epochs)
    return _evaluated(task, encoder, "test", f"{encoder.out}.json")


def _encoder(task: Task, model: str, rows: int, epochs: Epochs) -> Step:
    start = models.find(model)
    out = f"$WORK/{task.name}/{model}-{rows}-{label(epochs)}"
    command = commands.words(
        "python -m papers.sentences train",
        f"--task={task.name}",
        f"--model={start.out}",
        "--pooling=cls",
        f"--data={_file(task, 'train')}",
        f"--train_rows={rows}",
        f"--epochs={epochs}",
        f"--out={out}",
    )
    return Step(
        out,
        [command],
        needs=[start, task.data],
        flop=(rows or task.n_rows) * most(epochs) * 3 * task.flop,
        choices=choices(epochs),
    )


def _evaluated(task: Task, encoder: Step, split: str, out: str) -> Step:
    command = commands.words(
        "python -m papers.sentences evaluate",
        f"--task={task.name}",
        f"--data={_file(task, split)}",
        f"--model={encoder.out}",
        f"--json_out={out}",
    )
    return Step(out, [command], needs=[encoder, task.data])


def _file(task: Task, split: str) -> str:
    return f"{task.data.out}/{task.file.format(split=split)}"
