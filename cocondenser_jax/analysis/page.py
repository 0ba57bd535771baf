"""One HTML page that needs nothing beside itself: tables, plots, searches, facts of a run."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from cocondenser_jax.analysis.plots import SERIES_COLOURS, Panel, final_value, panel_svg
from cocondenser_jax.files import new_file

_MAX_PASSAGE = 400  # characters of a passage that the page shows


def write_page(out: Path, title: str, summary: str, sections: Mapping[str, str]) -> None:
    """Writes the page, whole or not at all; an older one is replaced.

    The page loads nothing, runs no script, and follows the reader's light or dark setting.

    Args:
      out: the file to write.
      title: heading of the page.
      summary: a sentence or two below the heading.
      sections: heading -> HTML, which the functions below return.

    Raises:
      UserError: if the file cannot be written.
    """
    body = "\n".join(
        f"<section><h2>{escape(heading)}</h2>{html}</section>" for heading, html in sections.items()
    )
    heading = {"title": escape(title), "summary": escape(summary)}
    page = _PAGE.format(**heading, style=_STYLE, body=body)
    with new_file(out) as partial:
        # Text from a corpus may hold lone surrogates, which UTF-8 cannot write.
        partial.write_text(page, encoding="utf-8", errors="replace")


def comparison(
    metrics: Sequence[str], rows: Sequence[tuple[str, Sequence[float], float]], note: str
) -> str:
    """Returns a table with the best value of each metric in bold.

    Args:
      metrics: their names.
      rows: name, a value in [0, 1] for each metric, seconds.
      note: what was measured on what, and what the seconds cover.
    """
    best = [max(column) for column in zip(*(values for _, values, _ in rows), strict=True)]
    heads = "".join(f'<th scope="col">{escape(s)}</th>' for s in ("Retriever", *metrics, "Seconds"))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        f"{''.join(map(_metric_cell, values, best))}<td>{seconds:,.1f}</td></tr>"
        for name, values, seconds in rows
    )
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

    Args:
      found: query -> score, title and text of each passage, best first.
      command: of the shell.
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
        f'<p class="passage">{escape(_first_words(text))}</p></li>'
    )


def _first_words(text: str) -> str:
    """Returns the start of a passage, on one line."""
    # textwrap.shorten drops text without spaces, and reads all of a long one.
    text = " ".join(text[: 10 * _MAX_PASSAGE].split())
    if len(text) <= _MAX_PASSAGE:
        return text
    return text[:_MAX_PASSAGE].rsplit(" ", 1)[0] + " …"


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

# The policy makes the browser refuse every request, whatever text the page comes to hold.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<header><h1>{title}</h1><p>{summary}</p></header>
{body}
</main>
</body>
</html>
"""

# The series colours differ in lightness as well as hue, for readers who do not see all hues.
_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fcfcfa; --card: #ffffff; --ink: #1d1f21; --soft: #5c6166; --grid: #e3e4e1;
  --series-0: #0067a5; --series-1: #c94f00; --series-2: #00805e;
  --series-3: #a03c78; --series-4: #7a6a00; --series-5: #5b4bc4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16181a; --card: #1d2022; --ink: #e8e8e4; --soft: #a3a8ac; --grid: #34383b;
    --series-0: #5db4f0; --series-1: #f29a5b; --series-2: #45c9a0;
    --series-3: #e591c3; --series-4: #d4c04f; --series-5: #a89df5;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .9rem; }
h3 { font-size: .95rem; margin: 0; }
header p { margin: 0; max-width: 44rem; color: var(--soft); }
b { font-weight: 600; }
.note, .score { color: var(--soft); font-size: .875rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .6rem .75rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--grid); }
th { font-weight: 400; }
thead th { color: var(--soft); font-size: .875rem; }
th:first-child { padding-left: 0; text-align: left; }
.bar { display: block; height: 4px; margin-top: .3rem; min-width: 6rem; border-radius: 2px;
  background: var(--grid); }
.bar i { display: block; height: 100%; border-radius: 2px; background: var(--series-0); }
details, pre, figure { border: 1px solid var(--grid); border-radius: 6px; background: var(--card); }
details { margin-bottom: .6rem; }
summary { padding: .7rem 1rem; cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
details ol { margin: 0; padding: 0 1rem .5rem 2.4rem; }
details li { padding: .35rem 0; }
details li p { margin: 0; overflow-wrap: anywhere; }
.score { margin-left: .6rem; font-variant-numeric: tabular-nums; }
.passage { color: var(--soft); font-size: .9rem; }
pre { margin: 0; padding: .8rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere;
  user-select: all; font: .875rem/1.5 ui-monospace, monospace; }
.panels { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(25rem, 100%), 1fr)); }
figure { margin: 0; padding: 1rem; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; margin-top: .6rem; color: var(--soft); }
figure svg text { font-family: system-ui, sans-serif !important; }
.legend { list-style: none; margin: .25rem 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .1rem 1rem; font-size: .85rem; color: var(--soft); font-variant-numeric: tabular-nums; }
.legend i { display: inline-block; width: 1rem; height: 3px; margin-right: .4rem;
  vertical-align: middle; border-radius: 2px; }
.legend .dashed { height: 0; border-top: 2px dashed var(--soft); border-radius: 0; }
.legend b { color: var(--ink); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.5rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
"""
