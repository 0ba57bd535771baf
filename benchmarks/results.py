"""Writes results, and makes the tables of five pages from them.

  python -m benchmarks.results

puts the rows of every `benchmarks/results/NAME.json`, and the tables of `papers/` that we measured,
between the marks `<!-- NAME -->` (`<!-- FILE/TABLE -->`) and `<!-- end -->` of the page that holds
them. To write results, a machine needs neither what `papers/` reads nor what evaluation computes.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent / "docs"
PAGES = (
    FOLDER / "README.md",
    DOCS / "adapt.md",
    DOCS / "reliability.md",
    DOCS / "results.md",
    DOCS / "scaling.md",
)

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
    values = [item for row in rows for item in row.items()]
    names = list(dict.fromkeys(name for name, value in values if not isinstance(value, list)))
    cells = ([_cell(row.get(name, "")) for name in names] for row in rows)
    lines = [names, ["---"] * len(names), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.2e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def is_ours(paper: dict[str, Any]) -> bool:
    """Returns whether a table of `papers/` holds measurements of our own."""
    return all("measured" in row for row in paper["rows"].values())


def measured(paper: dict[str, Any]) -> Rows:
    """Returns the measurements of a table of `papers/` as rows, each figure a column.

    What else stands in a row, such as its seconds, follows; `p MEASURE` is corrected for the number
    of tests in the table (Holm). A figure of None was not measured.
    """
    from cocondenser_jax.evaluation.significance import correct, format_p

    tested = {
        (name, key): value
        for name, row in paper["rows"].items()
        for key, value in row.items()
        if key.startswith("p ")
    }
    corrected = correct(tested)
    shown = {test: format_p(p, len(tested)) for test, p in corrected.items()}
    rows = []
    for name, row in paper["rows"].items():
        cells = {"": name}
        for test, figures in row["measured"].items():
            of_test = f"{paper['tests'][test]}, " if "tests" in paper else ""
            cells |= {f"{of_test}{key}": _figure(value) for key, value in figures.items()}
        others = [key for key in row if key not in ("with", "measured")]
        rows.append(cells | {key: shown.get((name, key), str(row[key])) for key in others})
    return rows


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.{1 if value >= 10 else 2 if value > 1 else 3}f}"


def main() -> None:
    """Updates the tables of `PAGES`."""
    from papers.reproduce import load_manifest

    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    files = (FOLDER / "results").glob("*.json")
    results = {path.stem: json.loads(path.read_text()) for path in files}
    for name, paper in load_manifest()[0].items():
        if is_ours(paper):
            results[name] = measured(paper)
    for name, rows in sorted(results.items()):
        mark = f"<!-- {name} -->\n"
        page = next((page for page, text in texts.items() if mark in text), None)
        if page is None:
            raise SystemExit(f"no page has a place for {name}")
        start, _, rest = texts[page].partition(mark)
        texts[page] = start + mark + table(rows) + rest[rest.index("<!-- end -->") :]
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
