"""Where queries are passages, with the same ids, they do not find themselves."""

import shutil

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.data.folder import read_corpus
from cocondenser_jax.retriever.data.trec import read_run, write_run
from cocondenser_jax.retriever.search import bm25, opening, search
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.fuse import fuse_runs
from tests.lines import refusal
from tests.world import write_qrels, write_records

HINT = "if queries are passages, as in ArguAna and Quora, leave it out with --ignore_identical_ids"


@pytest.fixture(scope="module")
def embeddings(model_folder, beir, tmp_path_factory):
    """The vectors of the collection."""
    folder = tmp_path_factory.mktemp("identical") / "embeddings"
    encode_corpus(Encoding(open_model(model_folder)), beir, folder)
    return folder


@pytest.mark.parametrize("method", [None, "rrf", "min_max"])
def test_a_query_does_not_find_the_passage_of_its_id(
    model_folder, beir, embeddings, method, monkeypatch
):
    monkeypatch.setattr(search, "_FUSED_DEPTH", 10)
    passages = list(read_corpus(beir))
    queries = {p.id: p.text for p in (passages[3], passages[0], passages[25])}
    queries["none of them"] = passages[7].text
    opened = opening.open_index(embeddings, open_model(model_folder), hybrid=method)
    dense = opened if method is None else opened.dense
    for depth in (1, 4, len(passages)):
        run = search.search_run(opened, queries, depth, ignore_identical_ids=True)
        of_each = depth if method is None else max(depth, 10)
        sides = [
            bm25.bm25_run(passages, queries, len(passages)),
            search.search_run(dense, queries, len(passages)),
        ]
        for side in sides:
            for query, found in side.items():
                found.pop(query, None)
                side[query] = dict(list(found.items())[:of_each])
        expected = sides[1] if method is None else fuse_runs(sides, method, depth=depth)
        assert [list(found) for found in run.values()] == [list(expected[q]) for q in queries]
        assert len(run["none of them"]) == depth
    assert len(run["d3"]) == len(passages) - 1


@pytest.mark.effect("bm25 --ignore_identical_ids", "retrieve --ignore_identical_ids")
@pytest.mark.parametrize("program", ["bm25", "retrieve"])
def test_where_queries_are_passages_they_do_not_find_themselves(
    program, embeddings, model_folder, beir, tmp_path, caplog
):
    folder = shutil.copytree(beir, tmp_path / "data")
    texts = {passage.id: passage.text for passage in read_corpus(beir)}
    records = [{"_id": name, "text": texts[name]} for name in ("d3", "d5", "d8")]
    records.append({"_id": "other", "text": texts["d9"]})
    write_records(folder / "queries.jsonl", records)
    command = [program, f"--data={folder}", f"--run_out={tmp_path}/run", "--depth=3"]
    if program == "retrieve":
        command += [f"--embeddings={embeddings}", f"--model={model_folder}"]
    runs = []
    for flags in [], ["--ignore_identical_ids"]:
        caplog.clear()
        assert main([*command, *flags]) == 0
        runs.append({query: list(found) for query, found in read_run(tmp_path / "run").items()})
        assert len([line for line in caplog.messages if "their own id" in line]) == (not flags)
    assert all(len(found) == 3 for found in runs[1].values())
    for query, found in runs[0].items():
        others = [passage for passage in found if passage != query]
        assert runs[1][query][: len(others)] == others
        assert query not in runs[1][query]
    assert any(query in found for query, found in runs[0].items())


@pytest.mark.parametrize("program", ["bm25", "retrieve", "rerank"])
@pytest.mark.parametrize(("grade", "warned"), [(0, True), (1, False)])
def test_queries_that_are_judged_to_find_themselves_are_not_warned_of(
    program, grade, warned, embeddings, model_folder, cross_encoder_folder, beir, tmp_path, caplog
):
    folder = shutil.copytree(beir, tmp_path / "data")
    texts = {passage.id: passage.text for passage in read_corpus(beir)}
    write_records(folder / "queries.jsonl", [{"_id": "d3", "text": texts["d3"]}])
    write_qrels(folder / "qrels" / "own.tsv", {"d3": {"d3": grade, "d4": 1}})
    command = [program, f"--data={folder}", "--split=own", f"--run_out={tmp_path}/run"]
    if program == "retrieve":
        command += [f"--embeddings={embeddings}", f"--model={model_folder}"]
    if program == "rerank":
        write_run(tmp_path / "first", {"d3": {"d3": 2.0, "d4": 1.0}})
        command += [f"--model={cross_encoder_folder}", f"--run={tmp_path}/first"]
    assert main(command) == 0
    assert "d3" in read_run(tmp_path / "run")["d3"]
    assert ("have a result with their own id" in caplog.text) is warned


@pytest.mark.parametrize("program", ["bm25", "retrieve", "rerank"])
@pytest.mark.parametrize("name", ["log.txt", "topics.log.txt", "log.tsv"])
def test_line_numbers_of_queries_are_not_taken_for_ids(
    program, name, model_folder, cross_encoder_folder, tmp_path, caplog
):
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / name
    write_records(corpus, [{"_id": "1", "text": "red"}, {"_id": "2", "text": "blue"}])
    queries.write_text({"log.txt": "red\n", "log.tsv": "id\ttext\n1\tred\n"}.get(name, "1\tred\n"))
    command = [program, f"--data={queries}", f"--run_out={tmp_path}/run"]
    if program == "retrieve":
        encode_corpus(Encoding(open_model(model_folder)), corpus, tmp_path / "embeddings")
        command += [f"--embeddings={tmp_path}/embeddings", f"--model={model_folder}"]
    else:
        command += [f"--corpus={corpus}"]
    if program == "rerank":
        write_run(tmp_path / "first", {"1": {"1": 2.0}})
        command += [f"--model={cross_encoder_folder}", f"--run={tmp_path}/first"]
    assert main(command) == 0
    assert "1" in read_run(tmp_path / "run")["1"]
    own = [line for line in caplog.messages if "their own id" in line]
    run = "first" if program == "rerank" else "run"
    said = f"1 of 1 queries of {tmp_path}/{run} have a result with their own id: {HINT}"
    assert own == [said] * (name != "log.txt")


RUNS = {
    "first": {"d3": {"d3": 9.0, "d4": 3.0, "d5": 1.0}, "q": {"d3": 2.0, "d4": 1.0}},
    "second": {"d3": {"d3": 30.0, "d5": 20.0, "d4": 19.0}, "q": {"d4": 2.0, "d3": 1.0}},
}


@pytest.fixture
def runs(tmp_path):
    """Two TREC runs, in which the query d3 finds itself."""
    for name, run in RUNS.items():
        write_run(tmp_path / name, run)
    return tmp_path


@pytest.mark.effect("fuse --ignore_identical_ids")
def test_a_run_is_fused_without_what_has_its_querys_id(runs, caplog):
    command = ["fuse", f"--run={runs}/first", f"--run={runs}/second", f"--run_out={runs}/out"]
    assert main([*command, "--method=min_max", "--depth=2"]) == 0
    assert [*read_run(runs / "out")["d3"]] == ["d3", "d4"]
    said = f"1 of 2 queries of {runs}/out have a result with their own id: {HINT}"
    assert said in caplog.messages
    caplog.clear()
    assert main([*command, "--method=min_max", "--depth=2", "--ignore_identical_ids"]) == 0
    # Without d3, both are first once and last once.
    assert read_run(runs / "out")["d3"] == pytest.approx({"d4": 1.0, "d5": 1.0})
    assert read_run(runs / "out")["q"] == pytest.approx({"d3": 1.0, "d4": 1.0})
    assert "their own id" not in caplog.text


@pytest.mark.effect("rerank --ignore_identical_ids")
def test_a_run_is_reranked_without_what_has_its_querys_id(
    cross_encoder_folder, beir, runs, tmp_path, caplog
):
    folder = shutil.copytree(beir, tmp_path / "data")
    text = {passage.id: passage.text for passage in read_corpus(beir)}["d3"]
    records = [{"_id": "d3", "text": text}, {"_id": "q", "text": "red"}]
    write_records(folder / "queries.jsonl", records)
    command = ["rerank", f"--model={cross_encoder_folder}", f"--data={folder}", "--depth=2"]
    command += [f"--run={runs}/first", f"--run_out={tmp_path}/out"]
    assert main(command) == 0
    assert set(read_run(tmp_path / "out")["d3"]) == {"d3", "d4"}
    assert [line for line in caplog.messages if "their own id" in line] == [
        f"1 of 2 queries of {runs}/first have a result with their own id: {HINT}"
    ]
    caplog.clear()
    assert main([*command, "--ignore_identical_ids"]) == 0
    found = {query: set(passages) for query, passages in read_run(tmp_path / "out").items()}
    assert found == {"d3": {"d4", "d5"}, "q": {"d3", "d4"}}
    assert "their own id" not in caplog.text


@pytest.mark.parametrize("program", ["bm25", "retrieve", "rerank"])
@pytest.mark.parametrize("flags", [[], ["--split=train"]])
def test_passages_that_are_judged_relevant_are_not_left_out(
    program, flags, embeddings, model_folder, cross_encoder_folder, beir, runs, tmp_path, capsys
):
    """Where queries and passages are only numbered alike, an answer may have the query's id."""
    folder = shutil.copytree(beir, tmp_path / "data")
    queries = [{"_id": name, "text": "abcde"} for name in ("d3", "q")]
    write_records(folder / "queries.jsonl", queries)
    write_qrels(folder / "qrels" / "train.tsv", {"d3": {"d3": 1}, "q": {"d4": 1}})
    command = [program, f"--data={folder}", f"--run_out={tmp_path}/out", *flags]
    if program == "retrieve":
        command += [f"--embeddings={embeddings}", f"--model={model_folder}"]
    if program == "rerank":
        command += [f"--model={cross_encoder_folder}", f"--run={runs}/first"]
    assert main([*command, "--ignore_identical_ids"]) == 2
    assert refusal(capsys) == (
        "ignore_identical_ids: 1 queries have a relevant passage with their own id (d3), so their"
        " ids say nothing about each other"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("program", ["fuse", "rerank"])
def test_runs_of_queries_that_find_nothing_but_themselves_are_refused(
    program, cross_encoder_folder, beir, runs, tmp_path, capsys
):
    write_run(runs / "own", {"d3": {"d3": 9.0}})
    command = [program, f"--run={runs}/own", f"--run_out={tmp_path}/out", "--ignore_identical_ids"]
    if program == "fuse":
        command.append(f"--run={runs}/second")
        said = f"{runs}/own has no results: there is nothing to fuse"
    else:
        command += [f"--model={cross_encoder_folder}", f"--data={beir}"]
        said = f"{runs}/own has no result but passages with their query's id, which are left out"
    assert main(command) == 2
    assert refusal(capsys) == said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("program", ["bm25", "retrieve"])
def test_queries_that_find_nothing_but_themselves_get_no_run(
    program, model_folder, tmp_path, capsys
):
    records = [{"_id": "d1", "title": "", "text": "abc abd"}]
    write_records(tmp_path / "corpus.jsonl", records)
    write_records(tmp_path / "queries.jsonl", records)
    encode_corpus(Encoding(open_model(model_folder)), tmp_path, tmp_path / "embeddings")
    run = tmp_path / "run.trec"
    command = [program, f"--data={tmp_path}", f"--run_out={run}", "--ignore_identical_ids"]
    said = (
        f"{tmp_path}: all that BM25 finds for any of the 1 queries is the passage of the same id,"
        " which is left out"
    )
    if program == "retrieve":
        command += [f"--embeddings={tmp_path / 'embeddings'}", f"--model={model_folder}"]
        said = f"{run} is not written: none of 1 queries has a result"
    assert main(command) == 2
    assert refusal(capsys) == said
    assert not run.exists()
