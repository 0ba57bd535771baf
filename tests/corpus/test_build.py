"""What machines that share the work on a corpus read of it."""

import json
import shutil

import pytest

from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError


def test_a_shard_reads_its_parts_of_the_source_alone(paragraphs, wordpiece_folder, tmp_path):
    texts = [*dict.fromkeys(paragraphs)][:20]
    texts += [texts[0], texts[1]]  # in part 0, where the original is, and in part 1, where not
    files = [[*range(i, 20, 5)] for i in range(5)]
    files[0].append(20)
    files[2].append(21)
    source, out = tmp_path / "source", tmp_path / "shards"
    source.mkdir()
    for k, numbers in enumerate(files):
        lines = (json.dumps({"id": str(i), "text": texts[i]}) for i in numbers)
        (source / f"{k}.jsonl").write_text("\n".join(lines))

    def build(index):
        """Returns how many copies were dropped; what belongs to the other shard cannot be read."""
        hidden = {path: path.read_bytes() for path in [*sorted(source.iterdir())][1 - index :: 2]}
        for path in hidden:
            path.write_text("{")
        manifest = build_store(str(source), str(wordpiece_folder), out, shard=(index, 2))
        for path, content in hidden.items():
            path.write_bytes(content)
        return int(manifest["dropped"]["duplicate"])

    assert [build(0), build(1)] == [1, 0]
    store = open_store(out)
    found = [store.document_id(i) for i in range(store.n_documents)]
    # Document 21 is a copy of document 1, which is in the other shard.
    assert found == [str(i) for k in (0, 2, 4, 1, 3) for i in files[k] if i != 20]
    # What was one part of five is none of six.
    shutil.rmtree(out / "shard-00001-of-00002")
    (source / "5.jsonl").write_text(json.dumps({"text": texts[0]}))
    build(1)
    with pytest.raises(UserError, match=r"differs from .* in its parts"):
        open_store(out)
