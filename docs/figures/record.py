"""Records what the pictures show of a run: python docs/figures/record.py runs/quickstart.

Writes quickstart.json beside this file, from which draw.py draws. Run it after `make quickstart`.
"""

import json
import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent / "quickstart.json"
# Stage → the keys of its metrics.jsonl that are drawn.
KEYS = {
    "condenser": ("head_mlm_loss", "probe/positive_mrr"),
    "cocondenser": ("contrastive_loss", "head_mlm_loss", "probe/positive_mrr"),
}
LINES = 5  # of metrics.jsonl, whose mean is a point; a line has ten steps


def curves_of(run: Path) -> dict[str, dict[str, list[list[float]]]]:
    """Returns stage → key → points [step, value] of the quickstart's run folders."""
    curves = {}
    for stage, keys in KEYS.items():
        lines = (run / "pretraining" / stage / "metrics.jsonl").read_text(encoding="utf-8")
        logged = [json.loads(line) for line in lines.splitlines()]
        curves[stage] = {key: _points(logged, key) for key in keys}
    return curves


def _points(logged: list[dict[str, float]], key: str) -> list[list[float]]:
    found = [(values["step"], values[key]) for values in logged if key in values]
    lines = 1 if key.startswith("probe/") else LINES
    means = np.array(found).reshape(-1, lines, 2).mean(axis=1)
    return np.round(means, 4).tolist()


def main() -> None:
    """Writes the curves of the run that the command line names."""
    OUT.write_text(json.dumps(curves_of(Path(sys.argv[1]))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
