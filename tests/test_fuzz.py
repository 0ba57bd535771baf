"""Whatever a file holds, it is read or refused with one clear line; and nothing in it is run."""

import ast
import gzip
import io
import json
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

import cocondenser_jax
from cocondenser_jax.cli import main
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.metrics import forget_steps_after
from cocondenser_jax.files.whole import read_json
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.retriever.compare.plots import read_curves
from cocondenser_jax.retriever.data.layouts import read_passages, read_query_file
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.trec import read_qrels, read_run, write_run
from cocondenser_jax.retriever.train.hard_batches import load_batches
from cocondenser_jax.settings import load_config
from tests.mutations import (
    Payload,
    assert_read_or_refused,
    fuzz,
    fuzz_content,
    fuzz_record,
    jsonl,
)

_JSON = json.dumps(
    [{"question": "who", "positive_ctxs": [{"passage_id": "1", "title": "T"}], "negative_ctxs": []}]
).encode()
_TEXT = b"One. Two.\n\nThree four.\nFive.\n"
_STEPS = jsonl({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2})
_PASSAGE, _QUERY = {"_id": "d1", "title": "T", "text": "x"}, {"_id": "q1", "text": "x"}
_DOCUMENTS = jsonl(_PASSAGE, {"_id": "d2", "spans": ["a", "b"], "text": ""})


def _documents(path):
    for document in read_documents(str(path)):
        f"{document.id} {document.text}".encode()


def _passages(path):
    for passage in read_passages(path, numbered=True):
        " ".join(passage).encode()


def _queries(path):
    for pair in read_query_file(path).items():
        " ".join(pair).encode()


def _run(path):
    write_run(path.with_suffix(".again"), read_run(path))


def _judgments(path):
    evaluate_run(read_qrels(path), {"q1": {"d1": 1.0}, "q2": {"d1": 2.0}})


def _curves(path):
    read_curves(path, "run", "#2b83c6")


def _experiment(path):
    load_config(str(path), ["--config.data.store=x"])


def _parquet():
    columns = {"id": ["d1", "d2"], "title": ["T", None], "text": ["One.", "Two."], "n": [1, 2]}
    pq.write_table(pa.table(columns), file := io.BytesIO())
    return file.getvalue()


def _batches():
    np.savez(file := io.BytesIO(), batches=np.arange(6).reshape(2, 3))
    return file.getvalue()


_CONFIG = b"""from cocondenser_jax.configs import default


def get_config():
    return default.get_config()
"""
READERS = {
    "steps.jsonl": (_STEPS, lambda path: forget_steps_after(path, 1)),
    "metrics.jsonl": (_STEPS, _curves),
    "some.json": (_JSON, read_json),
    "some.json.gz": (gzip.compress(_JSON), read_json),
    "experiment.py": (_CONFIG, _experiment),
    "a.txt": (_TEXT, _documents),
    "a.jsonl": (_DOCUMENTS, _documents),
    "a.tsv": (b'title\tid\ttext\nT\t1\t"one ""two"""\nT\t2\tthree\n', _documents),
    "a.txt.gz": (gzip.compress(_TEXT), _documents),
    "a.txt.xz": (lzma.compress(_TEXT), _documents),
    "a.parquet": (_parquet(), _documents),
    "a.jsonl.zst": (zstd.compress(_DOCUMENTS), _documents),
    "corpus.jsonl": (jsonl(_PASSAGE), _passages),
    "collection.tsv": (b"0\tone two\n1\tthree\n", _passages),
    "psgs.tsv": (b'id\ttext\ttitle\n1\t"one ""two"""\tT\n', _passages),
    "msmarco-docs.tsv": (b"D1\thttp://x\tT\tone two\nD2\t\t\t\n", _passages),
    "queries.jsonl": (jsonl(_QUERY), _queries),
    "queries.dev.tsv": (b"1\twho\n2\twhen\n", _queries),
    "run.trec": (b"q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1.5 t\n", _run),
    "test.tsv": (b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td1\t2\n", _judgments),
    "qrels.trec": (b"q1 0 d1 1\nq2 0 d2 0\n", _judgments),
    "batches.npz": (_batches(), load_batches),
}
RECORDS = {
    "a.jsonl": ({"_id": "d1", "title": "T", "text": "One.", "spans": ["a"]}, _documents),
    "corpus.jsonl": (_PASSAGE, _passages),
    "queries.jsonl": (_QUERY, _queries),
    "metrics.jsonl": ({"step": 1, "loss": 2.5}, _curves),
    "run.json": (
        {"config": {}, "model": ModelConfig().to_dict(), "data": {"sha256": ""}},
        lambda path: load_run(path.parent),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_broken_file_is_read_or_refused(name, tmp_path):
    fuzz_content(tmp_path / name, *READERS[name])


@pytest.mark.parametrize("name", RECORDS)
def test_json_of_wrong_types_is_read_or_refused(name, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    fuzz_record(tmp_path / name, *RECORDS[name])


def test_objects_in_batches_are_not_unpickled(tmp_path):
    objects = np.array([Payload(tmp_path / "ran")], object)
    np.savez(tmp_path / "a.npz", batches=objects)
    with pytest.raises(UserError, match="cannot read the batches in "):
        load_batches(tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()


@fuzz()
@given(
    st.sampled_from(["seed", "train", "train.steps", "data.store", "optimizer.learning_rate", "x"]),
    st.sampled_from(["1", "1e999", "9" * 400, "{[]: 1}", "(" * 5000, "'a", "\udcff", "\0", "[1]"])
    | st.text(max_size=5),
)
def test_a_broken_override_is_applied_or_refused(key, value):
    def load():
        overrides = ["--config.data.store=x", f"--config.{key}={value}"]
        json.dumps(load_config("configs/default.py", overrides).to_dict())

    assert_read_or_refused(load)


def test_the_package_unpickles_and_evaluates_nothing():
    forbidden = {"pickle", "marshal", "shelve", "dill", "joblib", "eval", "exec"}
    for path in Path(cocondenser_jax.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in forbidden, path
            elif isinstance(node, ast.Call):
                options = {k.arg: ast.unparse(k.value) for k in node.keywords}
                name = ast.unparse(node.func)
                assert name not in forbidden, path
                assert not name.startswith("yaml.") or name == "yaml.safe_load", path
                assert name != "torch.load" or options["weights_only"] == "True", path
                assert name != "np.load" or options["allow_pickle"] == "False", path
                assert options.get("trust_remote_code", "False") == "False", path


@pytest.mark.parametrize(
    "content", [b"\xff", b"\xef\xbb\xbf", b"x", b"q1 Q0 d1 1 nan t\n", b"", b"q\0 Q0\n"]
)
def test_the_command_line_answers_with_one_line(content, tmp_path, capsys):
    for name in ("run", "qrels"):
        (tmp_path / name).write_bytes(content)
    flags = [f"--run={tmp_path / 'run'}", f"--qrels={tmp_path / 'qrels'}"]
    assert main(["evaluate", *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1
