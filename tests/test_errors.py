"""How error messages are worded."""

import subprocess
import sys

import pytest

from cocondenser_jax.errors import (
    UserError,
    first_line,
    first_three,
    lookup,
    name_extra,
    shortened,
    whole_message,
)
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.representation import Representation
from cocondenser_jax.retriever.search.embeddings import Manifest
from tests.lines import whole
from tests.world import write_store


def test_user_error_is_one_line():
    assert str(UserError("a\nb")) == "a b"


def test_user_error_leaves_the_terminal_alone():
    # It may quote a file: clear the screen, fill the clipboard, overwrite the line, delete.
    quoted = "é\t\x1b[2J \x1b]52;c;cm0=\x07 \x9b2J \x7f \x00"
    escaped = r"\x1b[2J \x1b]52;c;cm0=\x07 \x9b2J \x7f \x00"
    assert str(UserError(quoted)) == f"é\t{escaped}"
    assert "\r" not in str(UserError("a\rb"))
    assert str(UserError("a path \udcff")) == r"a path \xff"


@pytest.mark.parametrize(
    ("message", "line"),
    [("one", "one"), ("\n one\ntwo", "one"), ("one\r\ntwo", "one"), (" \n", "ValueError")],
)
def test_first_line_of_a_message(message, line):
    assert first_line(ValueError(message)) == line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("one", "one"),
        (
            "Couldn't cast\ntext: string\n  more: int64\nto",
            "Couldn't cast text: string more: int64 to",
        ),
        (" \n", "ValueError"),
        ("x" * 300, "x" * 300),
        ("word " * 100 + "the cause", "word " * 30 + "... " + "word " * 28 + "the cause"),
    ],
)
def test_a_whole_message_in_one_line(message, line):
    assert whole_message(ValueError(message)) == line


def test_first_three_names():
    assert first_three([]) == ""
    assert first_three(["a", "b", "c"]) == "a, b, c"
    assert first_three(["a", "b", "c", "d"]) == "a, b, c, ..."


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("jax.numpy", "pretrain"),
        ("faiss", "retrieval"),
        ("torch", "retrieval"),
        ("jinja2", "report"),
        ("tensorflow_datasets", "tfds"),
        ("datatrove.executor", "cluster"),
        ("ray", "ray"),
        ("tensorboard.compat", "tensorboard"),
        ("wandb", "wandb"),
        ("trackio", "trackio"),
    ],
)
def test_a_missing_package_is_worded_as_the_extra_that_holds_it(name, extra):
    package = name.split(".")[0]
    message = f"{package} is missing; it comes with: pip install 'cocondenser-jax[{extra}]'"
    assert str(name_extra(ModuleNotFoundError(name=name))) == message


@pytest.mark.parametrize("name", ["cocondenser_jax.nothing", "numpy", None])
def test_a_missing_package_of_no_extra_is_not_worded(name):
    assert name_extra(ModuleNotFoundError(name=name)) is None


PRETRAIN = [
    "pretrain",
    "--config=configs/small.py",
    "--workdir=run",
    "--config.data.store=made/store",
]
MANIFEST = Manifest(
    model="m",
    model_sha256="",
    representation=Representation(),
    max_length=None,
    precision="float32",
    backend="torch",
    batch_size=1,
    dimension=1,
    dtype="float32",
    corpus="c",
    corpus_sha256="",
    passages=1,
    shard_size=1,
)
IN_PARTS = ["--corpus=a.txt", "--tokenizer=t", "--out=store", "--tasks=2"]


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("jax", ["convert", "--run_dir=run", "--out=m"]),
        ("faiss", ["index", "--embeddings=vectors", "--out=i"]),
        ("datatrove", ["corpus", *IN_PARTS, "--executor=slurm"]),
        ("ray", ["corpus", *IN_PARTS, "--executor=ray"]),
        ("wandb", [*PRETRAIN, "--config.tracker=wandb"]),
    ],
)
def test_a_command_whose_packages_are_missing_names_the_extra(tmp_path, package, command):
    write_store(
        tmp_path / "made", ["one two three four five six seven eight nine ten"]
    )  # missing files are looked for first
    write_json(tmp_path / "run" / "run.json", {})
    write_json(tmp_path / "vectors" / "manifest.json", MANIFEST.to_json())
    code = f"import sys; sys.modules[{package!r}] = None\n"
    code += "from cocondenser_jax.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"cocondenser: {package} is missing; it comes with: pip install")
    assert package != "ray" or done.stderr.endswith(" 'cocondenser-jax[ray]'\n")
    assert done.stderr.count("\n") == 1
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"made", "run", "vectors"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" one\n  two\tthree", "one two three"),
        ("word " * 1000, "word word …"),
        ("文" * 1000, "文" * 13 + " …"),  # words without spaces between them
    ],
)
def test_a_shortened_text(text, shown):
    assert shortened(text, 13) == shown


def test_a_wrong_name_is_answered_with_those_that_resemble_it_or_the_first_three():
    known = {name: name.upper() for name in ("aa", "bb", "cc", "dd")}
    assert lookup(known, "cc", "thing") == "CC"
    for name, shown in (("dx", "dd"), ("xyz", "aa or bb or cc")):
        said = f"no thing {name!r}: did you mean {shown}?"
        with pytest.raises(UserError, match=whole(said)):
            lookup(known, name, "thing")
