"""The charts of the documentation; their numbers are read from its pages and from result files.

Beside them, from quickstart.json (written by record.py).
"""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER))

from svg import (  # noqa: E402
    BAR_PITCH,
    NARROW,
    Row,
    bar,
    bars,
    legend,
    line,
    note,
    panel,
    picture,
    text,
)


def rows_of(page: str, mark: str) -> list[list[str]]:
    """Returns the cells of the table behind a mark of a page, its head first."""
    found = (ROOT / page).read_text(encoding="utf-8").partition(mark)[2].lstrip("\n")
    table = (mark + found if mark.startswith("|") else found).split("\n\n")[0].splitlines()
    rows = [row for row in table if row.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:1] + rows[2:]]


def first() -> str:
    """Returns the picture of the first page: the speed of a step, and what the quickstart found.

    The numbers are those of docs/plan.md's table and of the quickstart's.
    """
    _, *measured = rows_of("docs/plan.md", "| chunk size | spans per second")
    rate = {name: float(spans.replace(",", "")) for name, spans, *_ in measured}
    speeds = {
        "cocondenser_jax": rate["128"],
        "PyTorch, compiled": rate["128, plain PyTorch, compiled"],
        "PyTorch": rate["128, plain PyTorch"],
    }
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    row = r"^(BM25|no pre-training|Condenser|coCondenser) +(0\.\d+)"
    found = {name: float(value) for name, value in re.findall(row, page, re.MULTILINE)}
    title = "Speed of a training step, and ranking after pre-training"
    shapes = [text(20, 28, title, size=15, at="start")]
    y = 58
    for words, values, form in (
        ("spans per second, BERT-base, 2,048 documents, one H200", speeds, "{:,.0f}"),
        ("MRR@10 of the quickstart, a small network on two CPU cores", found, "{:.3f}"),
    ):
        rows = [
            Row(
                name, value, form.format(value), "two" if name.lower().startswith("coco") else "off"
            )
            for name, value in values.items()
        ]
        shapes += bars(y, words, rows, max(values.values()))
        y += 34 + BAR_PITCH * len(rows)
    return picture(y - 10, title, shapes, NARROW)


def compared() -> str:
    """Returns nDCG@10 on human-written queries, from the table of docs/results.md."""
    names = {
        "BM25": "BM25",
        "as published": "all-MiniLM-L6-v2",
        "as published + BM25": "all-MiniLM-L6-v2 + BM25",
        "all-mpnet-base-v2": "all-mpnet-base-v2",
        "both models": "both models",
    }
    collections = {
        "CoSQA": "500 questions about code",
        "LISA": "35 requests of students",
        "MEDLARS": "30 medical requests",
        "SciFact": "300 scientific claims",
    }
    head, *rows = rows_of("docs/results.md", "<!-- questions -->")
    cells = {row[0]: row for row in rows}
    title = "nDCG@10 on human-written queries"
    shapes = [text(20, 28, title, size=15, at="start")]
    y = 58
    for collection, queries in collections.items():
        shown = {name: cells[row][head.index(collection)] for row, name in names.items()}
        values = {name: float(value.strip("*")) for name, value in shown.items()}
        best = max(values.values())
        rows_of_it = [
            Row(name, values[name], value, "two" if values[name] == best else "off")
            for name, value in shown.items()
        ]
        shapes += bars(y, f"{collection}: {queries}", rows_of_it, 0.85)
        y += 36 + BAR_PITCH * len(names)
    shapes += [
        note(y - 6, "* differs from all-MiniLM-L6-v2 (p < 0.05). Blue: the highest."),
    ]
    return picture(y + 10, title, shapes, NARROW)


def labels() -> str:
    """Returns nDCG@10 over the number of labels, from experiments/past/proof.yaml."""
    past = (ROOT / "experiments" / "past" / "proof.yaml").read_text(encoding="utf-8")
    rows = yaml.safe_load(past)["tables"]["adapt-labels"]["rows"]
    found: dict[str, list[tuple[str, float, float]]] = {}
    for name, row in rows.items():
        model, amount = name.rsplit(", ", 1)
        amount = amount.split()[0].replace("no", "0")
        value, deviation = row["measured"]["test"]["nDCG@10"], row.get("± nDCG@10", 0.0)
        found.setdefault(model, []).append((amount, value, deviation))
    amounts = [amount for amount, *_ in found["adapted"]]
    shares = [i / (len(amounts) - 1) for i in range(len(amounts))]
    kinds = {"as published": "one", "adapted": "two"}
    title = "all-MiniLM-L6-v2, fine-tuned on labeled pairs of docstrings: nDCG@10"
    shapes = [text(20, 28, title, size=16, at="start"), *legend(41, kinds)]
    for i, (panel_name, suffix) in enumerate({"alone": "", "fused with BM25": " + BM25"}.items()):
        curves = {}
        for model, kind in kinds.items():
            points = [
                (share, *point) for share, (_, *point) in
                zip(shares, found[model + suffix], strict=True)
            ]  # fmt: skip
            curves[kind] = [(share, value) for share, value, _ in points]
            curves |= {
                f"{kind} {j}": [(share, value - deviation), (share, value + deviation)]
                for j, (share, value, deviation) in enumerate(points)
                if deviation
            }
        marks = dict(zip(amounts, shares, strict=True))
        shapes += panel(10 + 440 * i, panel_name, curves, LABEL_TICKS, marks, 350)
        shapes.append(text(229 + 440 * i, 288, "labeled pairs", kind="faint", size=12))
    shapes += [
        note(
            314, "1,000 docstrings' first paragraphs search 16,254 passages. Means over two seeds,"
        ),
        note(330, "bars: ± one standard deviation. The vertical axis starts at 0.4."),
    ]
    return picture(346, title, shapes)


LABEL_TICKS = (0.4, 0.45, 0.5, 0.55)


def learning() -> str:
    """Returns losses and probe of the quickstart's two stages, one after the other."""
    stages = json.loads((FOLDER / "quickstart.json").read_text(encoding="utf-8"))
    first, second = (
        {
            key: [((step + before) / STEPS, value) for step, value in points]
            for key, points in stages[stage].items()
        }
        for stage, before in (("condenser", 0), ("cocondenser", FIRST_STAGE))
    )
    loss, probe = "head_mlm_loss", "probe/positive_mrr"
    title = "Loss and probe of make quickstart"
    panels = [
        ("MLM loss of the Condenser head", {"two": first[loss], "three": second[loss]}, (4, 5, 6)),
        ("contrastive loss", {"three": second["contrastive_loss"]}, (2, 3, 4, 5, 6)),
        (
            "probe: MRR of the positive span",
            {"two": first[probe], "three": second[probe]},
            (0, 0.1, 0.2, 0.3, 0.4),
        ),
    ]
    marks = {f"{step:,}": step / STEPS for step in range(0, STEPS + 1, 500)}
    shapes = [text(20, 28, title, size=16, at="start")]
    for i, (name, curves, ticks) in enumerate(panels):
        shapes += panel(10 + 295 * i, name, curves, ticks, marks, 230)
        shapes.append(text(10 + 295 * i + 159, 288, "step", kind="faint", size=12))
    shapes += legend(41, {"stage 1: Condenser": "two", "stage 2: coCondenser": "three"})
    shapes.append(
        note(314, "The contrastive loss is 4.84 by chance. The probe tests held-out documents.")
    )
    return picture(330, title, shapes)


FIRST_STAGE = 400  # steps of the quickstart's first stage
STEPS = 1500  # of both stages


class Planned(NamedTuple):
    """What `plan` printed for the paper's stage 2 on a machine."""

    machine: str
    hours: float
    needed: float  # GiB of a device
    there: float


def plan() -> str:
    """Returns what `plan` printed for TPUs and GPUs, from the table of docs/plan.md."""
    _, *rows = rows_of("docs/plan.md", "| machine | memory")
    machines = [
        Planned(name, float(hours), float(needed), float(there))
        for name, needed, there, _, hours in rows
    ]
    longest = max(machine.hours for machine in machines)
    largest = max(machine.there for machine in machines)
    title = "The paper's stage 2 on TPUs and GPUs, as plan compiles it"
    shapes = [
        text(20, 28, title, size=16, at="start"),
        text(120, 62, "whole run: hours at least", size=13, at="start"),
        text(480, 62, "memory of a device: needed of available (GiB)", size=13, at="start"),
    ]
    for i, (name, hours, needed, there) in enumerate(machines):
        y = 76 + 26 * i
        shapes.append(text(110, y + 14, name, at="end", size=13))
        long = 260 * hours / longest
        shapes.append(bar(120, y, long, 18, "two"))
        shapes.append(text(126 + long, y + 14, f"{hours:.2f}", size=12, at="start"))
        wide = 300 * there / largest
        shapes.append(bar(480, y, wide, 18, "off"))
        shapes.append(bar(480, y, 300 * needed / largest, 18, "three"))
        shapes.append(text(486 + wide, y + 14, f"{needed:.1f} of {there:.0f}", size=12, at="start"))
    end = 76 + 26 * len(machines)
    shapes += [
        line(f"M120 70 V{end}", kind="line"),
        line(f"M480 70 V{end}", kind="line"),
        note(
            end + 24,
            "BERT-base, 12,552 steps of 2,048 documents. Compiled, not run on these machines.",
        ),
        note(end + 41, "No run reaches these hours; the authors report 19 on a v3-8."),
    ]
    return picture(end + 56, title, shapes)
