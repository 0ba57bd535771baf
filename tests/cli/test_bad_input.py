"""What user errors get: one line that names the mistake, and nothing left behind."""

import re
import shutil

import pytest

from cocondenser_jax.cli import main
from tests.cli.workplace import make_workplace, smaller
from tests.lines import whole
from tests.world import instead, write_tokenizer

TEXTS = {
    "empty.jsonl": b"",
    "broken.jsonl": b'{"text": "one"}\n{"text": \n',
    "latin1.txt": b"caf\xe9\n",
    "nothing.jsonl": b'{"name": "no text"}\n',
}


def corpus(source):
    tokenizer = "--tokenizer={folder}/bert-base-uncased"
    return ["corpus", f"--corpus={source}", tokenizer, "--out={folder}/out"]


def pretrain(*words):
    small = ["--config.data.store={folder}/stores/wiki", *smaller("pretrain")]
    command = ["pretrain", "--config=configs/small.py", "--workdir={folder}/out"]
    return instead([*command, *small], words)


# Commands with one mistake each, and the line that says so, as `whole` reads it; {folder} is the
# workplace.
CASES = {
    "missing corpus": (
        corpus("{folder}/none.jsonl"),
        (
            "TMP/none.jsonl does not exist: expected pydocs, pydocs:numpy,scipy, a .txt, "
            ".md, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or "
            "pattern of them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or "
            "tfds:NAME_OR_FOLDER[:SPLIT]"
        ),
    ),
    "unknown source": (
        corpus("gopher:x"),
        (
            "gopher:x does not exist: expected pydocs, pydocs:numpy,scipy, a .txt, .md, "
            ".jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or pattern of "
            "them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or tfds:NAME_OR_FOLDER[:SPLIT]"
        ),
    ),
    "empty corpus": (corpus("{folder}/empty.jsonl"), "TMP/empty.jsonl holds no documents"),
    "broken JSON": (corpus("{folder}/broken.jsonl"), "TMP/broken.jsonl:2 is not valid JSON: …"),
    "not UTF-8": (corpus("{folder}/latin1.txt"), "TMP/latin1.txt:1: not UTF-8"),
    "no text": (
        corpus("{folder}/nothing.jsonl"),
        "TMP/nothing.jsonl:1 has no `text` (a string) and no `spans` (a list of strings)",
    ),
    "a document of 50 MB": (
        corpus("{folder}/huge.txt"),
        "TMP/huge.txt:1: a line is larger than 50 MB; split it first",
    ),
    "no tokenizer": (
        ["corpus", "--corpus=pydocs", "--tokenizer={folder}/data", "--out={folder}/out"],
        "TMP/data holds no tokenizer that loads: …",
    ),
    "a folder that is taken": (
        [*corpus("{folder}/articles.jsonl.xz")[:-1], "--out={folder}/data"],
        "TMP/data already exists: choose a new folder, or remove it first",
    ),
    "one task": (
        [*corpus("pydocs"), "--tasks=1"],
        "Invalid value for '--tasks': 1 is not in the range x>=2…",
    ),
    "workers of no task": (
        [*corpus("pydocs"), "--workers=2"],
        "--workers goes with --tasks (see cocondenser corpus --help)",
    ),
    "options of no executor": (
        [*corpus("pydocs"), "--tasks=2", "--executor_options=x"],
        "--executor_options goes with --executor (see cocondenser corpus --help)",
    ),
    "chunk size": (
        pretrain("--config.train.chunk_size=3"),
        (
            "config.train.chunk_size 3 does not divide the 4 spans of a device (32 spans "
            "/ 8 devices)"
        ),
    ),
    "no kernel": (
        pretrain("--config.train.attention=kernel"),
        (
            "config.train.attention is 'kernel': there is none for this device, only for "
            "NVIDIA GPUs since Ampere and for TPUs since v4; expected auto or xla"
        ),
    ),
    "unknown key": (
        pretrain("--config.train.stepz=3"),
        (
            "no setting 'config.train.stepz': did you mean config.train.steps or "
            "config.train.dtype or config.train.epochs?"
        ),
    ),
    "wrong type": (
        pretrain("--config.train.steps=many"),
        "config.train.steps is 'many'; expected a whole number from 0 steps",
    ),
    "unknown flag": (pretrain("--steps=3"), "No such option '--steps'…"),
    "mistyped flag": (
        pretrain("--workdri=x"),
        "No such option '--workdri'. Did you mean '--workdir'?…",
    ),
    "no store": (
        pretrain("--config.data.store="),
        (
            "config.data.store is ''; expected a store made by `corpus`; or several, "
            "with weights: `wiki,2*books` reads books twice"
        ),
    ),
    "not a store": (
        pretrain("--config.data.store={folder}/data"),
        "TMP/data is not a store, or is unfinished: it has no manifest.json",
    ),
    "tokenizer of another model": (
        pretrain("--config.warm_start={folder}/other", "--config.model.n_head_layers=2"),
        (
            "the store TMP/stores/wiki was made with another tokenizer than TMP/other: "
            "build the store with the model's own tokenizer"
        ),
    ),
    "no collection to probe": (
        pretrain("--config.probe.data={folder}/none"),
        "TMP/none does not exist: expected a folder of passages, queries and judgments",
    ),
    "no such split to probe": (
        pretrain("--config.probe.data={folder}/data", "--config.probe.split=dev"),
        "TMP/data has no judgments of split 'dev': it has qrels/test.tsv, qrels/train.tsv",
    ),
    "workdir with something else": (
        pretrain("--workdir={folder}/data"),
        "TMP/data already exists: choose a new folder, or remove it first",
    ),
    "workdir that is a file": (
        pretrain("--workdir={folder}/empty.jsonl"),
        "TMP/empty.jsonl already exists: choose a new folder, or remove it first",
    ),
    "batch larger than the corpus": (
        pretrain("--config.data.batch_size=400"),
        (
            "config.data.batch_size 400 takes 400 documents of two spans of "
            "TMP/stores/wiki into each batch; expected 1 to 36, the number that is not "
            "held out, because no batch contains one twice"
        ),
    ),
    "trace in a file": (
        pretrain("--profile_dir={folder}/empty.jsonl"),
        "cannot write TMP/empty.jsonl/trace: TMP/empty.jsonl is not a folder",
    ),
    "collection without a probe": (
        pretrain("--config.probe.data={folder}/data", "--config.probe.every=0"),
        (
            "config.probe.data is 'TMP/data', but config.probe.every is 0: expected a "
            "number of steps between two probes"
        ),
    ),
    "no such run": (
        ["convert", "--run_dir={folder}/none", "--out={folder}/out"],
        "TMP/none is not a run folder: it has no run.json",
    ),
    "no qrels": (
        ["evaluate", "--run={folder}/runs/test.trec", "--qrels={folder}/none.tsv"],
        "cannot read TMP/none.tsv: No such file or directory",
    ),
    "missing flag": (["evaluate"], "Missing options '--run', '--qrels'…"),
    "unknown command": (
        ["pretrian"],
        "No such command 'pretrian'. (Did you mean one of: 'pretrain'…",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, research_folders):
    """A workplace with a store, a model of another vocabulary, a run file, and an index."""
    folder = make_workplace(tmp_path_factory.mktemp("bad"))
    arguments = [f"--corpus={folder}/articles.jsonl.xz", f"--out={folder}/stores/wiki"]
    tokenizer = f"--tokenizer={folder}/bert-base-uncased"
    assert main(["corpus", *arguments, tokenizer, *smaller("corpus")]) == 0
    shutil.copytree(research_folders["bert"], folder / "other")
    write_tokenizer(folder / "other", ["some other words entirely"] * 9, 40)
    (folder / "runs" / "index").mkdir(parents=True)
    (folder / "runs" / "index" / "manifest.json").write_text("{}")
    for name, content in TEXTS.items():
        (folder / name).write_bytes(content)
    (folder / "huge.txt").write_bytes(b"word " * 10_500_000)
    (folder / "runs" / "test.trec").write_text("q30 Q0 p30 1 1.0 test\n")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_one_line_and_leaves_nothing(case, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    data = sorted(path.name for path in (folder / "data").rglob("*"))
    words, says = CASES[case]
    capsys.readouterr()
    assert main([word.replace("{folder}", str(folder)) for word in words]) == 2
    lines = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("cocondenser:")
    ]
    assert len(lines) == 1
    assert re.match(whole(f"cocondenser: {says}"), lines[0])
    assert sorted(path.name for path in folder.iterdir()) == before
    assert sorted(path.name for path in (folder / "data").rglob("*")) == data
