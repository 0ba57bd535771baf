"""Runs and judgments: formats, errors, and an order that no tie-breaking can change."""

import itertools

import ir_measures
import numpy as np
import pytest
import pytrec_eval

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data import trec
from tests.lines import whole
from tests.world import COMPRESSIONS


def test_beir_and_trec_judgments_read_alike(tmp_path):
    beir, classic = (tmp_path / name for name in ("test.tsv", "qrels.txt"))
    beir.write_text("query-id\tcorpus-id\tscore\nq1\tab\t2\nq1\tc\t0\nq2\tab\t1\n")
    classic.write_text("q1 0 ab 2\nq1 0 c 0\n\nq2 0 ab 1\n")
    assert trec.read_qrels(beir) == {"q1": {"ab": 2, "c": 0}, "q2": {"ab": 1}}
    assert trec.read_qrels(classic) == trec.read_qrels(beir)


def test_a_column_of_judgments_may_have_any_of_these_names():
    queries = "query-id query QID topic topic_id".split()
    passages = "corpus-id Passage passage_id pid doc-id DocNo document_id".split()
    grades = "grade score rel Relevance label judgment".split()
    for names in itertools.product(queries, passages, grades):
        assert trec._judgment_header("qrels.tsv:1", names) == (0, 1, 2), names


@pytest.mark.parametrize("pack", COMPRESSIONS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", " \n"])
def test_judgments_read_as_the_programs_of_trec_read_them(end, pack, tmp_path):
    lines = ["q1 0 d1 2", "q1\t0\td2\t0", "q2  Q0 d1   1", "q2 0 d3 -1", "q2 0 d3 -1"]
    path = tmp_path / f"qrels{pack}"
    path.write_bytes(COMPRESSIONS[pack]((end.join(lines) + end).encode()))
    found = trec.read_qrels(path)
    plain = "\n".join(lines[:-1])  # trec_eval aborts at a line that is there twice
    judged = {}
    for each in ir_measures.read_trec_qrels(plain):
        judged.setdefault(each.query_id, {})[each.doc_id] = each.relevance
    assert found == pytrec_eval.parse_qrel(plain.splitlines()) == judged


RUN = [
    ("q1 Q0 d1 1 1.5e+1 x", "q1 Q0 d2 2 1.49E1 x", "q1 Q0 d3 3 -2e-05 x"),
    ("q1 Q0 d1 1 +.5 x", "q1 Q0 d2 2 5.e-2 x", "q1 Q0 d3 3 0 x"),
    ("q1\tQ0\td1\t0\t3\tx", "q1\tQ0\td3\t0\t1\tx", "q1\tQ0\td2\t0\t2\tx"),
]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("lines", RUN)
def test_runs_read_as_the_programs_of_trec_read_them(lines, end, tmp_path):
    path = tmp_path / "run.trec"
    path.write_text(end.join(lines) + end, newline="")
    found = trec.read_run(path)
    scored = {each.doc_id: each.score for each in ir_measures.read_trec_run("\n".join(lines))}
    assert found == pytrec_eval.parse_run(lines) == {"q1": scored}
    best = sorted(scored, key=lambda name: -scored[name])
    assert trec.first_passages(found["q1"]) == best


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 0, 4, 1, 2)])
def test_a_run_is_read_a_query_at_a_time_whatever_the_order_of_its_lines(order, tmp_path):
    lines = [f"q{q} Q0 d{d} 1 {d}.5 x\n" for q, d in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))]
    path = tmp_path / "run.trec"
    path.write_text("".join(lines[i] for i in order))
    found = list(trec.read_results(path))
    assert [query for query, _ in found] == (["q1", "q2"] if order[0] == 0 else ["q2", "q1"])
    assert dict(found) == {"q1": {"d1": 1.5, "d2": 2.5, "d3": 3.5}, "q2": {"d1": 1.5, "d2": 2.5}}


def test_results_that_cannot_all_be_made_leave_no_run(tmp_path):
    def results():
        yield "q1", {"d1": 1.0}
        raise UserError("no more")

    with pytest.raises(UserError, match=whole("no more")):
        trec.write_results(tmp_path / "run.trec", results())
    assert not any(tmp_path.iterdir())


DISTANCES = (
    "for 1 of 2 queries the last rank has a higher score than the first; as in trec_eval, the"
    " highest score is the best: are these distances?"
)
EQUAL_SCORES = (
    "1 of 2 queries have results with equal scores, which keep the order of the file; trec_eval"
    " orders them by their ids"
)


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        (["1 3.0", "2 2.0", "3 1.0"], ""),
        (["1 1.0", "2 2.0", "3 3.0"], DISTANCES),
        (["3 3.0", "1 1.0", "2 2.0"], DISTANCES),
        (["0 1.0", "0 2.0", "0 3.0"], ""),  # no ranks
        (["1.0 3.0", "2.0 2.0", "3. 1.0"], ""),  # as pandas writes them
        (["1 2.0", "2 1.0", "3 2.0"], EQUAL_SCORES),
    ],
)
def test_an_order_in_doubt_is_named(lines, warning, tmp_path, caplog):
    caplog.set_level("INFO")
    path = tmp_path / "run.trec"
    results = [f"q1 Q0 d{i} {line} x\n" for i, line in enumerate(lines)]
    path.write_text("".join([*results, "q2 Q0 d1 1 5.0 x\n"]))
    trec.read_run(path)
    assert caplog.messages == [f"{path}: {warning}"] * bool(warning)


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n",  # BEIR
        "q1\t0\td1\t2\nq1\t0\td2\t0\n",  # MS MARCO
        "q1 0 d1 2\nq1 0 d2 0\n",  # TREC
        "q1  Q0 d1   2\nq1  Q0 d2   0\n",
        "\ufeffQuery-ID\tCorpus-ID\tScore\nq1\td1\t2\nq1\td2\t0\n",
        "\nqid\tpid\trel\nq1\td1\t2\nq1\td2\t0\n",
        "score\tquery_id\tdoc_id\n2\tq1\td1\n0\tq1\td2\n",
        "corpus-id\tquery-id\tscore\nd1\tq1\t2\nd2\tq1\t0\n",
        "topic iter docno rel\nq1 0 d1 2\nq1 0 d2 0\n",
        "topic iteration label docno\nq1 0 2 d1\nq1 0 0 d2\n",
        "query\tpassage\tgrade\nq1\td1\t2\nq1\td2\t0\n",
        # Beside ids, these are texts.
        "query-id\tquery\tcorpus-id\tpassage\tscore\nq1\ta\td1\tb\t2\nq1\ta\td2\tb\t0\n",
    ],
)
def test_judgments_of_every_origin_read_alike(content, tmp_path):
    (tmp_path / "qrels.tsv").write_text(content)
    assert trec.read_qrels(tmp_path / "qrels.tsv") == {"q1": {"d1": 2, "d2": 0}}


def test_the_largest_grades(tmp_path):
    (tmp_path / "qrels.tsv").write_text("q1 0 d1 1000000\nq1 0 d2 -1000000\n")
    assert trec.read_qrels(tmp_path / "qrels.tsv") == {"q1": {"d1": 1_000_000, "d2": -1_000_000}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"topic iter docno rel\nq1\td1\t1\n",
            "TMP/qrels.tsv:2: found 3 fields, and the header has 4",
        ),
        (
            b"query-id\tcorpus-id\tscore\nq1\t0\t17\t1\n",
            "TMP/qrels.tsv:2: found 4 fields, and the header has 3",
        ),  # of TREC, and 17 would be the grade of passage 0
        (
            b"score\tquery text\ta\tquery-id\tcorpus-id\n1\tx\ty\tz\tq1\td1\n",
            "TMP/qrels.tsv:2: found 6 fields, and the header has 5",
        ),
        (
            b"qid\tdocid\tvalue\nq1\td1\t1\n",
            (
                "TMP/qrels.tsv:1: three columns without a header: expected query-id, "
                "corpus-id and score in the first line, or TREC's four, query 0 passage "
                "grade"
            ),
        ),
        (
            b"1\t7\t1\n1\t8\t2\n",
            (
                "TMP/qrels.tsv:1: three columns without a header: expected query-id, "
                "corpus-id and score in the first line, or TREC's four, query 0 passage "
                "grade"
            ),
        ),  # a run of MS MARCO
        (
            b"qid\ttopic\tdocid\n",
            (
                "TMP/qrels.tsv:1: the columns qid and topic may all be the queryid: name "
                "one of them queryid"
            ),
        ),
        (
            b"qid\tquery\tdocid\trel\n",
            (
                "TMP/qrels.tsv:1: the columns qid and query may all be the queryid: name "
                "one of them queryid"
            ),
        ),
        (
            b"score,query text,query-id,corpus-id\n1,x,q1,d1\n",
            "TMP/qrels.tsv:1: columns separated by ',', expected tabs",
        ),
        (
            b'"query-id";"corpus-id";"score"\nq1;d1;1\n',
            "TMP/qrels.tsv:1: columns separated by ';', expected tabs",
        ),
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nqid\tdocid\trel\n",
            "TMP/qrels.tsv:3: the score must be an integer, not 'rel'",
        ),
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1.0\n",
            "TMP/qrels.tsv:2: the score must be an integer, not '1.0'",
        ),  # trec_eval drops .5
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t1_0\n",
            "TMP/qrels.tsv:3: the score must be an integer, not '1_0'",
        ),
        ("q1\t0\td1\t\u0661\n".encode(), "TMP/qrels.tsv:1: the score must be an integer, not '١'"),
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\tgood\n",
            "TMP/qrels.tsv:3: the score must be an integer, not 'good'",
        ),
        *(
            (
                f"q1 0 d1 {grade}\n".encode(),
                f"TMP/qrels.tsv:1: the score {grade} is not within ±1,000,000",
            )
            for grade in (1_000_001, -1_000_001)
        ),
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1 d2\n",
            (
                "TMP/qrels.tsv:3: expected 3 tab-separated fields (query, passage, score) "
                "or TREC's 4, found 2"
            ),
        ),
        (
            b"query-id\tcorpus-id\tscore\n\nq1\td1\t1\n \nq1\td2\tgood\n",
            "TMP/qrels.tsv:5: the score must be an integer, not 'good'",
        ),  # empty lines count
        (b"q1\td\xff\t1\n", "TMP/qrels.tsv:1: not UTF-8"),
        (b"query-id\tcorpus-id\tscore\n", "TMP/qrels.tsv holds no judgments"),
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\tscore\n",
            "TMP/qrels.tsv:3: the score must be an integer, not 'score'",
        ),
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\0\td1\t1\n",
            "TMP/qrels.tsv:3: a zero byte, which no id can have",
        ),  # trec_eval would abort
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td1\t1\nq1\td1\t0\n",
            "TMP/qrels.tsv:4: query q1 has passage d1 with two scores",
        ),
        # What no run can name would count as not found.
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td 2\t1\n",
            "TMP/qrels.tsv:3: the id 'd 2' has white space or a zero byte, or is empty",
        ),
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2 \t1\n",
            "TMP/qrels.tsv:3: the id 'd2 ' has white space or a zero byte, or is empty",
        ),
        (
            b"query-id\tcorpus-id\tscore\nq1\td1\t1\n q1\td2\t1\n",
            "TMP/qrels.tsv:3: the id ' q1' has white space or a zero byte, or is empty",
        ),
        (
            "query-id\tcorpus-id\tscore\nq1\td1\u00a0\t1\n".encode(),
            "TMP/qrels.tsv:2: the id 'd1\\xa0' has white space or a zero byte, or is empty",
        ),
    ],
)
def test_bad_judgments_are_named(tmp_path, content, message):
    path = tmp_path / "qrels.tsv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=whole(message)):
        trec.read_qrels(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "q1 Q0 d2 2 nan tag",
            whole("TMP/run.trec:2: the score must be a finite number, not 'nan'"),
        ),
        (
            "q1 Q0 d2 2 inf tag",
            whole("TMP/run.trec:2: the score must be a finite number, not 'inf'"),
        ),
        (
            "q1 Q0 d2 2 1_0 tag",
            whole("TMP/run.trec:2: the score must be a finite number, not '1_0'"),
        ),
        ("q1 Q0 d2 2 0x1 tag", ":2: the score must be a finite number, not '0x1'"),
        (
            "q1 Q0 d2 2 1e999 tag",
            whole("TMP/run.trec:2: the score must be a finite number, not '1e999'"),
        ),
        ("q1\td2\t2", ":2: expected 6 fields"),  # MS MARCO's runs, without scores
        (
            "q1 Q0 d2 2 high tag",
            whole("TMP/run.trec:2: the score must be a finite number, not 'high'"),
        ),
        ("q1 Q0 d2 2 1.0", ":2: expected 6 fields"),
        ("q1 Q0 d2 20.5 1 tag", ":2: the rank must be a whole number, not '20.5'"),
        ("q1 Q0 d2 1.5 2 tag", whole("TMP/run.trec:2: the rank must be a whole number, not '1.5'")),
        ("q1 Q0 my d2 2 1.5", whole("TMP/run.trec:2: the rank must be a whole number, not 'd2'")),
        ("q1 Q0 d1\0 2 1.0 tag", whole("TMP/run.trec:2: a zero byte, which no id can have")),
        ("q1 Q0 d1 2 1.0 tag", whole("TMP/run.trec:2: query q1 has passage d1 twice")),
    ],
)
def test_bad_runs_are_named(tmp_path, line, message):
    path = tmp_path / "run.trec"
    path.write_text(f"q1 Q0 d1 1 2.5 tag\n{line}\n")
    with pytest.raises(UserError, match=message):
        trec.read_run(path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match=whole("cannot read TMP/none: No such file or directory")):
        trec.read_run(tmp_path / "none")


@pytest.mark.parametrize(
    "scores",
    [
        {"a": 1.0, "b": 1.0, "c": 1.0},
        {"z": 200.0, "y": 200.000001, "x": 200.0},  # equal in single precision
        {"a": 0.0, "b": 0.0, "c": -1.0, "d": 0.0},
        {"a": 3.0, "b": 2.0, "c": 1.0},
    ],
)
def test_written_scores_decrease_strictly_in_single_precision(tmp_path, scores):
    path = tmp_path / "runs" / "run.trec"
    trec.write_run(path, {"q": scores})
    lines = [line.split() for line in path.read_text().splitlines()]
    written = np.array([float(line[4]) for line in lines], np.float32)
    assert (np.diff(written) < 0).all()
    single = {passage: np.float32(score) for passage, score in scores.items()}
    assert [line[2] for line in lines] == sorted(single, key=lambda passage: -single[passage])
    assert [int(line[3]) for line in lines] == list(range(1, len(scores) + 1))
    np.testing.assert_allclose(written, sorted(scores.values(), reverse=True), rtol=1e-6, atol=1e-6)


def test_trec_eval_sees_the_order_written_whatever_the_ids(tmp_path):
    path = tmp_path / "run.trec"
    # trec_eval breaks ties by id, descending: left as they are, z would come first.
    trec.write_run(path, {"q": {"a": 7.0, "m": 7.0, "z": 7.0}})
    evaluator = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"recip_rank"})
    assert evaluator.evaluate(trec.read_run(path))["q"]["recip_rank"] == 1.0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_scores_that_no_run_may_hold(tmp_path):
    path = tmp_path / "run.trec"
    for bad in (np.nan, np.inf, 1e300):
        with pytest.raises(
            UserError, match=whole("a run holds a score that is not a finite number")
        ):
            trec.write_run(path, {"q": {"a": 1.0, "b": bad}})
    for bad in ("a b", "a\0", " a", "a\n", "a\u00a0"):
        with pytest.raises(
            UserError,
            match=whole(
                f"TMP/run.trec: the id {bad!r} has white space or a zero byte, or is empty"
            ),
        ):
            trec.write_run(path, {"q": {bad: 1.0}})
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_be_written_is_said_so(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        UserError, match=whole("cannot write TMP/file/run.trec: TMP/file is not a folder")
    ):
        trec.write_run(tmp_path / "file" / "run.trec", {"q": {"d": 1.0}})


def test_queries_without_results_are_counted(tmp_path, caplog):
    trec.write_run(tmp_path / "run.trec", {"q1": {"d1": 1.0}, "q2": {}, "q3": {}})
    assert caplog.messages == [f"{tmp_path}/run.trec: 2 of 3 queries have no results"]
    caplog.clear()
    trec.write_run(tmp_path / "run.trec", {"q1": {"d1": 1.0}})
    assert caplog.messages == []


@pytest.mark.parametrize("empty", ["", " "])
def test_a_grade_may_be_empty_in_a_form_alone(tmp_path, empty):
    path = tmp_path / "qrels.tsv"
    path.write_text(f"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t{empty}\n")
    said = f"TMP/qrels.tsv:3: the score must be an integer, not {empty!r}"
    with pytest.raises(UserError, match=whole(said)):
        trec.read_qrels(path)


@pytest.mark.parametrize("bad", ["a b", "a\0", " a", ""])
def test_a_query_that_no_run_can_name_writes_none(tmp_path, bad):
    said = f"TMP/run.trec: the id {bad!r} has white space or a zero byte, or is empty"
    with pytest.raises(UserError, match=whole(said)):
        trec.write_run(tmp_path / "run.trec", {"q": {"d": 2.0}, bad: {"d": 1.0}})
    assert not list(tmp_path.iterdir())
