"""The examples that search in a database print what the exact search prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.collection.folder import read_queries

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def encoded(model_folder, beir, tmp_path_factory):
    """The folder of embeddings, in shards."""
    out = tmp_path_factory.mktemp("encoded") / "embeddings"
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", "--shard_size=25"]
    assert main([*command, f"--out={out}"]) == 0
    return out


@pytest.mark.parametrize("name", ["lancedb", "qdrant"])
def test_a_database_finds_what_the_exact_search_finds(
    name, encoded, model_folder, beir, tmp_path, capfd
):
    module = {"lancedb": "lancedb", "qdrant": "qdrant_client"}[name]
    pytest.importorskip(module, reason=f"needs {module}: make databases")
    files = {"database": tmp_path / name, "embeddings": encoded}
    for query, top_k in zip(list(read_queries(beir).values())[3:5], (10, 25), strict=True):
        asked = [f"--model={model_folder}", f"--query={query}", f"--top_k={top_k}"]
        exact = [f"--embeddings={encoded}", f"--json_out={tmp_path}/hits.json"]
        capfd.readouterr()
        assert main(["search", *exact, *asked]) == 0
        expected = capfd.readouterr().out
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / f"search_{name}.py", *asked]
            + [f"--{flag}={path}" for flag, path in files.items()],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        ids = [hit["id"] for hit in json.loads((tmp_path / "hits.json").read_text())["hits"]]
        printed = [line.split() for line in done.stdout.splitlines()[1::2]]
        assert [found[1] for found in printed] == ids
        assert len(ids) == top_k
        assert done.stdout == expected
        files["embeddings"] = tmp_path / "gone"  # the second time, the database has the passages
