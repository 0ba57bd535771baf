"""Writes results, and updates the tables of the pages from them.

  python -m benchmarks.results

writes the rows of `benchmarks/results/NAME.json` between the marks `<!-- NAME -->` and
`<!-- end -->` of the page that contains them. Other results are only in their files.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent / "docs"
PAGES = (
    FOLDER / "README.md",
    *(
        DOCS / f"{name}.md"
        for name in (
            "many_machines",
            "reliability",
            "results",
            "log",
        )
    ),
)

Rows = list[dict[str, Any]]
# Columns not shown on pages: checked, derived or parts of others.
_NOT_SHOWN = (
    "loss",
    "dtype",
    "model FLOP/s",
    "steps",
    "head's MLM, largest difference",
    "late MLM, largest difference",
    "contrastive, largest difference",
    "1 - cosine, mean",
    "1 - cosine of different texts, mean",
)
_NUMBER = re.compile(r"[≤+-]? ?\d[\d.,e+-]*( ± [\d.]+)?\*?$")


def report(rows: Iterable[dict[str, Any]], json_out: Path | None) -> None:
    """Prints rows as they come, and writes them to `json_out`."""
    printed: Rows = []
    for row in rows:
        print(json.dumps(row), flush=True)
        printed.append(row)
    write_rows(printed, json_out)


def write_rows(rows: Rows, json_out: Path | None) -> None:
    """Writes rows to `json_out`, if given."""
    if json_out:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(json.dumps(rows, indent=1) + "\n")


def table(rows: Rows) -> str:
    """Returns the rows as a Markdown table, without their lists; numbers are right-aligned."""
    values = [item for row in rows for item in row.items() if item[0] not in _NOT_SHOWN]
    names = list(dict.fromkeys(name for name, value in values if not isinstance(value, list)))
    cells = [[_cell(row.get(name, "")) for name in names] for row in rows]
    marks = [_mark(column) for column in zip(*cells, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [names, marks, *cells])


def _mark(column: Iterable[str]) -> str:
    """Returns the alignment of a column: right for numbers."""
    return "---:" if all(map(_NUMBER.match, filter(None, column))) else "---"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.2e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def update_pages(results: Mapping[str, Rows]) -> None:
    """Writes rows as tables between the marks of their names, on pages that have them."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for name, rows in sorted(results.items()):
        mark = f"<!-- {name} -->\n"
        page = next((page for page, text in texts.items() if mark in text), None)
        if page is None:
            continue
        start, _, rest = texts[page].partition(mark)
        texts[page] = start + mark + table(rows) + rest[rest.index("<!-- end -->") :]
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


def main() -> None:
    """Updates the tables from `benchmarks/results/`."""
    files = (FOLDER / "results").glob("*.json")
    update_pages({path.stem: json.loads(path.read_text()) for path in files})


if __name__ == "__main__":
    main()
