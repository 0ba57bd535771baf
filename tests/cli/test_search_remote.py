"""Search in embeddings and an index on an object store."""

import shutil
from pathlib import Path

from cocondenser_jax.cli import main


def test_embeddings_and_index_on_an_object_store(model_folder, beir, tmp_path, capsys, monkeypatch):
    """fsspec's memory file system stands in for the store."""
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    answers = []
    for place in (str(tmp_path), "memory://bucket"):
        encode = ["encode", f"--model={model_folder}", f"--corpus={beir}", "--shard_size=25"]
        assert main([*encode, f"--out={place}/vectors"]) == 0
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        assert main(["index", f"--embeddings={place}/vectors", f"--out={place}/index"]) == 0
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        shown = Path(place)  # of a URL with one slash less
        assert capsys.readouterr().out.splitlines() == [
            f"{shown}/vectors: 60 passages, 32 dimensions, pooling=mean",
            f"next: cocondenser search --embeddings={shown}/vectors --model={model_folder}",
            f"{shown}/index: 60 passages, 32 dimensions, Flat",
            f"next: cocondenser search --index={shown}/index --model={model_folder}",
        ]
        for kind in ("embeddings", "index"):
            folder = {"embeddings": "vectors", "index": "index"}[kind]
            capsys.readouterr()
            search = ["search", f"--{kind}={place}/{folder}", f"--model={model_folder}"]
            assert main([*search, "--query=what is it"]) == 0
            answers.append(capsys.readouterr().out)
    assert len(set(answers)) == 1
