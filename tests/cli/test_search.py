"""`encode`, `index`, `search`, `retrieve` and `bm25` as a user types them."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.collection.folder import read_corpus, read_split
from cocondenser_jax.collection.trec import read_run
from cocondenser_jax.retrieval.bm25 import bm25_run


@pytest.fixture(scope="module")
def encoded(model_folder: Path, beir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """embeddings/, their index/, and vectors.parquet."""
    place = tmp_path_factory.mktemp("encoded")
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", "--shard_size=25"]
    out = [f"--out={place}/embeddings", f"--parquet={place}/vectors.parquet"]
    assert main([*command, *out, f"--json_out={place}/encode.json"]) == 0
    assert main(["index", f"--embeddings={place}/embeddings", f"--out={place}/index"]) == 0
    return place


def test_encoding_says_which_pooling_was_used(
    encoded: Path, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    assert json.loads((encoded / "encode.json").read_text())["pooling"] == "cls"
    modules = [Transformer(str(model_folder)), Pooling(32, "mean")]
    SentenceTransformer(modules=modules).save_pretrained(str(tmp_path / "model"))
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "abcde fgh"}\n')
    place = ["encode", f"--corpus={tmp_path}/corpus.jsonl"]
    for flags, pooling in ([], "mean"), (["--pooling=cls"], "cls"):
        out = tmp_path / pooling / "embeddings"
        assert main([*place, f"--model={tmp_path}/model", f"--out={out}", *flags]) == 0
        assert re.search(rf"^pooling +{pooling}$", capsys.readouterr().out, re.MULTILINE)
        search = ["search", f"--embeddings={out}", f"--model={tmp_path}/model"]
        assert main([*search, "--query=abcde", f"--json_out={out}/found.json"]) == 0
    mean, cls = (
        json.loads((tmp_path / name / "embeddings" / "found.json").read_text())["hits"][0]["score"]
        for name in ("mean", "cls")
    )
    model = SentenceTransformer(str(tmp_path / "model"))
    assert mean == pytest.approx(model.encode("abcde") @ model.encode("abcde fgh"), rel=1e-4)
    assert abs(mean - cls) > 1e-3


def test_search_prints_passages_with_their_ids(
    encoded: Path, model_folder: Path, beir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    titles = {passage.id: passage.title for passage in read_corpus(beir)}
    command = ["search", f"--model={model_folder}", "--query=abcde fgh", "--top_k=3"]
    printed = []
    for place in (f"--index={encoded}/index", f"--embeddings={encoded}/embeddings"):
        capsys.readouterr()
        assert main([*command, place, f"--json_out={encoded}/hits.json"]) == 0
        printed.append(capsys.readouterr().out)
        found = re.findall(r"^ +(-?\d+\.\d\d)  (d\d+)  (.*)$", printed[-1], re.MULTILINE)
        answer = json.loads((encoded / "hits.json").read_text())
        assert answer["query"] == "abcde fgh"
        hits = [(f"{hit['score']:.2f}", hit["id"], hit["title"]) for hit in answer["hits"]]
        assert hits == found
        assert len(found) == 3
        assert all(titles[name] == title for _, name, title in found)
    assert printed[0] == printed[1]


class Terminal(io.StringIO):
    """Standard input with someone in front of it."""

    def isatty(self) -> bool:
        return True


def test_passages_cannot_control_the_terminal(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attack = "\x1b[2J\x1b]0;title\x07\x1b]52;c;cm0=\x07\r\n\x9b2J"
    passage = {"_id": "d\x1b[2J", "title": attack, "text": f"abcde {attack}"}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(passage) + "\n")
    place = [f"--model={model_folder}", f"--corpus={tmp_path}/corpus.jsonl"]
    assert main(["encode", *place, f"--out={tmp_path}/embeddings"]) == 0
    capsys.readouterr()
    place = [f"--model={model_folder}", f"--embeddings={tmp_path}/embeddings"]
    assert main(["search", *place, "--query=abcde\x1b[2J"]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed)
    assert len(printed.splitlines()) == 3
    assert r"d\x1b[2J  \x1b[2J\x1b]0;title\x07\x1b]52;c;cm0=\x07\x0d\x0a\x9b2J" in printed


def test_log_messages_cannot_control_the_terminal(tmp_path: Path) -> None:
    program = (
        "import logging; from cocondenser_jax.cli import main; main([]);"
        " logging.warning('a\\n%s', '\\x1b[2J')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr.endswith("a\n\\x1b[2J\n")


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_queries_are_answered_line_by_line(
    encoded: Path,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[io.StringIO],
) -> None:
    monkeypatch.setattr("sys.stdin", kind("abcde fgh\n\n  \n hgfed"))
    place = [f"--index={encoded}/index", f"--model={model_folder}"]
    assert main(["search", *place, "--top_k=2", f"--json_out={encoded}/answers.json"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r'^(?:query: )*"(.*)"$', printed, re.MULTILINE) == ["abcde fgh", "hgfed"]
    assert len(re.findall(r"^ +-?\d+\.\d\d  d\d+  title", printed, re.MULTILINE)) == 4
    times = r"^  encoding \d+\.\d ms, search \d+\.\d ms$"
    assert len(re.findall(times, printed, re.MULTILINE)) == 2
    assert printed.count("query: ") == (5 if kind is Terminal else 0)
    answers = json.loads((encoded / "answers.json").read_text())
    assert [(a["query"], len(a["hits"])) for a in answers] == [("abcde fgh", 2), ("hgfed", 2)]


def test_a_corpus_is_searched_with_and_without_an_index(
    encoded: Path,
    model_folder: Path,
    beir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sorted(path.name for path in encoded.iterdir() if "json" not in path.name) == [
        "embeddings", "index", "vectors.parquet"
    ]  # fmt: skip
    runs = []
    for place in (f"--embeddings={encoded}/embeddings", f"--index={encoded}/index"):
        out = [f"--run_out={tmp_path}/run.trec", f"--json_out={tmp_path}/metrics.json"]
        data = [f"--model={model_folder}", f"--data={beir}", "--split=train", "--depth=7"]
        assert main(["retrieve", place, *data, *out]) == 0
        runs.append([line.split()[:4] for line in (tmp_path / "run.trec").open()])
        metrics = json.loads((tmp_path / "metrics.json").read_text())
        assert (metrics["queries"], metrics["passages"]) == (24, 60)
        for part in ("encoding", "search"):
            seconds = metrics[f"{part}_seconds"]
            assert metrics[f"{part}_ms_per_query"] == pytest.approx(seconds * 1000 / 24)
        assert "search_ms_per_query" in capsys.readouterr().out
    assert runs[0] == runs[1]
    assert len(runs[0]) == 24 * 7


def test_bm25_by_command_line(beir: Path, tmp_path: Path) -> None:
    queries, _ = read_split(beir, "train")
    for flags, settings in ([], {}), (["--k1=0.82", "--b=0.68"], {"k1": 0.82, "b": 0.68}):
        out = tmp_path / "bm25.trec"
        command = ["bm25", f"--data={beir}", "--split=train", f"--run_out={out}", "--depth=9"]
        assert main([*command, *flags, f"--json_out={tmp_path}/metrics.json"]) == 0
        assert json.loads((tmp_path / "metrics.json").read_text())["queries"] == 24
        expected = bm25_run(read_corpus(beir), queries, depth=9, **settings)
        found = read_run(out)
        assert {query: list(results) for query, results in found.items()} == {
            query: list(results) for query, results in expected.items() if results
        }
        best = next(iter(found))
        assert max(found[best].values()) == pytest.approx(max(expected[best].values()), rel=1e-5)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("search --index=INDEX --model=MODEL --embeddings=x --query=x", "not allowed with"),
        ("search --model=MODEL --query=x", "one of the arguments --index --embeddings is required"),
        ("search --index=INDEX --query=x", "required: --model"),
        ("search --index=INDEX --model=MODEL --query=", "the query is empty"),
        ("search --index=INDEX --model=MODEL --query=x --top_k=0", "0 passages to find"),
        ("search --index=none --model=MODEL --query=x", "none holds no manifest.json"),
        ("retrieve --index=INDEX --model=MODEL --data=DATA", "required: --run_out"),
        ("retrieve --index=INDEX --model=MODEL --data=DATA --run_out=r --depth=0", "depth=0"),
        ("retrieve --index=INDEX --model=MODEL --data=none --run_out=r", "none does not exist"),
        (
            "retrieve --embeddings=EMBEDDINGS --model=MODEL --data=DATA --run_out=r"
            " --parameters=nprobe=2",
            "only an index has parameters",
        ),
        ("bm25 --data=DATA --run_out=r --split=dev", "no judgments of split 'dev'"),
        ("bm25 --data=DATA --run_out=r --b=2", "expected a k1 of at least 0 and a b of 0 to 1"),
        ("index --embeddings=none --out=r", "none holds no manifest.json"),
        ("index --embeddings=EMBEDDINGS --out=INDEX", "already exists"),
        ("encode --model=MODEL --corpus=DATA/none.jsonl --out=r", "none.jsonl does not exist"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(
    encoded: Path,
    model_folder: Path,
    beir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    says: str,
) -> None:
    places = {"INDEX": encoded / "index", "EMBEDDINGS": encoded / "embeddings", "DATA": beir}
    for name, place in (places | {"MODEL": model_folder}).items():
        command = command.replace(name, str(place))
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    error = capsys.readouterr().err.splitlines()
    assert [line for line in error if line.startswith("cocondenser: ")] == error[-1:]
    assert says in error[-1]
    assert not list(tmp_path.iterdir())
