"""One HTML page that needs nothing beside itself: tables, plots, searches, facts of a run.

Its HTML is in page.html, that of its sections in parts.html; what these show is escaped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cocondenser_jax.analysis.plots import COLOURS, Panel, final_value, panel_svg
from cocondenser_jax.errors import first_words
from cocondenser_jax.storage.files import new_file

_HTML = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_HTML.globals["colours"] = COLOURS
_HTML.filters.update(first_words=first_words, final_value=final_value, svg=panel_svg)
_HTML.filters["number"] = "{:,.4g}".format
_PARTS: Any = _HTML.get_template("parts.html").module


def write_page(out: Path, title: str, summary: str, sections: Mapping[str, str]) -> None:
    """Writes the page, whole or not at all; an older one is replaced.

    The page loads nothing, runs no script, and follows the reader's light or dark setting. The
    sections are heading -> HTML, which the functions below return.
    """
    page = _HTML.get_template("page.html").render(title=title, summary=summary, sections=sections)
    with new_file(out) as partial:
        # Text from a corpus may hold lone surrogates, which UTF-8 cannot write.
        partial.write_text(page, encoding="utf-8", errors="replace")


def comparison(
    names: Sequence[str],
    metrics: Mapping[str, Sequence[float]],
    others: Mapping[str, Sequence[str]],
    note: str,
) -> str:
    """Returns a table of retrievers, the best value of each metric in bold, and a note below it.

    Columns are head -> a value in [0, 1], or a text, for each of the named retrievers.
    """
    return str(_PARTS.comparison(names, metrics, others, note))


def searches(found: Mapping[str, Sequence[tuple[float, str, str]]], command: str) -> str:
    """Returns example searches, the first one open, and the shell command for another.

    `found` is query -> score, title and text of each passage, best first.
    """
    return str(_PARTS.searches(found, command))


def plots(panels: Sequence[Panel]) -> str:
    """Returns the panels that have a point, each with its legend."""
    drawn = [panel for panel in panels if any(len(curve.steps) for curve in panel.curves)]
    return str(_PARTS.plots(drawn))


def definitions(facts: Mapping[str, str]) -> str:
    """Returns a list of names and values, such as a run's versions, seed, checksums and sizes."""
    return str(_PARTS.definitions(facts))
