"""Writes the tables of our measurements between their marks in docs/results.md and docs/log.md.

python -m experiments.results
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.results import Rows, update_pages
from cocondenser_jax.retriever.data.significance import SIGNIFICANCE_LEVEL, correct, format_p
from experiments.reproduce import EXPERIMENTS
from papers.tables import Table, load_tables

MAIN_METRIC = "nDCG@10"
MAIN_P = f"p {MAIN_METRIC}"
# Tables of one metric that are shown as one table, under another name.
TOGETHER = {
    "questions": [f"questions/{name}" for name in ("cosqa", "lisa", "med", "scifact")],
    "adapted": [f"proof/adapt-{name}" for name in ("docstrings", "scifact", "boolq", "vaswani")],
}
PAST = Path(__file__).parent / "past"  # tables without recipes
_NO_COLUMNS = ("recipe", "with", "seeds", "against", "measured", "protocol")


def measured(table: Table) -> Rows:
    """Returns the measurements of a table as rows, with a column for each metric.

    Metrics come with their standard deviation, if any, and are followed by the row's other values,
    such as seconds. `p METRIC` is corrected for the number of tests in the table (Holm). A table
    with nDCG@10 shows only the p of that metric. None means not measured.
    """
    corrected = _corrected(table)
    shown = {test: format_p(p, len(corrected)) for test, p in corrected.items()}
    has_main_p = any(key == MAIN_P for _, key in corrected)
    titles = table.get("tests", {})
    rows = []
    for name, row in table["rows"].items():
        cells: dict[str, Any] = {"": name}
        for test, figures in row["measured"].items():
            of_test = f"{titles[test]}, " if test in titles else ""
            for key, value in figures.items():
                deviation = f" ± {row[f'± {key}']}" if f"± {key}" in row else ""
                cells[f"{of_test}{key}"] = _figure(value) + deviation
        others = [
            key
            for key in row
            if key not in _NO_COLUMNS
            and not key.startswith("± ")
            and not (has_main_p and key.startswith("p ") and key != MAIN_P)
        ]
        rows.append(cells | {key: shown.get((name, key), str(row[key])) for key in others})
    return rows


def _corrected(table: Table) -> dict[tuple[str, str], float]:
    """Returns the corrected p-values of a table, by row and key."""
    return correct(
        {
            (name, key): value
            for name, row in table["rows"].items()
            for key, value in row.items()
            if key.startswith("p ")
        }
    )


def side_by_side(tables: Iterable[Table]) -> Rows:
    """Returns the main metric of several tables, one per column, with stars.

    Each table is for one collection, with whose name its title begins, and has one row that all
    others are compared with. A star marks a corrected p below 0.05.
    """
    rows: dict[str, dict[str, str]] = {}
    for table in tables:
        column = table["title"].partition(":")[0]
        corrected = _corrected(table)
        for name, row in table["rows"].items():
            (figures,) = row["measured"].values()
            star = "*" if corrected.get((name, MAIN_P), 1.0) < SIGNIFICANCE_LEVEL else ""
            rows.setdefault(name, {"": name})[column] = _figure(figures[MAIN_METRIC]) + star
    return list(rows.values())


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.{1 if value >= 10 else 2 if value > 1 else 3}f}"


def all_tables() -> dict[str, Table]:
    """Reads the tables with recipes, and those in past/."""
    return load_tables(EXPERIMENTS.folder) | load_tables(PAST)


def all_rows() -> dict[str, Rows]:
    """Returns the rows of all tables that a page may show, by table name."""
    tables = all_tables()
    together = {
        name: side_by_side(tables[each] for each in names) for name, names in TOGETHER.items()
    }
    return {name: measured(table) for name, table in tables.items()} | together


def main() -> None:
    """Updates the tables of the pages."""
    update_pages(all_rows())


if __name__ == "__main__":
    main()
