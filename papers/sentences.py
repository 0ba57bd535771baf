"""Train and evaluate sentence encoders, as in tables 1 and 2 of the Condenser paper.

python -m papers.sentences train --task=stsb --model=runs/model --data=sts-train.csv --out=runs/stsb
python -m papers.sentences evaluate --task=stsb --model=runs/stsb --data=sts-test.csv

`--task` selects the data and the training (Reimers & Gurevych, arXiv 1908.10084):

  stsb      the STS Benchmark: pairs with a score of 0 to 5; mean of (cos(u, v) − score / 5)²,
            4 epochs. Evaluated by the correlation of cosines with scores, times 100.
  sections  triplets of Wikipedia sections, Sentence1 to Sentence3; mean of
            max(0, ‖a − p‖ − ‖a − n‖ + 5), 1 epoch. The margin of 5 is the default of
            sentence-transformers; Reimers & Gurevych have 1. Evaluated by the fraction of anchors
            that are nearer to their positive.
  nli       AllNLI.tsv.gz of sentence-transformers: pairs with a label; cross-entropy of
            W (u, v, |u − v|) + b, 1 epoch. The baseline "NLI" continues with stsb.

Batches of 16, 2e-5, linear warm-up over a tenth. `--out` gets a folder of sentence-transformers.
"""

import argparse
import csv
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)
from sentence_transformers.sentence_transformer.losses import (
    CosineSimilarityLoss,
    SoftmaxLoss,
    TripletLoss,
)

from cocondenser_jax.cli.output import print_metrics
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder, read_lines, require_absent
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search.models import load_retriever, new_parameters, uses_bfloat16
from cocondenser_jax.retriever.train.processes import on_one_gpu
from cocondenser_jax.retriever.train.training_data import sample
from papers.figures.output import at_least, run_script

BATCH_SIZE = 16
LEARNING_RATE = 2e-5
SEED = 42
LABELS = ("contradiction", "entailment", "neutral")
_STSB_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")

Rows = list[dict[str, Any]]  # the texts first, then their labels


class Task(NamedTuple):
    """The data, training and evaluation of a task."""

    read: Callable[[Path], Rows]
    make_loss: Callable[[SentenceTransformer], torch.nn.Module]
    epochs: int
    length: int  # tokens kept of a sentence
    evaluator: Callable[[datasets.Dataset], BaseEvaluator] | None
    metrics: dict[str, tuple[str, float]]  # name → that of the evaluator, and a factor


def read_stsb(path: Path) -> Rows:
    """Reads tab-separated pairs with their scores, as fractions of 5."""
    rows = []
    for where, row in _read_rows(path, _STSB_COLUMNS, delimiter="\t", quoting=csv.QUOTE_NONE):
        texts = _fields(row, ("sentence1", "sentence2"), where)
        try:
            score = float(row["score"])
        except ValueError:
            score = -1.0
        if not 0 <= score <= 5:
            raise UserError(f"{where}: expected a score of 0 to 5, not {row['score']!r}")
        rows.append(texts | {"score": score / 5})
    return rows


def read_sections(path: Path) -> Rows:
    """Reads comma-separated triplets: a sentence, one of its section, one of another section."""
    names = ("Sentence1", "Sentence2", "Sentence3")
    return [_fields(row, names, where) for where, row in _read_rows(path)]


def read_nli(path: Path) -> Rows:
    """Reads tab-separated pairs of the split "train" with the numbers of their labels."""
    rows = []
    for where, row in _read_rows(path, delimiter="\t", quoting=csv.QUOTE_NONE):
        fields = _fields(row, ("split", "sentence1", "sentence2", "label"), where)
        if fields.pop("split") != "train":
            continue
        if fields["label"] not in LABELS:
            raise UserError(f"{where}: expected one of {', '.join(LABELS)}")
        rows.append(fields | {"label": LABELS.index(fields["label"])})
    return rows


def _read_rows(
    path: Path, columns: Sequence[str] | None = None, **layout: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields "FILE:LINE" and each row's fields, None where missing; `columns`: without a header."""
    lines = (f"{line}\n" for _, line in read_lines(path))
    rows = csv.DictReader(lines, columns, strict=True, **layout)
    try:
        for row in rows:
            yield f"{path}:{rows.line_num}", row
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num}: {error}") from error


def _fields(row: dict[str, Any], names: Sequence[str], where: str) -> dict[str, Any]:
    fields = {name: row.get(name) for name in names}
    if None in fields.values():
        raise UserError(f"{where}: expected {', '.join(names)}")
    return fields


def _softmax_loss(model: SentenceTransformer) -> torch.nn.Module:
    with new_parameters(SEED):
        return SoftmaxLoss(model, model.get_embedding_dimension() or 0, num_labels=len(LABELS))


def _stsb_evaluator(rows: datasets.Dataset) -> BaseEvaluator:
    first, second, scores = (rows[name][:] for name in ("sentence1", "sentence2", "score"))
    return EmbeddingSimilarityEvaluator(first, second, scores, main_similarity="cosine")


def _sections_evaluator(rows: datasets.Dataset) -> BaseEvaluator:
    anchors, near, far = (rows[name][:] for name in ("Sentence1", "Sentence2", "Sentence3"))
    return TripletEvaluator(anchors, near, far, main_similarity_function="euclidean")


TASKS = {
    "stsb": Task(
        read=read_stsb,
        make_loss=CosineSimilarityLoss,
        epochs=4,
        length=64,
        evaluator=_stsb_evaluator,
        metrics={"Spearman": ("spearman_cosine", 100), "Pearson": ("pearson_cosine", 100)},
    ),
    "sections": Task(
        read=read_sections,
        make_loss=TripletLoss,
        epochs=1,
        length=128,
        evaluator=_sections_evaluator,
        metrics={"Accuracy": ("euclidean_accuracy", 1)},
    ),
    "nli": Task(
        read=read_nli,
        make_loss=_softmax_loss,
        epochs=1,
        length=64,
        evaluator=None,
        metrics={},
    ),
}


def read(task: Task, path: Path, n_rows: int = 0) -> datasets.Dataset:
    """Reads a sample of `n_rows` rows, all for 0."""
    rows = task.read(path)
    if not rows:
        raise UserError(f"{path} holds no rows")
    drawn = sample(n_rows, len(rows), SEED, "--train_rows", f"the rows of {path}")
    return datasets.Dataset.from_list([rows[i] for i in drawn])


def train(arguments: argparse.Namespace) -> None:
    """Trains an encoder and writes its folder atomically."""
    task = TASKS[arguments.task]
    require_absent(arguments.out)
    rows = read(task, arguments.data, arguments.train_rows)
    if len(rows) < BATCH_SIZE:
        raise UserError(f"{len(rows)} rows to train on: expected a batch, {BATCH_SIZE}")
    length = arguments.length or task.length
    model = load_retriever(arguments.model, length, length, _given(arguments))
    model.max_seq_length = length
    on_gpu = torch.cuda.is_available()
    with new_folder(arguments.out) as folder:
        training = SentenceTransformerTrainingArguments(
            output_dir=str(folder),
            num_train_epochs=arguments.epochs or task.epochs,
            per_device_train_batch_size=BATCH_SIZE,
            dataloader_drop_last=True,
            dataloader_pin_memory=on_gpu,
            use_cpu=not on_gpu,  # else bfloat16 is refused on a CPU
            learning_rate=LEARNING_RATE,
            warmup_steps=0.1,  # a fraction of all steps
            weight_decay=0.01,
            bf16=uses_bfloat16(arguments.precision),
            seed=SEED,
            save_strategy="no",
            logging_steps=50,
            report_to="none",
        )
        loss = task.make_loss(model)
        SentenceTransformerTrainer(model, on_one_gpu(training), rows, loss=loss).train()
        model.save_pretrained(str(folder), create_model_card=False)


def evaluate(arguments: argparse.Namespace) -> None:
    """Prints the metrics of an encoder."""
    task = TASKS[arguments.task]
    if task.evaluator is None:
        raise UserError(f"--task={arguments.task}: expected stsb or sections to evaluate")
    evaluator = task.evaluator(read(task, arguments.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's, of what the error below says
        result: Any = evaluator(load_retriever(arguments.model, given=_given(arguments)))
    metrics = {name: factor * float(result[key]) for name, (key, factor) in task.metrics.items()}
    if not all(map(math.isfinite, metrics.values())):
        raise UserError("all pairs have the same score: a correlation needs different ones")
    print_metrics(metrics, arguments.json_out)


def _given(arguments: argparse.Namespace) -> Given:
    if not arguments.pooling:
        return Given()
    return Given(pooling=arguments.pooling, similarity="dot")


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="sentences", description=__doc__, formatter_class=plain, allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True)
    for name, run in (("train", train), ("evaluate", evaluate)):
        command = commands.add_parser(name, allow_abbrev=False)
        command.set_defaults(run=run)
        command.add_argument("--task", choices=TASKS, required=True, help="see above")
        command.add_argument("--model", type=Path, required=True, help="a folder or Hub name")
        command.add_argument("--data", type=Path, required=True, help="the file of its rows")
        pooling = "pooling other than the model's own, of vectors as they are"
        command.add_argument("--pooling", choices=("cls", "mean"), help=pooling)
        if run is evaluate:
            json_out = "also write the metrics to this JSON file"
            command.add_argument("--json_out", type=Path, help=json_out)
            continue
        command.add_argument("--out", type=Path, required=True, help="the folder to make")
        train_rows = "rows drawn from the file (default: all)"
        command.add_argument("--train_rows", type=at_least(0), default=0, help=train_rows)
        epochs = "passes over them (default: see above)"
        command.add_argument("--epochs", type=at_least(1), help=epochs)
        length = "tokens kept of a sentence (default: 64; of a section 128)"
        command.add_argument("--length", type=at_least(3), help=length)
        precisions = ("auto", "float32", "bfloat16")
        command.add_argument("--precision", choices=precisions, default="auto")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), lambda arguments: arguments.run(arguments), argv)


if __name__ == "__main__":
    main()
