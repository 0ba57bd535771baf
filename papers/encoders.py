"""Sentence encoders: the STS Benchmark, and triplets of Wikipedia's sections."""

from papers import commands, models
from papers.data import SECTIONS, STSBENCHMARK
from papers.steps import Command, Epochs, Step, best, label, most

N_PAIRS = 5_749  # of the STS Benchmark, to train on
N_TRIPLETS = 1.8e6
SENTENCE = 10.3e9  # floating-point operations to encode one, by BERT-base
SECTION = 20.8e9


# ---- the STS Benchmark ----


def stsb(model: str, rows: int = 0) -> Step:
    """The STS Benchmark after training on some of its pairs, 4 epochs (the draft, 5.2)."""
    encoder = _stsb_encoder(model, rows, 4)
    return _stsb(encoder, "test", f"{encoder.out}.json")


def stsb_few(model: str, rows: int) -> Step:
    """The same with as many epochs as are best for BERT (Condenser, A.1)."""

    def on_dev(epochs: int) -> Step:
        encoder = _stsb_encoder("bert", rows, epochs)
        return _stsb(encoder, "dev", f"{encoder.out}.dev.json")

    epochs = best(on_dev, of=(4, 8), metric="Spearman")
    encoder = _stsb_encoder(model, rows, epochs)
    return _stsb(encoder, "test", f"{encoder.out}.json")


def _stsb_encoder(model: str, rows: int, epochs: Epochs) -> Step:
    start = models.find(model)
    data = f"{STSBENCHMARK.out}/sts-train.csv"
    out = f"$WORK/stsb/{model}-{rows}-{label(epochs)}"
    return Step(
        out,
        [_train("stsb", start.out, data, rows, epochs, out)],
        needs=[start, STSBENCHMARK],
        flop=(rows or N_PAIRS) * most(epochs) * 2 * 3 * SENTENCE,
        epochs=epochs,
    )


def _stsb(encoder: Step, split: str, out: str) -> Step:
    command = _evaluate("stsb", f"{STSBENCHMARK.out}/sts-{split}.csv", encoder.out, out)
    return Step(out, [command], needs=[encoder, STSBENCHMARK])


# ---- triplets of sections ----


def sections(model: str, rows: int = 0, epochs: int = 1) -> Step:
    """Wikipedia's sections after training on some of their triplets (the draft, 5.2)."""
    encoder = _sections_encoder(model, rows, epochs)
    return _sections(encoder, "test", f"{encoder.out}.json")


def sections_few(model: str, rows: int) -> Step:
    """The same with as many epochs as are best for BERT (Condenser, A.1)."""

    def on_validation(epochs: int) -> Step:
        encoder = _sections_encoder("bert", rows, epochs)
        return _sections(encoder, "validation", f"{encoder.out}.dev.json")

    epochs = best(on_validation, of=(1, 4, 8), metric="Accuracy")
    encoder = _sections_encoder(model, rows, epochs)
    return _sections(encoder, "test", f"{encoder.out}.json")


def _sections_encoder(model: str, rows: int, epochs: Epochs) -> Step:
    start = models.find(model)
    data = f"{SECTIONS.out}/train.csv"
    out = f"$WORK/sections/{model}-{rows}-{label(epochs)}"
    return Step(
        out,
        [_train("sections", start.out, data, rows, epochs, out)],
        needs=[start, SECTIONS],
        flop=(rows or N_TRIPLETS) * most(epochs) * 3 * 3 * SECTION,
        epochs=epochs,
    )


def _sections(encoder: Step, split: str, out: str) -> Step:
    command = _evaluate("sections", f"{SECTIONS.out}/{split}.csv", encoder.out, out)
    return Step(out, [command], needs=[encoder, SECTIONS])


def _train(task: str, model: str, data: str, rows: int, epochs: Epochs, out: str) -> Command:
    return commands.words(
        "python -m papers.sentences train",
        f"--task={task}",
        f"--model={model}",
        "--pooling=cls",
        f"--data={data}",
        f"--train_rows={rows}",
        f"--epochs={epochs}",
        f"--out={out}",
    )


def _evaluate(task: str, data: str, model: str, out: str) -> Command:
    return commands.words(
        "python -m papers.sentences evaluate",
        f"--task={task}",
        f"--data={data}",
        f"--model={model}",
        f"--json_out={out}",
    )
