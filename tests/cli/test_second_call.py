"""A command that is called again with one argument changed is refused in one line, or obeys it.

Each command is of one kind: it resumes in its folder, makes a new one, or writes its results anew.
For a command that resumes, every flag stands below with what a second call says that changes it
alone; a flag or command that is added without one fails here.
"""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.cli import flags, main
from cocondenser_jax.cli.flags import PROGRAM
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import workers
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.pipelines import pretraining
from cocondenser_jax.retriever.search import encode
from tests.world import cut_file, make_texts, write_beir, write_records, write_tokenizer

RESUMING = {"adapt", "compare", "corpus", "encode", "finetune", "pretrain", "quickstart"}
MAKING_A_FOLDER = {"convert", "index", "resolve", "vocabulary"}
WRITING_ANEW = {"bm25", "evaluate", "fuse", "mine", "plan", "report", "rerank", "retrieve"}
WRITING_ANEW |= {"search", "verify"}

# What a second call may do with a flag that is changed: the words of its refusal; or
OBEYED = "status 0, and the folder is as it was"
MADE_ANEW = "status 0, and the folder has what is asked for now"
OTHER_FOLDER = "status 0, and the folder is as it was; another one is made"


def started(what):
    """Returns the words of a refusal that names what was different."""
    return rf"^cocondenser: [^\n]* was started with [^;\n]*{what}[^;\n]*: choose a new folder"


ANSWERS = {
    "adapt": {
        "--corpus={place}/other.jsonl": started("corpus_sha256="),
        "--model={other_model}": started("model="),
        "--workdir={place}/elsewhere": OTHER_FOLDER,
        "--data={place}/judged": OBEYED,  # what is trained does not depend on it
        "--metric=MRR@10": "--metric goes with --data",
        "--ignore_identical_ids": "--ignore_identical_ids goes with --data",
        "--language=german": "--language goes with --data",
        "--pooling=cls": started("given.pooling=None, now it is 'cls'"),
        "--similarity=dot": started("given.similarity=None, now it is 'dot'"),
        "--query_prompt=a ": started("given.query_prompt=None, now it is 'a '"),
        "--passage_prompt=a ": started("given.passage_prompt=None, now it is 'a '"),
        "--dimensions=8": started("given.dimensions=None, now it is 8"),
        "--config.seed=7": started("overrides="),
    },
    "encode": {
        "--model={other_model}": started("model_sha256="),
        "--corpus={place}/other": started("corpus_sha256="),
        "--columns=id,text": "--columns says what the columns of .tsv files are",
        "--out={place}/elsewhere": OTHER_FOLDER,
        "--batch_size=3": OBEYED,  # no vector is missing
        "--max_length=12": started("max_length=64, now it is 12"),
        "--shard_size=20": started("shard_size=25, now it is 20"),
        "--task=0/2": "holds the embeddings of one task: choose a new folder",
        "--tasks=2": "already exists: choose a new folder",
        "--workers=1": "--workers goes with --tasks",
        "--executor=slurm": "--executor goes with --tasks",
        "--executor_options={place}/x.json": "--executor_options goes with --executor",
        "--dtype=float16": started("dtype='float32', now it is 'float16'"),
        "--precision=bfloat16": started("precision='float32', now it is 'bfloat16'"),
        "--pooling=cls": started(r"representation\.pooling='mean', now it is 'cls'"),
        "--similarity=dot": started(r"representation\.similarity='cosine', now it is 'dot'"),
        "--query_prompt=a ": started(r"prompts\.query=None, now it is 'a '"),
        "--passage_prompt=a ": started(r"prompts\.document=None, now it is 'a '"),
        "--title_separator=|": started(r"prompts\.title_separator=None, now it is '.'"),
        "--dimensions=8": started(r"sizes=\[\], now it is \[8\]; dimension=32, now it is 8"),
        "--backend=jax": started("backend='torch', now it is 'jax'"),
        "--parquet={place}/vectors.parquet": OBEYED,
        "--json_out={place}/facts.json": OBEYED,
    },
    "compare": {
        "--data={place}/other": started(r"data\.corpus="),
        "--corpus={place}/other": started(r"data\.corpus="),
        "--model={other_model}": MADE_ANEW,  # another row
        "--workdir={place}/elsewhere": OTHER_FOLDER,
        "--split=train": MADE_ANEW,  # of the same vectors
        "--metric=MRR@10": MADE_ANEW,
        "--language=german": started("language='english', now it is 'german'"),
        "--ignore_identical_ids": started("ignore_identical_ids=False, now it is True"),
    },
    "corpus --tasks=2": {
        "--corpus={place}/other_in_files": started("corpus="),
        "--columns=id,text": "--columns says what the columns of .tsv files are",
        "--tokenizer={place}/other_tokenizer": started("tokenizer_sha256="),
        "--out={place}/elsewhere": OTHER_FOLDER,
        "--max_length=12": started("max_length=16, now it is 12"),
        "--short_span_prob=0.5": started("short_span_prob=0.0, now it is 0.5"),
        "--tasks=3": started("tasks=2, now it is 3"),
        "--workers=1": OBEYED,
        "--executor=ray": r"cocondenser-jax\[ray\]",  # the source is read again
        "--executor_options={place}/options.json": "--executor_options goes with --executor",
        "--json_out={place}/facts.json": OBEYED,
    },
    "quickstart": {"--workdir={place}/elsewhere": OTHER_FOLDER},
}
# In tasks, whose settings reach them otherwise, these answers differ.
ANSWERS["encode --tasks=2"] = ANSWERS["encode"] | {
    "--max_length=12": started("max_length=None, now it is 12"),
    "--task=0/2": "give neither --tasks nor --parquet",
    "--tasks=2": OBEYED,
    "--workers=1": OBEYED,  # no task is left
    "--executor=slurm": OBEYED,
    "--precision=bfloat16": started("precision='auto', now it is 'bfloat16'"),
    "--dimensions=8": started(r"sizes=\[\], now it is \[8\]"),
    "--tasks=3": started("tasks=2, now it is 3"),
}
# Their flags are the settings, each of which `tests/pretrain/test_checkpoint.py` and
# `tests/retriever/train/test_trainer.py` change alone.
ELSEWHERE = {"finetune", "pretrain"}


def name_of(words):
    return words.partition("=")[0].removeprefix("--").partition(".")[0]


def test_every_command_is_of_one_kind():
    assert {*PROGRAM.commands} == RESUMING | MAKING_A_FOLDER | WRITING_ANEW
    assert {name.split()[0] for name in ANSWERS} | ELSEWHERE == RESUMING


@pytest.mark.parametrize("name", ANSWERS)
def test_every_flag_of_a_command_that_resumes_has_an_answer(name):
    named = {name_of(words) for words in ANSWERS[name]}
    declared = {each.name for each in PROGRAM.commands[name.split()[0]].params}
    assert named == {"config" if each == "overrides" else each for each in declared}


@pytest.fixture(scope="module")
def place(tmp_path_factory, beir, words):
    """Texts, tokenizers and a collection, each twice."""
    folder = tmp_path_factory.mktemp("second_call")
    rng = np.random.default_rng(0)
    for name in ("texts", "other"):
        texts = [{"text": " ".join(rng.choice(words, 14))} for _ in range(40)]
        write_records(folder / f"{name}.jsonl", texts)
        cut_file(folder / f"{name}.jsonl", folder / f"{name}_in_files", 3)
    write_tokenizer(folder / "tokenizer", make_texts(9))
    write_tokenizer(folder / "other_tokenizer", make_texts(9), vocab_size=70)
    for name in ("data", "other"):
        shutil.copytree(beir, folder / name)
        judgments = folder / name / "qrels" / "train.tsv"
        lines = judgments.read_text().splitlines(keepends=True)
        judgments.with_name("test.tsv").write_text("".join(lines[:9]))
    write_beir(folder / "judged", ["a", "b"], ["a", "b"], {"test": [0, 1]})
    corpus = folder / "other" / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace('"text": "', '"text": "a ', 1))
    (folder / "options.json").write_text("{}")
    return folder


FIRST = {
    "adapt": "--corpus={place}/texts.jsonl --model={model} --workdir={out}"
    " --config.data.length=64 --config.data.batch_size=8",
    "compare": "--data={place}/data --model={model} --workdir={out}",
    "encode": "--model={model} --corpus={beir} --shard_size=25 --out={out}",
    "corpus": "--corpus={place}/texts_in_files --tokenizer={place}/tokenizer --max_length=16"
    " --out={out}",
}


@pytest.fixture
def run(place, model_folder, make_model, beir, tmp_path, monkeypatch, capsys):
    """Gives a function that runs a command with flags after those of `FIRST`."""

    def run_here(work, missing, engine, bar):
        for index in missing:
            workers._run_task(work, index)

    def stop(*_):
        raise UserError("no further")

    monkeypatch.setitem(workers._EXECUTORS, "local", run_here)
    monkeypatch.setattr(flags, "_PACKAGES", {})
    monkeypatch.setattr(pretraining, "pretrain_model", stop)
    monkeypatch.setattr(adapting, "start_comparison", stop)
    encode._load_encoder_once.cache_clear()
    facts = {
        "place": place,
        "model": model_folder,
        "other_model": make_model(seed=1),
        "beir": beir,
        "out": tmp_path / "out",
    }

    def run(name, changed=()):
        command, *in_tasks = name.split()
        # Split before paths are put in; one flag that is changed may hold a space.
        params = PROGRAM.commands[command].params
        several = {param.opts[0] for param in params if getattr(param, "multiple", False)}
        replaced = {word.partition("=")[0] for word in changed} - several
        first = [*FIRST[command].split(), *in_tasks]
        words = [word for word in first if word.partition("=")[0] not in replaced] + [*changed]
        status = main([command, *(word.format(**facts) for word in words)])
        error = capsys.readouterr().err
        if error.endswith("cocondenser: no further\n"):
            status = 0
        return status, error.splitlines()[-1] if status else ""

    yield run
    encode._load_encoder_once.cache_clear()


def contents(folder):
    """Returns the files of a folder, but for the seconds that its steps took."""
    return {
        path.relative_to(folder): re.sub(rb'"seconds": [^,]*', b"", path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != "seconds.json"
    }


@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "quickstart"])
def test_a_second_call_with_one_flag_changed(name, run, place, tmp_path):
    elsewhere = place / "elsewhere"
    assert run(name) == (0, "")
    before = contents(shutil.copytree(tmp_path / "out", tmp_path / "copy"))
    assert run(name) == (0, "")
    for words, answer in ANSWERS[name].items():
        status, said = run(name, [words])
        if answer == MADE_ANEW:
            assert (status, said) == (0, ""), words
            assert contents(tmp_path / "out") != before, words
            shutil.rmtree(tmp_path / "out")
            shutil.copytree(tmp_path / "copy", tmp_path / "out")
            continue
        assert contents(tmp_path / "out") == before, words
        if answer in (OBEYED, OTHER_FOLDER):
            assert (status, said) == (0, ""), words
        else:
            assert status == 2, words
            assert re.search(answer, said), (words, said)
        assert elsewhere.exists() == (answer == OTHER_FOLDER), words
        shutil.rmtree(elsewhere, ignore_errors=True)
        file = place / Path(words.partition("=")[2]).name
        if name_of(words) in ("json_out", "parquet"):
            assert file.stat().st_size
            file.unlink()
