"""Data folders in BEIR layout, their errors, and rows of training data."""

import gzip
import lzma

import pytest
from backports import zstd

from cocondenser_jax.corpus.records import Record, to_document
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import (
    Passage,
    passage_text,
    read_asked,
    read_candidates,
    read_corpus,
    read_queries,
    read_split,
    require_known,
    survey_passages,
    with_positives,
)
from tests.lines import whole
from tests.world import write_qrels, write_records

LINE = '{"_id": "d1", "title": "T", "text": "x y"}\n'


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        # Two frames, as parallel compressors write them.
        (".zst", lambda b: zstd.compress(b[:20]) + zstd.compress(b[20:])),
    ],
)
def test_corpus_in_every_compression(tmp_path, suffix, compress):
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(compress((LINE + '\n{"_id": "d2", "text": "é"}\n').encode()))
    expected = [Passage("d1", "T", "x y"), Passage("d2", "", "é")]
    assert list(read_corpus(tmp_path)) == expected
    assert list(read_corpus(path)) == expected
    assert [passage_text(passage) for passage in expected] == ["T x y", "é"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (b'{"_id": "d2", "text": \n', "corpus.jsonl:2 is not valid JSON"),
        (b'{"_id": "d2", "text": "\xff"}\n', whole("TMP/corpus.jsonl:2: not UTF-8")),
        (b'{"_id": "d2"}\n', whole("TMP/corpus.jsonl:2: the field 'text' is missing")),
        (b'{"_id": true, "text": "x"}\n', whole("TMP/corpus.jsonl:2: the id must be a string")),
        (
            b'{"_id": "d 2", "text": "x"}\n',
            whole("TMP/corpus.jsonl:2: the id 'd 2' has white space or a zero byte, or is empty"),
        ),
        (
            b'{"_id": "d\\u00002", "text": "x"}\n',
            whole(
                "TMP/corpus.jsonl:2: the id 'd\\x002' has white space or a zero byte, or is empty"
            ),
        ),
        (
            b'{"_id": "d2", "text": null}\n',
            whole("TMP/corpus.jsonl:2: the field 'text' must be a string"),
        ),
        (
            b'{"_id": "d2", "title": 7, "text": "x"}\n',
            whole("TMP/corpus.jsonl:2: the field 'title' must be a string"),
        ),
        (
            b'{"_id": "", "text": "x"}\n',
            whole("TMP/corpus.jsonl:2: the id '' has white space or a zero byte, or is empty"),
        ),
        (b"[1]\n", whole("TMP/corpus.jsonl:2: expected a JSON object")),
        (LINE.encode(), whole("TMP/corpus.jsonl:2: the id 'd1' occurs twice")),
    ],
)
def test_bad_lines_are_named(tmp_path, second, message):
    (tmp_path / "corpus.jsonl").write_bytes(LINE.encode() + second)
    with pytest.raises(UserError, match=message):
        list(read_corpus(tmp_path))


def test_missing_empty_and_damaged_files(tmp_path):
    with pytest.raises(
        UserError,
        match=whole(
            "TMP has no queries: expected queries.jsonl or queries.SPLIT.tsv or "
            "msmarco-docSPLIT-queries.tsv (plain, .gz, .xz or .zst)"
        ),
    ):
        read_queries(tmp_path)
    (tmp_path / "queries.jsonl").write_text("\n")
    with pytest.raises(UserError, match=whole("TMP/queries.jsonl is empty")):
        read_queries(tmp_path)
    lines = "".join(f'{{"_id": "d{i}", "text": "x"}}\n' for i in range(2000))
    (tmp_path / "corpus.jsonl.xz").write_bytes(lzma.compress(lines.encode())[:-40])
    with pytest.raises(UserError, match=r"cannot read .*corpus.jsonl.xz: "):
        list(read_corpus(tmp_path))


def test_a_split_names_unknown_queries_and_reads_only_its_own(beir, tmp_path):
    queries, qrels = read_split(beir, "train")
    assert list(queries) == list(qrels) == [f"q{i}" for i in range(24)]
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("".join(f"q{i} 0 d1 1\n" for i in range(6)))
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/qrels/test.tsv names 5 queries that the data does not have: q0, q2, q3, ..."
        ),
    ):
        read_split(tmp_path, "test")
    with pytest.raises(
        UserError, match=whole("TMP has no judgments of split 'dev': it has qrels/test.tsv")
    ):
        read_split(tmp_path, "dev")
    (tmp_path / "qrels" / "test.tsv").unlink()
    with pytest.raises(
        UserError,
        match=whole(
            "TMP has no judgments of split 'dev': expected qrels/dev.tsv or "
            "qrels.dev.tsv or msmarco-docdev-qrels.tsv (plain, .gz, .xz or .zst)"
        ),
    ):
        read_split(tmp_path, "dev")


def test_a_split_keeps_queries_that_are_judged_without_a_relevant_passage(tmp_path):
    """They count 0 in a mean, and belong to its number of queries."""
    queries = {f"q{i}": f"query {i}" for i in range(3)}
    write_records(
        tmp_path / "queries.jsonl", [{"_id": name, "text": text} for name, text in queries.items()]
    )
    judged = {"q0": {"d1": 1, "d2": 0}, "q1": {"d1": 0}, "q2": {"d2": -1}}
    (tmp_path / "qrels").mkdir()
    write_qrels(tmp_path / "qrels" / "test.tsv", judged)
    assert read_split(tmp_path, "test") == (queries, judged)


def test_files_of_queries_may_repeat_each_other_but_not_contradict(tmp_path):
    """As the files of MS MARCO's splits do, whereas a user may number each split from 1."""
    dev, train = tmp_path / "queries.dev.tsv", tmp_path / "queries.train.tsv"
    dev.write_text("1\tcats and dogs\n2\tmaps\n")
    train.write_text("2\tmaps\n3\tstars\n")
    assert read_queries(tmp_path) == {"1": "cats and dogs", "2": "maps", "3": "stars"}
    train.write_text("2\tmaps\n1\tquantum physics\n")
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/queries.train.tsv: the id 1 has another query in another file of TMP: name one of"
            " the files, or a split"
        ),
    ):
        read_queries(tmp_path)
    assert read_queries(train) == {"2": "maps", "1": "quantum physics"}
    write_qrels(tmp_path / "qrels.dev.tsv", {"1": {"d": 1}})
    assert read_split(tmp_path, "dev")[0] == {"1": "cats and dogs"}


def test_queries_without_text_are_counted(tmp_path, caplog):
    """A model gives them a vector too, so that they rank passages as others do."""
    write_records(
        tmp_path / "queries.jsonl",
        [{"_id": f"q{i}", "text": text} for i, text in enumerate(["a", "", " \n", "\t", "b"])],
    )
    write_qrels(tmp_path / "qrels" / "test.tsv", {"q0": {"d": 1}, "q4": {"d": 1}})
    write_qrels(tmp_path / "qrels" / "dev.tsv", {"q0": {"d": 1}, "q1": {"d": 1}})
    assert len(read_asked(tmp_path, "test").queries) == 2
    assert caplog.messages == []
    for split, n_queries, n_empty in ((None, 5, 3), ("dev", 2, 1)):
        caplog.clear()
        assert len(read_asked(tmp_path, split).queries) == n_queries
        assert read_asked(tmp_path, split)
        (said,) = caplog.messages  # once
        assert said == f"{tmp_path}: {n_empty} queries have no text: their rankings mean nothing"


def test_queries_without_a_positive_are_counted(caplog):
    qrels = {"q1": {"a": 0}, "q2": {"a": 2, "b": 0}, "q3": {}, "q4": {"c": 1}}
    kept = with_positives(qrels)
    assert list(kept.items()) == [("q2", {"a": 2}), ("q4", {"c": 1})]
    assert caplog.messages == ["2 of 4 queries have no positive: not trained on"]
    caplog.clear()
    assert with_positives(kept) == kept
    assert not caplog.text
    with pytest.raises(
        UserError, match=whole("no judgment has a score above 0: there is no positive to train on")
    ):
        with_positives({"q1": {"a": 0}})


def test_candidates_are_the_best_results_that_are_not_relevant(tmp_path):
    path = tmp_path / "run.trec"
    scores = {"a": 1.0, "b": 4.0, "c": 3.0, "d": 2.0}
    path.write_text("".join(f"q1 Q0 {p} 0 {score} t\n" for p, score in scores.items()))
    qrels = {"q1": {"b": 1, "c": 0}, "q2": {"a": 1}}
    assert read_candidates(path, qrels, "abcd", 3) == {"q1": ["c", "d"], "q2": []}
    with pytest.raises(
        UserError, match=whole("TMP/run.trec names 1 passages that the data does not have: d")
    ):
        read_candidates(path, qrels, "abc", 3)
    with pytest.raises(
        UserError, match=whole("TMP/run.trec has no passage for any of the 1 queries of the split")
    ):
        read_candidates(path, {"q2": {"a": 1}}, "abcd", 3)


def test_unknown_passages_are_counted(tmp_path):
    with pytest.raises(
        UserError, match=whole("qrels.tsv names 2 passages that the data does not have: x, y")
    ):
        require_known(["a", "x", "y", "x"], {"a": ""}, "passages", "qrels.tsv")


@pytest.mark.parametrize(
    ("title", "text", "read"),
    [
        ("Ant", "Ants are small.", "Ant|Ants are small."),
        ("River", "River water flows.", "River|River water flows."),
        ("A", "A castle.", "A|A castle."),
        ("Stone market", "Stone  market\nThe castle.", "Stone  market\nThe castle."),
        ("Stone", "Stone", "Stone"),
        ("Stone", "A Stone\nStone", "Stone|A Stone\nStone"),
        ("", "Stone", "Stone"),
    ],
)
def test_training_and_search_read_a_title_once(title, text, read):
    assert passage_text(Passage("d", title, text), "|") == read
    fields = {"_id": "d", "title": title, "text": text}
    assert to_document(Record(fields, "d", "here")).text == read.replace("|", "\n")


def test_passages_that_are_wanted_are_counted(tmp_path):
    records = [{"_id": f"p{i}", "title": "a title", "text": f"text {i}"} for i in range(9)]
    source = write_records(tmp_path / "corpus.jsonl", records)
    survey = survey_passages(source, {"p0", "p8", "other"})
    assert survey.n_wanted == 2
    assert survey.n_passages == 9


def test_the_checksum_is_of_the_passages_in_whatever_files(tmp_path):
    records = [{"_id": f"p{i}", "text": f"text {i}"} for i in range(3)]
    first = survey_passages(write_records(tmp_path / "a.jsonl", records)).sha256
    (tmp_path / "b.tsv").write_text("id\ttext\n" + "".join(f"p{i}\ttext {i}\n" for i in range(3)))
    assert [*read_corpus(tmp_path / "a.jsonl")] == [*read_corpus(tmp_path / "b.tsv")]
    assert survey_passages(tmp_path / "b.tsv").sha256 == first
    for change in ({"text": "other"}, {"_id": "other"}, {"title": "other"}):
        changed = [records[0] | change, *records[1:]]
        assert survey_passages(write_records(tmp_path / "c.jsonl", changed)).sha256 != first


def test_columns_that_a_user_names_are_those_of_the_folders_table(tmp_path):
    (tmp_path / "corpus.tsv").write_text("d1\tA text.\tA\nd2\tAnother.\tB\n")
    expected = [Passage("d1", "A", "A text."), Passage("d2", "B", "Another.")]
    assert list(read_corpus(f"{tmp_path}:id,text,title")) == expected
