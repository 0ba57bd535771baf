"""Writes one self-contained HTML page: a comparison, and the curves and facts of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cocondenser_jax.analysis.plots import Curve, plot_svg
from cocondenser_jax.storage.files import new_file

_HTML = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
)
_HTML.filters["svg"] = plot_svg


class Runs(NamedTuple):
    """Runs of one kind."""

    kind: str
    plots: Mapping[str, Sequence[Curve]]  # title -> what was logged
    facts: Mapping[str, Mapping[str, Any]]  # run -> name -> value


def write_page(
    out: Path,
    title: str,
    summary: str,
    runs: Sequence[Runs],
    table: Sequence[Sequence[str]] = (),
    note: str = "",
) -> None:
    """Writes the page, whole or not at all; the table's first line is its head, the note on it.

    The page loads nothing, runs no script, and follows the reader's light or dark setting.
    """
    page = _HTML.get_template("page.html").render(
        title=title, summary=summary, runs=runs, table=table, note=note
    )
    with new_file(out) as partial:
        # Text from a corpus may hold lone surrogates, which UTF-8 cannot write.
        partial.write_text(page, encoding="utf-8", errors="replace")
