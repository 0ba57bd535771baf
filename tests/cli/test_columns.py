"""`--columns` says what the columns of a table without a header are."""

import json

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.retriever.data.folder import read_corpus
from tests.lines import refusal
from tests.world import make_texts, write_tokenizer

COLUMNS = "--columns=id,-,text"


@pytest.fixture
def table(tmp_path):
    texts = make_texts(5, n_sentences=3, seed=1)
    rows = (f"d{i}\tskipped\t{text}\n" for i, text in enumerate(texts))
    (tmp_path / "table.tsv").write_text("".join(rows))
    write_tokenizer(tmp_path / "tokenizer", texts)
    (tmp_path / "queries.tsv").write_text(f"id\ttext\nq0\t{texts[3]}\n")
    return tmp_path / "table.tsv"


@pytest.mark.effect("corpus --columns", "vocabulary --columns", "bm25 --columns")
def test_a_table_is_read_as_the_user_says(table, tmp_path, capsys):
    commands = (
        f"corpus --corpus={table} --tokenizer={tmp_path}/tokenizer --json_out={tmp_path}/counts",
        f"vocabulary --corpus={table} --size=60",
        f"bm25 --corpus={table} --data={tmp_path}/queries.tsv --run_out={tmp_path}/run --depth=1",
    )
    for command in commands:
        out = tmp_path / command.split()[0]
        words = [*command.split(), *([f"--out={out}"] if "run_out" not in command else [])]
        assert main(words) == 2
        assert refusal(capsys).endswith(
            ": expected a first line that names the columns, id and text among them; or, where"
            " passages are read, --columns=id,title,text"
        )
        assert not out.exists()
        assert not (tmp_path / "run").exists()
        assert main([*words, COLUMNS]) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "counts").read_text())["documents"] == 5
    (tmp_path / "more.tsv").write_text("e0\t\tω ω ω\n")
    words = ["vocabulary", f"--corpus={table}", f"--corpus={tmp_path}/more.tsv", COLUMNS]
    assert main([*words, "--size=90", f"--out={tmp_path}/both"]) == 0
    assert "ω" in (tmp_path / "both" / "vocab.txt").read_text()
    assert (tmp_path / "run").read_text().startswith("q0 Q0 d3 1 ")
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    assert manifest["corpus"] == f"{table}:id,-,text"


@pytest.mark.effect("encode --columns", "search --columns")
def test_passages_are_read_as_the_user_says(table, model_folder, tmp_path, capsys):
    encode = ["encode", f"--model={model_folder}", f"--corpus={table}", f"--out={tmp_path}/vectors"]
    assert main([*encode, COLUMNS, f"--json_out={tmp_path}/facts"]) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "facts").read_text())["passages"] == 5
    capsys.readouterr()
    query = read_documents(f"{table}:id,-,text")
    words = next(query).text.split(".")[0]
    assert main(["search", f"--corpus={table}", COLUMNS, f"--query={words}", "--depth=1"]) == 0
    assert "d0" in capsys.readouterr().out
    assert [passage.id for passage in read_corpus(f"{table}:id,-,text")][:2] == ["d0", "d1"]


def test_columns_of_other_sources_are_refused(tmp_path, capsys):
    for source in ("pydocs", "hf:a", "texts.jsonl"):
        words = ["vocabulary", f"--corpus={source}", COLUMNS, f"--out={tmp_path}/out"]
        assert main(words) == 2
        said = f"{source}: --columns says what the columns of .tsv files are"
        assert refusal(capsys) == said
    assert main(["vocabulary", "--corpus=a.tsv", "--columns=id,body", f"--out={tmp_path}/out"]) == 2
    assert refusal(capsys) == (
        "--columns=id,body: expected id and text, perhaps url and title, each once, and - for a"
        " column that is not read"
    )
