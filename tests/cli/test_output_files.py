"""Files that a command writes: checked before its work, and never one that another flag names."""

import re

import click
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.cli.flags import OUTPUT_FILE, PROGRAM
from tests.lines import refusal, whole
from tests.world import write_qrels

OUTPUTS = [
    (name, flag.name)
    for name, command in PROGRAM.commands.items()
    for flag in command.params
    if flag.type is OUTPUT_FILE
]


def test_flags_of_files_to_write_are_known_as_such():
    """The help of a flag tells whether its file is written."""
    told = {
        (name, flag.name)
        for name, command in PROGRAM.commands.items()
        for flag in command.params
        if isinstance(flag, click.Option) and "write" in str(flag.help)
    }
    assert told == {*OUTPUTS}


@pytest.mark.parametrize(("name", "flag_name"), OUTPUTS)
def test_a_file_that_cannot_be_written_is_refused_before_all_work(
    tmp_path, capsys, monkeypatch, name, flag_name
):
    command = PROGRAM.commands[name]
    by_name = {flag.name: flag for flag in command.params}
    needed = [flag.name for flag in command.params if flag.required]
    chained = by_name[flag_name]
    while chained.goes_with:
        chained = by_name[chained.goes_with[0]]
        needed.append(chained.name)
    required = [f"--{name}={name}" for name in needed]
    called = []
    monkeypatch.setattr(command, "callback", lambda **values: called.append(values))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for place, says in (
        ("folder", "it exists and is not a file"),
        ("file/new", f"{tmp_path}/file is not a folder"),
    ):
        words = [word for word in required if not word.startswith(f"--{flag_name}=")]
        assert main([name, *words, f"--{flag_name}={place}"]) == 2
        line = f"cocondenser: cannot write {place}: {says}"
        assert capsys.readouterr().err.splitlines()[-1] == line
    assert not called
    assert main([name, *words, f"--{flag_name}=other/new"]) == 0
    assert len(called) == 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two runs and judgments of a query."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"q Q0 {name} 1 1.0 x\n")
    write_qrels(tmp_path / "judged", {"q": {"one": 1}})
    (tmp_path / "link").symlink_to("one")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("fuse --run=one --run=two --run_out=two", ("run_out", "run")),
        ("fuse --run=one --run=two --run_out=./x/../two", ("run_out", "run")),
        ("fuse --run=link --run=two --run_out=one", ("run_out", "run")),
        ("fuse --run=one --run=two --run_out=link", ("run_out", "run")),
        ("fuse --run=one --run=two --run_out=new --json_out=new", ("run_out", "json_out")),
        ("evaluate --run=one --qrels=judged --json_out=judged", ("json_out", "qrels")),
        ("corpus --corpus=one --tokenizer=t --out=new --json_out=one", ("json_out", "corpus")),
    ],
)
def test_a_file_that_another_flag_names_is_not_replaced(folder, capsys, command, flags):
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert main(command.split()) == 2
    first, second = flags
    said = f"--{first} and --{second} name the same file: …"
    assert re.match(whole(said), refusal(capsys))
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["queries.jsonl", "corpus.tsv.gz", "qrels/test.tsv"])
def test_a_file_of_a_data_folder_is_not_replaced(name, folder, capsys):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    assert main(f"fuse --run=one --run=two --run_out={name}".split()) == 2
    is_taken = "has the name of a data folder's passages, queries or judgments"
    line = f"cocondenser: {name} exists, and {is_taken}: choose another one"
    assert capsys.readouterr().err.splitlines()[-1] == line
    assert path.read_text() == "mine"


def test_what_is_no_path_is_no_file(folder):
    """A text that is the name of no file, such as a language, hinders nothing."""
    assert main("evaluate --run=one --qrels=judged --metric=MRR@10 --json_out=MRR@10".split()) == 0
    assert (folder / "MRR@10").is_file()


def test_judgments_are_not_replaced_from_within_their_folder(folder, monkeypatch, capsys):
    """Where the name alone does not say what the file is."""
    path = folder / "qrels" / "test.tsv"
    path.parent.mkdir()
    path.write_text("mine")
    monkeypatch.chdir(path.parent)
    assert main("fuse --run=../one --run=../two --run_out=test.tsv".split()) == 2
    assert refusal(capsys).startswith("test.tsv exists, and has the name of a data folder's")
    assert path.read_text() == "mine"
