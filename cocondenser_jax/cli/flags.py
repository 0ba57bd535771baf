"""What the commands share: how they and their flags are declared, with click."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click


class Group(click.Group):
    """Commands in the order in which they are given, not in that of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands."""
        return list(self.commands)


def command(
    example: str, *flags: click.Parameter, takes_settings: bool = False
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Makes a command of a function, which gets the values of the flags by their names.

    Args:
      example: of its use, for the end of its help; the function's docstring is the beginning.
      flags: in the order of the help.
      takes_settings: whether --config.KEY=VALUE may be given; the function gets these words as
        `overrides`.
    """

    def decorate(function: Callable[..., int | None]) -> click.Command:
        return click.Command(
            function.__name__,
            callback=function,
            params=[*flags, _OVERRIDES] if takes_settings else list(flags),
            help=function.__doc__,
            short_help=function.__doc__,
            epilog=f"\b\nexample:\n  cocondenser {example}",
            context_settings={"ignore_unknown_options": takes_settings},
        )

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
    """Declares a flag.

    Args:
      name: with its dashes.
      kind: its type; or its default; or its choices, of which the first is the default.
      meaning: its help.
      goes_with: the name of another flag, without which this one is refused.
      options: of click.Option.
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


def required(name: str, kind: Any, meaning: str, **options: Any) -> click.Option:
    """Declares a flag that must be given."""
    return flag(name, kind, meaning, required=True, **options)


def only_one(**flags: Any) -> Any:
    """Returns the value of the one flag that has one; refuses none and several."""
    given = [value for value in flags.values() if value is not None]
    if len(given) != 1:
        names = " and ".join(f"--{name}" for name in flags)
        raise click.UsageError(f"give one of {names}", click.get_current_context())
    return given[0]


def _parse_shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise click.BadParameter(f"{text!r}: expected i/n with 0 <= i < n, such as 0/8")
    return int(index), int(count)


def _refuse_unknown_flags(
    context: click.Context, parameter: click.Parameter, words: Sequence[str]
) -> Sequence[str]:
    known = [name for parameter in context.command.params for name in parameter.opts]
    for word in words:
        if not word.startswith("--config."):
            raise click.NoSuchOption(word.partition("=")[0], possibilities=known, ctx=context)
    return words


_OVERRIDES = click.Argument(
    ["overrides"],
    nargs=-1,
    type=click.UNPROCESSED,
    callback=_refuse_unknown_flags,
    metavar="[--config.KEY=VALUE]...",
)
CONFIG = required("--config", str, "the experiment", metavar="FILE.py[:ARGUMENT]")
JSON_OUT = flag("--json_out", Path, "also write the results to this JSON file")
POOLING = flag("--pooling", click.Choice(("cls", "mean")), "instead of the model folder's own")
SHARD = flag(
    "--shard",
    _parse_shard,
    "i/n: do part i of n (from 0), on n machines; what reads --out waits for all n",
    default="0/1",
    metavar="I/N",
)
