"""What a newcomer types first, on the documents that `adapt` reads: no ids, no layout."""

import json
import shutil

import pyarrow
import pyarrow.parquet
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.retriever.data.trec import read_run
from tests.world import write_records

TEXTS = ["abcde fgh hgf", "hgfed cba abc", "ddd eee fff", "ggg hhh"]


def write_text_files(folder):
    (folder / "a.txt").write_text("\n".join(TEXTS[:3]) + "\n")
    (folder / "b.txt").write_text(TEXTS[3] + "\n")
    return folder


def write_parquet(folder):
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), folder / "a.parquet")
    return folder / "a.parquet"


# Writes the texts, and returns what --corpus is; and their ids.
SOURCES = {
    "a folder": (write_text_files, ["a.txt:1", "a.txt:2", "a.txt:3", "b.txt:1"]),
    "lines of JSON": (
        lambda folder: write_records(folder / "docs.jsonl", [{"text": text} for text in TEXTS]),
        ["1", "2", "3", "4"],
    ),
    "Parquet": (write_parquet, ["1", "2", "3", "4"]),
}


@pytest.mark.parametrize("source", SOURCES)
def test_documents_without_ids_are_encoded_indexed_and_found(
    source, model_folder, tmp_path, capsys
):
    write, ids = SOURCES[source]
    (tmp_path / "docs").mkdir()
    corpus = write(tmp_path / "docs")
    model = f"--model={model_folder}"
    encode = ["encode", model, f"--corpus={corpus}", f"--out={tmp_path}/vectors"]
    capsys.readouterr()
    assert main(encode) == 0
    made, following = capsys.readouterr().out.splitlines()
    assert made == f"{tmp_path}/vectors: 4 passages, 32 dimensions, pooling=mean"
    assert following == f"next: cocondenser search --embeddings={tmp_path}/vectors {model}"
    index = ["index", f"--embeddings={tmp_path}/vectors", f"--out={tmp_path}/index"]
    assert main(index) == 0
    made, following = capsys.readouterr().out.splitlines()
    assert made == f"{tmp_path}/index: 4 passages, 32 dimensions, Flat"
    assert following == f"next: cocondenser search --index={tmp_path}/index {model}"
    for place in ("embeddings=vectors", "index=index"):
        name, _, folder = place.partition("=")
        capsys.readouterr()
        search = ["search", f"--{name}={tmp_path}/{folder}", model, "--hybrid=min_max"]
        assert main([*search, "--query=abcde fgh"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith(f"  1  {ids[0]}  (")
        assert lines[2] == f"     {TEXTS[0]}"
    # A text that is changed is another corpus, as ever.
    write_records(tmp_path / "other.jsonl", [{"text": text} for text in TEXTS[::-1]])
    other = [word for word in encode if not word.startswith("--corpus")]
    assert main([*other, f"--corpus={tmp_path}/other.jsonl"]) == 2
    assert "corpus_sha256" in capsys.readouterr().err


@pytest.mark.effect("search --corpus")
def test_documents_are_searched_without_a_model(tmp_path, capsys):
    corpus = write_text_files(tmp_path)
    search = ["search", f"--corpus={corpus}", "--depth=2"]
    assert main([*search, "--query=eee abcde ddd"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("  ")[2] for line in out.splitlines()[1::2]] == ["a.txt:3", "a.txt:1"]
    assert [line.strip() for line in out.splitlines()[2::2]] == [TEXTS[2], TEXTS[0]]
    assert err.count("numbered by line or row") <= 1
    assert main([*search[:2], "--query=eee abcde ddd", "--depth=1"]) == 0
    assert capsys.readouterr().out.splitlines()[1::2] == out.splitlines()[1:2]
    assert main([*search, "--query=zzz"]) == 0
    nothing = "  nothing found: no passage has a word of the query (a model finds others too: see"
    assert capsys.readouterr().out == f'"zzz"\n{nothing} encode)\n'
    # Of a language: "abcde" is no German stop word, "der" is.
    (tmp_path / "c.txt").write_text("der Hund\n")
    for language, ends in (("german", f"{nothing} encode)\n"), ("none", "     der Hund\n")):
        assert main([*search, "--query=der", f"--language={language}"]) == 0
        assert capsys.readouterr().out.endswith(ends)


def test_searching_without_a_model_loads_no_pytorch(tmp_path):
    import subprocess
    import sys

    corpus = write_records(tmp_path / "docs.jsonl", [{"text": text} for text in TEXTS])
    code = (
        "import sys; from cocondenser_jax.cli import main;"
        f" main(['search', '--corpus={corpus}', '--query=eee']);"
        " print({'torch', 'jax', 'transformers'} & {*sys.modules})"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.splitlines()[-1] == "set()"


@pytest.mark.effect("bm25 --corpus")
def test_a_file_of_queries_is_ranked_against_any_passages(tmp_path):
    corpus = write_text_files(tmp_path)
    queries = tmp_path / "asked" / "queries.jsonl"
    queries.parent.mkdir()
    write_records(queries, [{"_id": "q1", "text": "eee"}, {"_id": "q2", "text": "hhh abcde"}])
    out = tmp_path / "run.trec"
    for data in (queries, queries.parent):
        assert main(["bm25", f"--data={data}", f"--corpus={corpus}", f"--run_out={out}"]) == 0
        found = {query: {*scores} for query, scores in read_run(out).items()}
        assert found == {"q1": {"a.txt:3"}, "q2": {"a.txt:1", "b.txt:1"}}
    # The passages of --data are not read then.
    write_records(queries.parent / "corpus.jsonl", [{"_id": "d", "text": "eee hhh"}])
    assert main(["bm25", f"--data={queries.parent}", f"--run_out={out}"]) == 0
    assert {*read_run(out)["q1"]} == {"d"}
    assert main(["bm25", f"--data={queries.parent}", f"--corpus={corpus}", f"--run_out={out}"]) == 0
    assert {*read_run(out)["q1"]} == {"a.txt:3"}


@pytest.mark.parametrize("command", ["encode", "search", "bm25"])
def test_half_of_the_ids_is_one_line_and_nothing_written(command, model_folder, tmp_path, capsys):
    corpus = write_records(tmp_path / "docs.jsonl", [{"_id": "a", "text": "x"}, {"text": "y"}])
    write_records(tmp_path / "queries.jsonl", [{"_id": "q", "text": "x"}])
    flags = {
        "encode": [f"--model={model_folder}", f"--out={tmp_path}/vectors"],
        "search": ["--query=x", f"--json_out={tmp_path}/found.json"],
        "bm25": [f"--data={tmp_path}", f"--run_out={tmp_path}/run.trec"],
    }
    before = sorted(tmp_path.iterdir())
    assert main([command, f"--corpus={corpus}", *flags[command]]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{corpus}:2 has no `_id`, but others have one: expected one in each or in" in error
    assert sorted(path for path in tmp_path.iterdir() if path.name != "vectors") == before
    left = tmp_path / "vectors"
    assert not left.exists() or not json.dumps([*map(str, left.glob("*.arrow"))]).strip("[]")


def test_vectors_may_lie_beside_the_documents(model_folder, tmp_path):
    """What is written there is not a change of the documents."""
    corpus = write_text_files(tmp_path)
    flags = [f"--model={model_folder}", f"--corpus={corpus}", f"--out={corpus}/vectors"]
    for _ in range(2):
        assert main(["encode", *flags]) == 0


def test_a_folder_may_have_an_equals_sign_and_a_colon_in_its_name(beir, tmp_path):
    data = shutil.copytree(beir, tmp_path / "a=b" / "c:d")
    out = tmp_path / "run.trec"
    assert main(["bm25", f"--data={data}", f"--run_out={out}"]) == 0
    assert read_run(out)
