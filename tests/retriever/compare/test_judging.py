"""The form to fill in, and that it is read back."""

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.compare.judging import FORM, describe_form, is_begun, write_to_judge
from cocondenser_jax.retriever.data.folder import read_corpus, read_queries, read_split
from cocondenser_jax.retriever.data.layouts import Passage

PASSAGES = [Passage(f"p{i}", "", f"Passage\t{i}\n" + "word " * 400) for i in range(60)]
PASSAGES[3] = PASSAGES[3]._replace(title="A Title")


def rankings_of(n_queries):
    """Two rankings of ten passages, of which query i shares i."""
    first = {f"q{i}": [f"p{k}" for k in range(10)] for i in range(n_queries)}
    second = {
        query: [f"p{k}" for k in [*range(i), *range(20, 30 - i)]] for i, query in enumerate(first)
    }
    return first, second


def rows_of(folder):
    header, *lines = (folder / FORM).read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def grade(folder, grades):
    """Fills in lines of a form by their numbers from 0."""
    header, *lines = (folder / FORM).read_text().splitlines()
    rows = [f"{grades.get(i, '')}{line}" for i, line in enumerate(lines)]
    (folder / FORM).write_text("\r\n".join([header, *rows, ""]))  # as spreadsheets write it
    return [line.split("\t")[-2:] for line in lines]


def test_all_first_passages_of_all_rankings_are_to_be_judged(tmp_path):
    queries = {f"q{i}": f"query {i}" for i in range(4)} | {"q3": "=1+1"}
    first, second = rankings_of(5)
    third = {query: ["p59"] for query in queries}
    write_to_judge(tmp_path / "form", PASSAGES, queries, [first, second, third])
    pools = {}
    for row in rows_of(tmp_path / "form"):
        pools.setdefault(row["query-id"], set()).add(row["corpus-id"])
        assert row["score"] == ""
        assert row["query text"] == queries[row["query-id"]].replace("=", " =")
        number = row["corpus-id"][1:]
        title = "A Title " if number == "3" else ""
        assert row["passage text"].startswith(f"{title}Passage {number} word ")
        assert len(row["passage text"]) < 510
    assert pools == {q: {*first[q], *second[q], "p59"} for q in queries}
    assert [*read_corpus(tmp_path / "form")] == PASSAGES
    assert read_queries(tmp_path / "form") == queries
    said = f"judge 4 queries in {tmp_path / 'form' / FORM} ({sum(map(len, pools.values()))} lines)"
    assert describe_form(tmp_path / "form") == f"{said}, then give --data={tmp_path / 'form'}"


def test_the_form_as_it_is_written(tmp_path):
    """Ids in order; no text begins as a formula, or is longer than 500 characters."""
    passages = [
        Passage("p2", "", "=1+1"),
        Passage("p10", "+A title", "-1"),
        Passage("p1", "", "word " * 200),
        Passage("p3", "", "@not shown"),
    ]
    queries = {"b": "@a query\tof two lines\n", "a": "-another", "none": "of nothing"}
    first = {"a": ["p2", "p1"], "b": ["p10"], "c": ["p3"]}
    write_to_judge(tmp_path / "form", passages, queries, [first, {"b": ["p2", "p10"]}])
    cut = "word " * 99 + "word …"
    assert (tmp_path / "form" / FORM).read_text().split("\n") == [
        "score\tquery text\tpassage text\tquery-id\tcorpus-id",
        "\t @a query of two lines\t +A title -1\tb\tp10",
        "\t @a query of two lines\t =1+1\tb\tp2",
        f"\t -another\t{cut}\ta\tp1",
        "\t -another\t =1+1\ta\tp2",
        "",
    ]
    assert sorted(path.name for path in (tmp_path / "form").rglob("*") if path.is_file()) == [
        "corpus.jsonl",
        "queries.jsonl",
        "test.tsv",
    ]
    line = "\ta\tb\tc\td\n"
    (tmp_path / "form" / FORM).write_text("head\n" + line * 1234)
    said = f"judge 3 queries in {tmp_path}/form/qrels/test.tsv (1,234 lines), then give"
    assert describe_form(tmp_path / "form") == f"{said} --data={tmp_path}/form"


def test_the_form_is_read_back_without_the_lines_that_are_empty(tmp_path, caplog):
    queries = {f"q{i}": f"query {i}" for i in range(3)}
    folder = tmp_path / "form"
    write_to_judge(folder, PASSAGES, queries, rankings_of(3))
    n_lines = len(rows_of(folder))
    with pytest.raises(UserError, match=f"holds no judgments: {n_lines} lines have no score yet"):
        read_split(folder, "test")
    filled = {0: "2", 1: "0", 22: "1"}
    ids = grade(folder, {**filled, 2: " "})
    found, qrels = read_split(folder, "test")
    assert read_split(folder, "test") == (found, qrels)  # says it once
    expected = {}
    for i, score in filled.items():
        expected.setdefault(ids[i][0], {})[ids[i][1]] = int(score)
    assert qrels == expected
    assert found.keys() == qrels.keys()
    said = f"{n_lines - 3} lines have no score: they are left out; of 2 queries some have, and the"
    assert caplog.text.count(said) == 1
    form = folder / FORM
    form.write_text(form.read_text().replace("\n\t", "\ngood\t", 1))
    with pytest.raises(UserError, match=r"test.tsv:\d+: the score must be an integer, not 'good'"):
        read_split(folder, "test")


def test_what_a_person_has_judged_is_not_written_over(tmp_path, caplog):
    first, second = rankings_of(3)
    folder = tmp_path / "form"
    write_to_judge(folder, PASSAGES, {"q0": "a query"}, [first])
    assert not is_begun(folder)
    write_to_judge(folder, PASSAGES, {"q1": "another"}, [first, second])
    assert read_queries(folder) == {"q1": "another"}
    assert not caplog.messages
    grade(folder, {5: " "})
    assert not is_begun(folder)
    grade(folder, {5: "0"})
    assert is_begun(folder)
    before = (folder / FORM).read_text()
    write_to_judge(folder, PASSAGES, {"q0": "a query"}, [first])
    assert (folder / FORM).read_text() == before
    assert read_queries(folder) == {"q1": "another"}
    said = "is kept, because some of its lines have scores; move it away to get a new form"
    assert caplog.messages == [f"{folder} {said}"]
