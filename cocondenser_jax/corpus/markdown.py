"""Divides a text in Markdown (CommonMark) into its sections, each of which is a document."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

# A first line of metadata between lines of hyphens, as generators of sites read it.
_METADATA = re.compile(r"[\w-]+\s*:")
_TITLE = re.compile(r"title\s*:\s*(.+)", re.IGNORECASE)


class Section(NamedTuple):
    """What stands under one heading, up to the next of any level."""

    line: int  # its first, from 1
    title: str  # the headings above it and its own; "" before the first
    text: str


class _Heading(NamedTuple):
    begin: int  # its first line, from 0
    end: int  # the first line after it
    level: int  # 1 to 6; 0 for the title in the metadata
    title: str


def read_sections(lines: Sequence[str]) -> Iterator[Section]:
    """Yields the sections that have text, as it is written; metadata is left out but for its title.

    Args:
      lines: of the whole text, without their ends.
    """
    # Within a line, a carriage return alone would count as its end.
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

    Without blank lines: two thematic breaks, too, may have text between them.
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
    """Yields the headings from a line on, without those in lists and quotations."""
    from markdown_it import MarkdownIt  # for this source only

    # Blocks alone: what is within a line stays as it is.
    parser = MarkdownIt("commonmark").disable(["inline", "text_join"])
    tokens = parser.parse("\n".join(lines[begin:]))
    for token, content in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            first, end = token.map
            title = " ".join(content.content.split())
            yield _Heading(begin + first, begin + end, int(token.tag[1:]), title)
