"""A mistake in the words of a call is answered before a large library is loaded."""

import json
import subprocess
import sys

import pytest

from cocondenser_jax.cli.flags import PROGRAM
from tests.world import write_qrels, write_records

CONDENSER = "pretrain --config=configs/condenser.py --workdir=w"
FINETUNE = "finetune --config=configs/finetune.py:small --workdir=w --config.model.folder"
# What is typed in a folder with `data` (passages, queries and judgments of test), `run.trec` and
# `other`, a folder of nothing known; and the beginning of the answer. The hub is not asked for
# org/model: no network would be what is said first.
REFUSED = {
    "vocabulary --corpus=nope --out=v": "nope does not exist",
    "corpus --corpus=nope.txt --tokenizer=./nope --out=s": "no folder nope",
    "pretrain --config=nope.py --workdir=w": "no config file 'nope.py'",
    f"{CONDENSER} --config.data.store=nope": "no store nope",
    f"{CONDENSER} --config.data.store=other,2*nope": "other is not a store",
    f"{CONDENSER} --config.data.stor=nope": "no setting 'config.data.stor'",
    "plan --config=configs/condenser.py --topology=v7": "unknown topology 'v7'",
    "plan --config=configs/condenser.py --topology=h100-9": "unknown topology 'h100-9'",
    "convert --run_dir=other --out=m": "other is not a run folder: it has no run.json",
    "resolve --model=./nope --out=m": "./nope: no such folder",
    "verify --store=nope": "no store nope",
    "finetune --config=configs/finetune.py --workdir=w": "config.data.folder is ''",
    f"{FINETUNE}=./nope --config.data.folder=data": "./nope: no such folder",
    f"{FINETUNE}=org/model --config.data.folder=data": "data has no judgments of split 'train'",
    "quickstart --workdir=data": "data already exists",
    "adapt --corpus=nope --model=org/model --workdir=w": "nope does not exist",
    "adapt --corpus=data --model=./nope --workdir=w": "./nope: no such folder",
    "adapt --corpus=data --model=model --workdir=w --data=nope": "nope does not exist",
    "compare --data=nope --model=org/model --workdir=w": "nope does not exist",
    "compare --data=data --model=model --workdir=w --split=tset": (
        "data has no judgments of split 'tset': it has qrels/test.tsv"
    ),
    "compare --data=data --model=model --model=./nope --workdir=w": "./nope: no such folder",
    "compare --data=data --model=model --workdir=w --metric=MRT@10": "unknown metric 'MRT@10'",
    "compare --data=data --corpus=nope --model=model --workdir=w": "nope does not exist",
    "report --run_dir=other": "other is not a run folder: it has no run.json and no finetune.json",
    "encode --model=./nope --corpus=data --out=e": "./nope: no such folder",
    "encode --model=org/model --corpus=nope --out=e": "nope does not exist",
    "index --embeddings=other --out=i": "other holds no manifest.json",
    "search --index=other --model=org/model --query=x": "other holds no manifest.json",
    "search --corpus=nope --query=x": "nope does not exist",
    "retrieve --embeddings=other --model=org/model --data=data --run_out=r": (
        "other holds no manifest.json"
    ),
    "bm25 --data=data --split=tset --run_out=r": "data has no judgments of split 'tset'",
    "bm25 --data=data --language=klingon --run_out=r": "language 'klingon'",
    "fuse --run=nope --run=run.trec --run_out=r": "cannot read nope",
    "rerank --model=./nope --run=run.trec --data=data --run_out=r": "./nope: no such folder",
    "rerank --model=org/model --run=nope --data=data --run_out=r": "cannot read nope",
    "rerank --model=org/model --run=run.trec --data=data --split=tset --run_out=r": (
        "data has no judgments of split 'tset'"
    ),
    "mine --run=nope --data=data --split=test --run_out=r": "cannot read nope",
    "evaluate --run=nope --qrels=data/qrels/test.tsv": "cannot read nope",
}
LARGE = {"flax", "jax", "matplotlib", "sentence_transformers", "torch", "transformers"}
# Runs each call, in one process, and notes what it answers and which modules are loaded then.
PROGRAM_OF_CALLS = """
import contextlib, io, json, shlex, sys
from cocondenser_jax.cli import main
answers = []
for words in json.loads(sys.argv[1]):
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        status = main(shlex.split(words))
    loaded = sorted({name.partition(".")[0] for name in sys.modules})
    answers.append((status, printed.getvalue(), loaded))
json.dump(answers, sys.stdout)
"""


def answers_of(calls, folder):
    """Returns the status, what stderr got and the loaded packages after each call."""
    printed = subprocess.check_output(
        [sys.executable, "-c", PROGRAM_OF_CALLS, json.dumps(calls)], cwd=folder, text=True
    )
    return dict(zip(calls, json.loads(printed), strict=True))


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    for name in ("data/qrels", "other", "model"):
        (folder / name).mkdir(parents=True)
    write_records(folder / "data" / "corpus.jsonl", [{"_id": "a", "text": "x"}])
    write_records(folder / "data" / "queries.jsonl", [{"_id": name, "text": "x"} for name in "qr"])
    write_qrels(folder / "data" / "qrels" / "test.tsv", {"q": {"a": 1}, "r": {"a": 1}})
    (folder / "run.trec").write_text("q Q0 a 1 1.0 test\n")
    (folder / "model" / "config.json").write_text("{}")
    before = sorted(folder.rglob("*"))
    answers = answers_of([*REFUSED], folder)
    assert sorted(folder.rglob("*")) == before
    return answers


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_there_is_said_before_a_large_library_is_loaded(words, refused):
    status, printed, loaded = refused[words]
    assert status == 2
    (line,) = printed.splitlines()
    assert line.startswith(f"cocondenser: {REFUSED[words]}")
    assert not LARGE & {*loaded}


def test_every_command_is_refused_once():
    assert {words.split()[0] for words in REFUSED} == {*PROGRAM.commands}


def test_no_help_loads_a_library(tmp_path):
    answers = answers_of([f"{name} --help" for name in PROGRAM.commands], tmp_path)
    for words, (status, printed, loaded) in answers.items():
        assert (status, printed) == (0, ""), words
        assert not {*LARGE, "ml_collections", "numpy", "scipy"} & {*loaded}, words
