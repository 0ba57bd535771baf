"""`encode`, `index`, `search`, `retrieve` and `bm25` as a user types them."""

import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import pytest
import torch
import transformers

from cocondenser_jax.cli import main, retrieval
from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from cocondenser_jax.retriever.data.trec import read_run
from cocondenser_jax.retriever.search.bm25 import Bm25Settings, bm25_run
from tests.lines import whole
from tests.retrieval_data import read_shard
from tests.world import write_qrels


@pytest.fixture(scope="module")
def encoded(model_folder, beir, tmp_path_factory):
    """embeddings/ and their index/, made with a copy of the model that is gone."""
    place = tmp_path_factory.mktemp("encoded")
    shutil.copytree(model_folder, place / "model")
    command = ["encode", f"--model={place}/model", f"--corpus={beir}", "--shard_size=25"]
    assert main([*command, f"--out={place}/embeddings", f"--json_out={place}/encode.json"]) == 0
    assert main(["index", f"--embeddings={place}/embeddings", f"--out={place}/index"]) == 0
    shutil.rmtree(place / "model")
    return place


@pytest.fixture(scope="module")
def data(beir, tmp_path_factory):
    """The collection with a split `few`, which judges three of its queries."""
    folder = Path(shutil.copytree(beir, tmp_path_factory.mktemp("data") / "beir"))
    write_qrels(folder / "qrels" / "few.tsv", {f"q{i}": {f"d{i}": 1} for i in (3, 5, 8)})
    return folder


@torch.no_grad()
def vectors_by_hand(folder, texts, length):
    """Returns the mean of the last layer over each text's first tokens, by transformers alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    hidden = model(**batch).last_hidden_state * mask
    return (hidden.sum(1) / mask.sum(1)).numpy()


@pytest.mark.effect("encode --task")
def test_index_retrieve_and_search_read_what_several_machines_encoded(
    encoded, model_folder, beir, tmp_path, capfd
):
    model, query = f"--model={model_folder}", (beir / "queries.jsonl").read_text()[20:35]
    command = ["encode", model, f"--corpus={beir}", "--shard_size=25", f"--out={tmp_path}/out"]
    search = ["search", model, f"--query={query}"]
    index = ["index", f"--embeddings={tmp_path}/out", f"--out={tmp_path}/index"]
    assert main([*command, "--task=0/2"]) == 0
    for words in (index, [*search, f"--embeddings={tmp_path}/out"]):
        capfd.readouterr()
        assert main(words) == 2
        lacks = f"cocondenser: {tmp_path}/out lacks task-00001-of-00002\n"
        assert capfd.readouterr().err.endswith(lacks)
    assert main([*command, "--task=1/2", "--backend=jax"]) == 0
    assert main(index) == 2
    assert "1-of-00002 differs from " in capfd.readouterr().err
    shutil.rmtree(tmp_path / "out" / "task-00001-of-00002")
    assert main([*command, "--task=1/2"]) == 0
    assert main([*command, "--task=2/2"]) == 2
    assert main(index) == 0
    found = []
    for place in (f"--embeddings={tmp_path}/out", f"--index={tmp_path}/index"):
        run = tmp_path / "run.trec"
        retrieve = ["retrieve", model, f"--data={beir}", f"--run_out={run}", place]
        assert main(retrieve) == 0
        capfd.readouterr()
        assert main([*search, place]) == 0
        found.append((read_run(run), capfd.readouterr().out))
    places = (f"--embeddings={encoded}/embeddings", f"--index={encoded}/index")
    for place, (run_of_two, printed) in zip(places, found, strict=True):
        run = tmp_path / "of_one.trec"
        assert main(["retrieve", model, f"--data={beir}", f"--run_out={run}", place]) == 0
        capfd.readouterr()
        assert main([*search, place]) == 0
        assert (read_run(run), capfd.readouterr().out) == (run_of_two, printed)


@pytest.mark.effect("encode --model", "encode --corpus", "encode --out", "encode --batch_size")
@pytest.mark.effect("encode --max_length", "encode --shard_size", "encode --dtype")
@pytest.mark.effect("encode --precision", "encode --pooling", "encode --parquet")
@pytest.mark.effect("encode --json_out")
def test_what_each_flag_of_encode_does(model_folder, beir, tmp_path, forward_sizes):
    command = "encode --batch_size=7 --max_length=16 --shard_size=25 --pooling=mean"
    command += " --similarity=dot"
    command += " --dtype=float16 --precision=bfloat16"
    places = [f"--model={model_folder}", f"--corpus={beir}", f"--out={tmp_path}/out"]
    written = [f"--parquet={tmp_path}/new/vectors.parquet", f"--json_out={tmp_path}/encode.json"]
    assert main([*command.split(), *places, *written]) == 0
    assert max(forward_sizes) == 7
    shards = [read_shard(path)[0] for path in sorted((tmp_path / "out").glob("*.arrow"))]
    assert [len(shard) for shard in shards] == [25, 25, 10]
    vectors_NxD = np.concatenate(shards)
    assert vectors_NxD.dtype == np.float16
    passages = list(read_corpus(beir))
    expected_NxD = vectors_by_hand(model_folder, [f"{p.title} {p.text}" for p in passages], 16)
    errors_NxD = vectors_NxD.astype(np.float32) - expected_NxD
    errors_N = np.linalg.norm(errors_NxD, axis=1) / np.linalg.norm(expected_NxD, axis=1)
    # Of bfloat16; the rounding to float16 alone gives less than 2 ** -11.
    assert (errors_N > 2**-11).all()
    assert (errors_N < 0.02).all()
    # As a database loads them.
    files = sorted((tmp_path / "out").rglob("*.arrow"))
    shards_table = pyarrow.dataset.dataset(files, format="arrow").to_table()
    parquet = pyarrow.parquet.ParquetFile(tmp_path / "new" / "vectors.parquet")
    groups = [parquet.read_row_group(i) for i in range(parquet.num_row_groups)]
    assert [*map(len, groups)] == [25, 25, 10]
    for table in (shards_table, pyarrow.concat_tables(groups)):
        assert table.column_names == ["id", "title", "text", "vector"]
        assert table["id"].to_pylist() == [passage.id for passage in passages]
        np.testing.assert_array_equal(table["vector"].to_pylist(), vectors_NxD)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["vectors.parquet"]
    manifest = json.loads((tmp_path / "encode.json").read_text())
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())


@pytest.mark.effect("index --embeddings", "index --out", "index --factory", "index --json_out")
@pytest.mark.effect("search --parameters", "search --depth", "retrieve --parameters")
def test_an_approximate_index_finds_more_with_its_parameters(encoded, model_folder, data, tmp_path):
    command = ["index", f"--embeddings={encoded}/embeddings", "--factory=IVF8,Flat"]
    out = [f"--out={tmp_path}/index", f"--json_out={tmp_path}/index.json"]
    assert main([*command, *out]) == 0
    index = faiss.extract_index_ivf(faiss.read_index(str(tmp_path / "index" / "index.faiss")))
    assert (index.nlist, index.ntotal) == (8, 60)
    assert json.loads((tmp_path / "index.json").read_text())["factory"] == "IVF8,Flat"

    place = [f"--index={tmp_path}/index", f"--model={model_folder}"]
    search = ["search", *place, "--query=abcde", "--depth=60", f"--json_out={tmp_path}/found"]
    retrieve = ["retrieve", *place, f"--data={data}", f"--run_out={tmp_path}/run"]
    found = {}
    for flags in [], ["--parameters=nprobe=8"]:
        assert main([*search, *flags]) == 0
        assert main([*retrieve, *flags]) == 0
        hits = json.loads((tmp_path / "found").read_text())["hits"]
        found[bool(flags)] = [len(hits), len(read_run(tmp_path / "run")["q0"])]
    assert found[True] == [60, 60]
    assert max(found[False]) < 60


def test_encoding_says_which_pooling_was_used(encoded, model_folder, tmp_path, capsys):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    manifest = json.loads((encoded / "encode.json").read_text())
    assert manifest["representation"]["pooling"] == "mean"  # as sentence-transformers
    modules = [Transformer(str(model_folder)), Pooling(32, "mean")]
    SentenceTransformer(modules=modules).save_pretrained(str(tmp_path / "model"))
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "abcde fgh"}\n')
    place = ["encode", f"--corpus={tmp_path}/corpus.jsonl"]
    for flags, pooling in ([], "mean"), (["--pooling=cls"], "cls"):
        out = tmp_path / pooling / "embeddings"
        assert main([*place, f"--model={tmp_path}/model", f"--out={out}", *flags]) == 0
        made = f"{out}: 1 passages, 32 dimensions, pooling={pooling}\n"
        assert made in capsys.readouterr().out
        search = ["search", f"--embeddings={out}", f"--model={tmp_path}/model"]
        assert main([*search, "--query=abcde", f"--json_out={out}/found.json"]) == 0
    mean, cls = (
        json.loads((tmp_path / name / "embeddings" / "found.json").read_text())["hits"][0]["score"]
        for name in ("mean", "cls")
    )
    model = SentenceTransformer(str(tmp_path / "model"))
    assert model.similarity_fn_name == "cosine"
    cosine = model.similarity(model.encode("abcde"), model.encode("abcde fgh")).item()
    assert mean == pytest.approx(cosine, rel=1e-4)
    assert abs(mean - cls) > 1e-3


@pytest.mark.effect("search --index", "search --embeddings", "search --model")
@pytest.mark.effect("search --query", "search --json_out")
def test_search_prints_passages_with_their_ids(encoded, model_folder, beir, capsys):
    titles = {passage.id: passage.title for passage in read_corpus(beir)}
    command = ["search", f"--model={model_folder}", "--query=abcde fgh", "--depth=3"]
    printed = []
    for place in (f"--index={encoded}/index", f"--embeddings={encoded}/embeddings"):
        capsys.readouterr()
        assert main([*command, place, f"--json_out={encoded}/hits.json"]) == 0
        printed.append(capsys.readouterr().out)
        found = re.findall(r"^  (\d)  (d\d+)  (.*)  \((-?\d+\.\d\d)\)$", printed[-1], re.MULTILINE)
        answer = json.loads((encoded / "hits.json").read_text())
        assert answer["query"] == "abcde fgh"
        hits = [
            (str(rank), hit["id"], hit["title"], f"{hit['score']:.2f}")
            for rank, hit in enumerate(answer["hits"], start=1)
        ]
        assert hits == found
        assert len(found) == 3
        assert all(titles[name] == title for _, name, title, _ in found)
        lines = printed[-1].splitlines()
        assert max(map(len, lines)) <= 80
        text = " ".join(line.strip() for line in lines if line.startswith("     "))
        assert text == " ".join(" ".join(hit["text"].split()) for hit in answer["hits"])
    assert printed[0] == printed[1]


class Terminal(io.StringIO):
    """Standard input with someone in front of it."""

    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_queries_are_answered_line_by_line(
    encoded,
    model_folder,
    capsys,
    monkeypatch,
    kind,
):
    monkeypatch.setattr("sys.stdin", kind("abcde fgh\n\n  \n hgfed"))
    place = [f"--index={encoded}/index", f"--model={model_folder}"]
    assert main(["search", *place, "--depth=2", f"--json_out={encoded}/answers.json"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r'^(?:query: )*"(.*)"$', printed, re.MULTILINE) == ["abcde fgh", "hgfed"]
    assert len(re.findall(r"^  [12]  d\d+  title", printed, re.MULTILINE)) == 4
    times = r"^  encoding \d+\.\d ms, search \d+\.\d ms$"
    assert len(re.findall(times, printed, re.MULTILINE)) == 2
    assert printed.count("query: ") == (5 if kind is Terminal else 0)
    answers = json.loads((encoded / "answers.json").read_text())
    assert [(a["query"], len(a["hits"])) for a in answers] == [("abcde fgh", 2), ("hgfed", 2)]


def test_the_time_of_a_typed_query_is_told_in_milliseconds(beir, capsys, monkeypatch):
    clock = iter((1.0, 1.5, 3.0, 3.25))
    monkeypatch.setattr(retrieval, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr("sys.stdin", io.StringIO("abcde\nfgh"))
    assert main(["search", f"--corpus={beir}", "--depth=1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if " ms" in line] == ["  bm25 500.0 ms", "  bm25 250.0 ms"]


def test_queries_in_another_encoding_are_refused(beir, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8"))
    assert main(["search", f"--corpus={beir}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "cocondenser: standard input is not UTF-8"


@pytest.mark.effect("retrieve --index", "retrieve --embeddings", "retrieve --model")
@pytest.mark.effect("retrieve --data", "retrieve --split", "retrieve --depth")
@pytest.mark.effect("retrieve --run_out", "retrieve --json_out")
def test_a_corpus_is_searched_with_and_without_an_index(
    encoded,
    model_folder,
    data,
    tmp_path,
    capsys,
):
    runs = []
    for place in (f"--embeddings={encoded}/embeddings", f"--index={encoded}/index"):
        out = [f"--run_out={tmp_path}/run.trec", f"--json_out={tmp_path}/metrics.json"]
        flags = [f"--model={model_folder}", f"--data={data}", "--split=few", "--depth=7"]
        assert main(["retrieve", place, *flags, *out]) == 0
        runs.append([line.split()[:4] for line in (tmp_path / "run.trec").open()])
        metrics = json.loads((tmp_path / "metrics.json").read_text())
        assert (metrics["queries"], metrics["passages"]) == (3, 60)
        for part in ("encoding", "search"):
            seconds = metrics[f"{part}_seconds"]
            assert metrics[f"{part}_ms_per_query"] == pytest.approx(seconds * 1000 / 3)
        assert "search_ms_per_query" in capsys.readouterr().out
    assert runs[0] == runs[1]
    assert [line[0] for line in runs[0]] == ["q3"] * 7 + ["q5"] * 7 + ["q8"] * 7


@pytest.mark.effect("bm25 --data", "bm25 --split", "bm25 --run_out", "bm25 --depth")
@pytest.mark.effect("bm25 --json_out", "bm25 --k1", "bm25 --b")
def test_bm25_by_command_line(data, tmp_path):
    out, metrics = tmp_path / "bm25.trec", tmp_path / "metrics.json"
    command = ["bm25", f"--data={data}", "--split=few", f"--run_out={out}", "--depth=2"]
    queries, _ = read_split(data, "few")
    scores = set()
    for settings in {}, {"k1": 0.5}, {"b": 0.9}:
        flags = [f"--{name}={value}" for name, value in settings.items()]
        assert main([*command, *flags, f"--json_out={metrics}"]) == 0
        assert json.loads(metrics.read_text())["queries"] == 3
        expected = bm25_run(read_corpus(data), queries, 2, Bm25Settings(**settings))
        found = read_run(out)
        assert found.keys() == {"q3", "q5", "q8"}
        for query, results in found.items():
            assert list(results) == list(expected[query])
            assert results == pytest.approx(expected[query], rel=1e-5)
        scores.add(max(found["q3"].values()))
    assert len(scores) == 3


@pytest.mark.effect("retrieve --hybrid", "search --hybrid")
@pytest.mark.parametrize("method", ["rrf", "min_max"])
def test_hybrid_is_bm25_retrieve_and_fuse(encoded, model_folder, data, tmp_path, capsys, method):
    runs = {name: tmp_path / f"{name}.trec" for name in ("lexical", "dense", "fused", "hybrid")}
    place = [f"--embeddings={encoded}/embeddings", f"--model={model_folder}"]
    assert main(["bm25", f"--data={data}", f"--run_out={runs['lexical']}"]) == 0
    retrieve = ["retrieve", *place, f"--data={data}"]
    assert main([*retrieve, f"--run_out={runs['dense']}"]) == 0
    of_both = [f"--run={runs['lexical']}", f"--run={runs['dense']}", f"--run_out={runs['fused']}"]
    assert main(["fuse", f"--method={method}", *of_both]) == 0
    capsys.readouterr()
    metrics = tmp_path / "metrics.json"
    out = [f"--run_out={runs['hybrid']}", f"--json_out={metrics}"]
    assert main([*retrieve, f"--hybrid={method}", *out]) == 0
    assert "bm25_ms_per_query" in capsys.readouterr().out
    assert json.loads(metrics.read_text())["bm25_seconds"] > 0
    fused, dense = read_run(runs["fused"]), read_run(runs["dense"])
    hybrid = read_run(runs["hybrid"])
    assert {q: list(found) for q, found in hybrid.items()} == {
        q: list(found) for q, found in fused.items()
    }
    for query, found in hybrid.items():
        assert found == pytest.approx(fused[query], rel=1e-6, abs=1e-6)
    assert any(list(found) != list(dense[query]) for query, found in hybrid.items())

    query = json.loads((data / "queries.jsonl").read_text().splitlines()[4])["text"]
    search = ["search", *place, f"--query={query}", "--depth=3", f"--json_out={metrics}"]
    assert main([*search, f"--hybrid={method}"]) == 0
    hits = json.loads(metrics.read_text())["hits"]
    assert [hit["id"] for hit in hits] == list(hybrid["q4"])[:3]


NO_MANIFEST = (
    "none holds no manifest.json: encode the corpus first, until it ends, then build the index"
)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "search --index=INDEX --model=MODEL --embeddings=x --query=x",
            "give one of --index, --embeddings and --corpus",
        ),
        ("search --query=x", "give one of --index, --embeddings and --corpus"),
        (
            "search --model=MODEL --query=x",
            "--model goes with --index or --embeddings (see cocondenser search --help)",
        ),
        ("retrieve --model=MODEL --data=DATA --run_out=r", "give one of --index and --embeddings"),
        (
            "search --index=INDEX --query=x",
            "--index and --embeddings need --model: the one that encoded the passages",
        ),
        (
            "search --corpus=DATA --model=MODEL --query=x",
            "--model goes with --index or --embeddings (see cocondenser search --help)",
        ),
        (
            "search --corpus=DATA --hybrid=rrf --query=x",
            "--hybrid goes with --index or --embeddings (see cocondenser search --help)",
        ),
        (
            "search --corpus=DATA --device=cuda --query=x",
            "--device goes with --embeddings (see cocondenser search --help)",
        ),
        (
            "search --corpus=none --query=x",
            (
                "none does not exist: expected pydocs, pydocs:numpy,scipy, a .txt, .md, "
                ".jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or pattern of "
                "them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or tfds:NAME_OR_FOLDER[:SPLIT]"
            ),
        ),
        (
            "search --index=INDEX --model=MODEL --query=x --language=german",
            "--language goes with --hybrid or --corpus (see cocondenser search --help)",
        ),
        (
            "search --index=INDEX --model=MODEL --query=",
            "the query is empty or not UTF-8: expected some words",
        ),
        (
            "search --corpus=DATA --query=",
            "the query is empty or not UTF-8: expected some words",
        ),
        (
            "search --index=INDEX --model=MODEL --query=x --hybrid=sum",
            "Invalid value for '--hybrid': 'sum' is not one of 'min_max'…",
        ),
        (
            "search --index=INDEX --model=MODEL --query=x --depth=0",
            "Invalid value for '--depth': 0 is not in…",
        ),
        ("search --index=none --model=MODEL --query=x", NO_MANIFEST),
        ("retrieve --index=INDEX --model=MODEL --data=DATA", "Missing option '--run_out'…"),
        (
            "retrieve --index=INDEX --model=MODEL --data=DATA --run_out=r --depth=0",
            "Invalid value for '--depth': 0 is not in…",
        ),
        (
            "retrieve --index=INDEX --model=MODEL --data=none --run_out=r",
            "none does not exist: expected a folder of passages, queries and judgments",
        ),
        (
            "retrieve --index=INDEX --model=MODEL --data=DATA --run_out=r --split=",
            "TMP has no judgments of split '': it has qrels/train.tsv",
        ),
        (
            "retrieve --embeddings=EMBEDDINGS --model=MODEL --data=DATA --run_out=r"
            " --parameters=nprobe=2",
            "--parameters goes with --index (see cocondenser retrieve --help)",
        ),
        (
            "bm25 --data=DATA --run_out=r --split=dev",
            "TMP has no judgments of split 'dev': it has qrels/train.tsv",
        ),
        (
            "bm25 --data=DATA/queries.jsonl --run_out=r",
            "TMP/queries.jsonl is a file of queries: name the passages by --corpus",
        ),
        (
            "bm25 --data=DATA --run_out=r --b=2",
            "Invalid value for '--b': 2.0 is not in the range 0<=x<=1…",
        ),
        ("index --embeddings=none --out=r", NO_MANIFEST),
        (
            "encode --model=MODEL --corpus=DATA --out=r --task=1",
            "Invalid value for '--task': expected i/n with 0 <= i < n, such as 0/8…",
        ),
        (
            "index --embeddings=EMBEDDINGS --out=INDEX",
            "TMP/index already exists: choose a new folder, or remove it first",
        ),
        (
            "index --embeddings=none --out=INDEX",
            "TMP/index already exists: choose a new folder, or remove it first",
        ),
        (
            "index --embeddings=INDEX --out=r",
            "TMP/index is an index already: expected the folder that encode wrote",
        ),
        (
            "encode --model=MODEL --corpus=DATA --out=memory://bucket/out --task=0/2",
            "--task writes a part of memory://bucket/out: expected a folder of this machine",
        ),
        (
            "encode --model=MODEL --corpus=DATA/none.jsonl --out=r",
            (
                "TMP/none.jsonl does not exist: expected pydocs, pydocs:numpy,scipy, a .txt, "
                ".md, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or "
                "pattern of them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or "
                "tfds:NAME_OR_FOLDER[:SPLIT]"
            ),
        ),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(
    encoded,
    model_folder,
    beir,
    tmp_path,
    capsys,
    monkeypatch,
    command,
    says,
):
    places = {"INDEX": encoded / "index", "EMBEDDINGS": encoded / "embeddings", "DATA": beir}
    for name, place in (places | {"MODEL": model_folder}).items():
        command = command.replace(name, str(place))
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    error = capsys.readouterr().err.splitlines()
    assert [line for line in error if line.startswith("cocondenser: ")] == error[-1:]
    assert re.match(whole(f"cocondenser: {says}"), error[-1])
    assert not list(tmp_path.iterdir())
