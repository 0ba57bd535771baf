"""The report of a run: one HTML page that needs nothing beside itself."""

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from cocondenser_jax.analysis.plots import SERIES_COLOURS, Panel, final_value, panel_svg

_MAX_PASSAGE = 400  # characters of a passage that the page shows


@dataclasses.dataclass(frozen=True)
class ResultRow:
    """A retriever's line of the comparison. The two figures lie in [0, 1]."""

    name: str
    mrr_at_10: float
    recall_at_100: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Hit:
    """A passage that a search found."""

    score: float
    title: str
    text: str


@dataclasses.dataclass(frozen=True)
class Example:
    """A search: what was asked, and what was found, best first."""

    query: str
    hits: Sequence[Hit]


def write_report(
    out: Path,
    *,
    title: str,
    summary: str,
    facts: Mapping[str, str],
    panels: Sequence[Panel],
    rows: Sequence[ResultRow],
    table_note: str,
    examples: Sequence[Example],
    search_command: str,
) -> None:
    """Writes the page, whole or not at all; an older one is replaced.

    The page loads nothing, runs no script, and follows the reader's light or dark setting.

    Args:
      out: the file to write, `report.html`.
      title: heading of the page.
      summary: a sentence or two below the heading.
      facts: what the run was made of (versions, seed, checksums, sizes), in the order shown.
      panels: the plots; those without any point are left out.
      rows: the comparison; the best figure of each column is set in bold.
      table_note: what the figures were measured on, and what the seconds cover.
      examples: searches to show.
      search_command: what to type in a shell to search for oneself.
    """
    drawn = [panel for panel in panels if any(len(line.steps) for line in panel.curves)]
    sections = [
        f"<header><h1>{escape(title)}</h1><p>{escape(summary)}</p></header>",
        _section("Comparison", _comparison(rows) + f'<p class="note">{escape(table_note)}</p>'),
        _section(
            "Example searches",
            "".join(_example(example, is_open=index == 0) for index, example in enumerate(examples))
            + "<p>Search for yourself:</p>"
            + f"<pre><code>{escape(search_command)}</code></pre>",
        ),
        _section(
            "Training", f'<div class="panels">{"".join(map(_panel, drawn))}</div>{_PLOT_NOTE}'
        ),
        _section("Run", _facts(facts)),
    ]
    page = _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(sections))
    partial = out.with_name(out.name + ".partial")
    # Text from the corpus may hold lone surrogates, which UTF-8 cannot write.
    partial.write_text(page, encoding="utf-8", errors="replace")
    partial.replace(out)


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>{content}</section>"


def _comparison(rows: Sequence[ResultRow]) -> str:
    best_mrr = max((row.mrr_at_10 for row in rows), default=0.0)
    best_recall = max((row.recall_at_100 for row in rows), default=0.0)
    lines = [
        f'<tr><th scope="row">{escape(row.name)}</th>'
        f"{_share_cell(row.mrr_at_10, best_mrr)}{_share_cell(row.recall_at_100, best_recall)}"
        f"<td>{row.seconds:,.1f}</td></tr>"
        for row in rows
    ]
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("Retriever", "MRR@10", "Recall@100", "Seconds")
    )
    return (
        f'<div class="wide"><table class="results"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _share_cell(value: float, best: float) -> str:
    """A figure in [0, 1] over a bar of that length."""
    figure = f"<b>{value:.3f}</b>" if value == best else f"{value:.3f}"
    return f'<td>{figure}<span class="bar"><i style="width:{100 * value:.1f}%"></i></span></td>'


def _panel(panel: Panel) -> str:
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


def _example(example: Example, is_open: bool) -> str:
    hits = "".join(
        f'<li><p><b>{escape(hit.title)}</b><span class="score">{hit.score:.2f}</span></p>'
        f'<p class="passage">{escape(_beginning(hit.text))}</p></li>'
        for hit in example.hits
    )
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(example.query)}</summary>"
        f"<ol>{hits or '<li>nothing found</li>'}</ol></details>"
    )


def _beginning(text: str) -> str:
    """The first words of a passage, on one line."""
    # textwrap.shorten drops text without spaces, and reads all of a long one.
    text = " ".join(text[: 10 * _MAX_PASSAGE].split())
    if len(text) <= _MAX_PASSAGE:
        return text
    return text[:_MAX_PASSAGE].rsplit(" ", 1)[0] + " …"


def _facts(facts: Mapping[str, str]) -> str:
    lines = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(lines)}</dl>"


_PLOT_NOTE = (
    '<p class="note">Thin lines are the logged values, thick ones their running mean; the figure '
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
th { font-weight: 400; text-align: left; }
thead th { color: var(--soft); font-size: .875rem; }
thead th + th { text-align: right; }
th:first-child { padding-left: 0; }
.bar { display: block; height: 4px; margin-top: .3rem; min-width: 6rem; border-radius: 2px;
  background: var(--grid); }
.bar i { display: block; height: 100%; border-radius: 2px; background: var(--series-0); }
details { border: 1px solid var(--grid); border-radius: 6px; background: var(--card);
  margin-bottom: .6rem; }
summary { padding: .7rem 1rem; cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
details ol { margin: 0; padding: 0 1rem .5rem 2.4rem; }
details li { padding: .35rem 0; }
details li p { margin: 0; overflow-wrap: anywhere; }
.score { margin-left: .6rem; font-variant-numeric: tabular-nums; }
.passage { color: var(--soft); font-size: .9rem; }
pre { margin: 0; padding: .8rem 1rem; overflow-x: auto; user-select: all;
  border: 1px solid var(--grid); border-radius: 6px; background: var(--card);
  font: .875rem/1.5 ui-monospace, monospace; }
.panels { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(25rem, 100%), 1fr)); }
figure { margin: 0; padding: 1rem; border: 1px solid var(--grid); border-radius: 6px;
  background: var(--card); min-width: 0; }
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
