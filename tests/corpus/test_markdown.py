import re

import pytest
from markdown_it import MarkdownIt

from cocondenser_jax.corpus.markdown import read_sections
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.layouts import read_passages
from tests.lines import whole
from tests.world import COMPRESSIONS, write_records

GUIDE = """\
Words before all headings.

# The  guide

    # code that is indented

Install it.
Then run it.

## Options

### `--fast` ###
Faster.

```bash
# a comment, no heading
```

> # a quotation

Slow
====
- # in a list

#no heading

## Empty
"""
SECTIONS = [
    Document("1", "Words before all headings."),
    Document("3", "The guide\n# code that is indented\n\nInstall it.\nThen run it."),
    Document(
        "12",
        "The guide: Options: `--fast`\nFaster.\n\n```bash\n# a comment, no heading\n```\n\n"
        "> # a quotation",
    ),
    Document("21", "Slow\n- # in a list\n\n#no heading"),
]


def sections(text):
    return [tuple(each) for each in read_sections(text.split("\n"))]


@pytest.mark.parametrize("suffix", ["", *COMPRESSIONS])
def test_a_section_is_a_document_with_the_headings_above_it(tmp_path, suffix):
    path = tmp_path / f"guide.md{suffix}"
    data = GUIDE.replace("\n", "\r\n").encode()
    path.write_bytes(COMPRESSIONS[suffix](data) if suffix else data)
    assert list(read_documents(str(path))) == SECTIONS
    passage = [*read_passages(path, numbered=True)][2]
    assert (passage.id, passage.title) == ("12", "The guide: Options: `--fast`")
    assert passage.text.startswith("Faster.")


def test_sections_are_those_of_the_page_that_a_renderer_makes():
    """Without its headings, the rendered text is that of the rendered sections."""

    def plain(html):
        return re.sub(r"<h\d>.*?</h\d>|<[^>]+>|\s", "", html, flags=re.DOTALL)

    render = MarkdownIt("commonmark").render
    page = GUIDE.replace("> # a quotation", "").replace("- # in a list", "")
    assert plain(render(page)) == "".join(plain(render(text)) for _, _, text in sections(page))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\ntitle: 'A page'\nlayout: post\n---\nHello.\n", (1, "A page", "Hello.")),
        ("---\nlayout: post\n...\n# A page\nHello.\n", (4, "A page", "Hello.")),
        ("---\ntitle: The site\n---\n# A page\nHello.", (4, "The site: A page", "Hello.")),
        ("---\nNote: a break.\n\nMore.\n\n---\n", (1, "", "---\nNote: a break.\n\nMore.\n\n---")),
        ("---\nA text.\n\n---\n", (1, "", "---\nA text.\n\n---")),
        ("---\ntitle: of nothing\n", (1, "", "---\ntitle: of nothing")),
        ("a\rb\n# T\nc", (1, "", "a b")),
    ],
)
def test_metadata_is_no_text_but_names_a_title(text, expected):
    assert sections(text)[0] == expected


def test_a_file_without_headings_is_one_document_and_one_without_text_is_none(tmp_path):
    assert sections("one\n\ntwo\n") == [(1, "", "one\n\ntwo")]
    assert sections("# Title\n\n## Another\n") == sections("") == []
    (tmp_path / "a.md").write_text("# Title\n")
    with pytest.raises(UserError, match=whole("TMP/a.md holds no documents")):
        list(read_documents(str(tmp_path / "a.md")))


def test_a_folder_of_markdown_is_read_with_its_readme(tmp_path):
    (tmp_path / "guide.md").write_text("# Guide\nOne.\n## More\nTwo.\n")
    (tmp_path / "README.md").write_text("All pages.\n")
    (tmp_path / "table.csv").write_text("not,read\n")
    assert list(read_documents(str(tmp_path))) == [
        Document("README.md:1", "All pages."),
        Document("guide.md:1", "Guide\nOne."),
        Document("guide.md:3", "Guide: More\nTwo."),
    ]


def test_a_readme_beside_documents_of_another_kind_is_not_read_by_a_pattern(tmp_path):
    (tmp_path / "README.md").write_text("# Data\nWhere it is from.\n")
    assert len(list(read_documents(str(tmp_path)))) == 1
    write_records(tmp_path / "a.jsonl", [{"text": "A."}])
    with pytest.raises(
        UserError,
        match=whole(
            "folder TMP holds documents of 2 kinds (README.md, a.jsonl): choose them "
            "by a pattern, such as 'TMP/**/*.md'"
        ),
    ):
        list(read_documents(str(tmp_path)))
    assert list(read_documents(f"{tmp_path}/*.jsonl")) == [Document("1", "A.")]


def test_a_giant_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("cocondenser_jax.corpus.records.MAX_DOCUMENT_BYTES", 1000)
    (tmp_path / "a.md").write_text("# T\n" + "wörté\n" * 160)  # of 5 characters, 7 bytes
    with pytest.raises(
        UserError, match=whole("TMP/a.md: a document is larger than 0 MB; split it first")
    ):
        list(read_documents(str(tmp_path / "a.md")))


def test_the_title_of_metadata_may_have_a_capital():
    assert sections("---\nTitle: A page\nDate: 2024\n---\nHello.\n") == [(1, "A page", "Hello.")]
