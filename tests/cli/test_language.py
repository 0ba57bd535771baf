"""`bm25` and hybrid search in another language than English."""

import json
import re
import shutil

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.retriever.data.trec import read_run
from tests.lines import refusal
from tests.world import write_records


@pytest.fixture
def german(model_folder, tmp_path):
    """A data folder of German words, and embeddings of its passages."""
    folder = tmp_path / "german"
    passages = {"d1": "Viele Häuser", "d2": "Bäume", "d3": "Die Straße"}
    queries = {"q1": "Haus", "q2": "die", "q3": "Baum"}
    for file, texts in (("corpus", passages), ("queries", queries)):
        records = [{"_id": name, "text": text} for name, text in texts.items()]
        write_records(folder / f"{file}.jsonl", records)
    out = tmp_path / "embeddings"
    assert main(["encode", f"--model={model_folder}", f"--corpus={folder}", f"--out={out}"]) == 0
    return folder, out


@pytest.mark.effect("bm25 --language")
def test_bm25_in_a_language(german, tmp_path, capsys, caplog):
    data, _ = german
    out = tmp_path / "run.trec"
    command = ["bm25", f"--data={data}", f"--run_out={out}"]
    assert main([*command, "--language=german"]) == 0
    found = {query: list(results) for query, results in read_run(out).items()}
    assert found == {"q1": ["d1"], "q3": ["d2"]}  # "die" is a stop word
    assert f"{out}: 1 of 3 queries have no results" in caplog.messages
    assert main([*command, "--language=none"]) == 0
    assert {query: list(results) for query, results in read_run(out).items()} == {"q2": ["d3"]}

    out.unlink()
    assert main([*command, "--language=klingon"]) == 2
    assert re.search("language 'klingon': expected one of arabic.*none", capsys.readouterr().err)
    lines = (data / "queries.jsonl").read_text().splitlines()
    (data / "queries.jsonl").write_text(lines[0])
    assert main(command) == 2  # in English
    assert refusal(capsys) == (
        f"{data}: BM25 finds nothing for any of the 1 queries, such as 'Haus': they share no term"
        " with the passages (in --language=english)"
    )
    assert not out.exists()


@pytest.mark.effect("retrieve --language", "search --language")
def test_hybrid_search_in_a_language(german, model_folder, tmp_path, capsys, caplog):
    data, embeddings = german
    place = [f"--embeddings={embeddings}", f"--model={model_folder}"]
    out, hits = tmp_path / "run.trec", tmp_path / "hits.json"
    retrieve = ["retrieve", *place, f"--data={data}", f"--run_out={out}"]
    search = ["search", *place, "--query=Haus", f"--json_out={hits}"]
    assert main([*search, "--language=german"]) == 2
    said = "--language goes with --hybrid or --corpus (see cocondenser search --help)"
    assert refusal(capsys) == said
    assert main([*search, "--hybrid=rrf", "--language=de"]) == 2
    assert "language 'de': expected one of arabic" in capsys.readouterr().err
    assert not (embeddings / "bm25").exists()

    assert main([*search, "--hybrid=rrf", "--language=german"]) == 0
    best, second, _ = json.loads(hits.read_text())["hits"]
    assert best["id"] == "d1"
    assert best["score"] - second["score"] > 0.01  # in both rankings
    # Not given, it is that of the index.
    for language in ([], ["--language=german"]):
        caplog.clear()
        assert main([*retrieve, "--hybrid=rrf", *language]) == 0
        run = read_run(out)
        assert run["q1"]["d1"] == pytest.approx(best["score"])
        assert next(iter(run["q3"])) == "d2"
        alone = "they are ranked by vectors alone"
        assert f"BM25 finds nothing for 1 of 3 queries: {alone}" in caplog.messages
    for command in (search, retrieve):
        assert main([*command, "--hybrid=rrf", "--language=english"]) == 2
        again = "remove it, and the next hybrid search makes it again"
        said = f"{embeddings}/bm25 was made with --language=german, not english: {again}"
        assert refusal(capsys) == said

    assert main([*search, "--hybrid=rrf", "--language=de"]) == 2
    assert "language 'de': expected one of arabic" in capsys.readouterr().err

    shutil.rmtree(embeddings / "bm25")
    caplog.clear()
    assert main([*retrieve, "--hybrid=rrf"]) == 0  # in English
    assert f"BM25 finds nothing for 2 of 3 queries: {alone}" in caplog.messages
    (embeddings / "bm25" / "language.json").unlink()
    assert main([*search, "--hybrid=rrf"]) == 2
    assert refusal(capsys).endswith(f": {again}")
