"""`--help`: the commands in the order of the pipeline, each with an example that parses."""

import contextlib
import io
import re
import shlex

import pytest

from cocondenser_jax.cli import _make_parser

PIPELINE = ["quickstart", "corpus", "pretrain", "convert", "finetune", "search", "evaluate"]


def help_of(command):
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as stopped:
        _make_parser().parse_args([*command.split(), "--help"])
    assert stopped.value.code == 0
    return printed.getvalue()


def listed(command):
    """Returns the commands of the program, or of a group of commands; none of a command."""
    return re.findall(r"^ {4}(\w+)", help_of(command), re.MULTILINE)


def leaves(command=""):
    inner = [leaf for name in listed(command) for leaf in leaves(f"{command} {name}".strip())]
    return inner or [command]


def test_commands_are_listed_in_the_order_of_the_pipeline():
    assert [command for command in listed("") if command in PIPELINE] == PIPELINE


@pytest.mark.parametrize("command", leaves())
def test_the_example_of_a_command_can_be_typed(command):
    example = help_of(command).split("example:\n  cocondenser ")[1]
    assert example.startswith(f"{command} --")
    arguments, rest = _make_parser().parse_known_args(shlex.split(example))
    assert all(flag.startswith("--config.") and hasattr(arguments, "config") for flag in rest)
