"""The same data in every published layout reads alike; what is broken is named."""

import functools
import gzip

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data import layouts
from cocondenser_jax.retriever.data.folder import (
    corpus_file,
    passage_text,
    read_candidates,
    read_corpus,
    read_queries,
    read_split,
    split_files,
)
from cocondenser_jax.retriever.data.layouts import Passage
from tests.lines import whole
from tests.world import COMPRESSIONS, write_qrels, write_records

# Quotation marks and separators that are text, not syntax.
PASSAGES = [
    Passage("d0", "One", '"quoted" at the beginning'),
    Passage("d1", 'The "Two"', "a comma, a é and a \u2028 separator"),
    Passage("d2", "", "it isn't, 5\" wide"),
]
QUERIES = {"0": '"who" asks?', "1": "it's what"}
QRELS = {"0": {"d0": 1}, "1": {"d2": 1}}


def write_beir(folder, passages):
    corpus = [{"_id": p.id, "title": p.title or None, "text": p.text} for p in passages]
    write_records(folder / "corpus.jsonl", corpus)
    queries = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    write_records(folder / "queries.jsonl", queries)
    write_qrels(folder / "qrels" / "train.tsv", QRELS)


def write_msmarco(folder, passages, separator="\t", files="queries.train qrels.train"):
    (folder / "collection.tsv").write_text("".join(f"{p.id}\t{p.text}\n" for p in passages))
    queries, qrels = (folder / f"{name}.tsv" for name in files.split())
    queries.write_text("".join(f"{q}\t{t}\n" for q, t in QUERIES.items()))
    judged = (separator.join((q, "0", p, "1")) for q, grades in QRELS.items() for p in grades)
    qrels.write_text("".join(f"{line}\n" for line in judged))


def write_titled(folder, passages):
    """As RocketQA's files are joined, beside the passages without their titles."""
    write_msmarco(folder, passages)
    rows = (f"{p.id}\t{p.title}\t{p.text}\n" for p in passages)
    (folder / "corpus.tsv").write_text("".join(rows))


def write_documents(folder, passages):
    write_msmarco(folder, passages, " ", "msmarco-doctrain-queries msmarco-doctrain-qrels")
    (folder / "collection.tsv").unlink()
    rows = (f"{p.id}\thttp://{p.id}.org\t{p.title}\t{p.text}\n" for p in passages)
    (folder / "msmarco-docs.tsv").write_text("".join(rows))


LAYOUTS = {
    "BEIR": write_beir,
    "MS MARCO": write_msmarco,
    "RocketQA": write_titled,
    "documents": write_documents,
    "MS MARCO, spaces": lambda folder, passages: write_msmarco(folder, passages, " "),
}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_alike(tmp_path, layout, suffix):
    passages = [Passage(p.id, "" if "MARCO" in layout else p.title, p.text) for p in PASSAGES]
    LAYOUTS[layout](tmp_path, passages)
    if layout == "documents":
        passages = [Passage(p.id, f"http://{p.id}.org {p.title}".strip(), p.text) for p in passages]
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        path.with_name(path.name + suffix).write_bytes(COMPRESSIONS[suffix](path.read_bytes()))
        if suffix:
            path.unlink()
    assert list(read_corpus(tmp_path)) == passages
    assert list(read_corpus(corpus_file(tmp_path))) == passages
    assert read_queries(tmp_path) == QUERIES
    assert read_split(tmp_path, "train") == (QUERIES, QRELS)


def test_the_document_task_reads_url_title_and_body_and_its_own_runs(tmp_path):
    write_documents(tmp_path, PASSAGES)
    texts = [passage_text(passage) for passage in read_corpus(tmp_path)]
    assert texts[0] == 'http://d0.org One "quoted" at the beginning'
    assert texts[2] == "http://d2.org it isn't, 5\" wide"
    assert split_files(tmp_path, "train") == {
        "corpus": tmp_path / "msmarco-docs.tsv",
        "judgments": tmp_path / "msmarco-doctrain-qrels.tsv",
        "queries": tmp_path / "msmarco-doctrain-queries.tsv",
    }
    run = tmp_path / "msmarco-doctrain-top100.gz"
    lines = "0 Q0 d2 1 -4.2 Indri\n0 Q0 d0 2 -4.3 Indri\n1 Q0 d0 1 -3.5 Indri\n"
    run.write_bytes(gzip.compress(lines.encode()))
    assert read_candidates(run, QRELS, ["d0", "d1", "d2"], 10) == {"0": ["d2"], "1": ["d0"]}
    # The passage task's files go first where both are in a folder, of every kind.
    write_msmarco(tmp_path, PASSAGES[:1])
    assert [path.name for path in split_files(tmp_path, "train").values()] == [
        *("collection.tsv", "qrels.train.tsv", "queries.train.tsv"),
    ]


def test_queries_of_all_splits_are_joined(tmp_path):
    (tmp_path / "queries.dev.tsv").write_text("1\tone\n2\ttwo\n")
    (tmp_path / "queries.dev.small.tsv").write_text("2\ttwo\n")
    (tmp_path / "qrels.dev.small.tsv").write_text("2 0 d1 1\n")
    assert read_queries(tmp_path) == {"1": "one", "2": "two"}
    assert read_split(tmp_path, "dev.small") == ({"2": "two"}, {"2": {"d1": 1}})
    # A dot of a split's name is a dot.
    for name in ("queries.dev-small.tsv", "qrels.dev-small.tsv"):
        (tmp_path / name).write_text("not read\n")
    assert read_split(tmp_path, "dev.small") == ({"2": "two"}, {"2": {"d1": 1}})


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_of_windows_and_files_that_were_joined_read_alike(end, mark, tmp_path):
    (tmp_path / "collection.tsv").write_text(f"{mark}d1\tone{end}{mark}d2\ttwo{end}", newline="")
    (tmp_path / "queries.test.tsv").write_text(f'{mark}text\tid{end}"a ""b"""\tq1{end}', newline="")
    (tmp_path / "qrels.test.tsv").write_text(f"{mark}q1\t0\td2\t1{end}", newline="")
    assert list(read_corpus(tmp_path)) == [Passage("d1", "", "one"), Passage("d2", "", "two")]
    assert read_split(tmp_path, "test") == ({"q1": 'a "b"'}, {"q1": {"d2": 1}})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("collection.tsv", "1\tgood\n2 bad\n", r":2: expected 2 .* \(id, text\), found 1"),
        (
            "collection.tsv",
            "1\tgood\n2\tgood\ttitle\n",
            whole("TMP/collection.tsv:2: expected 2 tab-separated fields (id, text), found 3"),
        ),
        ("collection.tsv", "1\tx\n\n1\ty\n", ":3: the id '1' occurs twice"),
        (
            "collection.tsv",
            "1\tx\n\tx\n",
            whole("TMP/collection.tsv:2: the id '' has white space, or is empty"),
        ),
        ("collection.tsv", "", whole("TMP/collection.tsv is empty")),
        ("psgs_w100.tsv", "id\ttext\ttitle\n", whole("TMP/psgs_w100.tsv is empty")),
        (
            "psgs_w100.tsv",
            "id\ttext\ttitle\n1\tx\n",
            whole(
                "TMP/psgs_w100.tsv:2: expected 3 tab-separated fields (id, text, title), found 2"
            ),
        ),
        ("psgs_w100.tsv", 'id\ttext\ttitle\n1\t"x"y\tT\n2\tx\tT\n', ":2: wrong quoting"),
        ("psgs_w100.tsv", 'id\ttext\ttitle\n1\t"x\tT\n2\tx\tT\n', ":2: wrong quoting"),
        ("psgs_w100.tsv", "id\ttext\ttitle\n1\tx\tT\n1\ty\tT\n", ":3: the id '1' occurs twice"),
    ],
)
def test_bad_passages_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        list(read_corpus(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("queries.a.tsv", "1\tx\n2\n", r":2: expected 2 .* \(id, text\), found 1"),
        ("queries.a.tsv", "1\tx\n1\tx\n", whole("TMP/queries.a.tsv:2: the id '1' occurs twice")),
        ("queries.a.tsv", "\n", whole("TMP/queries.a.tsv is empty")),
        (
            "queries.a.tsv",
            "who asks 1\t1\n",
            whole("TMP/queries.a.tsv:1: the id 'who asks 1' has white space, or is empty"),
        ),
        (
            "queries.a.tsv",
            "<top>\n<num> 1\n",
            whole(
                "TMP/queries.a.tsv:1: <top>: expected id, text of a published "
                "queries.a.tsv, or a first line that names the columns, id and text among "
                "them; or, where passages are read, --columns=id,title,text"
            ),
        ),
        # The time of a query in a log is no text, and the query no title.
        (
            "queries.a.tsv",
            "1\tx\t2023-01-01 10:00\n",
            whole(
                "TMP/queries.a.tsv:1: 1, x, 2023-01-01 10:00: expected id, text of a "
                "published queries.a.tsv, or a first line that names the columns, id and "
                "text among them; or, where passages are read, --columns=id,title,text"
            ),
        ),
        (
            "queries.a.tsv",
            "1\tx\ty\tz\n",
            whole(
                "TMP/queries.a.tsv:1: 1, x, y, ...: expected id, text of a published "
                "queries.a.tsv, or a first line that names the columns, id and text among "
                "them; or, where passages are read, --columns=id,title,text"
            ),
        ),
    ],
)
def test_bad_queries_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read_queries(tmp_path)


def test_a_plain_file_goes_before_its_archive(tmp_path):
    for name in ("collection.tsv", "queries.test.tsv"):
        (tmp_path / name).write_text("plain1\tx\n")
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"archive1\tx\n"))
    assert [passage.id for passage in read_corpus(tmp_path)] == ["plain1"]
    assert read_queries(tmp_path) == {"plain1": "x"}


TOPIC = """<top>

<num> Number: {number}
<title> {title}
  and {title}

<desc> Description:
A title is short.

</top>
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_topics_of_trec_have_their_ids(tmp_path, end):
    text = "\n".join(TOPIC.format(number=n, title=f"Topic: birds {n}") for n in ("051", "MB2."))
    (tmp_path / "any.txt").write_text(text.replace("\n", end), newline="")
    expected = {"51": "birds 051 and Topic: birds 051", "MB2.": "birds MB2. and Topic: birds MB2."}
    assert layouts.read_query_file(tmp_path / "any.txt") == expected
    (tmp_path / "topics.dev.txt").write_text(
        f"7{chr(9)}who asks{end}8{chr(9)}what{end}", newline=""
    )
    assert layouts.read_query_file(tmp_path / "topics.dev.txt") == {"7": "who asks", "8": "what"}
    (tmp_path / "topics.dev.txt").write_text(f"who asks{end}what{end}", newline="")
    assert layouts.read_query_file(tmp_path / "topics.dev.txt") == {"1": "who asks", "2": "what"}


@pytest.mark.parametrize(
    ("title", "query"),
    [
        ("<title> temperature < 5 degrees Celsius\n<desc> d", "temperature < 5 degrees Celsius"),
        ("<title>x<5 and y<b\n  or more </title>", "x<5 and y<b or more"),
        ("<TITLE>Topic: a <- b\n\n<DESC> d", "a <- b"),
        ("<title> one <two three", "one <two three"),
        ("<title> List<int>", "List"),  # like a tag
        ("<title> a\n<E-desc> b", "a"),
        ('<title> a <desc lang="en"> b', "a"),
        ("<title> \n<desc> d", ""),
    ],
)
def test_only_a_tag_ends_the_title_of_a_topic(tmp_path, title, query):
    path = tmp_path / "any.txt"
    path.write_text(f"<top>\n<num> 1\n{title}\n</top>\n")
    assert layouts.read_query_file(path) == {"1": query}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "log.txt",
            "7\twho asks\n8\twhat",
            (
                "TMP/log.txt:1: a tab in each line, as in a table: expected texts alone, "
                "or a .tsv file whose first line names the columns, id and text among them"
            ),
        ),
        (
            "log.txt",
            "who asks\n8\twhat",
            (
                "TMP/log.txt:2: a tab in a query: expected queries alone; where they have "
                "ids, in a .tsv file whose first line is id and text, or in topics.NAME.txt"
            ),
        ),
        (
            "topics.a.txt",
            "7\twho asks\nwhat",
            "TMP/topics.a.txt:2: expected 2 tab-separated fields (id, text), found 1",
        ),
        (
            "topics.a.txt",
            "who asks\tme",
            "TMP/topics.a.txt:1: the id 'who asks' has white space, or is empty",
        ),
        (
            "topics.a.txt",
            "7\t1001\t1\n7\t1002\t2",
            "TMP/topics.a.txt:1: expected 2 tab-separated fields (id, text), found 3",
        ),
        (
            "a.txt",
            "q1 Q0 d7 1 3.5 bm25",
            "TMP/a.txt:1: a result of a run, 'q1 Q0 d7 1 3.5 bm25': expected texts alone",
        ),
        (
            "a.txt",
            "<DOC>\n<DOCNO> 1 </DOCNO>",
            "TMP/a.txt:1: a tag of TREC's topics or documents, '<DOC>': expected texts alone",
        ),
        (
            "a.txt",
            "<top>\n<num> 1\n</top>",
            "TMP/a.txt:1: expected <top>, a <num>, a <title> with text, </top>",
        ),
        (
            "a.txt",
            "<top>\n<title> a\n</top>",
            "TMP/a.txt:1: expected <top>, a <num>, a <title> with text, </top>",
        ),
        (
            "a.txt",
            "<top>\n<num> 1\n<title></title>\n</top>",
            "TMP/a.txt:1: expected <top>, a <num>, a <title> with text, </top>",
        ),
        ("a.txt", "<top>\n<num> 1\n<title> a", "TMP/a.txt:1: a topic without </top>"),
        *(
            (
                "a.txt",
                f"<top>\n<num>7\n<title>a {more}\n</top>\n",
                "TMP/a.txt:1: expected one <title>, without tags in its text",
            )
            for more in ("<b>bold</b> word", "<title> b")
        ),
        (
            "a.jsonl",
            '{"_id": 1, "id": 0, "text": "a"}\n{"id": 0, "query_id": "7", "text": "b"}',
            "TMP/a.jsonl:2: the fields id and query_id differ: expected one id",
        ),
        ("a.txt", "<top>\n<num>7\n<title>a\n</top>\n" * 2, "TMP/a.txt:5: the id '7' occurs twice"),
        (
            "a.txt",
            "<top>\n<title> a\n<top>\n<num> 2\n</top>",
            "TMP/a.txt:1: expected <top>, a <num>, a <title> with text, </top>",
        ),
        (
            "a.txt",
            "  1 who is a\n 12 who is b\n101 who",
            (
                "TMP/a.txt:1: each line begins with a number, as with an id: expected texts "
                "alone, or a .tsv file whose first line names the columns, id and text"
            ),
        ),
    ],
)
def test_lines_that_are_no_queries_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=whole(message)):
        layouts.read_query_file(tmp_path / name)


@pytest.mark.parametrize(
    "lines",
    [
        ["2 chainz net worth", "50 cent age"],  # too few to tell
        ["2 chainz net worth", "who is c", "50 cent age"],
        ["50 cent age", "2 chainz net worth", "112 songs"],
        ["3 idiots cast", "3 days grace", "300 movie"],
        ["1", "2", "3"],
        ["who is a", "who is b\t"],
    ],
)
def test_queries_that_begin_with_a_number_are_queries(tmp_path, lines):
    (tmp_path / "log.txt").write_text("\n".join(lines))
    assert [*layouts.read_query_file(tmp_path / "log.txt").values()] == lines


def test_passages_without_text_are_kept_and_counted(tmp_path, caplog):
    texts = [{"text": " \n"}, {"text": "", "title": "a title"}, {"text": "", "title": ""}]
    file = write_records(tmp_path / "a.jsonl", [{"_id": str(i), **t} for i, t in enumerate(texts)])
    assert len([*layouts.read_passages(file, numbered=True)]) == 3
    assert caplog.messages == [f"{file}: 2 passages have neither title nor text; they are kept"]


def test_ids_that_are_integers_are_taken_as_strings(tmp_path):
    lines = [{"_id": 7, "text": "a"}, {"_id": 10**30, "text": "b"}, {"_id": "x", "text": "c"}]
    lines.append({"_id": None, "id": "y", "text": "d"})
    write_records(tmp_path / "corpus.jsonl", lines)
    found = [passage.id for passage in read_corpus(tmp_path)]
    assert found == ["7", str(10**30), "x", "y"]
    assert layouts.read_query_file(tmp_path / "corpus.jsonl") == dict(
        zip(found, "abcd", strict=True)
    )


def test_queries_are_read_as_passages_are(tmp_path):
    (tmp_path / "queries.train.tsv").write_text("text\tyear\tid\nwho asks\t1953\tq1\n")
    assert layouts.read_query_file(tmp_path / "queries.train.tsv") == {"q1": "who asks"}
    for name in ("_id", "id", "query_id"):
        line = f'{{"{name}": "q1", "text": "who asks", "title": null}}\n'
        (tmp_path / "queries.jsonl").write_text(line)
        assert layouts.read_query_file(tmp_path / "queries.jsonl") == {"q1": "who asks"}


def test_a_broken_line_of_queries_is_refused_by_its_number(tmp_path):
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\n{"_id": "q2"\n')
    with pytest.raises(UserError, match=r"queries\.jsonl:2 is not valid JSON"):
        layouts.read_query_file(tmp_path / "queries.jsonl")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "queries.jsonl",
            '{"_id": "q 1", "text": "x"}',
            "'q 1' has white space or a zero byte, or is empty",
        ),
        (
            "queries.jsonl",
            '{"_id": "q1 ", "text": "x"}',
            "'q1 ' has white space or a zero byte, or is empty",
        ),
        ("queries.train.tsv", "q 1\tx", "'q 1' has white space, or is empty"),
        ("collection.tsv", "d\u00a01\tx", r"'d\xa01' has white space, or is empty"),
    ],
)
def test_an_id_that_no_run_can_hold_is_refused_when_it_is_read(tmp_path, name, content, said):
    (tmp_path / name).write_text(content + "\n")
    of_passages = functools.partial(layouts.read_passages, numbered=True)
    read = of_passages if name == "collection.tsv" else layouts.read_query_file
    with pytest.raises(UserError, match=whole(f"TMP/{name}:1: the id {said}")):
        list(read(tmp_path / name))


def test_the_number_of_a_topic_ends_at_its_closing_tag(tmp_path):
    text = "<top>\n<num>7</num>\n<title>who asks</title>\n</top>\n"
    (tmp_path / "any.txt").write_text(text)
    assert layouts.read_query_file(tmp_path / "any.txt") == {"7": "who asks"}


@pytest.mark.parametrize("tag", "b i u em strong sub sup span a br p B".split())
def test_each_tag_of_html_in_a_title_is_refused(tmp_path, tag):
    (tmp_path / "a.txt").write_text(f"<top>\n<num>7\n<title>acid H<{tag}>2</{tag}>SO4\n</top>\n")
    said = "TMP/a.txt:1: expected one <title>, without tags in its text"
    with pytest.raises(UserError, match=whole(said)):
        layouts.read_query_file(tmp_path / "a.txt")


def test_only_lines_without_ids_are_numbered(tmp_path):
    texts = {
        "log.txt": "who asks\n",
        "any.txt": "<top>\n<num> 7\n<title> who asks\n</top>\n",
        "topics.a.txt": "7\twho asks\n",
        "log.tsv": "id\ttext\n7\twho asks\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert [name for name in texts if layouts.numbers_queries(tmp_path / name)] == ["log.txt"]
    assert not layouts.numbers_queries(tmp_path)


def test_a_topic_may_be_one_line(tmp_path):
    lines = [f"<top><num>{n}</num><title>who asks {n}</title></top>" for n in (7, 8)]
    (tmp_path / "any.txt").write_text("\n".join(lines))
    assert layouts.read_query_file(tmp_path / "any.txt") == {"7": "who asks 7", "8": "who asks 8"}


def test_tags_of_topics_may_be_in_capitals(tmp_path):
    text = "<TOP>\n<NUM> Number: 7\n<TITLE> who asks\n</TOP>\n"
    (tmp_path / "any.txt").write_text(text)
    assert layouts.read_query_file(tmp_path / "any.txt") == {"7": "who asks"}
