"""One HTML page that needs nothing beside itself: tables, plots, searches, facts of a run."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from cocondenser_jax.analysis.plots import SERIES_COLOURS, Panel, final_value, panel_svg
from cocondenser_jax.errors import first_words
from cocondenser_jax.files import new_file

_MAX_PASSAGE = 400  # characters of a passage that the page shows


def write_page(out: Path, title: str, summary: str, sections: Mapping[str, str]) -> None:
    """Writes the page, whole or not at all; an older one is replaced.

    The page loads nothing, runs no script, and follows the reader's light or dark setting. The
    sections are heading -> HTML, which the functions below return.
    """
    body = "\n".join(
        f"<section><h2>{escape(heading)}</h2>{html}</section>" for heading, html in sections.items()
    )
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    page = template.substitute(title=escape(title), summary=escape(summary), body=body)
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
    heads = "".join(f'<th scope="col">{escape(s)}</th>' for s in ("Retriever", *metrics, *others))
    columns = [[f'<th scope="row">{escape(name)}</th>' for name in names]]
    columns += [[_metric_cell(x, max(values)) for x in values] for values in metrics.values()]
    columns += [[f"<td>{escape(text)}</td>" for text in texts] for texts in others.values()]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f'<tbody>{body}</tbody></table></div><p class="note">{escape(note)}</p>'
    )


def _metric_cell(value: float, best: float) -> str:
    """Returns a value in [0, 1] over a bar of that length."""
    shown = f"<b>{value:.3f}</b>" if value == best else f"{value:.3f}"
    return f'<td>{shown}<span class="bar"><i style="width:{100 * value:.1f}%"></i></span></td>'


def searches(found: Mapping[str, Sequence[tuple[float, str, str]]], command: str) -> str:
    """Returns example searches, the first one open, and the shell command for another.

    `found` is query -> score, title and text of each passage, best first.
    """
    examples = "".join(
        f"<details{'' if number else ' open'}><summary>{escape(query)}</summary>"
        f"<ol>{''.join(_hit(*hit) for hit in hits) or '<li>nothing found</li>'}</ol></details>"
        for number, (query, hits) in enumerate(found.items())
    )
    return f"{examples}<p>Search for yourself:</p><pre><code>{escape(command)}</code></pre>"


def _hit(score: float, title: str, text: str) -> str:
    return (
        f'<li><p><b>{escape(title)}</b><span class="score">{score:.2f}</span></p>'
        f'<p class="passage">{escape(first_words(text, _MAX_PASSAGE))}</p></li>'
    )


def plots(panels: Sequence[Panel]) -> str:
    """Returns the panels that have a point, each with its legend."""
    drawn = [panel for panel in panels if any(len(line.steps) for line in panel.curves)]
    return f'<div class="panels">{"".join(map(_figure, drawn))}</div>{_PLOT_NOTE}'


def _figure(panel: Panel) -> str:
    labels = [
        f'<li><i style="background:var(--series-{index % SERIES_COLOURS})"></i>'
        f"{escape(line.label)} <b>{final_value(line):,.4g}</b></li>"
        for index, line in enumerate(panel.curves)
        if len(line.values)
    ]
    if panel.reference is not None:
        height, name = panel.reference
        labels.append(f'<li><i class="dashed"></i>{escape(name)} <b>{height:,.4g}</b></li>')
    return (
        f"<figure><figcaption><h3>{escape(panel.title)}</h3>"
        f'<ul class="legend">{"".join(labels)}</ul></figcaption>{panel_svg(panel)}</figure>'
    )


def definitions(facts: Mapping[str, str]) -> str:
    """Returns a list of names and values, such as a run's versions, seed, checksums and sizes."""
    lines = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(lines)}</dl>"


_PLOT_NOTE = (
    '<p class="note">Thin lines are the logged values, thick ones their running mean; the number '
    "beside a name is the mean of the last twentieth of its values.</p>"
)
