"""Puts the tables of what we measured between their marks in docs/results*.md and docs/adapt.md.

python -m experiments.results
"""

from typing import Any

from benchmarks.results import Rows, update_pages
from cocondenser_jax.evaluation.significance import correct, format_p
from experiments.reproduce import EXPERIMENTS
from papers.tables import Table, load_tables

MAIN_P = "p nDCG@10"
_NO_COLUMNS = ("recipe", "with", "seeds", "against", "measured")


def measured(table: Table) -> Rows:
    """Returns the measurements of a table as rows, each metric a column, with its deviation if any.

    What else stands in a row, such as its seconds, follows; `p METRIC` is corrected for the number
    of tests in the table (Holm). A table with nDCG@10 shows the p of that metric alone. A figure of
    None was not measured.
    """
    p_values = {
        (name, key): value
        for name, row in table["rows"].items()
        for key, value in row.items()
        if key.startswith("p ")
    }
    corrected = correct(p_values)
    shown = {test: format_p(p, len(p_values)) for test, p in corrected.items()}
    has_main_p = any(key == MAIN_P for _, key in p_values)
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


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.{1 if value >= 10 else 2 if value > 1 else 3}f}"


def main() -> None:
    """Updates the tables of the pages."""
    tables = load_tables(EXPERIMENTS.folder)
    update_pages({name: measured(table) for name, table in tables.items()})


if __name__ == "__main__":
    main()
