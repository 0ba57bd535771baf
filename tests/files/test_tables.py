"""Tables of passages: which layout a file has, by its first line, and what is refused."""

import csv
from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.tables import (
    HEADER_NAMES,
    find_columns,
    name_columns,
    read_rows,
    require_prose,
    split_columns,
)

FIELDS = ("id", "url", "title", "text")


def read(text, name="a.tsv", columns=()):
    lines = enumerate(text.split("\n"), start=1)
    rows = read_rows(Path(name), lines, columns)
    return [tuple(row[field] for field in FIELDS) for _, row in rows]


@pytest.mark.parametrize(
    ("field", "names"),
    [
        (
            "id",
            "DocID doc-no document_id Corpus-ID pid passage_id psg_id paragraph_id qid query-id",
        ),
        ("id", "question_id article_id Page-ID chunk_id"),
        ("title", "Headline doc_title passage_title document-title"),
        ("text", "passage passage_text Body content contents document document_text paragraph"),
        ("text", "query query_text question Question-Text sentence abstract"),
        ("url", "link URI"),
    ],
)
def test_a_column_may_have_any_of_these_names(field, names):
    for name in names.split():
        assert find_columns("a.tsv:1", [name], HEADER_NAMES) == {field: 0}, name


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        (
            "collection.tsv",
            '1\t"text" as is\n2\t',
            [("1", "", "", '"text" as is'), ("2", "", "", "")],
        ),
        (
            "corpus.tsv.gz",
            "1\tTitle\ttext\n2\t\ttext",
            [("1", "", "Title", "text"), ("2", "", "", "text")],
        ),
        (
            "msmarco-docs.tsv",
            "D1\thttp://x\t\tbody\nD2\t\t\t",
            [("D1", "http://x", "", "body"), ("D2", "", "", "")],
        ),
        ("queries.dev.small.tsv", "7\twho asks", [("7", "", "", "who asks")]),
        ("msmarco-test2019-queries.tsv", "7\twho asks", [("7", "", "", "who asks")]),
        ("msmarco-doctrain-queries.tsv.gz", "7\twho asks", [("7", "", "", "who asks")]),
        ("topics.dl20.tsv", "7\twho asks", [("7", "", "", "who asks")]),
        (
            "psgs_w100.tsv",
            'id\ttext\ttitle\n\n1\t"the ""text"""\tTitle',
            [("1", "", "Title", 'the "text"')],
        ),
        ("a.tsv", '"id"\t"text"\n"1"\t"a\u2028b"', [("1", "", "", "a\u2028b")]),
        (
            "collection.tsv",
            "year\ttext\turl\tid\n1953\ttext\thttp://x\tone",
            [("one", "http://x", "", "text")],
        ),
        ("a.tsv", f"id\ttext\n1\t{'long ' * 99_999}", [("1", "", "", "long " * 99_999)]),
        ("a.tsv", "", []),
    ],
)
def test_the_name_or_the_first_line_tells_the_columns(name, text, rows):
    assert read(text, name) == rows


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.tsv",
            "1\ttext",
            r"^a\.tsv:1: 1, text: expected a first line that names the columns, id and text among"
            r" them; or, where passages are read, --columns=id,title,text$",
        ),
        ("a.tsv", f"{'w' * 99}\ttext", r"^a\.tsv:1: w{40}, text: expected a first line"),
        ("a.tsv", "who asks\tyes\tno", r"^a\.tsv:1: who asks, yes, no: expected a first line"),
        ("triples.train.small.tsv", "who\tyes\tno", "expected a first line"),
        ("run.dev.small.tsv", "1\t7\t1\n1\t8\t2", "expected a first line"),
        ("top1000.dev.tsv", "1\t7\twho asks\tI", "expected a first line"),
        ("psgs_w100.tsv", "1\ttext\ttitle", r":1: .*: expected a first line"),
        (
            "collection.tsv",
            "doc\tbody\n1\tx",
            r"expected id, text of a published collection\.tsv, or",
        ),
        ("collection.tsv", "\n1\ta\tb", r"^collection\.tsv:2: 1, a, b: expected id, text of"),
        ("queries.a.tsv", "<top>\n<num> 1", r":1: <top>: expected id, text of a published"),
        ("collection.tsv", "1\tx\n2\tT\textra", r":2: expected 2 .* \(id, text\), found 3"),
        ("corpus.tsv", "1\tT\ttext\n2\ttext", r":2: expected 3 .* \(id, title, text\), found 2"),
        ("collection.tsv", "words of text 1\td1", r":1: the id 'words of text 1' has white space"),
        ("a.tsv", "id\ttext\nd1\tx\nd 2\tx", r":3: the id 'd 2' has white space"),
        ("a.tsv", "id\ttext\n\tx", r":2: the id '' has white space, or is empty"),
        ("a.tsv", 'id\ttext\n1\t"never closed', r"^a\.tsv:2: wrong quoting"),
        (
            "a.tsv",
            'id\ttext\nd0\tx\nd1\t"one\ntwo"',
            r"^a\.tsv:3: wrong quoting, .*a line for each row",
        ),
    ],
)
def test_what_nothing_tells_is_refused(name, text, message):
    with pytest.raises(UserError, match=message):
        read(text, name)


def test_the_user_names_the_columns():
    assert read("a\tx\tT\tb c", columns=("id", "-", "title", "text")) == [("a", "", "T", "b c")]
    for text, message in (
        ("id\ttext\na\tb", ":1: names the columns itself: leave --columns out"),
        ("doc\tbody\na\tb", ":1: doc, body: names the text as a header does, but not id and"),
        ("a\tb\tc", ":1: expected 2 .*, found 3"),
        ("a b\tc", ":1: the id 'a b' has white space"),
    ):
        with pytest.raises(UserError, match=message):
            read(text, columns=("id", "text"))


def test_columns_go_with_a_source_in_its_name(tmp_path):
    named = name_columns("a/b:c.tsv", "id,-,text,-")
    assert split_columns(named) == ("a/b:c.tsv", ("id", "-", "text", "-"))
    for source in ("a.tsv", "hf:name:config:train", "beir:scifact", tmp_path):
        assert split_columns(source) == (str(source), ())
    (tmp_path / "a:id,text").touch()
    assert split_columns(tmp_path / "a:id,text") == (f"{tmp_path}/a:id,text", ())
    for columns in ("text", "id,id,text", "id,body", "id text", ""):
        with pytest.raises(UserError, match=f"--columns={columns}: expected id and text, perhaps"):
            name_columns("a.tsv", columns)


HEADERS = [
    "ID\tTitle\tText",
    "docid\tTITLE\tbody",
    '"Doc ID"\t"Headline"\t"Passage Text"',
    "query-id\tpassage_title\tquery",
    "_id\ttitle\tcontents",
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_of_usual_names_is_read_in_any_order(header):
    assert read(f"{header}\nd1\tOf one\ta b c") == [("d1", "", "Of one", "a b c")]
    name, title, text = header.split("\t")
    expected = [("d1", "", "Of one", 'a "b" c')]
    assert read(f'{name}\t{text}\t{title}\nd1\t"a ""b"" c"\tOf one') == expected
    assert read(f'year\t{text}\t{name}\n\n1953\ta "b" c\td1') == [("d1", "", "", 'a "b" c')]


def test_a_column_of_the_fields_own_name_goes_before_another_name():
    assert read("docid\tid\tbody\ttext\nx\td1\ty\ta b") == [("d1", "", "", "a b")]
    assert read(f"id\t{'long ' * 20}\ttext\nd1\tx\ta b") == [("d1", "", "", "a b")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qid\tpid\tpassage\n1\t2\tw", r":1: the columns qid and pid may all be the id: name"),
        ("id\tid\ttext\n1\t2\tw", r":1: the columns id and id may all be the id"),
        ("id\tbody\tPassage\n1\tx\tw", r":1: the columns body and Passage may all be the text"),
        ("id\ttitle\nd1\tT", r":1: id, title: expected a first line that names"),
        ("编号\t文本\nd1\t一 二", r":1: 编号, 文本: expected a first line that names"),
    ],
)
def test_a_header_that_does_not_say_which_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        read(text)


def test_titles_longer_than_texts_are_columns_in_another_order():
    rows = [f"d{i}\tsome words of text\tTitle {i}" for i in range(3)]
    with pytest.raises(UserError, match=r":1: without a header, the columns are id, title, text, "):
        read("\n".join(rows), "corpus.tsv")
    # A few such rows are no mistake, and beyond the first hundred nothing is compared.
    longer = ["d1\tA long title of one text\ttext"]
    normal = ["d1\tTitle\tand a text that is longer than its title"]
    assert len(read("\n".join(longer + normal), "corpus.tsv")) == 2
    assert len(read("\n".join(normal * 100 + longer * 1000), "corpus.tsv")) == 1100
    with pytest.raises(UserError, match="titles are longer"):
        read("\n".join(normal * 30 + longer * 70), "corpus.tsv")
    assert len(read("\n".join(rows), columns=("id", "title", "text"))) == 3


def test_a_second_line_of_names_is_refused():
    with pytest.raises(UserError, match=r"^a\.tsv:3: the names of the columns again, expected a r"):
        read("id\ttext\nd1\tx\nid\ttext\nd2\ty")


@pytest.mark.parametrize(
    "text",
    [
        "<top>\n<num> Number: 1",
        "<DOC>\n<DOCNO> 1 </DOCNO>",
        '<topics task="a">\n<topic number="1">',
        '<?xml version="1.0"?>\n<topics>',
        "<parameters>\n<query>",
        "701:who asks\n702:what",
        "1:20001:who asks",
        "q1 Q0 d7 1 3.5 bm25\nq1 Q0 d8 2 3.4 bm25",
        "1\t7\t1\r\n1\t8\t2",
        "q1 0 d7 1",
        "1\twho asks\n2\twhat",
    ],
)
def test_lines_that_are_no_texts_are_refused(text):
    with pytest.raises(UserError, match=r"^a\.txt:1: .*: expected texts alone"):
        require_prose(Path("a.txt"), enumerate(text.split("\n"), start=1))


@pytest.mark.parametrize(
    "text", ["", "one\n\ttwo", "a < b\tc\nd", "<b> is a tag", "12:30 is noon", "1: a"]
)
def test_other_lines_are_texts(text):
    require_prose(Path("a.txt"), enumerate(text.split("\n"), start=1))


def test_quotation_marks_of_a_file_without_a_header_are_text():
    text = 'd1\t"quoted" words\nd2\t"never closed\nd3\t5" wide'
    assert [row[3] for row in read(text, "collection.tsv")] == [
        '"quoted" words',
        '"never closed',
        '5" wide',
    ]
    with pytest.raises(UserError, match=r":3: expected 2 .*, found 1"):  # of no quoted field
        read('d1\t"never closed\nd2\tx"\nd3', "collection.tsv")


def test_carriage_returns_alone_are_refused():
    with pytest.raises(UserError, match=r"^a\.tsv:1: lines end with a carriage return alone"):
        read("d1\tone\rd2\ttwo")


def test_the_limit_of_csv_stays_as_it_was():
    before = csv.field_size_limit()
    assert before == 131_072  # Python's default: importing the module left it
    read(f"id\ttext\n1\t{'long ' * 99_999}")
    with pytest.raises(UserError, match="wrong quoting"):
        read('id\ttext\n1\t"never closed')
    assert csv.field_size_limit() == before
