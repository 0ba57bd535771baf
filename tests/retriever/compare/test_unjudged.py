"""`compare` with queries that nobody has judged, until they are, against sentence-transformers."""

import json
import shutil
from itertools import product
from statistics import fmean

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.sources import ACCEPTED
from cocondenser_jax.retriever.compare import comparison, trial
from cocondenser_jax.retriever.data.folder import (
    passage_text,
    read_corpus,
    read_queries,
    read_split,
)
from cocondenser_jax.retriever.data.trec import first_passages, read_run
from cocondenser_jax.retriever.search.bm25 import bm25_run
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.terms import languages
from tests.recording import all_said, assert_recorded, seen_on, written
from tests.world import write_beir, write_retriever

pytestmark = pytest.mark.timeout(900)
N = 60
N_LOGGED = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory, words):
    """A judged collection, and a log of its queries with lines to leave out."""
    rng = np.random.default_rng(3)
    passages = [" ".join(rng.choice(words, 30)) for _ in range(N)]
    queries = [" ".join(passage.split()[:4]) for passage in passages[:N_LOGGED]]
    folder = tmp_path_factory.mktemp("unjudged")
    write_beir(folder / "data", passages, queries, {"test": range(N_LOGGED)})
    (folder / "log.txt").write_text("\n".join([*queries, "", queries[0].upper(), ""]))
    return folder


@pytest.fixture(scope="module")
def models(data, make_model):
    return [
        write_retriever(make_model(seed=seed), data / name, "mean")
        for seed, name in enumerate(("first", "second", "third"))
    ]


@pytest.fixture(scope="module")
def command(data, models):
    words = ["compare", f"--data={data / 'log.txt'}", f"--corpus={data / 'data'}"]
    return [*words, *(f"--model={model}" for model in models[:2])]


@pytest.fixture(scope="module")
def finished(data, command):
    workdir = data / "finished"
    with all_said() as said:
        assert main([*command, f"--workdir={workdir}"]) == 0
    (data / "said.txt").write_text(said.getvalue())
    return workdir


def expected_rankings(data, models):
    """Ranks by sentence-transformers alone; returns name → query → its first ten."""
    passages = [*read_corpus(data / "data")]
    lines = (data / "log.txt").read_text().splitlines()[:N_LOGGED]
    queries = {str(i): line for i, line in enumerate(lines, start=1)}
    runs = {"BM25": bm25_run(passages, queries)}
    for model in models:
        encoder = SentenceTransformer(str(model))
        scores = encoder.similarity(
            encoder.encode_query(lines), encoder.encode_document([*map(passage_text, passages)])
        ).tolist()
        names = [passage.id for passage in passages]
        dense = {q: dict(zip(names, s, strict=True)) for q, s in zip(queries, scores, strict=True)}
        runs[model.name] = dense
        runs[f"{model.name} + BM25"] = fuse_runs([runs["BM25"], dense], "min_max")
    return {
        name: {q: first_passages(scores, 10) for q, scores in run.items()}
        for name, run in runs.items()
    }


def rows_of(workdir):
    return {row["name"]: row for row in json.loads((workdir / "results.json").read_text())}


def form_of(folder):
    header, *lines = (folder / "qrels" / "test.tsv").read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def judge(folder):
    """Fills in a form: the passage with the number of the query is relevant."""
    rows = form_of(folder)
    for row in rows:
        row["score"] = str(int(int(row["corpus-id"][1:]) + 1 == int(row["query-id"])))
    lines = ["\t".join(each) for each in (rows[0], *(row.values() for row in rows))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines))


@pytest.mark.effect("compare --corpus")
def test_without_judgments_no_ranking_is_called_better(finished, command, data, models, capsys):
    expected = expected_rankings(data, models[:2])
    rows = rows_of(finished)
    assert [*rows] == [*expected]
    for (name, one), (other, two) in product(expected.items(), repeat=2):
        shares = [len({*one[q]} & {*two[q]}) / 10 for q in one if one[q] and two[q]]
        assert rows[name]["in_common"][other] == pytest.approx(fmean(shares), abs=5e-3)
        assert "metrics" not in rows[name]
    assert rows["first"]["vectors"] == [N, 32]
    # The same again: nothing is made, and a table of numbers is printed.
    assert main([*command, f"--workdir={finished}"]) == 0
    out = capsys.readouterr().out
    assert "nDCG" not in out
    assert "p" not in out.splitlines()[1].split()
    n_lines = len(form_of(finished / "to_judge"))
    folder = finished / "to_judge"
    assert (
        f"BEST: unknown | judge 30 queries in {folder / 'qrels' / 'test.tsv'} ({n_lines} lines),"
        f" then give --data={folder}\n"
    ) in out
    assert "cocondenser search" not in out


def test_all_that_is_said_and_written_is_as_recorded(finished, data):
    page = seen_on((finished / "report.html").read_text(), of_queries=False)
    texts = {"said": (data / "said.txt").read_text(), "report.html": page}
    texts |= written(finished, "started.json", "results.json", inside=["models", "to_judge"])
    assert_recorded("compare_unjudged", texts, {"WORKDIR": finished, "DATA": data})


def test_the_queries_that_differ_most_are_to_be_judged(finished, data, models):
    expected = expected_rankings(data, models[:2])

    def common(query):
        firsts = [ranking[query] for ranking in expected.values()]
        pairs = [(a, b) for i, a in enumerate(firsts) for b in firsts[:i]]
        return fmean(len({*a} & {*b}) / 10 for a, b in pairs)

    folder = finished / "to_judge"
    chosen = [*read_queries(folder)]
    assert len(chosen) == 30
    others = {str(i) for i in range(1, N_LOGGED + 1)}.difference(chosen)
    assert max(map(common, chosen)) <= min(map(common, others)) + 0.03
    assert [*map(common, chosen)] == pytest.approx(sorted(map(common, chosen)), abs=0.05)
    pools = {}
    for row in form_of(folder):
        pools.setdefault(row["query-id"], set()).add(row["corpus-id"])
    firsts = {q: {p for ranking in expected.values() for p in ranking[q]} for q in chosen}
    assert sum(pools[q] == firsts[q] for q in chosen) >= 25  # but for scores that are nearly equal
    page = (finished / "report.html").read_text()
    assert page.count("<details>") == 30
    assert f"query {chosen[0]}<" in page
    assert "<h2>Comparison</h2>" not in page


def test_what_was_judged_is_compared_without_encoding_again(
    finished, command, data, models, tmp_path, monkeypatch, capsys, caplog
):
    caplog.set_level("INFO")
    workdir = shutil.copytree(finished, tmp_path / "work")
    folder = workdir / "to_judge"
    judge(folder)
    files = [*workdir.rglob("*.arrow")]
    before = [path.stat().st_mtime_ns for path in files]
    judged = [word for word in command if not word.startswith(("--data", "--corpus"))]
    assert main([*judged, f"--data={folder}", f"--workdir={workdir}"]) == 0
    assert [path.stat().st_mtime_ns for path in files] == before
    assert len(before) == 2
    assert "of the first ten passages" not in caplog.text
    # As the whole collection is judged, by the same queries.
    _, qrels = read_split(folder, "test")
    write_beir_of(data, qrels, tmp_path / "own")
    assert main([*judged, f"--data={tmp_path / 'own'}", f"--workdir={tmp_path / 'new'}"]) == 0
    for name, row in rows_of(tmp_path / "new").items():
        assert rows_of(workdir)[name]["metrics"] == pytest.approx(row["metrics"])
    # A model whose passages nobody has judged is not compared on equal terms.
    capsys.readouterr()
    more = [*judged, f"--model={models[2]}", f"--data={folder}", f"--workdir={workdir}"]
    assert main(more) == 0
    (said,) = {m for m in caplog.messages if "passages of third are judged, and all of" in m}
    share = int(said.split(" %")[0])
    assert said == (
        f"{share} % of the first ten passages of third are judged, and all of BM25: those that are"
        " not count as not relevant, so judge them too before you compare the two"
    )
    run = read_run(workdir / "models" / "third" / "dense.trec")
    is_judged = [p in qrels[q] for q in qrels for p in first_passages(run[q], 10)]
    assert share == round(100 * fmean(is_judged))
    # And back: the form is kept, the rankings are those of the log.
    assert main([*command, f"--workdir={workdir}"]) == 0
    said = "is kept, because some of its lines have scores; move it away to get a new form"
    assert f"{folder} {said}" in caplog.messages
    said = "other judgments or queries: ranking again, by the same vectors"
    assert caplog.messages.count(f"{workdir}: {said}") == 2
    assert "BEST: unknown" in capsys.readouterr().out
    assert len(read_run(workdir / "bm25.trec")) == N_LOGGED


def write_beir_of(data, qrels, out):
    """Writes the collection with judgments of queries that have the numbers of a log's lines."""
    shutil.copytree(data / "data", out)
    lines = (data / "log.txt").read_text().splitlines()
    records = [{"_id": q, "text": lines[int(q) - 1]} for q in qrels]
    (out / "queries.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    rows = [f"{q}\t{p}\t{grade}" for q, grades in qrels.items() for p, grade in grades.items()]
    (out / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))


def test_a_folder_without_judgments_is_compared_in_the_same_way(
    finished, command, data, tmp_path, capsys
):
    folder = shutil.copytree(data / "data", tmp_path / "data")
    shutil.rmtree(folder / "qrels")
    words = [command[0], f"--data={folder}", *command[3:]]
    assert main([*words, f"--workdir={tmp_path / 'new'}"]) == 0
    assert "BEST: unknown | judge 30 queries" in capsys.readouterr().out
    for name, row in rows_of(tmp_path / "new").items():
        assert row["in_common"] == pytest.approx(rows_of(finished)[name]["in_common"])
    assert {*read_queries(tmp_path / "new" / "to_judge")} <= {*read_queries(data / "data")}


def test_passages_that_change_between_two_rankings_are_an_error(
    command, data, tmp_path, monkeypatch, capsys
):
    folder = shutil.copytree(data / "data", tmp_path / "data")
    encode_corpus = comparison.encode_corpus

    def change(*arguments):
        with (folder / "corpus.jsonl").open("a") as file:
            file.write('{"_id": "new", "title": "", "text": "one more"}\n')
        return encode_corpus(*arguments)

    monkeypatch.setattr(comparison, "encode_corpus", change)
    words = [*command[:2], f"--corpus={folder}", *command[3:], f"--workdir={tmp_path / 'new'}"]
    assert main(words) == 2
    said = f"{folder} has changed while it was compared: remove {tmp_path}/new, and compare again"
    assert capsys.readouterr().err.splitlines()[-1] == f"cocondenser: {said}"
    assert not [*(tmp_path / "new").rglob("dense.trec")]


def test_of_a_long_log_some_queries_are_ranked(
    finished, command, data, tmp_path, monkeypatch, capsys
):
    read = []
    read_log = trial.read_log
    monkeypatch.setattr(trial, "N_DRAWN", 20)
    monkeypatch.setattr(trial, "read_log", lambda path: read.append(path) or read_log(path))
    workdir = shutil.copytree(finished, tmp_path / "work")
    log = tmp_path / "log.txt"
    log.write_text((data / "log.txt").read_text().replace("\n\n", "\none more\n"))
    monkeypatch.setattr(
        comparison, "encode_corpus", lambda encoding, *_: None
    )  # the vectors are there
    words = [command[0], f"--data={log}", *command[2:]]
    assert main([*words, f"--workdir={workdir}"]) == 0
    assert f"| for 20 of {N_LOGGED + 1} queries, drawn at random\n" in capsys.readouterr().out
    assert read == [log]  # once: it may be long
    drawn = read_queries(workdir / "queries.jsonl")
    assert len(drawn) == 20
    for run in workdir.rglob("*.trec"):
        assert {*read_run(run)} <= {*drawn}
    assert {*read_queries(workdir / "to_judge")} == {*drawn}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--metric=MRR@10"], "log.txt has no judgments, so MRR@10 decides nothing: leave it out"),
        (
            ["--split=dev"],
            "log.txt is not a folder: expected a folder of passages, queries and judgments",
        ),
        (["--corpus=nowhere"], f"nowhere does not exist: expected {ACCEPTED}"),
        (["--language=klingon"], "language 'klingon': expected one of {languages}"),
    ],
)
def test_what_needs_judgments_is_refused_before_any_work(
    command, data, tmp_path, capsys, flags, said
):
    name, _, _ = flags[0].partition("=")
    others = [word for word in command if not word.startswith(name)]
    assert main([*others, *flags, f"--workdir={tmp_path / 'new'}"]) == 2
    error = capsys.readouterr().err.splitlines()[-1].replace(f"{data}/", "")
    assert error == f"cocondenser: {said.format(languages=', '.join(languages()))}"
    assert not (tmp_path / "new").exists()


def test_a_log_alone_is_no_corpus(command, data, tmp_path, capsys):
    words = [command[0], *command[3:], f"--workdir={tmp_path / 'new'}"]
    assert main([*words, f"--data={data / 'log.txt'}"]) == 2
    said = f"{data}/log.txt is a file of queries: name the passages by --corpus"
    assert capsys.readouterr().err.splitlines()[-1] == f"cocondenser: {said}"
    assert not (tmp_path / "new").exists()


def test_other_passages_need_a_new_folder(finished, command, data, tmp_path, capsys):
    folder = shutil.copytree(data / "data", tmp_path / "data")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "text": "a new passage"}\n')
    words = [*command[:2], f"--corpus={folder}", *command[3:]]
    assert main([*words, f"--workdir={finished}"]) == 2
    assert f"{finished} was started with data.corpus=" in capsys.readouterr().err
