"""One HTML page that needs nothing beside itself: tables, plots, searches, facts of a run.

Its HTML is in page.html, that of its sections in parts.html; what these show is escaped.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cocondenser_jax.analysis.plots import COLOURS, final_value, panel_svg
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
# Functions that return the HTML of sections; parts.html says of what.
parts: Any = _HTML.get_template("parts.html").module


def write_page(out: Path, title: str, summary: str, sections: Mapping[str, str]) -> None:
    """Writes the page, whole or not at all; an older one is replaced.

    The page loads nothing, runs no script, and follows the reader's light or dark setting. The
    sections are heading -> HTML, which `parts` makes.
    """
    page = _HTML.get_template("page.html").render(title=title, summary=summary, sections=sections)
    with new_file(out) as partial:
        # Text from a corpus may hold lone surrogates, which UTF-8 cannot write.
        partial.write_text(page, encoding="utf-8", errors="replace")
