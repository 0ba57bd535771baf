"""What user errors get: one line that names the mistake, and nothing left behind."""

import shutil

import pytest

from cocondenser_jax.cli import main
from tests.cli.workplace import make_workplace, smaller
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


# Commands with one mistake each, and what the one line has to say; {folder} is the workplace.
CASES = {
    "missing corpus": (corpus("{folder}/none.jsonl"), "none.jsonl"),
    "unknown source": (corpus("gopher:x"), "gopher"),
    "empty corpus": (corpus("{folder}/empty.jsonl"), "no documents"),
    "broken JSON": (corpus("{folder}/broken.jsonl"), "broken.jsonl:2"),
    "not UTF-8": (corpus("{folder}/latin1.txt"), "UTF-8"),
    "no text": (corpus("{folder}/nothing.jsonl"), "nothing.jsonl:1"),
    "a document of 50 MB": (corpus("{folder}/huge.txt"), "huge.txt:1"),
    "no tokenizer": (
        ["corpus", "--corpus=pydocs", "--tokenizer={folder}/data", "--out={folder}/out"],
        "tokenizer",
    ),
    "a folder that is taken": (
        [*corpus("{folder}/articles.jsonl.xz")[:-1], "--out={folder}/data"],
        "already exists",
    ),
    "one task": ([*corpus("pydocs"), "--tasks=1"], "1 is not in the range x>=2"),
    "workers of no task": ([*corpus("pydocs"), "--workers=2"], "--workers goes with --tasks"),
    "options of no executor": (
        [*corpus("pydocs"), "--tasks=2", "--executor_options=x"],
        "--executor_options goes with --executor",
    ),
    "chunk size": (pretrain("--config.train.chunk_size=3"), "chunk_size 3 does not divide"),
    "no kernel": (
        pretrain("--config.train.attention=kernel"),
        "config.train.attention is 'kernel': there is none for this device",
    ),
    "unknown key": (
        pretrain("--config.train.stepz=3"),
        "stepz': did you mean config.train.steps or",
    ),
    "wrong type": (pretrain("--config.train.steps=many"), "steps is 'many'; expected a whole"),
    "unknown flag": (pretrain("--steps=3"), "No such option '--steps'"),
    "mistyped flag": (pretrain("--workdri=x"), "'--workdri'. Did you mean '--workdir'?"),
    "no store": (
        pretrain("--config.data.store="),
        "expected a store made by `corpus`",
    ),
    "not a store": (pretrain("--config.data.store={folder}/data"), "data"),
    "tokenizer of another model": (
        pretrain("--config.warm_start={folder}/other", "--config.model.n_head_layers=2"),
        "build the store with the model's own tokenizer",
    ),
    "no collection to probe": (
        pretrain("--config.probe.data={folder}/none"),
        "none does not exist: expected a folder of passages",
    ),
    "no such split to probe": (
        pretrain("--config.probe.data={folder}/data", "--config.probe.split=dev"),
        "no judgments of split 'dev'",
    ),
    "workdir with something else": (pretrain("--workdir={folder}/data"), "already exists"),
    "workdir that is a file": (pretrain("--workdir={folder}/empty.jsonl"), "already exists"),
    "batch larger than the corpus": (
        pretrain("--config.data.batch_size=400"),
        "takes 400 documents of two spans",
    ),
    "trace in a file": (
        pretrain("--profile_dir={folder}/empty.jsonl"),
        "empty.jsonl is not a folder",
    ),
    "collection without a probe": (
        pretrain("--config.probe.data={folder}/data", "--config.probe.every=0"),
        "but config.probe.every is 0",
    ),
    "no such run": (["convert", "--run_dir={folder}/none", "--out={folder}/out"], "none"),
    "no qrels": (
        ["evaluate", "--run={folder}/runs/test.trec", "--qrels={folder}/none.tsv"],
        "none.tsv",
    ),
    "missing flag": (["evaluate"], "Missing options '--run', '--qrels'"),
    "unknown command": (["pretrian"], "command 'pretrian'. (Did you mean one of: 'pretrain'"),
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
    assert says in lines[0]
    assert sorted(path.name for path in folder.iterdir()) == before
    assert sorted(path.name for path in (folder / "data").rglob("*")) == data
