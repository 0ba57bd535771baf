"""The examples that search in a database find what our own search finds."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cocondenser_jax as cj
from cocondenser_jax.cli import main
from cocondenser_jax.collection.folder import read_corpus, read_queries
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


def require(name):
    module = MODULES[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: make databases")


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
    require(request.param)
    if request.param != "pgvector":
        yield tmp_path / request.param
    elif address := os.environ.get("PGVECTOR_URL"):
        yield address
    else:
        pgserver = pytest.importorskip("pgserver", reason="needs pgserver, or PGVECTOR_URL")
        with pgserver.get_server(tmp_path / "pgvector", cleanup_mode="delete") as server:
            yield server.get_uri()


def ask(name, **flags):
    """Runs an example, and returns what it prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"search_{name}.py"]
        + [f"--{flag}={value}" for flag, value in flags.items()],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("name", "database"),
    [(name, name) for name in ("lancedb", "qdrant", "pgvector")],
    indirect=["database"],
)
def test_a_database_finds_what_the_exact_search_finds(
    name, database, encoded, model, beir, tmp_path, capfd
):
    embeddings = encoded
    for query, top_k in zip(list(read_queries(beir).values())[3:5], (10, 25), strict=True):
        asked = {"model": model, "query": query, "top_k": top_k}
        exact = [f"--embeddings={encoded}", f"--json_out={tmp_path}/hits.json"]
        capfd.readouterr()
        assert (
            main(["search", *exact, *(f"--{flag}={value}" for flag, value in asked.items())]) == 0
        )
        expected = capfd.readouterr().out
        printed = ask(name, embeddings=embeddings, database=database, **asked)
        ids = [hit["id"] for hit in json.loads((tmp_path / "hits.json").read_text())["hits"]]
        assert re.findall(r"^ {1,2}\d+  (\S+)", printed, re.MULTILINE) == ids
        assert len(ids) == top_k
        assert printed == expected
        embeddings = tmp_path / "gone"  # the second time, the database has the passages


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


def test_opensearch_is_asked_for_both_rankings_in_one_query(encoded, model, beir):
    require("opensearch")
    passages = list(read_corpus(beir))
    queries = list(read_queries(beir).values())[3:5]
    cluster = Cluster()
    embeddings = encoded
    with serving(cluster) as address:
        for query, top_k in zip(queries, (10, 25), strict=True):
            asked = {"model": model, "query": query, "top_k": top_k}
            printed = ask("opensearch", embeddings=embeddings, database=address, **asked)
            expected = expected_fusion(query, model, passages)
            rows = [line.split()[:2] for line in printed.splitlines()[1::2]]
            assert [found for _, found in rows] == list(expected)[:top_k]
            scores = [float(score) for score, _ in rows]
            assert scores == pytest.approx(list(expected.values())[:top_k], abs=0.006)
            embeddings = "gone"  # the second time, the index has the passages
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


def test_opensearch_has_all_passages_or_is_asked_for_none(encoded, model, beir):
    require("opensearch")
    asked = {"embeddings": encoded, "model": model, "query": "gfe"}
    cluster = Cluster()
    with serving(cluster) as address:
        cluster.refused = "_refresh"
        with pytest.raises(subprocess.CalledProcessError):
            ask("opensearch", database=address, **asked)
        assert cluster.aliases == {}
        cluster.refused = ""
        ask("opensearch", database=address, **asked)
    (index,) = cluster.aliases.values()
    assert [p["id"] for p in cluster.passages[index]] == [p.id for p in read_corpus(beir)]
