"""Whatever a file holds, it is read or refused with one clear line; and nothing in it is run."""

import ast
import gzip
import json
import lzma
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from cocondenser_jax import files
from cocondenser_jax.analysis.plots import read_metrics
from cocondenser_jax.cli import main
from cocondenser_jax.collection import layouts
from cocondenser_jax.collection.trec import read_qrels, read_run, write_run
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.store import build_store, open_store, verify_store
from cocondenser_jax.corpus.vocabulary import load_tokenizer, save_tokenizer, train_wordpiece
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import evaluate_run
from cocondenser_jax.finetune import schedule
from cocondenser_jax.metrics import forget_steps_after
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.retrieval.models import load_retriever
from cocondenser_jax.retrieval.shards import map_array
from cocondenser_jax.settings import load_config
from tests.conftest import TEXTS
from tests.mutations import (
    Payload,
    assert_read_or_refused,
    broken_bytes,
    broken_json,
    broken_lines,
    fuzz,
    fuzz_file,
)


class Reader(NamedTuple):
    """A kind of file, a valid one, and what reads it."""

    name: str
    valid: bytes
    read: Callable[[Path], Any]


def _jsonl(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def _documents(path: Path) -> None:
    for document in read_documents(str(path)):
        f"{document.id} {document.text}".encode()


def _passages(path: Path) -> None:
    for passage in layouts.read_passages(path):
        " ".join(passage).encode()


def _queries(path: Path) -> None:
    for pair in layouts.read_queries(path).items():
        " ".join(pair).encode()


def _answers(path: Path) -> None:
    for name, answers in layouts.read_answers(path).items():
        " ".join([name, *answers]).encode()


def _judgments(path: Path) -> None:
    evaluate_run(read_qrels(path), {"q1": {"d1": 1.0}, "q2": {"d1": 2.0}})


def _run(path: Path) -> None:
    write_run(path.with_suffix(".again"), read_run(path))


_TEXT = b"One. Two.\n\nThree four.\nFive.\n"
_JSONL = _jsonl(
    {"_id": "d1", "title": "T", "text": "One. Two."}, {"_id": "d2", "spans": ["a", "b"], "text": ""}
)
_DPR = json.dumps(
    [
        {
            "question": "who",
            "positive_ctxs": [{"passage_id": "1", "title": "T", "text": "x"}],
            "hard_negative_ctxs": [{"psg_id": 2}],
            "negative_ctxs": [],
        }
    ]
).encode()
READERS = [
    Reader("a.txt", _TEXT, _documents),
    Reader("a.jsonl", _JSONL, _documents),
    Reader("a.txt.gz", gzip.compress(_TEXT), _documents),
    Reader("a.txt.xz", lzma.compress(_TEXT), _documents),
    Reader("a.jsonl.zst", zstandard.compress(_JSONL), _documents),
    Reader("corpus.jsonl", _jsonl({"_id": "d1", "title": "T", "text": "x"}), _passages),
    Reader("collection.tsv", b"0\tone two\n1\tthree\n", _passages),
    Reader("psgs.tsv", b'id\ttext\ttitle\n1\t"one ""two"""\tT\n', _passages),
    Reader("queries.jsonl", _jsonl({"_id": "q1", "text": "x"}), _queries),
    Reader("queries.dev.tsv", b"1\twho\n2\twhen\n", _queries),
    Reader("nq.qa.csv", b'who\t[\'a\', "b"]\nwhen\t["c"]\n', _queries),
    Reader("train.json", _DPR, _queries),
    Reader("train2.json", _DPR, layouts.read_training_file),
    Reader("triples.tsv", b"1\t2\t3\n1\t2\t4\n", lambda path: layouts.read_triples(path, 5)),
    Reader("test.tsv", b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td1\t2\n", _judgments),
    Reader("qrels.trec", b"q1 0 d1 1\nq2 0 d2 0\n", _judgments),
    Reader("run.trec", b"q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1.5 t\n", _run),
    Reader("answers.jsonl", _jsonl({"_id": "1", "answers": ["a", "b"]}), _answers),
    Reader(
        "sts.csv",
        b"g\tf\t2012\t1\t2.5\tone\ttwo\ng\tf\t2012\t2\t5\tone\tone\textra\n",
        layouts.read_scored_pairs,
    ),
    Reader(
        "triplets.csv",
        b'Id,Sentence1,Sentence2,Sentence3\n1,one,"two, ""2""",three\n2,a,"b\nc",d\n',
        layouts.read_triplets,
    ),
    Reader("answers.csv", b'who\t[\'a\', "b"]\nwhen\t["c"]\n', _answers),
    Reader("metrics.jsonl", _jsonl({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2}), read_metrics),
    Reader(
        "steps.jsonl",
        _jsonl({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2}),
        lambda path: forget_steps_after(path, 1),
    ),
    Reader("some.json", _DPR, files.read_json),
    Reader("some.json.gz", gzip.compress(_DPR), files.read_json),
    Reader(
        "experiment.py",
        b"from ml_collections import ConfigDict\n\ndef get_config():\n    return ConfigDict()\n",
        lambda path: load_config(str(path)),
    ),
]


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_a_broken_file_is_read_or_refused(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / reader.name
    path.write_bytes(reader.valid)
    reader.read(path)

    @fuzz()
    @given(broken_lines(reader.valid) | broken_bytes(reader.valid))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        assert_read_or_refused(reader.read, path)

    check()


@pytest.mark.parametrize(
    ("name", "record", "read"),
    [
        ("a.jsonl", {"_id": "d1", "title": "T", "text": "One.", "spans": ["a"]}, _documents),
        ("corpus.jsonl", {"_id": "d1", "title": "T", "text": "x"}, _passages),
        ("queries.jsonl", {"_id": "q1", "text": "x"}, _queries),
        ("answers.jsonl", {"_id": "1", "answers": ["a", "b"]}, _answers),
        ("train.json", json.loads(_DPR), layouts.read_training_file),
        ("metrics.jsonl", {"step": 1, "loss": 2.5}, read_metrics),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_of_wrong_types_is_read_or_refused(
    name: str, record: Any, read: Callable[[Path], Any], tmp_path: Path
) -> None:
    @fuzz()
    @given(broken_json(record))
    def check(content: bytes) -> None:
        (tmp_path / name).write_bytes(content + b"\n")
        assert_read_or_refused(read, tmp_path / name)

    check()


@fuzz()
@given(
    st.sampled_from(["seed", "train", "train.steps", "data.store", "optimizer.learning_rate", "x"]),
    st.sampled_from(["1", "1e999", "9" * 400, "{[]: 1}", "(" * 5000, "'a", "\udcff", "\0", "[1]"])
    | st.text(max_size=5),
)
def test_a_broken_override_is_applied_or_refused(key: str, value: str) -> None:
    def load() -> None:
        json.dumps(load_config("configs/default.py", [f"--config.{key}={value}"]).to_dict())

    assert_read_or_refused(load)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    lines = _jsonl(*({"_id": str(i), "spans": [*TEXTS[:3], f"{TEXTS[0]} {i}"]} for i in range(9)))
    (folder / "a.jsonl").write_bytes(lines)
    words = [word for text in TEXTS for word in text.split()]
    (folder / "tokenizer").mkdir()
    save_tokenizer(train_wordpiece(words, 200), folder / "tokenizer")
    build_store(str(folder / "a.jsonl"), str(folder / "tokenizer"), folder / "store")
    return folder / "store"


def _whole_store(folder: Path) -> None:
    open_store(folder)
    verify_store(folder)
    opened = open_store(folder)
    opened.read_spans(np.arange(opened.n_spans), 16)
    for document in range(opened.n_documents):
        opened.document_id(document)


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "tokens.bin",
        "span_offsets.bin",
        "first_span.bin",
        "id_offsets.bin",
        "ids.txt",
        "word_starts.bin",
    ],
)
def test_a_broken_store_opens_or_is_refused(name: str, store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(store, tmp_path / "store")
    fuzz_file(folder, name, _whole_store)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.txt"])
def test_a_broken_tokenizer_loads_or_is_refused(name: str, store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(store / "tokenizer", tmp_path / "tokenizer")
    if name != "tokenizer.json":  # it would be read in place of the other files
        (folder / "tokenizer.json").unlink()
    fuzz_file(folder, name, lambda folder: load_tokenizer(str(folder)), 0.2)


@pytest.mark.parametrize("name", ["config.json", "condenser.json", "model.safetensors", "model.pt"])
def test_broken_weights_load_or_are_refused(
    name: str, research_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    (folder / "condenser.json").write_text('{"n_head_layers": 2, "skip_from": 1, "late_mlm": true}')
    fuzz_file(folder, name, lambda folder: load_folder(str(folder)), 0.1)


def test_a_broken_index_of_weights_is_read_or_refused(
    research_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "part.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(list(tensors)[:3], "part.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    fuzz_file(folder, "model.safetensors.index.json", lambda folder: load_folder(str(folder)), 0.1)


def test_a_broken_run_folder_loads_or_is_refused(tmp_path: Path) -> None:
    from cocondenser_jax.model.config import ModelConfig

    (tmp_path / "checkpoints").mkdir()
    run = {"config": {}, "model": ModelConfig().to_dict(), "data": {"sha256": ""}}

    @fuzz()
    @given(broken_json(run))
    def check(content: bytes) -> None:
        (tmp_path / "run.json").write_bytes(content)
        assert_read_or_refused(load_run, tmp_path)

    check()


def test_a_broken_plan_is_read_or_refused(tmp_path: Path) -> None:
    path, settings = tmp_path / "plan.npz", {"planner": "x", "seed": 1}
    schedule.save_plan(path, np.arange(6).reshape(2, 3), settings)
    valid = path.read_bytes()

    @fuzz()
    @given(broken_bytes(valid))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        assert_read_or_refused(schedule.load_plan, path, settings)

    check()


@pytest.mark.parametrize("load", [lambda folder: load_folder(str(folder)), load_retriever])
def test_a_pickle_of_code_is_refused_and_not_run(
    load: Callable[[Path], Any], research_folders: dict[str, Path], tmp_path: Path
) -> None:
    import torch

    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"x": Payload(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(UserError):
        load(folder)
    assert not (tmp_path / "ran").exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "ran").exists()  # the payload is one


@pytest.mark.parametrize("load", [lambda folder: load_folder(str(folder)), load_retriever])
def test_weights_lie_inside_the_folder(
    load: Callable[[Path], Any], research_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(research_folders["bert"], tmp_path / "model")
    weights = tmp_path / "model-00001.safetensors"
    (folder / "model.safetensors").rename(weights)
    weight_map = dict.fromkeys(load_file(weights), f"../{weights.name}")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(weights, folder / "other.safetensors")
    with pytest.raises(UserError, match=r"inside the folder|a file beside it"):
        load(folder)


@pytest.mark.parametrize("name", ["../outside", "/outside", "tokenizer/../../outside", "9" * 300])
def test_files_of_a_store_lie_inside_it(name: str, store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(store, tmp_path / "store")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": 0, "sha256": ""}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "outside").touch()
    with pytest.raises(UserError, match="'files'"):
        open_store(folder)


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_objects_in_arrays_are_not_unpickled(name: str, tmp_path: Path) -> None:
    objects = np.array([Payload(tmp_path / "ran")], object)
    path = tmp_path / name
    if name == "a.npy":
        np.save(path, objects, allow_pickle=True)
        assert map_array(path, (1,), "O") is None
    else:
        np.savez(path, batches=objects, settings="{}")
        with pytest.raises(UserError, match="cannot read the plan"):
            schedule.load_plan(path, {})
    assert not (tmp_path / "ran").exists()


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    path = (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    assert map_array(path, (2,), "float64") is None
    np.save(path, np.zeros(2))
    assert map_array(path, (2,), "float64") is not None


def test_the_package_unpickles_and_evaluates_nothing() -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "joblib", "eval", "exec", "yaml"}
    for path in Path(files.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in forbidden, path
            elif isinstance(node, ast.Call):
                options = {k.arg: ast.unparse(k.value) for k in node.keywords}
                name = ast.unparse(node.func)
                assert name not in forbidden, path
                assert name != "torch.load" or options["weights_only"] == "True", path
                assert name != "np.load" or options["allow_pickle"] == "False", path
                assert options.get("trust_remote_code", "False") == "False", path


def test_lone_surrogates_of_passages_and_queries_are_replaced(tmp_path: Path) -> None:
    record = {"_id": "d\ud800", "title": "\udfff", "text": "a \ud800"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    assert list(layouts.read_passages(tmp_path / "a.jsonl")) == [("d?", "?", "a ?")]
    assert layouts.read_queries(tmp_path / "a.jsonl") == {"d?": "a ?"}


def test_conflicts_must_be_symmetric() -> None:
    candidates = schedule.Candidates(np.array([[1], [0], [1]]), np.ones((3, 1)))
    one_way = scipy.sparse.csr_array(([True], ([0], [1])), shape=(3, 3))
    with pytest.raises(UserError, match="symmetric"):
        schedule.hard_plan(candidates, 3, seed=0, conflicts=one_way)


@pytest.mark.parametrize("unit", [b"a ", b"\t", b"[],"])
@pytest.mark.parametrize("read", [read_run, read_qrels, layouts.read_queries, layouts.read_answers])
def test_one_long_line_costs_little_memory(
    unit: bytes, read: Callable[[Path], Any], tmp_path: Path
) -> None:
    size = 50_000_001
    path = tmp_path / "long.tsv"
    path.write_bytes((unit * size)[:size])
    tracemalloc.start()
    try:
        with pytest.raises(UserError):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content", [b"\xff", b"\xef\xbb\xbf", b"x", b"q1 Q0 d1 1 nan t\n", b"", b"q\0 Q0\n"]
)
def test_the_command_line_answers_with_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run", "qrels"):
        (tmp_path / name).write_bytes(content)
    assert main(["evaluate", f"--run={tmp_path / 'run'}", f"--qrels={tmp_path / 'qrels'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
