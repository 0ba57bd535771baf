"""A mistake in the words of a call is answered before a large library is loaded."""

import json
import re
import subprocess
import sys

import pytest

from cocondenser_jax.cli.flags import PROGRAM
from tests.lines import whole
from tests.world import write_qrels, write_records

CONDENSER = "pretrain --config=configs/condenser.py --workdir=w"
FINETUNE = "finetune --config=configs/finetune.py:small --workdir=w --config.model.folder"
NO_SOURCE = (
    "nope does not exist: expected pydocs, pydocs:numpy,scipy, a .txt, .md, .jsonl, .tsv "
    "(also .gz, .xz, .zst) or .parquet file, a folder or pattern of them, "
    "hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or tfds:NAME_OR_FOLDER[:SPLIT]"
)
NO_MODEL = "./nope: no such folder, and not the name of a model on the hub"
NO_DATA = "nope does not exist: expected a folder of passages, queries and judgments"
NO_VECTORS = (
    "other holds no manifest.json: encode the corpus first, until it ends, then build the index"
)
NO_STORE = "no store nope: expected a folder made by `cocondenser corpus`"
NO_RUN = "cannot read nope: No such file or directory"
NO_TEST = "data has no judgments of split 'tset': it has qrels/test.tsv"
MACHINES = (
    "expected one of v2-8, v3-8, v4-8, v5e-8, v5p-8, v6e-8, a slice such as v3:4x4, or 1 "
    "to 8 GPUs: h100-8, h200-8, a100-80gb-8, a100-40gb-8, l4-8, rtx4090-8"
)
# What is typed in a folder with `data` (passages, queries and judgments of test), `run.trec` and
# `other`, a folder of nothing known; and the answer, as `whole` reads it. The hub is not asked for
# org/model: no network would be what is said first.
REFUSED = {
    "vocabulary --corpus=nope --out=v": NO_SOURCE,
    "corpus --corpus=nope.txt --tokenizer=./nope --out=s": (
        "no folder nope, and no tokenizer of that name from the Hugging Face hub: …"
    ),
    "pretrain --config=nope.py --workdir=w": (
        "no config file 'nope.py': did you mean configs/adapt.py or configs/default.py or "
        "configs/finetune.py?"
    ),
    f"{CONDENSER} --config.data.store=nope": NO_STORE,
    f"{CONDENSER} --config.data.store=other,2*nope": (
        "other is not a store, or is unfinished: it has no manifest.json"
    ),
    f"{CONDENSER} --config.data.stor=nope": (
        "no setting 'config.data.stor': did you mean config.data.store or config.data.pairs "
        "or config.data.length?"
    ),
    "plan --config=configs/condenser.py --topology=v7": f"unknown topology 'v7': {MACHINES}",
    "plan --config=configs/condenser.py --topology=h100-9": (
        f"unknown topology 'h100-9': {MACHINES}"
    ),
    "convert --run_dir=other --out=m": "other is not a run folder: it has no run.json",
    "resolve --model=./nope --out=m": NO_MODEL,
    "verify --store=nope": NO_STORE,
    "finetune --config=configs/finetune.py --workdir=w": (
        "config.data.folder is ''; expected folder in BEIR or MS MARCO layout"
    ),
    f"{FINETUNE}=./nope --config.data.folder=data": NO_MODEL,
    f"{FINETUNE}=org/model --config.data.folder=data": (
        "data has no judgments of split 'train': it has qrels/test.tsv"
    ),
    "quickstart --workdir=data": "data already exists: choose a new folder, or remove it first",
    "adapt --corpus=nope --model=org/model --workdir=w": NO_SOURCE,
    "adapt --corpus=data --model=./nope --workdir=w": NO_MODEL,
    "adapt --corpus=data --model=model --workdir=w --data=nope": NO_DATA,
    "compare --data=nope --model=org/model --workdir=w": NO_DATA,
    "compare --data=data --model=model --workdir=w --split=tset": NO_TEST,
    "compare --data=data --model=model --model=./nope --workdir=w": NO_MODEL,
    "compare --data=data --model=model --workdir=w --metric=MRT@10": (
        "unknown metric 'MRT@10': expected, for instance, MRR@10, Recall@100, nDCG@10"
    ),
    "compare --data=data --corpus=nope --model=model --workdir=w": NO_SOURCE,
    "report --run_dir=other": "other is not a run folder: it has no run.json and no finetune.json",
    "encode --model=./nope --corpus=data --out=e": NO_MODEL,
    "encode --model=org/model --corpus=nope --out=e": NO_SOURCE,
    "index --embeddings=other --out=i": NO_VECTORS,
    "search --index=other --model=org/model --query=x": NO_VECTORS,
    "search --corpus=nope --query=x": NO_SOURCE,
    "retrieve --embeddings=other --model=org/model --data=data --run_out=r": NO_VECTORS,
    "bm25 --data=data --split=tset --run_out=r": NO_TEST,
    "bm25 --data=data --language=klingon --run_out=r": (
        "language 'klingon': expected one of arabic, …"
    ),
    "fuse --run=nope --run=run.trec --run_out=r": NO_RUN,
    "rerank --model=./nope --run=run.trec --data=data --run_out=r": NO_MODEL,
    "rerank --model=org/model --run=nope --data=data --run_out=r": NO_RUN,
    "rerank --model=org/model --run=run.trec --data=data --split=tset --run_out=r": NO_TEST,
    "mine --run=nope --data=data --split=test --run_out=r": NO_RUN,
    "evaluate --run=nope --qrels=data/qrels/test.tsv": NO_RUN,
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
    assert re.match(whole(f"cocondenser: {REFUSED[words]}"), line)
    assert not LARGE & {*loaded}


def test_every_command_is_refused_once():
    assert {words.split()[0] for words in REFUSED} == {*PROGRAM.commands}


def test_no_help_loads_a_library(tmp_path):
    answers = answers_of([f"{name} --help" for name in PROGRAM.commands], tmp_path)
    for words, (status, printed, loaded) in answers.items():
        assert (status, printed) == (0, ""), words
        assert not {*LARGE, "ml_collections", "numpy", "scipy"} & {*loaded}, words
