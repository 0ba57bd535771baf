"""Tables of passages: which layout a file has, by its first line, and what is refused."""

import csv
from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.tables import read_rows, require_headers_alike

FIELDS = ("id", "url", "title", "text")


def read(text):
    lines = enumerate(text.split("\n"), start=1)
    return [tuple(row[name] for name in FIELDS) for _, row in read_rows(Path("a.tsv"), lines)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('1\t"text" as is\n2\t', [("1", "", "", '"text" as is'), ("2", "", "", "")]),
        ("1\tTitle\ttext\n2\t\ttext", [("1", "", "Title", "text"), ("2", "", "", "text")]),
        ("D1\thttp://x\t\tbody\nD2\t\t\t", [("D1", "http://x", "", "body"), ("D2", "", "", "")]),
        ('id\ttext\ttitle\n\n1\t"the ""text"""\tTitle', [("1", "", "Title", 'the "text"')]),
        ('"id"\t"text"\n"1"\t"a\u2028b"', [("1", "", "", "a\u2028b")]),
        ("year\ttext\turl\tid\tspans\n1953\ttext\thttp://x\t1\ts", [("1", "http://x", "", "text")]),
        (f"id\ttext\n1\t{'long ' * 99_999}", [("1", "", "", "long " * 99_999)]),
        ("", []),
    ],
    ids=["passages", "titled", "documents", "DPR", "quoted", "own", "long", "empty"],
)
def test_the_first_line_tells_the_columns(text, rows):
    assert read(text) == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text alone", r"^a\.tsv:1: expected id, text or .* a header .*, found 1 fields"),
        ("\n1\ta\tb\tc\td", r"^a\.tsv:2: expected id, text or .*, found 5 fields"),
        ("d1\ttitle\n1\tT\textra", r"^a\.tsv:2: expected 2 .* \(id, text\), found 3"),
        ("1\tT\ttext\n2\ttext", r"^a\.tsv:2: expected 3 .* \(id, title, text\), found 2"),
        ("D1\tu\tT\tb\nD2\tu\tT\tb\tc", r"^a\.tsv:2: expected 4 .* \(id, url, title, text\)"),
        ('id\ttext\n1\t"never closed', r"^a\.tsv:2: wrong quoting"),
    ],
)
def test_a_line_of_another_form_is_named(text, message):
    with pytest.raises(UserError, match=message):
        read(text)


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
        ("id\ttitle\nd1\tT", r":1: id, title: .* names of columns; expected id and text among"),
        ("qid\tanswer\n1\tof words", r":1: qid, answer: .* names of columns"),
        ("docid\tthe answer 1\n1\tof words", r":1: docid, the answer 1: .* names of columns"),
        ("key\ttext\ttitle\n1\ta b\tT", r":1: key, text, title: .* names of columns"),
        ("identifiant\ttexte\nd1\tun texte", r":1: identifiant, texte: .* names of columns"),
        ('"key"\t"value"\n"a"\t"some words"', r":1: key, value: .* names of columns"),
        ("\n编号\t文本\nd1\t一 二", r":2: 编号, 文本: .* names of columns"),
        ("a\tb\tc\td\te\n1\t2\t3\t4\t5", r":1: a, b, c, \.\.\.: .* names of columns"),
        ("qid\tpid\tpassage\n1\t2\tw", r":1: the columns qid and pid may all be the id: name"),
        ("id\tid\ttext\n1\t2\tw", r":1: the columns id and id may all be the id"),
        ("id\tbody\tPassage\n1\tx\tw", r":1: the columns body and Passage may all be the text"),
    ],
)
def test_a_first_line_that_may_be_names_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "d1\tText\tthe text",
        "D1\thttp://x\tTitle\tbody",
        "plain\tx",
        "a\tone\nb\ttwo",
        f"id\t{'word' * 11}",  # no name is so long
    ],
)
def test_a_first_line_of_few_words_is_a_row(text):
    assert [row[0] for row in read(text)] == [line.split("\t")[0] for line in text.split("\n")]


def test_titles_longer_than_texts_are_columns_in_another_order():
    rows = [f"d{i}\tsome words of text\tTitle {i}" for i in range(3)]
    with pytest.raises(UserError, match=r":1: without a header, the columns are id, title, text, "):
        read("\n".join(rows))
    judgments = [f"{i}\t0\tp{i}\t1" for i in range(3)]  # MS MARCO's, in a folder of passages
    with pytest.raises(UserError, match=r":1: without a header, the columns are id, url, title, "):
        read("\n".join(judgments))
    # A few such rows are no mistake, and beyond the first hundred nothing is compared.
    longer = ["d\tA long title of one text\ttext"]
    normal = ["d\tTitle\tand a text that is longer than its title"]
    assert len(read("\n".join(longer + normal))) == 2
    assert len(read("\n".join(normal * 100 + longer * 1000))) == 1100
    with pytest.raises(UserError, match="titles are longer"):
        read("\n".join(normal * 30 + longer * 70))


@pytest.mark.parametrize(
    ("row", "columns", "wrong"),
    [
        ("words of text {0}\td{0}", "id, text", "ids"),
        ("word{0}\t{0}", "id, text", "ids"),  # numbers are no texts
        ("words of text {0}\t\td{0}", "id, title, text", "ids"),
        ("words of text {0}\tTitle\td{0}", "id, title, text", "titles"),
        ("Title {0}\twords of text {0}\td{0}", "id, title, text", "titles"),
        ("words of text {0}\tTitle\thttp://x\td{0}", "id, url, title, text", "titles"),
    ],
)
def test_texts_before_ids_are_columns_in_another_order(row, columns, wrong):
    rows = [row.format(i) for i in range(3)]
    message = rf":1: without a header, the columns are {columns}, but the {wrong} are longer than"
    with pytest.raises(UserError, match=message):
        read("\n".join(rows))


@pytest.mark.parametrize(
    "row", ["a-very-long-id-{}\tcats", "100{}\t{}", "An Id {}\twords of text {}"]
)
def test_long_ids_of_short_texts_are_read(row):
    rows = [row.format(i, i) for i in range(3)]
    assert [(fields[0], fields[3]) for fields in read("\n".join(rows))] == [
        tuple(row.split("\t")) for row in rows
    ]


def test_a_second_line_of_names_is_refused():
    with pytest.raises(UserError, match=r"^a\.tsv:3: the names of the columns again, expected a r"):
        read("id\ttext\nd1\tx\nid\ttext\nd2\ty")


@pytest.mark.parametrize("order", [1, -1])
def test_tables_of_which_some_have_names_are_refused(order, tmp_path):
    """Each alone would be read, the second with its columns the wrong way round."""
    contents = ["d1\twords of text\n", "text\tid\nwords of text\td2\n", "\n", "d4\tT\tx\n"]
    paths = [tmp_path / f"{i}.tsv" for i in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    first = paths[::order]
    message = rf"{paths[1]} begins with the names .*, {first[0]} does not: exp"
    with pytest.raises(UserError, match=message):
        require_headers_alike(first)
    require_headers_alike([paths[0], *paths[2:]])
    require_headers_alike([paths[1], paths[2]])
    paths[0].write_text("qid\tanswer\nd1\tx\n")
    with pytest.raises(UserError, match=r"0\.tsv:1: qid, answer: .* names of columns"):
        require_headers_alike([paths[0]])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('id\ttext\nd0\tx\nd1\t"one\ntwo"\nd2\tx', 3),
        ('id\ttext\nd1\t"one ""two""\nthree"', 2),
        ('d0\tx\nd1\t"one\ntwo"\nd2\tx', 2),
        ('d0\t"a title" of it\t"text\nof two lines"', 1),
    ],
)
def test_a_quoted_field_over_several_lines_is_named(text, line):
    with pytest.raises(UserError, match=rf"^a\.tsv:{line}: .*a quoted field goes over several lin"):
        read(text)


def test_quotation_marks_of_a_file_without_a_header_are_text():
    text = 'd1\t"quoted" words\nd2\t"never closed\nd3\t5" wide'
    assert [row[3] for row in read(text)] == ['"quoted" words', '"never closed', '5" wide']
    with pytest.raises(UserError, match=r":3: expected 2 .*, found 1"):  # of no quoted field
        read('d1\t"never closed\nd2\tx"\nd3')


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
