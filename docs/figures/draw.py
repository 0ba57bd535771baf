"""Draws the pictures of the documentation: python docs/figures/draw.py.

The charts read their numbers from pages of docs/, quickstart.json (written by record.py) and
neighborhood.json (values of papers.figures.neighborhood).
"""

import json
import math
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER))

from svg import arrow, bar, bar_chart, box, legend, line, panel, picture, text  # noqa: E402


def pipeline() -> str:
    """Returns the commands from documents to metrics."""
    shapes = [
        text(20, 28, "JAX and Flax, on a TPU, a GPU or a CPU", kind="two", size=13, at="start"),
        box(20, 60, 120, 50, "documents|.jsonl, .txt, …"),
        arrow("M140 85 H218"),
        text(179, 76, "corpus", kind="faint", size=12),
        box(220, 60, 120, 50, "token store", kind="jax"),
        arrow("M340 85 H428"),
        text(384, 76, "pretrain", kind="faint", size=12),
        box(430, 60, 120, 50, "Condenser", kind="jax"),
        arrow("M550 85 H638"),
        text(594, 76, "pretrain", kind="faint", size=12),
        box(640, 60, 120, 50, "coCondenser", kind="jax"),
        arrow("M760 85 H838"),
        text(799, 76, "convert", kind="faint", size=12),
        box(840, 60, 120, 50, "Hugging Face|folder", kind="torch"),
        text(150, 178, "PyTorch: sentence-transformers, faiss", kind="three", size=13, at="start"),
        arrow("M900 110 V150 H80 V188"),
        text(490, 142, "finetune", kind="faint", size=12),
        box(20, 190, 120, 50, "retriever", kind="torch"),
        arrow("M140 215 H218"),
        text(179, 206, "encode", kind="faint", size=12),
        box(220, 190, 120, 50, "embeddings", kind="torch"),
        arrow("M340 215 H428"),
        text(384, 206, "index", kind="faint", size=12),
        box(430, 190, 120, 50, "faiss index", kind="torch"),
        arrow("M550 215 H638"),
        text(594, 206, "retrieve", kind="faint", size=12),
        box(640, 190, 120, 50, "run (TREC)"),
        arrow("M760 215 H838"),
        text(799, 206, "evaluate", kind="faint", size=12),
        box(840, 190, 120, 50, "metrics"),
        box(250, 290, 300, 44, "queries and relevance judgments"),
        arrow("M250 312 H80 V242"),
        text(90, 305, "training pairs", kind="faint", size=12, at="start"),
        arrow("M550 303 H594 V222"),
        text(586, 262, "queries", kind="faint", size=12, at="end"),
        arrow("M594 280 H638"),
        box(640, 263, 120, 34, "bm25"),
        arrow("M700 263 V242"),
        arrow("M550 322 H799 V222"),
        text(807, 290, "judgments", kind="faint", size=12, at="start"),
    ]
    return picture(980, 356, "The commands, from documents to metrics", shapes)


def condenser() -> str:
    """Returns what a Condenser is: the head reads the late CLS and the early text."""
    tokens = ["[CLS]", "the", "[MASK]", "sat"]
    shapes = []
    columns = [90 + 90 * i for i in range(4)]
    for i, x in enumerate(columns):
        shapes.append(text(x + 35, 420, tokens[i]))
        shapes.append(arrow(f"M{x + 35} 404 V372"))
    shapes += [
        box(80, 310, 360, 60, "early layers of the backbone (1 to 6)", kind="jax"),
        box(80, 220, 360, 60, "late layers of the backbone (7 to 12)", kind="jax"),
        box(80, 100, 360, 60, "Condenser head: 2 layers", kind="torch"),
    ]
    shapes += [arrow(f"M{x + 35} 310 V282") for x in columns]
    shapes.append(arrow("M125 220 V162"))
    shapes.append(text(135, 196, "late [CLS] vector", kind="two", size=13, at="start"))
    shapes.append(arrow("M440 340 H480 V130 H442"))
    shapes.append(text(490, 230, "early vectors", kind="faint", size=13, at="start"))
    shapes.append(text(490, 248, "of the other tokens", kind="faint", size=13, at="start"))
    shapes.append(arrow("M305 100 V68"))
    shapes.append(text(305, 58, "predicts the masked token: cat"))
    shapes.append(
        text(
            20,
            28,
            "Condenser: the [CLS] vector must carry what the late layers know",
            size=16,
            at="start",
        )
    )
    shapes.append(
        _note(456, "The head sees the late layers only through [CLS]. It is dropped later.")
    )
    return picture(
        640, 472, "A Condenser: the head reads the late CLS vector and the early text", shapes
    )


def cocondenser() -> str:
    """Returns what coCondenser's loss compares."""
    shapes = [
        text(20, 28, "coCondenser: two spans of a document attract each other", size=16, at="start")
    ]
    spans = ["document 1, span 1", "document 1, span 2", "document 2, span 1", "document 2, span 2"]
    for i, name in enumerate(spans):
        y = 60 + 54 * i
        kind = "jax" if i < 2 else "torch"
        shapes += [
            box(20, y, 160, 40, name),
            arrow(f"M180 {y + 20} H258"),
            box(260, y, 110, 40, "Condenser", kind="data"),
            arrow(f"M370 {y + 20} H428"),
            box(430, y, 130, 40, "[CLS] vector", kind=kind),
        ]
    for y in (80, 188):
        shapes.append(f'<path class="line" d="M560 {y} q34 27 0 54" stroke-width="2.5"/>')
    shapes += [
        text(588, 111, "large inner product", at="start", size=13),
        text(588, 219, "large inner product", at="start", size=13),
        '<path class="line" d="M560 134 q24 27 0 54" stroke-width="1.5" stroke-dasharray="5 4"/>',
        text(588, 165, "small: other documents of the batch", kind="faint", at="start", size=13),
        _note(300, "The contrastive loss is added to the MLM loss of every span."),
        _note(317, "Spans of one document, or copies of a text, are never each other's negatives."),
    ]
    return picture(870, 332, "coCondenser's contrastive loss over pairs of spans", shapes)


def gradient_cache() -> str:
    """Returns the two passes of the gradient cache."""
    shapes = [
        text(
            20,
            28,
            "Gradient cache: the exact gradient of a batch that does not fit in memory",
            size=16,
            at="start",
        ),
        text(20, 62, "Pass 1: forward only", kind="two", at="start"),
        text(20, 212, "Pass 2: forward and backward, a chunk at a time", kind="three", at="start"),
    ]
    for i in range(3):
        y = 76 + 34 * i
        shapes += [
            box(20, y, 90, 26, f"chunk {i + 1}"),
            arrow(f"M110 {y + 13} H158"),
            box(160, y, 100, 26, "encoder", kind="jax"),
            arrow(f"M260 {y + 13} H308"),
            box(310, y, 90, 26, f"vectors {i + 1}", kind="jax"),
            arrow(f"M400 {y + 13} H446"),
        ]
        z = 226 + 34 * i
        shapes += [
            box(20, z, 90, 26, f"chunk {i + 1}"),
            arrow(f"M110 {z + 13} H158"),
            box(160, z, 100, 26, "encoder", kind="torch"),
            arrow(f"M260 {z + 13} H308"),
            box(310, z, 240, 26, f"MLM loss {i + 1} + ⟨v{i + 1}, vectors {i + 1}⟩", kind="torch"),
            arrow(f"M550 {z + 13} H598"),
        ]
    shapes += [
        box(448, 76, 130, 94, "contrastive|loss of the|whole batch", kind="jax"),
        arrow("M578 123 H628"),
        box(630, 76, 170, 94, "v = its gradient|by each vector", kind="jax"),
        arrow("M715 170 V196 H430 V224", dashed=True),
        text(725, 190, "kept", kind="faint", size=12, at="start"),
        box(600, 226, 200, 94, "gradients,|summed over chunks", kind="torch"),
        text(
            20,
            352,
            "Memory grows with the chunk; the batch adds only its vectors.",
            kind="faint",
            size=12,
            at="start",
        ),
    ]
    return picture(820, 368, "The two passes of the gradient cache", shapes)


def _note(y: float, words: str) -> str:
    return text(20, y, words, kind="faint", size=12, at="start")


def adapted() -> str:
    """Returns the chart of what `adapt` measured on docstrings, from the table of docs/adapt.md."""
    page = (ROOT / "docs" / "adapt.md").read_text(encoding="utf-8")
    table = page[page.index("| docstrings |") :].split("\n\n")[0].splitlines()
    metrics = [cell.strip() for cell in table[0].strip("|").split("|")]
    groups = {}
    for row in table[2:]:
        cells = [cell.strip(" *") for cell in row.strip("|").split("|")]
        name = re.sub(r" \+ BM25", "|+ BM25", cells[0])
        values = dict(zip(metrics[1:], cells[1:], strict=True))
        groups[name] = {metric: float(values[metric]) for metric in ("MRR@10", "nDCG@10")}
    return bar_chart(
        "all-MiniLM-L6-v2 adapted to documentation, without labels",
        "metric, from 0 to 1: higher is better",
        groups,
        ["one", "two"],
        "1,000 first paragraphs of docstrings search the rest of 16,254. See docs/adapt.md.",
        0.7,
    )


def labels() -> str:
    """Returns nDCG@10 over the number of labels, from the table of docs/results.md."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = page[page.index("<!-- proof/adapt-labels -->") :].split("<!-- end -->")[0]
    found: dict[str, list[tuple[str, float]]] = {}
    for row in table.splitlines()[3:]:
        name, _, ndcg, *_ = (cell.strip() for cell in row.strip("|").split("|"))
        model, amount = name.rsplit(", ", 1)
        found.setdefault(model, []).append((amount.split()[0], float(ndcg)))
    amounts = [amount.replace("no", "0") for amount, _ in found["adapted"]]
    shares = [i / (len(amounts) - 1) for i in range(len(amounts))]
    kinds = {"as published": "one", "adapted": "two"}
    title = "all-MiniLM-L6-v2, fine-tuned on labeled pairs of documentation: nDCG@10"
    shapes = [text(20, 28, title, size=16, at="start"), *legend(41, kinds)]
    for i, (panel_name, suffix) in enumerate({"alone": "", "fused with BM25": " + BM25"}.items()):
        curves = {
            kind: [
                (share, value)
                for share, (_, value) in zip(shares, found[model + suffix], strict=True)
            ]
            for model, kind in kinds.items()
        }
        marks = dict(zip(amounts, shares, strict=True))
        shapes += panel(10 + 400 * i, panel_name, curves, LABEL_TICKS, marks, 320)
        shapes.append(text(214 + 400 * i, 288, "labeled pairs", kind="faint", size=12))
    shapes.append(
        _note(
            314, "1,000 docstrings' first paragraphs search 16,254 passages. Means over two seeds."
        )
    )
    return picture(820, 330, title, shapes)


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
        shapes += panel(10 + 310 * i, name, curves, ticks, marks)
        shapes.append(text(10 + 310 * i + 164, 288, "step", kind="faint", size=12))
    shapes += legend(41, {"stage 1: Condenser": "two", "stage 2: coCondenser": "three"})
    shapes.append(
        _note(314, "The contrastive loss is 4.84 by chance. The probe tests held-out documents.")
    )
    return picture(950, 330, title, shapes)


FIRST_STAGE = 500  # steps of the quickstart's first stage
STEPS = 2000  # of both stages


def plan() -> str:
    """Returns what `plan` printed for each generation of TPU, from the table of docs/tpu.md."""
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in page.splitlines()
        if row.startswith("| ")
    ]
    table = {row[0]: row[1:] for row in rows if len(row) == 7}
    machines = next(row[1:] for row in rows if row[1:2] == ["v2-8"])
    hours = [float(cell) for cell in table["roofline, whole run (hours)"]]
    needed = [float(cell) for cell in table["memory, in all (GiB)"]]
    there = [float(cell) for cell in table["memory of a device (GiB)"]]
    title = "The paper's stage 2 on each generation of TPU, as plan compiles it"
    shapes = [
        text(20, 28, title, size=16, at="start"),
        text(90, 62, "whole run: hours at least", size=13, at="start"),
        text(480, 62, "memory of a device: needed of available (GiB)", size=13, at="start"),
    ]
    for i, name in enumerate(machines):
        y = 76 + 30 * i
        shapes.append(text(80, y + 15, name, at="end", size=13))
        long = 260 * hours[i] / max(hours)
        shapes.append(bar(90, y, long, 20, "two"))
        shapes.append(text(96 + long, y + 15, f"{hours[i]:.2f}", size=12, at="start"))
        wide = 300 * there[i] / max(there)
        shapes.append(bar(480, y, wide, 20, "off"))
        shapes.append(bar(480, y, 300 * needed[i] / max(there), 20, "three"))
        shapes.append(
            text(486 + wide, y + 15, f"{needed[i]:.1f} of {there[i]:.0f}", size=12, at="start")
        )
    shapes += [
        line("M90 70 V256", kind="line"),
        line("M480 70 V256", kind="line"),
        _note(
            280,
            "BERT-base, 12,552 steps of 2,048 documents. Compiled with libtpu, never run.",
        ),
        _note(297, "No run reaches these hours: expect two to three times as long."),
    ]
    return picture(900, 312, title, shapes)


def attention() -> str:
    """Returns how widely [CLS] attends, by layer, from the table of docs/results.md."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = page[page.index("<!-- ours/attention -->") :].split("<!-- end -->")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[3:]
    ]
    kinds = ("one", "two", "three", "four")
    curves = {
        kind: [(i / 3, float(value)) for i, value in enumerate(row[1:])]
        for kind, row in zip(kinds, rows, strict=True)
    }
    marks = {f"layer {i + 1}": i / 3 for i in range(4)}
    title = "How widely [CLS] attends: entropy of its attention"
    shapes = [text(20, 28, title, size=16, at="start")]
    shapes += legend(41, {row[0]: kind for kind, row in zip(kinds, rows, strict=True)})
    shapes += panel(10, "nats", curves, (0, 1, 2, 3, 4, 5), marks, 500)
    shapes.append(_note(296, "4.47 is uniform attention over all tokens; 0 is a single token."))
    return picture(600, 312, title, shapes)


def neighborhood() -> str:
    """Returns how much of round 2's top ten the first k passages of other rankings hold."""
    found = json.loads((FOLDER / "neighborhood.json").read_text(encoding="utf-8"))
    kinds = dict(zip(found, ("one", "two", "three"), strict=True))
    curves = {
        kinds[name]: [(math.log(k, 200), value) for k, value in points]
        for name, points in found.items()
    }
    marks = {f"{k}": math.log(k, 200) for k in (1, 2, 5, 10, 20, 50, 100, 200)}
    title = "SciFact: how much of round 2's top ten others find"
    shapes = [text(20, 28, title, size=16, at="start"), *legend(41, kinds)]
    shapes += panel(10, "share", curves, (0, 0.2, 0.4, 0.6, 0.8, 1), marks, 500)
    shapes.append(text(304, 288, "first k passages of the other ranking", kind="faint", size=12))
    return picture(600, 304, title, shapes)


PICTURES = {
    "pipeline": pipeline,
    "condenser": condenser,
    "cocondenser": cocondenser,
    "gradient_cache": gradient_cache,
    "adapted": adapted,
    "labels": labels,
    "learning": learning,
    "plan": plan,
    "attention": attention,
    "neighborhood": neighborhood,
}


def main() -> None:
    """Writes every picture beside this file."""
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
