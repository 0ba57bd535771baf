"""Splits a Markdown text (CommonMark) into sections; each is a document."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

# Metadata (front matter) between lines of hyphens at the beginning, as in site generators.
_METADATA = re.compile(r"[\w-]+\s*:")
_TITLE = re.compile(r"title\s*:\s*(.+)", re.IGNORECASE)


class Section(NamedTuple):
    """The text under a heading, up to the next heading of any level."""

    line: int  # its first, from 1
    title: str  # the headings above it and its own; "" before the first
    text: str


class _Heading(NamedTuple):
    begin: int  # its first line, from 0
    end: int  # the first line after it
    level: int  # 1 to 6; 0 for the title in the metadata
    title: str


def read_sections(lines: Sequence[str]) -> Iterator[Section]:
    """Yields the sections that have text, unchanged; of the metadata, only the title is used.

    Args:
      lines: of the whole text, without line ends.
    """
    # A lone carriage return within a line would count as a line end.
    texts = [line.replace("\r", " ") for line in lines]
    headings = [_metadata(texts)]
    headings += _find_headings(texts, headings[0].end)
    ends = [*headings, _Heading(len(texts), len(texts), 0, "")]
    above: list[_Heading] = []
    for heading, following in pairwise(ends):
        above = [each for each in above if each.level < heading.level]
        above.append(heading)
        text = "\n".join(texts[heading.end : following.begin]).strip("\n")
        if text.strip():
            title = ": ".join(each.title for each in above if each.title)
            yield Section(heading.begin + 1, title, text)


def _metadata(lines: Sequence[str]) -> _Heading:
    """Returns the metadata that a text begins with; if it has none, nothing before its first line.

    It has no blank lines, which tells it from text between two thematic breaks.
    """
    if len(lines) > 1 and lines[0].rstrip() == "---" and _METADATA.match(lines[1]):
        for number, line in enumerate(lines[1:], start=1):
            if not line.strip():
                break
            if line.rstrip() in ("---", "..."):
                titles = filter(None, map(_TITLE.match, lines[1:number]))
                title = next((found[1].strip().strip("\"'") for found in titles), "")
                return _Heading(0, number + 1, 0, title)
    return _Heading(0, 0, 0, "")


def _find_headings(lines: Sequence[str], begin: int) -> Iterator[_Heading]:
    """Yields the headings from a line on, except those in lists and quotations."""
    from markdown_it import MarkdownIt  # for this source only

    # Blocks only: inline markup stays as it is.
    parser = MarkdownIt("commonmark").disable(["inline", "text_join"])
    tokens = parser.parse("\n".join(lines[begin:]))
    for token, content in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            first, end = token.map
            title = " ".join(content.content.split())
            yield _Heading(begin + first, begin + end, int(token.tag[1:]), title)
