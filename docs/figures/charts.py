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

from svg import bar, bar_chart, legend, line, note, panel, picture, text  # noqa: E402


def rows_of(page: str, mark: str) -> list[list[str]]:
    """Returns the cells of the table behind a mark of a page, its head first, without emphasis."""
    found = (ROOT / page).read_text(encoding="utf-8").partition(mark)[2].lstrip("\n")
    table = (mark + found if mark.startswith("|") else found).split("\n\n")[0].splitlines()
    rows = [row for row in table if row.startswith("|")]
    return [[cell.strip(" *") for cell in row.strip("|").split("|")] for row in rows[:1] + rows[2:]]


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
    title = "How fast a step is, and what pre-training on two CPU cores gives"
    shapes = [
        text(20, 28, title, size=16, at="start"),
        *_bars(20, "spans a second, BERT-base, 2,048 documents, one H200", speeds, "{:,.0f}"),
        *_bars(470, "MRR@10 of the quickstart", found, "{:.3f}"),
    ]
    return picture(210, title, shapes)


def _bars(x: float, title: str, values: dict[str, float], form: str) -> list[str]:
    """Returns horizontal bars under a title, with names and values; the first is one of ours."""
    shapes = [text(x, 58, title, kind="faint", size=12, at="start")]
    scale = 210 / max(values.values())
    for row, (name, value) in enumerate(values.items()):
        y = 72 + 32 * row
        kind = "two" if name.lower().startswith("cocondenser") else "off"
        shapes.append(text(x + 130, y + 15, name, size=13, at="end"))
        shapes.append(bar(x + 138, y, value * scale, 22, kind))
        shapes.append(
            text(x + 144 + value * scale, y + 15, form.format(value), size=12, at="start")
        )
    return shapes


def compared() -> str:
    """Returns nDCG@10 on human-written queries, from the table of docs/results.md."""
    names = {
        "BM25": "BM25",
        "as published": "all-MiniLM-L6-v2",
        "as published + BM25": "all-MiniLM-L6-v2 + BM25",
        "all-mpnet-base-v2": "all-mpnet-base-v2",
        "both models": "both models",
    }
    head, *rows = rows_of("docs/results.md", "<!-- questions -->")
    figures = {row[0]: row for row in rows}
    groups = {
        name: {title: float(figures[row][head.index(name)]) for row, title in names.items()}
        for name in ("CoSQA", "LISA", "MEDLARS", "SciFact")
    }
    return bar_chart(
        "Which model, and fused or not? It depends on the queries",
        "nDCG@10, from 0 to 1: higher is better",
        groups,
        ["off", "one", "four", "three", "two"],
        "Human-written queries: 500 questions, 35 requests, 30 requests, 300 claims.",
        0.9,
    )


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


FIRST_STAGE = 500  # steps of the quickstart's first stage
STEPS = 2000  # of both stages


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
