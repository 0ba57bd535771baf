"""The examples that search in a database find what our own search finds."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cocondenser_jax as cj
from cocondenser_jax.cli import main
from cocondenser_jax.retriever.data.folder import read_corpus, read_queries
from tests.opensearch import Cluster, inner_product_score, serving
from tests.world import write_retriever

ROOT = Path(__file__).parents[1]
# What each example imports.
MODULES = {
    "lancedb": "lancedb",
    "qdrant": "qdrant_client",
    "pgvector": "psycopg",
    "opensearch": "opensearchpy",
}


@pytest.fixture(scope="module")
def model(model_folder, tmp_path_factory):
    """A model with prompts, which the examples have to put before queries."""
    out = tmp_path_factory.mktemp("model") / "model"
    write_retriever(model_folder, out, "mean", prompts={"query": "hgf ", "document": "abc "})
    return out


@pytest.fixture(scope="module")
def encoded(model, beir, tmp_path_factory):
    """The folder of embeddings, in shards."""
    out = tmp_path_factory.mktemp("encoded") / "embeddings"
    command = ["encode", f"--model={model}", f"--corpus={beir}", "--shard_size=25"]
    assert main([*command, f"--out={out}"]) == 0
    return out


@pytest.fixture
def database(request, tmp_path):
    """Where an empty database is, by its name: a folder, or the address of a server.

    PGVECTOR_URL names a server to use instead of that of the package pgserver. Its database is
    empty.
    """
    name = request.param
    if importlib.util.find_spec(MODULES[name]) is None:
        pytest.skip(f"needs {MODULES[name]}: make databases")
    if name == "opensearch":
        with serving(Cluster()) as address:
            yield address
    elif name != "pgvector":
        yield tmp_path / name
    elif address := os.environ.get("PGVECTOR_URL"):
        yield address
    else:
        pgserver = pytest.importorskip("pgserver", reason="needs pgserver, or PGVECTOR_URL")
        with pgserver.get_server(tmp_path / "pgvector", cleanup_mode="delete") as server:
            yield server.get_uri()


def in_databases(*names):
    """Marks a test that runs with each of these databases."""
    return pytest.mark.parametrize(
        ("name", "database"), [(name, name) for name in names], indirect=["database"]
    )


def ask(name, **flags):
    """Runs an example, and returns the lines that it prints, or None if it fails."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"search_{name}.py"]
        + [f"--{flag}={value}" for flag, value in flags.items()],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout.splitlines() if done.returncode == 0 else None


def without_shards(embeddings, out):
    """Copies a folder of embeddings but for the vectors, which a database has by then."""
    return shutil.copytree(embeddings, out, ignore=shutil.ignore_patterns("*.arrow"))


def found_hits(lines):
    """Returns the scores of what was found by id: the line of a rank has an id, a score last."""
    ranked = (re.match(r" {0,2}\d+  (\S+).*\((\S+)\)$", line) for line in lines)
    return {found[1]: float(found[2]) for found in ranked if found}


@in_databases("lancedb", "qdrant", "pgvector")
def test_a_database_finds_what_the_exact_search_finds(
    name, database, encoded, model, beir, tmp_path, capfd
):
    embeddings = encoded
    for query, depth in zip(list(read_queries(beir).values())[3:5], (10, 25), strict=True):
        asked = {"model": model, "query": query, "depth": depth}
        exact = [f"--embeddings={encoded}", f"--json_out={tmp_path}/hits.json"]
        capfd.readouterr()
        assert (
            main(["search", *exact, *(f"--{flag}={value}" for flag, value in asked.items())]) == 0
        )
        expected = capfd.readouterr().out.splitlines()
        printed = ask(name, embeddings=embeddings, database=database, **asked)
        ids = [hit["id"] for hit in json.loads((tmp_path / "hits.json").read_text())["hits"]]
        assert list(found_hits(printed)) == ids
        assert len(ids) == depth
        assert printed == expected
        embeddings = without_shards(encoded, tmp_path / f"without-{depth}")


@in_databases("lancedb", "qdrant", "pgvector")
def test_other_vectors_of_the_same_size_are_not_taken_for_each_other(
    name, database, encoded, model, make_model, beir, tmp_path, capfd
):
    """Passages encoded in another way, or by another model, are loaded beside the first ones."""
    asked = {"database": database, "query": "gfe", "depth": 20}
    first = ask(name, embeddings=encoded, model=model, **asked)
    other = write_retriever(make_model(seed=7), tmp_path / "other", "mean")
    ways = {"given": (model, ["--pooling=cls", "--query_prompt=abc "]), "by_other": (other, [])}
    for place, (encoder, flags) in ways.items():
        out = tmp_path / place
        command = ["encode", f"--model={encoder}", f"--corpus={beir}", f"--out={out}"]
        assert main([*command, *flags]) == 0
        capfd.readouterr()
        words = [f"--model={encoder}", f"--embeddings={out}", "--query=gfe", "--depth=20"]
        assert main(["search", *words]) == 0
        expected = capfd.readouterr().out.splitlines()
        assert expected != first
        assert ask(name, embeddings=out, model=encoder, **asked) == expected
    assert ask(name, embeddings=encoded, model=other, **asked) is None  # not its vectors
    assert ask(name, embeddings=encoded, model=model, **asked) == first


@in_databases("lancedb", "qdrant", "pgvector", "opensearch")
def test_a_database_has_all_passages_or_is_not_searched(
    name, database, encoded, model, beir, tmp_path
):
    damaged = shutil.copytree(encoded, tmp_path / "damaged")
    last = sorted(damaged.glob("*.arrow"))[-1]
    last.write_bytes(last.read_bytes()[:-1000])
    asked = {"database": database, "model": model, "query": "gfe", "depth": 100}
    assert ask(name, embeddings=damaged, **asked) is None
    printed = ask(name, embeddings=encoded, **asked)
    assert sorted(found_hits(printed)) == sorted(passage.id for passage in read_corpus(beir))


def expected_fusion(query, model, passages):
    """Returns the mean of both rankings, each rescaled to 0..1, by passage; the best first."""
    library = cj.load_retriever(model)
    texts = [f"{passage.title} {passage.text}" for passage in passages]
    dense, lexical = {}, {}
    for passage, text, passage_D in zip(
        passages, texts, library.encode_document(texts), strict=True
    ):
        dense[passage.id] = inner_product_score(passage_D, library.encode_query(query))
        if count := sum(map(text.split().count, query.split())):
            lexical[passage.id] = count
    return cj.fuse_runs([{"q": lexical}, {"q": dense}], "min_max", weights=[0.5, 0.5])["q"]


def test_opensearch_is_asked_for_both_rankings_in_one_query(encoded, model, beir, tmp_path):
    pytest.importorskip("opensearchpy", reason="needs opensearchpy: make databases")
    passages = list(read_corpus(beir))
    cluster = Cluster()
    embeddings = encoded
    with serving(cluster) as address:
        for query, depth in zip(list(read_queries(beir).values())[3:5], (10, 25), strict=True):
            asked = {"model": model, "query": query, "depth": depth}
            printed = ask("opensearch", embeddings=embeddings, database=address, **asked)
            expected = expected_fusion(query, model, passages)
            scores = found_hits(printed)
            assert list(scores) == list(expected)[:depth]
            assert scores == pytest.approx({id_: expected[id_] for id_ in scores}, abs=0.006)
            embeddings = without_shards(encoded, tmp_path / f"without-{depth}")
    (fields,) = cluster.mappings.values()
    assert fields["vector"] == {
        "type": "knn_vector",
        "dimension": 32,
        "method": {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"},
    }
    assert fields["words"] == {"type": "text", "analyzer": "english"}
    assert {name for name, field in fields.items() if field.get("copy_to") == "words"} == {
        "title",
        "text",
    }
    assert len(cluster.searches) == 2
    for search in cluster.searches:
        (processor,) = search["search_pipeline"]["phase_results_processors"]
        assert processor == {
            "normalization-processor": {
                "normalization": {"technique": "min_max"},
                "combination": {
                    "technique": "arithmetic_mean",
                    "parameters": {"weights": [0.5, 0.5]},
                },
            }
        }
