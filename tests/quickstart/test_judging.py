"""The form to fill in, and that it is read back."""

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.collection.folder import read_corpus, read_queries, read_split
from cocondenser_jax.errors import UserError
from cocondenser_jax.quickstart.judging import FORM, most_different, write_to_judge


def ranking(names):
    return {name: -float(i) for i, name in enumerate(names)}


PASSAGES = {f"p{i}": f"passage\t{i}\n" + "word " * 400 for i in range(60)}


def rankings_of(n_queries):
    """Two rankings, of which query i shares i passages, at most 10."""
    first = {f"q{i}": ranking([f"p{k}" for k in range(12)]) for i in range(n_queries)}
    second = {}
    for i, query in enumerate(first):
        n_shared = min(i, 10)
        second[query] = ranking([f"p{k}" for k in [*range(n_shared), *range(20, 32 - n_shared)]])
    return first, second


def test_the_queries_that_differ_most_come_first():
    first, second = rankings_of(40)
    backwards = {query: first[query] for query in reversed(first)}
    chosen = most_different(backwards, second)
    assert len(chosen) == 30
    assert chosen[:10] == [f"q{i}" for i in range(10)]


def test_the_first_passages_of_all_rankings_are_to_be_judged(tmp_path):
    asked = {f"q{i}": f"query {i}" for i in range(4)} | {"q3": "=1+1"}
    queries = {f"query-{name}": text for name, text in asked.items()}
    first, second = rankings_of(4)
    third = {query: ranking(["p59"]) for query in asked}
    write_to_judge(tmp_path / "form", PASSAGES, asked, [first, second, third])
    header, *lines = (tmp_path / "form" / FORM).read_text().splitlines()
    rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    pools = {}
    for row in rows:
        pools.setdefault(row["query-id"], set()).add(row["corpus-id"])
        assert row["score"] == ""
        assert row["query text"] == queries[row["query-id"]].replace("=", " =")
        assert row["passage text"].startswith(f"passage {row['corpus-id'][1:]} word ")
        assert len(row["passage text"]) < 510
    for i, query in enumerate(queries):
        before = {f"p{k}" for k in range(5)}
        after = {f"p{k}" for k in [*range(i), *range(20, 25 - i)]}
        assert pools[query] == before | after | {"p59"}
    assert [passage.id for passage in read_corpus(tmp_path / "form")] == [*PASSAGES]
    assert read_queries(tmp_path / "form").keys() == queries.keys()


def test_the_form_is_read_back_without_the_lines_that_are_empty(tmp_path, caplog):
    queries = {f"q{i}": f"query {i}" for i in range(3)}
    write_to_judge(tmp_path / "form", PASSAGES, queries, rankings_of(3))
    form = tmp_path / "form" / FORM
    n_lines = len(form.read_text().splitlines()) - 1
    with pytest.raises(UserError, match=f"holds no judgments: {n_lines} lines have no score yet"):
        read_split(tmp_path / "form", "test")
    header, *lines = form.read_text().splitlines()
    filled = {0: "2", 1: "0", 12: "1"}
    rows = [f"{filled.get(i, '')}{line}" for i, line in enumerate(lines)]
    form.write_text("\r\n".join([header, *rows, ""]))  # as spreadsheets write it
    found, qrels = read_split(tmp_path / "form", "test")
    assert read_split(tmp_path / "form", "test") == (found, qrels)  # says it once
    ids = [line.split("\t")[-2:] for line in lines]
    expected = {}
    for i, grade in filled.items():
        expected.setdefault(ids[i][0], {})[ids[i][1]] = int(grade)
    assert qrels == expected
    assert found.keys() == qrels.keys()
    assert caplog.text.count(f"{n_lines - 3} lines have no score: they are left out") == 1
    form.write_text("\n".join([header, "good" + lines[0]]))
    with pytest.raises(UserError, match=r"test.tsv:2: the score must be an integer, not 'good'"):
        read_split(tmp_path / "form", "test")


def test_queries_numbered_as_passages_are_not_taken_for_passages(tmp_path, caplog):
    """Those of `adapt` have the numbers of the passages that they begin."""
    queries = dict.fromkeys(list(PASSAGES)[:3], "passage")
    rankings = [{query: ranking(list(PASSAGES)[::step]) for query in queries} for step in (1, 2)]
    write_to_judge(tmp_path / "form", PASSAGES, queries, rankings)
    form = tmp_path / "form" / FORM
    form.write_text(form.read_text().replace("\n\t", "\n1\t"))
    command = ["bm25", f"--data={tmp_path / 'form'}", "--split=test"]
    assert main([*command, f"--run_out={tmp_path / 'bm25.trec'}"]) == 0
    assert "with their own id" not in caplog.text
