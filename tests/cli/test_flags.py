"""How flags are read: what is missing, what is in the wrong place, and how they are written."""

import contextlib
import json
import re
from pathlib import Path

import click
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.cli.flags import CORPUS, DATA, OVERRIDES, PROGRAM
from cocondenser_jax.retriever.data import named as collections
from cocondenser_jax.retriever.data.trec import read_run
from tests.lines import whole
from tests.world import write_records


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("adapt", "Missing options '--corpus', '--model', '--workdir'.…"),
        ("adapt --corpus=x", "Missing options '--model', '--workdir'.…"),
        ("adapt --corpus=x --model=y", "Missing option '--workdir'.…"),
        (
            "adapt d.jsonl",
            (
                "unexpected argument 'd.jsonl': did you mean --corpus=d.jsonl? (see "
                "cocondenser adapt --help)"
            ),
        ),
        (
            "encode docs",
            (
                "unexpected argument 'docs': did you mean --corpus=docs? (see cocondenser "
                "encode --help)"
            ),
        ),
        (
            "retrieve data",
            (
                "unexpected argument 'data': did you mean --data=data? (see cocondenser "
                "retrieve --help)"
            ),
        ),
        (
            "evaluate a.trec",
            (
                "unexpected argument 'a.trec': did you mean --run=a.trec? (see cocondenser "
                "evaluate --help)"
            ),
        ),
        (
            "evaluate --run=a b",
            ("unexpected argument 'b': did you mean --qrels=b? (see cocondenser evaluate --help)"),
        ),
        ("verify --store=a b", "unexpected argument 'b' (see cocondenser verify --help)"),
        ("evaluate --run=a --qrels=b --top-k=3", "No such option '--top_k'…"),
        ("mine --run=a --data=d --out=f", "--out is now --run_out (see cocondenser mine --help)"),
        (
            "convert --checkpoint run --out=m",
            "--checkpoint is now --run_dir (see cocondenser convert --help)",
        ),
        ("report --workdir=run", "--workdir is now --run_dir (see cocondenser report --help)"),
        ("search --corpus=a --top-k=3", "--top_k is now --depth (see cocondenser search --help)"),
        ("corpus --source=a", "--source is now --corpus (see cocondenser …"),
        ("vocabulary --source a --out=v", "--source is now --corpus (see cocondenser …"),
        (
            "corpus --corpus=a --max-tokens=9",
            "--max_tokens is now --max_length (see cocondenser corpus --help)",
        ),
        (
            "encode --corpus=a --passage_length 9",
            "--passage_length is now --max_length (see cocondenser encode --help)",
        ),
        (
            "evaluate --run=a --qrels=b --metrics=AP",
            "--metrics is now --metric (see cocondenser evaluate --help)",
        ),
        (
            "search --corpus=a wind",
            (
                "unexpected argument 'wind': did you mean --query=wind? (see cocondenser "
                "search --help)"
            ),
        ),
        (
            "search --corpus=a --query=b wind",
            "unexpected argument 'wind' (see cocondenser search --help)",
        ),
        (
            "finetune --config=c --workdir=w --folder=x",
            (
                "--folder is the last name of several settings: --config.data.folder or "
                "--config.model.folder (see cocondenser finetune --help)"
            ),
        ),
        (
            "finetune --config=c --workdir=w --epochs 3",
            "unexpected argument '3' (see cocondenser finetune --help)",
        ),
        (
            "finetune --config=c --workdir=w --epochs",
            "a setting is given as --epochs=VALUE (see cocondenser finetune --help)",
        ),
        ("finetune --config=c --workdir=w --learning_rat=1", "No such option '--learning_rat'…"),
        ("pretrain --config=c --workdir=w --steps=3", "No such option '--steps'…"),
    ],
)
def test_what_is_missing_or_in_the_wrong_place_is_one_line(words, says, capsys):
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(whole(f"cocondenser: {says}"), line)


def test_finetune_takes_a_setting_by_its_last_name():
    words = ["--config=c", "--workdir=w", "--learning-rate=1e-5", "--seed=1", "--epochs=a=b"]
    with PROGRAM.make_context("x", ["finetune", *words]) as program:
        command = PROGRAM.commands["finetune"]
        with command.make_context("finetune", words, parent=program) as context:
            assert context.params["overrides"] == (
                "--config.optimizer.learning_rate=1e-5",
                "--config.seed=1",
                "--config.train.epochs=a=b",
            )


def words_of(flag):
    """Returns the words that give a flag a value of its kind: a number, a choice or its name."""
    if flag.is_flag:
        return [f"--{flag.name}"]
    if isinstance(flag.type, click.Choice):
        return [f"--{flag.name}={flag.type.choices[-1]}"]
    for value in ("id,text" if flag.name == "columns" else flag.name, "2", "1", "1/2"):
        with contextlib.suppress(click.BadParameter):
            flag.type.convert(value, flag, None)
            return [f"--{flag.name}={value}"]
    raise AssertionError(flag.name)


def ways_to(flag, by_name):
    """Returns, for each flag that one goes with, the words of this one and of what it needs."""
    if not flag.goes_with:
        return [words_of(flag)]
    needed = [by_name[name] for name in flag.goes_with]
    return [[*way, *words_of(flag)] for each in needed for way in ways_to(each, by_name)[:1]]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command.name, flag.name)
        for command in PROGRAM.commands.values()
        for flag in command.params
        if getattr(flag, "goes_with", ())
    ],
)
def test_a_flag_goes_with_any_one_of_those_that_it_names(
    command, name, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    called = []
    monkeypatch.setattr(PROGRAM.commands[command], "callback", lambda **given: called.append(given))
    by_name = {flag.name: flag for flag in PROGRAM.commands[command].params}
    flag = by_name[name]
    required = [
        word
        for each in by_name.values()
        if each.required and each.name not in flag.goes_with
        for word in words_of(each)
    ]
    assert main([command, *required, *words_of(flag)]) == 2
    assert f"--{name} goes with --{flag.goes_with[0]}" in capsys.readouterr().err
    ways = ways_to(flag, by_name)
    assert len(ways) == len(flag.goes_with)
    for way in ways:
        assert main([command, *required, *way]) == 0
    assert len(called) == len(ways)


NAMED = [
    (command.name, flag.name)
    for command in PROGRAM.commands.values()
    for flag in command.params
    if flag.type in (CORPUS, DATA) or flag is OVERRIDES
]


def test_data_that_may_have_a_name_is_known_as_such():
    """Where a command reads documents, passages or judgments, a collection's name will do."""
    named = {"corpus", "data", "overrides"}
    told = {
        (command.name, flag.name)
        for command in PROGRAM.commands.values()
        for flag in command.params
        if flag.name in named
    }
    assert told == {*NAMED}


def record_calls(command, monkeypatch):
    """Lets a command do nothing but note what its function would get."""
    called = []
    monkeypatch.setattr(PROGRAM.commands[command], "callback", lambda **given: called.append(given))
    return called


def around(command, name):
    """Returns a command's flags by name, the one of a name, and the words of others it needs."""
    by_name = {flag.name: flag for flag in PROGRAM.commands[command].params}
    flag = by_name[name]
    others = [each for each in by_name.values() if each.required and each is not flag]
    return by_name, flag, [word for each in others for word in words_of(each)]


@pytest.mark.parametrize(("command", "name"), NAMED)
def test_a_command_gets_the_folder_of_a_named_collection(command, name, monkeypatch, tmp_path):
    """Of each, where a flag may be repeated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(collections, "find_data", lambda each: Path("cache", *str(each).split(":")))
    called = record_calls(command, monkeypatch)
    by_name, flag, words = around(command, name)
    if isinstance(flag, click.Option):
        words += [word for word in ways_to(flag, by_name)[0] if not word.startswith(f"--{name}=")]
    if flag is OVERRIDES:
        words += ["--config.data.folder=beir:x", "--config.data.split=a=b", "--config.seed=7"]
        expected = (
            "--config.data.folder=cache/beir/x",
            "--config.data.split=a=b",
            "--config.seed=7",
        )
    elif flag.multiple:
        words += [f"--{name}=beir:x", f"--{name}=nano:y"]
        expected = ("cache/beir/x", "cache/nano/y")
    else:
        words += [f"--{name}=beir:x"]
        expected = Path("cache/beir/x") if flag.type is DATA else "cache/beir/x"
    assert main([command, *words]) == 0
    ((given,),) = [[each[name] for each in called]]
    assert given == expected


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command.name, flag.name)
        for command in PROGRAM.commands.values()
        for flag in command.params
        if isinstance(flag, click.Option) and not flag.is_flag
    ],
)
def test_a_flag_that_takes_one_value_is_given_once(command, name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    called = record_calls(command, monkeypatch)
    by_name, flag, words = around(command, name)
    words += [word for word in ways_to(flag, by_name)[0] if word not in words]
    status = main([command, *words, *words_of(flag)])
    if flag.multiple:
        assert (status, len(called)) == (0, 1)
    else:
        assert (status, called) == (2, [])
        assert f"--{name} is given twice: expected once (see" in capsys.readouterr().err


def test_help_needs_no_flag_and_takes_any_word(capsys):
    assert main(["adapt", "d.jsonl", "--help"]) == 0
    assert "Adapt an embedding model" in capsys.readouterr().out


def test_hyphens_stand_for_underscores(tmp_path):
    corpus = write_records(tmp_path / "docs.jsonl", [{"text": "aa bb"}, {"text": "bb cc"}])
    queries = write_records(tmp_path / "queries.jsonl", [{"_id": "q", "text": "bb cc"}])
    names = [f"--run-out={tmp_path}/a", f"--json-out={tmp_path}/a.json", "--ignore-identical-ids"]
    assert main(["bm25", f"--data={queries}", f"--corpus={corpus}", "--language=none", *names]) == 0
    assert list(read_run(tmp_path / "a")["q"]) == ["2", "1"]
    assert json.loads((tmp_path / "a.json").read_text())["queries"] == 1
    runs = [f"--run={tmp_path}/a", f"--run={tmp_path}/a", f"--run-out={tmp_path}/b"]
    assert main(["fuse", "--method=min-max", *runs]) == 0
    assert list(read_run(tmp_path / "b")["q"]) == ["2", "1"]
