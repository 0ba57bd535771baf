"""Writes results, and makes the tables of two pages from them.

  python -m benchmarks.results

puts the rows of every `benchmarks/results/NAME.json` between the marks `<!-- NAME -->` and
`<!-- end -->` of the page that holds them.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGES = FOLDER / "README.md", FOLDER.parent / "docs" / "reliability.md"

Rows = list[dict[str, Any]]


def report(rows: Iterable[dict[str, Any]], json_out: Path | None) -> None:
    """Prints the rows as they come, and writes them to `json_out`."""
    kept: Rows = []
    for row in rows:
        print(json.dumps(row), flush=True)
        kept.append(row)
    if json_out:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(json.dumps(kept, indent=1) + "\n")


def table(rows: Rows) -> str:
    """Returns the rows as a Markdown table, without their lists."""
    names = [name for name, value in rows[0].items() if not isinstance(value, list)]
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.2e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Updates the tables of `PAGES`."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for path in sorted((FOLDER / "results").glob("*.json")):
        mark = f"<!-- {path.stem} -->\n"
        page = next((page for page, text in texts.items() if mark in text), None)
        if page is None:
            raise SystemExit(f"no page has a place for {path.name}")
        start, _, rest = texts[page].partition(mark)
        rows = table(json.loads(path.read_text()))
        texts[page] = start + mark + rows + rest[rest.index("<!-- end -->") :]
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
