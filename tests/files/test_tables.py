"""Tables of passages: which layout a file has, by its first line, and what is refused."""

import csv
from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.tables import (
    HEADER_NAMES,
    find_columns,
    is_data_file,
    matches_data_file,
    name_columns,
    names_an_id,
    plain_name,
    plain_suffix,
    read_header,
    read_rows,
    require_no_ids,
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


def refusal(call, *arguments, **options):
    """Returns the whole message with which a call is refused."""
    with pytest.raises(UserError) as refused:
        call(*arguments, **options)
    return str(refused.value)


A_HEADER = (
    "a first line that names the columns, id and text among them; or, where passages are read,"
    " --columns=id,title,text"
)
QUOTING = "wrong quoting, expected csv with a line for each row: unexpected end of data"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "1\ttext", f"1: 1, text: expected {A_HEADER}"),
        ("a.tsv", f"{'w' * 99}\ttext", f"1: {'w' * 40}, text: expected {A_HEADER}"),
        ("a.tsv", "who asks\tyes\tno", f"1: who asks, yes, no: expected {A_HEADER}"),
        ("triples.train.small.tsv", "who\tyes\tno", f"1: who, yes, no: expected {A_HEADER}"),
        ("run.dev.small.tsv", "1\t7\t1\n1\t8\t2", f"1: 1, 7, 1: expected {A_HEADER}"),
        (
            "top1000.dev.tsv",
            "1\t7\twho asks\tI",
            f"1: 1, 7, who asks, ...: expected {A_HEADER}",
        ),
        ("psgs_w100.tsv", "1\ttext\ttitle", f"1: 1, text, title: expected {A_HEADER}"),
        (
            "collection.tsv",
            "doc\tbody\n1\tx",
            f"1: doc, body: expected id, text of a published collection.tsv, or {A_HEADER}",
        ),
        (
            "collection.tsv.gz",
            "\n1\ta\tb",
            f"2: 1, a, b: expected id, text of a published collection.tsv, or {A_HEADER}",
        ),
        (
            "queries.a.tsv",
            "<top>\n<num> 1",
            f"1: <top>: expected id, text of a published queries.a.tsv, or {A_HEADER}",
        ),
        (
            "collection.tsv",
            "1\tx\n2\tT\textra",
            "2: expected 2 tab-separated fields (id, text), found 3",
        ),
        (
            "corpus.tsv",
            "1\tT\ttext\n2\ttext",
            "2: expected 3 tab-separated fields (id, title, text), found 2",
        ),
        (
            "collection.tsv",
            "1\tx\n2\ta\tb\tc\td",
            "2: expected 2 tab-separated fields (id, text), found 3",
        ),
        (
            "collection.tsv",
            f"1 {'w' * 99}\td1",
            f"1: the id '1 {'w' * 58}' has white space, or is empty",
        ),
        ("a.tsv", "id\ttext\nd1\tx\ty", "2: expected 2 tab-separated fields (id, text), found 3"),
        ("a.tsv", "id\ttext\nd1\tx\nd 2\tx", "3: the id 'd 2' has white space, or is empty"),
        ("a.tsv", "id\ttext\n\tx", "2: the id '' has white space, or is empty"),
        ("a.tsv", 'id\ttext\n1\t"never closed', f"2: {QUOTING}"),
        ("a.tsv", 'id\ttext\nd0\tx\nd1\t"one\ntwo"', f"3: {QUOTING}"),
    ],
)
def test_what_nothing_tells_is_refused(name, text, message):
    assert refusal(read, text, name) == f"{name}:{message}"


def test_the_user_names_the_columns():
    assert read("a\tx\tT\tb c", columns=("id", "-", "title", "text")) == [("a", "", "T", "b c")]
    for text, message in (
        ("id\ttext\na\tb", "names the columns itself: leave --columns out"),
        (
            "doc\tbody\na\tb",
            "doc, body: names the text as a header does, but not id and text: name those, or take"
            " the line out",
        ),
        (
            "x\tid\ty\tz",
            "x, id, y, ...: names the id as a header does, but not id and text: name those, or take"
            " the line out",
        ),
        ("a\tb\tc", "expected 2 tab-separated fields (id, text), found 3"),
        ("a b\tc", "the id 'a b' has white space, or is empty"),
    ):
        assert refusal(read, text, columns=("id", "text")) == f"a.tsv:1: {message}"


def test_columns_go_with_a_source_in_its_name(tmp_path):
    named = name_columns("a/b:c.tsv", "id,-,text,-")
    assert split_columns(named) == ("a/b:c.tsv", ("id", "-", "text", "-"))
    for source in ("a.tsv", "hf:name:config:train", "beir:scifact", tmp_path):
        assert split_columns(source) == (str(source), ())
    (tmp_path / "a:id,text").touch()
    assert split_columns(tmp_path / "a:id,text") == (f"{tmp_path}/a:id,text", ())
    for columns in ("text", "id,id,text", "id,body", "id text", ""):
        assert refusal(name_columns, "a.tsv", columns) == (
            f"--columns={columns}: expected id and text, perhaps url and title, each once, and -"
            " for a column that is not read"
        )
    for columns in ("id,txet", "text,id,id", "-,text", "id,title"):
        assert refusal(split_columns, f"a.tsv:{columns}") == (
            f"a.tsv:{columns}: expected id and text, perhaps url and title, each once, and - for a"
            " column that is not read"
        )


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
        (
            "qid\tpid\tpassage\n1\t2\tw",
            "the columns qid and pid may all be the id: name one of them id",
        ),
        ("id\tid\ttext\n1\t2\tw", "the columns id and id may all be the id: name one of them id"),
        (
            "id\tbody\tPassage\n1\tx\tw",
            "the columns body and Passage may all be the text: name one of them text",
        ),
        ("id\ttitle\nd1\tT", f"id, title: expected {A_HEADER}"),
        ("编号\t文本\nd1\t一 二", f"编号, 文本: expected {A_HEADER}"),
    ],
)
def test_a_header_that_does_not_say_which_is_refused(text, message):
    assert refusal(read, text) == f"a.tsv:1: {message}"


def test_titles_longer_than_texts_are_columns_in_another_order():
    rows = [f"d{i}\tsome words of text\tTitle {i}" for i in range(3)]
    assert refusal(read, "\n".join(rows), "corpus.tsv") == (
        "corpus.tsv:1: without a header, the columns are id, title, text, but the titles are longer"
        " than the texts: put a line with the names of the columns above"
    )
    # Where they are as long, or of two rows, it is no mistake.
    alike = "d1\tas long as\tthis\nd2\tone\ttwo\nd3\t1\t2345678"
    assert [len(read(text, "corpus.tsv")) for text in (alike, "\n".join(rows[:2]))] == [3, 2]
    # A few such rows are no mistake, and beyond the first hundred nothing is compared.
    longer = ["d1\tA long title of one text\ttext"]
    normal = ["d1\tTitle\tand a text that is longer than its title"]
    assert len(read("\n".join(longer + normal), "corpus.tsv")) == 2
    assert len(read("\n".join(normal * 100 + longer * 1000), "corpus.tsv")) == 1100
    with pytest.raises(UserError, match="titles are longer"):
        read("\n".join(normal * 30 + longer * 70), "corpus.tsv")
    assert len(read("\n".join(rows), columns=("id", "title", "text"))) == 3


def test_a_second_line_of_names_is_refused():
    assert refusal(read, "id\ttext\nd1\tx\nid\ttext\nd2\ty") == (
        "a.tsv:3: the names of the columns again, expected a row: if several files were joined,"
        " keep the first one's"
    )


TAG = "a tag of TREC's topics or documents"
TABLE = "a tab in each line, as in a table"
NUMBERS = ":1: each line begins with a number, as with an id"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<top>\n<num> Number: 1", f"{TAG}, '<top>'"),
        ("  <top>\n<num> Number: 1", f"{TAG}, '  <top>'"),
        ("<DOC>\n<DOCNO> 1 </DOCNO>", f"{TAG}, '<DOC>'"),
        ('<topics task="a">\n<topic number="1">', f"{TAG}, '<topics task=\"a\">'"),
        ('<?xml version="1.0"?>\n<topics>', f"{TAG}, '<?xml version=\"1.0\"?>'"),
        ("<parameters>\n<query>", f"{TAG}, '<parameters>'"),
        ("701:who asks\n702:what", "an id before a colon, '701:who asks'"),
        (f"1:20001:who {'w' * 99}", f"an id before a colon, '1:20001:who {'w' * 48}'"),
        (
            "q1 Q0 d7 1 3.5 bm25\nq1 Q0 d8 2 3.4 bm25",
            "a result of a run, 'q1 Q0 d7 1 3.5 bm25'",
        ),
        ("q1 0 d7 -1", "a judgment, 'q1 0 d7 -1'"),
        ("q1 Q0 d7 1", "a judgment, 'q1 Q0 d7 1'"),
        (".I 1\n.W\nwords", "a field of SMART's collections, '.I 1'"),
        ("{\\rtf1 words", "a document of HTML or RTF, '{\\\\rtf1 words'"),
        ("<!DOCTYPE html>\n<p>", "a document of HTML or RTF, '<!DOCTYPE html>'"),
        ('{"_id": "x7", "text": "who"}', 'JSON, \'{"_id": "x7", "text": "who"}\''),
        ('[\n{"text": "who"}]', "JSON, '['"),
        ("1\t7\t1\r\n1\t8\t2", TABLE),
        ("1\twho asks\n2\twhat", TABLE),
    ],
)
def test_lines_that_are_no_texts_are_refused(text, what):
    table = ", or a .tsv file whose first line names the columns, id and text among them"
    expected = f"a.txt:1: {what}: expected texts alone{table if what == TABLE else ''}"
    lines = enumerate(text.split("\n"), start=1)
    assert refusal(require_prose, Path("a.txt"), lines) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# topics of 2009\n<top>\n<num> 1", ":2: a tag or a zero byte, '<top>'"),
        ("docs.txt\0\0000644\nwords", ":1: a tag or a zero byte, 'docs.txt\\x00\\x000644'"),
        ("id,title,text\n1,a,b", ":1: 'id,title,text' names columns"),
        ("docid|body\n1|a", ":1: 'docid|body' names columns"),
    ],
)
def test_other_lines_show_what_a_text_is(text, said):
    lines = enumerate(text.split("\n"), start=1)
    assert refusal(require_prose, Path("a.txt"), lines).startswith(f"a.txt{said}: expected texts")


@pytest.mark.parametrize(
    "text",
    [
        *("", "one\n\ttwo", "a < b\tc\nd", "<b> is a tag", "12:30 is noon", "1: a", "1 a\n2 b"),
        *("57 who\n12 what\n3 why", "57 who\n" * 9, "1 who\n3 what\n1 why", "{{Infobox}}"),
        *("[1] a note", "1980s music\n3d prints\n90s songs", "id, please", "query, question"),
        *("12:01 a\n12:02 b\n12:03 c", "4.5 percent\n3.5 times\n2.5 ways", "1,000 a\n" * 3),
        *("COVID-19: a\nCOVID-19: b\nCOVID-19: c", "S1: a\nS2: b\nS1: c"),
    ],
)
def test_other_lines_are_texts(text):
    for require in (require_prose, require_no_ids):
        require(Path("a.txt"), enumerate(text.split("\n"), start=1))


@pytest.mark.parametrize(
    "text",
    [
        *("1 who\n3 what\n2 why", "57 who\n" * 10, "12 who\n 57 what\n101 why"),
        *("MB001: who\nMB002: what\nMB003: why", "wt09-1:who\nwt09-2:what\nwt10-1:why"),
        *(f"Q1{end} who\nQ3{end}what\nQ2{end} why" for end in ":.|,);"),
    ],
)
def test_queries_that_begin_with_ids_are_refused(text):
    lines = enumerate(text.split("\n"), start=1)
    assert refusal(require_no_ids, Path("a.txt"), lines).startswith(f"a.txt{NUMBERS}: expected")


def test_a_list_of_steps_is_a_document():
    require_prose(Path("a.txt"), enumerate("1. Boil.\n2. Add.\n3. Wait.".split("\n"), start=1))


def test_quotation_marks_of_a_file_without_a_header_are_text():
    text = 'd1\t"quoted" words\nd2\t"never closed\nd3\t5" wide'
    assert [row[3] for row in read(text, "collection.tsv")] == [
        '"quoted" words',
        '"never closed',
        '5" wide',
    ]
    said = (
        "collection.tsv:1: a cell is quoted as in csv: expected the first line of its file, which"
    )
    assert refusal(read, 'd1\t"He said ""go"" and went"', "collection.tsv").startswith(said)
    assert [row[3] for row in read('d1\tan "" empty\nd2\t""', "collection.tsv")] == [
        'an "" empty',
        '""',
    ]
    between = '"one" and "" and "another"'
    assert [row[3] for row in read(f"d1\t{between}", "collection.tsv")] == [between]
    assert [row[3] for row in read('d1\t"""of Python"""', "collection.tsv")] == ['"""of Python"""']
    rows = [f"d{i}\tx\n" for i in range(100)]
    late = read("".join([*rows, 'e\t"a ""b"" c"']), "collection.tsv")
    assert late[-1][3] == '"a ""b"" c"'
    # Of no quoted field.
    assert refusal(read, 'd1\t"never closed\nd2\tx"\nd3', "collection.tsv") == (
        "collection.tsv:3: expected 2 tab-separated fields (id, text), found 1"
    )


def test_carriage_returns_alone_are_refused():
    said = "a.tsv:1: lines end with a carriage return alone, expected \\n"
    assert refusal(read, "d1\tone\rd2\ttwo") == said


def test_the_limit_of_csv_stays_as_it_was():
    before = csv.field_size_limit()
    assert before == 131_072  # Python's default: importing the module left it
    read(f"id\ttext\n1\t{'long ' * 99_999}")
    with pytest.raises(UserError, match="wrong quoting"):
        read('id\ttext\n1\t"never closed')
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("corpus.jsonl", True),
        ("data/collection.tsv.xz", True),
        ("data/qrels/test.tsv", True),
        ("data/test.tsv", False),
        ("qrels/deep/test.tsv", False),
        ("qrels.dev.small.tsv.gz", True),
        ("msmarco-doctrain-qrels.tsv", True),
        ("msmarco-docdev-queries.tsv.gz", True),
        ("queries.jsonl.zst", True),
        ("queries.tsv", False),
        ("queriesXdev.tsv", False),
        ("corpus.jsonl.bz2", False),
        ("my-corpus.jsonl", False),
    ],
)
def test_files_of_a_data_folder_have_these_names(name, is_one):
    assert is_data_file(Path(name)) is is_one


def test_a_data_file_is_of_a_split_or_of_any():
    pattern = "qrels/SPLIT.tsv"
    for split, matches in ((None, True), ("dev.small", True), ("dev", False), ("devXsmall", False)):
        assert matches_data_file(Path("qrels/dev.small.tsv.gz"), pattern, split) is matches


def test_names_without_their_compression():
    names = ("a.tsv.gz", "b.jsonl.xz", "c.txt.zst", "d.tsv", "gz")
    plain = ["a.tsv", "b.jsonl", "c.txt", "d.tsv", "gz"]
    assert [plain_name(Path("folder") / name) for name in names] == plain
    assert [plain_suffix(Path(name)) for name in names] == [".tsv", ".jsonl", ".txt", ".tsv", ""]


def test_a_header_is_what_names_id_and_text(tmp_path):
    table = tmp_path / "a.tsv"
    for text, header in (
        ("\nDoc ID\tyear\tBody\n1\t2\t3\n", ["id", "year", "text"]),
        ("1\ttext\n", []),
        ("", []),
    ):
        table.write_text(text)
        assert read_header(table) == header


def test_names_of_ids():
    assert [
        name for name in ("id", "_id", "docid", "Doc ID", "ID", "text") if names_an_id(name)
    ] == [
        "docid",
        "Doc ID",
        "ID",
    ]


def test_each_row_has_the_place_of_its_line():
    lines = enumerate("id\ttext\n\na\tx\n \nb\ty".split("\n"), start=1)
    places = [place for place, _ in read_rows(Path("a.tsv"), lines)]
    assert places == ["a.tsv:3", "a.tsv:5"]


@pytest.mark.parametrize("mark", [",", ";", "|", "; "])
def test_names_of_columns_show_a_table_whatever_stands_between_them(mark):
    lines = enumerate([mark.join(("id", "title", "text")), mark.join("1ab")], start=1)
    said = refusal(require_prose, Path("a.txt"), lines)
    assert said.startswith(f"a.txt:1: 'id{mark}title{mark}text' names columns: expected texts")


@pytest.mark.parametrize("first", ["{", "["])
def test_json_over_several_lines_is_no_text(first):
    lines = enumerate([first, '  "text": "who asks"', "}"], start=1)
    said = f"a.txt:1: JSON, {first!r}: expected texts alone"
    assert refusal(require_prose, Path("a.txt"), lines) == said
