"""`--help`: the commands in the order of the pipeline, each with an example that parses."""

import re
import shlex

import pytest

from cocondenser_jax.cli import _make_parser, main

PIPELINE = ["quickstart", "corpus", "pretrain", "convert", "finetune", "search", "evaluate"]


def listed(help_text: str) -> list[str]:
    return re.findall(r"^ {4}(\w+)", help_text, re.MULTILINE)


COMMANDS = listed(_make_parser().format_help())


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_commands_are_listed_in_the_order_of_the_pipeline() -> None:
    assert [command for command in COMMANDS if command in PIPELINE] == PIPELINE


def test_a_group_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(help_of("analyze", capsys)) == ["attention", "neighbourhood"]


@pytest.mark.parametrize(
    "command",
    [
        *(name for name in COMMANDS if name != "analyze"),
        "analyze attention",
        "analyze neighbourhood",
    ],
)
def test_the_example_of_a_command_can_be_typed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = help_of(command, capsys).split("example:\n  cocondenser ")[1]
    assert example.startswith(f"{command} --")
    arguments, rest = _make_parser().parse_known_args(shlex.split(example))
    assert all(flag.startswith("--config.") and hasattr(arguments, "config") for flag in rest)
