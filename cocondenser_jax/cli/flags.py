"""What the commands share: how one is declared, common flags, how metrics are printed."""

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_json

Arguments = argparse.Namespace
Commands = Any  # what argparse's add_subparsers returns, of a type that it keeps to itself


class Parser(argparse.ArgumentParser):
    """Answers a wrong flag with one line and exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Raises a UserError in place of printing the usage."""
        raise UserError(f"{message} (see {self.prog} --help)")


def add_command(
    commands: Commands, name: str, run: Callable[[Arguments], int | None], does: str, example: str
) -> Parser:
    """Declares a command.

    Args:
      commands: of the program's parser.
      name: the command.
      run: what it does; returns the exit status, None for 0.
      does: one sentence for the list of commands and the command's own help.
      example: worked arguments for the help.

    Returns:
      The command's parser, for its flags.
    """
    added: Parser = commands.add_parser(
        name,
        help=does,
        description=does,
        epilog=f"example:\n  %(prog)s {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    added.set_defaults(run=run)
    return added


def add_command_group(commands: Commands, name: str, does: str) -> Commands:
    """Declares a command with subcommands, and returns what `add_command` adds them to."""
    group = commands.add_parser(name, help=does, description=does, allow_abbrev=False)
    return group.add_subparsers(required=True, metavar="WHAT", parser_class=Parser)


def whole_numbers(text: str) -> list[int]:
    """Reads a flag's whole numbers from 1, separated by commas."""
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers from 1, separated by commas, not {text!r}"
        )
    return numbers


def add_config(command: Parser) -> None:
    """Adds --config; what follows as --config.KEY=VALUE is left in `arguments.overrides`."""
    config = "the experiment, FILE.py[:ARGUMENT]; override a setting with --config.KEY=VALUE"
    command.add_argument("--config", required=True, help=config)


def add_workdir(command: Parser, does: str) -> None:
    """Adds --workdir, for commands that go on where they stopped."""
    command.add_argument("--workdir", required=True, type=Path, help=does)


def add_json_out(command: Parser) -> None:
    """Adds --json_out, for commands that print figures."""
    command.add_argument("--json_out", type=Path, help="also write the figures to this file")


def print_search(query: str, hits: Sequence[tuple[float, str, str]]) -> None:
    """Prints a query and what was found for it: score, title and text of each passage."""
    print(f'"{query}"')
    for score, title, text in hits:
        print(f"  {score:8.2f}  {title}")
        print(textwrap.indent(textwrap.shorten(text, 300, placeholder=" ..."), " " * 12))


def print_metrics(figures: Mapping[str, Any], json_out: Path | None) -> None:
    """Prints one figure a line, and writes them all where asked."""
    width = max(map(len, figures))
    for name, value in figures.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        print(f"{name:<{width}}  {f'{value:.4f}' if isinstance(value, float) else shown}")
    if json_out:
        write_json(json_out, figures)
