"""Draws the pictures of the documentation: python docs/figures/draw.py."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import charts  # noqa: E402
from svg import arrow, box, note, picture, text  # noqa: E402


def pipeline() -> str:
    """Returns the commands from documents to metrics."""
    a, b, c, e, f = (20 + 185 * i for i in range(5))
    shapes = [
        text(20, 28, "JAX and Flax", kind="two", size=13, at="start"),
        *_chain(60, ["documents|.jsonl, .txt, …"], "data", a),
        *_chain(60, ["token store", "Condenser", "coCondenser"], "jax", b),
        *_chain(60, ["Hugging Face|folder"], "torch", f),
        *_commands(76, ["corpus", "pretrain", "pretrain", "convert"]),
        text(150, 178, "PyTorch: sentence-transformers, faiss", kind="three", size=13, at="start"),
        arrow(f"M{f + 60} 110 V150 H80 V188"),
        text(450, 142, "finetune", kind="faint", size=12),
        *_chain(190, ["retriever", "embeddings", "faiss index"], "torch", a),
        *_chain(190, ["run (TREC)", "metrics"], "data", e),
        *_commands(206, ["encode", "index", "retrieve", "evaluate"]),
        box(230, 290, 290, 44, "queries and relevance judgments"),
        arrow("M230 312 H80 V242"),
        text(90, 305, "training pairs", kind="faint", size=12, at="start"),
        arrow(f"M520 303 H{c + 152} V222"),
        text(c + 144, 262, "queries", kind="faint", size=12, at="end"),
        arrow(f"M{c + 152} 280 H{e}"),
        box(e, 263, 120, 34, "bm25"),
        arrow(f"M{e + 60} 263 V242"),
        arrow(f"M520 322 H{e + 152} V222"),
        text(e + 160, 290, "judgments", kind="faint", size=12, at="start"),
    ]
    return picture(356, "The commands, from documents to metrics", shapes)


def _chain(y: float, names: list[str], kind: str, x: float) -> list[str]:
    """Returns boxes in a row."""
    return [box(x + 185 * i, y, 120, 50, name, kind=kind) for i, name in enumerate(names)]


def _commands(y: float, names: list[str]) -> list[str]:
    """Returns an arrow from each box of a row to the next, with the command that it stands for."""
    shapes = []
    for i, name in enumerate(names):
        x = 140 + 185 * i
        shapes += [arrow(f"M{x} {y + 9} H{x + 63}")]
        shapes.append(text(x + 31, y, name, kind="faint", size=12))
    return shapes


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
        note(456, "The head sees the late layers only through [CLS]. It is dropped later.")
    )
    return picture(
        472, "A Condenser: the head reads the late CLS vector and the early text", shapes
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
        note(300, "The contrastive loss is added to the MLM loss of every span."),
        note(317, "Spans of one document, or copies of a text, are never each other's negatives."),
    ]
    return picture(332, "coCondenser's contrastive loss over pairs of spans", shapes)


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
        box(630, 76, 170, 94, "v = its gradient|for each vector", kind="jax"),
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
    return picture(368, "The two passes of the gradient cache", shapes)


PICTURES = {
    "pipeline": pipeline,
    "condenser": condenser,
    "cocondenser": cocondenser,
    "gradient_cache": gradient_cache,
    "first": charts.first,
    "compared": charts.compared,
    "labels": charts.labels,
    "learning": charts.learning,
    "plan": charts.plan,
}


def main() -> None:
    """Writes every picture beside this file."""
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
