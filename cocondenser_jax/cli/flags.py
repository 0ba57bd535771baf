"""Declares commands and their flags, with click."""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import read_object
from cocondenser_jax.workers import Engine, Executor


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands as they were added, not by the alphabet."""
        return list(self.commands)


PROGRAM = _Group(
    help="Condenser and coCondenser pre-training, conversion, and dense retrieval.",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)


def command(
    example: str, *flags: click.Parameter
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function to the program as a command, called with the flags by name.

    Its help is the function's docstring, the flags, and an example, which begins with its name.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = example.split(" --")[0]
        PROGRAM.commands[name] = click.Command(
            name,
            callback=function,
            params=list(flags),
            help=function.__doc__,
            short_help=function.__doc__,
            epilog=f"\b\nexample:\n  cocondenser {example}",
            context_settings={"ignore_unknown_options": OVERRIDES in flags},
        )
        return function

    return decorate


class _Flag(click.Option):
    goes_with: str | None = None  # the name of the flag without which this one has no effect

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Refuses the flag where it has no effect; `opts` holds the flags that are given."""
        if self.goes_with and self.name in opts and self.goes_with not in opts:
            raise click.UsageError(f"--{self.name} goes with --{self.goes_with}", ctx)
        return super().handle_parse_result(ctx, opts, args)


def flag(
    name: str, kind: Any, meaning: str, *, goes_with: str | None = None, **options: Any
) -> click.Option:
    """Declares a flag, by its type, its default, or its choices (the first is the default).

    It is refused without the flag that it goes with. The options are those of click.Option.
    """
    if kind is False:
        options["is_flag"] = True
    elif isinstance(kind, tuple):
        options = {"type": click.Choice(kind), "default": kind[0], **options}
    elif callable(kind):
        options["type"] = kind
    else:
        options["default"] = kind
    if goes_with:
        meaning = f"with --{goes_with}: {meaning}"
    declared = _Flag([name], help=meaning, **options)
    declared.goes_with = goes_with
    return declared


required = partial(flag, required=True)


def only_one(**flags: Any) -> Any:
    """Returns the value of the one flag that has one; refuses none and several."""
    given = [value for value in flags.values() if value is not None]
    if len(given) != 1:
        raise UserError(f"give one of --{' and --'.join(flags)}")
    return given[0]


def _parse_task(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise ValueError("expected i/n with 0 <= i < n, such as 0/8")
    return int(match[1]), int(match[2])


def _refuse_unknown_flags(
    context: click.Context, parameter: click.Parameter, words: Sequence[str]
) -> Sequence[str]:
    known = [name for parameter in context.command.params for name in parameter.opts]
    for word in words:
        if not word.startswith("--config."):
            raise click.NoSuchOption(word.partition("=")[0], possibilities=known, ctx=context)
    return words


OVERRIDES = click.Argument(
    ["overrides"], nargs=-1, callback=_refuse_unknown_flags, metavar="[--config.KEY=VALUE]..."
)
EXPERIMENT = (
    required(
        "--config",
        str,
        "experiment file, your own or a shipped one (configs/small.py)",
        metavar="FILE.py[:ARGUMENT]",
    ),
    OVERRIDES,
)
JSON_OUT = flag("--json_out", Path, "also write the results to this JSON file")
TASK = flag(
    "--task",
    _parse_task,
    "run task I, from 0, of N alone: one task per machine",
    default="0/1",
    metavar="I/N",
)
COUNT = click.IntRange(1)
_with_tasks = partial(flag, goes_with="tasks")
ENGINE = (
    flag("--tasks", click.IntRange(2), "divide the work into N tasks, for several workers"),
    _with_tasks("--workers", COUNT, "tasks at a time (default, local: one per core)"),
    _with_tasks("--executor", get_args(Executor), "what runs the workers: docs/scaling.md"),
    _with_tasks("--executor_options", Path, "JSON file with options of the executor"),
)
_PACKAGES = {"slurm": "datatrove", "ray": "ray"}  # of the executors


def make_engine(
    tasks: int | None, workers: int | None, executor: Executor, executor_options: Path | None
) -> Engine | None:
    """Makes what the flags of ENGINE name; None: one process."""
    if tasks is None:
        return None
    if executor in _PACKAGES:
        importlib.import_module(_PACKAGES[executor])  # missing: nothing is written yet
    options = read_object(executor_options) if executor_options else {}
    return Engine(tasks, workers, executor, options)
