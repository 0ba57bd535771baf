"""What the quickstart's report shows: its results, example searches, curves, and the run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.analysis.page import comparison, definitions, plots, searches, write_page
from cocondenser_jax.analysis.plots import Curve, Panel, curve, read_metrics
from cocondenser_jax.collection.folder import read_split
from cocondenser_jax.files import read_json

# query -> score, title and text of each passage found, best first
Examples = Mapping[str, Sequence[tuple[float, str, str]]]


class ResultRow(NamedTuple):
    """A retriever of the comparison. The two metrics lie in [0, 1]."""

    name: str
    mrr_at_10: float
    recall_at_100: float
    seconds: float


def write_report(
    workdir: Path, rows: Sequence[ResultRow], examples: Examples, search_command: str
) -> Path:
    """Writes `report.html` of a finished quickstart, and returns its path."""
    run = read_json(workdir / "pretraining" / "cocondenser" / "run.json")
    queries, _ = read_split(workdir / "data", "test")
    note = (
        f"{len(queries):,} held-out first paragraphs over all passages. Seconds:"
        " pre-training, fine-tuning, encoding and search."
    )
    model, data = run["model"], run["data"]
    facts = {
        "pre-training text": f"{data['documents']:,} documents, {data['spans']:,} spans,"
        f" {data['tokens']:,} tokens",
        "model": f"{model['num_hidden_layers']} layers x {model['hidden_size']},"
        f" vocabulary {model['vocab_size']:,}",
        "seed": str(run["config"]["seed"]),
        "data hash": data["sha256"],
        "versions": ", ".join(f"{name} {number}" for name, number in run["versions"].items()),
    }
    sections = {
        "Comparison": comparison(
            ("MRR@10", "Recall@100"), [(name, metrics, s) for name, *metrics, s in rows], note
        ),
        "Example searches": searches(examples, search_command),
        "Training": plots(_panels(workdir, run["config"]["data"]["batch_size"])),
        "Run": definitions(facts),
    }
    summary = (
        "A small coCondenser, pre-trained from scratch on the docstrings of this machine"
        " and fine-tuned to find the passage that a docstring's first paragraph belongs to."
    )
    write_page(workdir / "report.html", "coCondenser quickstart", summary, sections)
    return workdir / "report.html"


def _panels(workdir: Path, n_documents: int) -> list[Panel]:
    # coCondenser comes second in every panel, and so has one colour.
    pretraining = {
        "Condenser": workdir / "pretraining" / "condenser",
        "coCondenser": workdir / "pretraining" / "cocondenser",
    }
    finetuning = {
        "no pre-training": workdir / "compare" / "no-pretraining-0" / "finetuning",
        "coCondenser": workdir / "finetuning",
    }

    def curves(runs: Mapping[str, Path], key: str) -> list[Curve]:
        return [curve(name, read_metrics(run / "metrics.jsonl"), key) for name, run in runs.items()]

    chance = (math.log(2 * n_documents - 1), "chance")
    return [
        Panel("MLM loss per masked token", curves(pretraining, "head_mlm_loss")),
        Panel(
            "contrastive loss per span", curves(pretraining, "contrastive_loss"), reference=chance
        ),
        Panel("fine-tuning loss per query", curves(finetuning, "loss"), from_zero=True),
        Panel("spans per second", curves(pretraining, "spans_per_second"), from_zero=True),
    ]
