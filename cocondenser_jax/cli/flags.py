"""Declares commands and their flags, with click."""

import importlib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

import cocondenser_jax
from cocondenser_jax.corpus.folders import is_accepted, require_not_read
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.tables import is_data_file, name_columns
from cocondenser_jax.files.whole import read_object, require_writable
from cocondenser_jax.files.workers import Engine, Executor

T = TypeVar("T")


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands in the order of their declaration."""
        return list(self.commands)


PROGRAM = _Group(
    help=(cocondenser_jax.__doc__ or "").partition("\n")[0],
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        # --run-out is --run_out.
        "token_normalize_func": lambda word: word.replace("-", "_"),
    },
)


class _OutputFile(click.ParamType):
    """An output file, which is checked to be writable before the command starts."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Returns the path; raises a UserError if it is not writable, or is a user's data file."""
        path = Path(value)
        require_writable(path)
        if path.is_file() and is_data_file(path.absolute()):
            raise UserError(
                f"{path} exists, and has the name of a data folder's passages, queries or"
                " judgments: choose another one"
            )
        return path


class _Named(click.ParamType):
    """Data that may be given by the name of a published collection, see `retriever.data.named`."""

    def __init__(self, kind: type) -> None:
        """Takes the type of the value: Path or str."""
        self.kind = kind
        self.name = "data" if kind is Path else "corpus"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the value; it is replaced by a folder when the command is invoked."""
        return self.kind(value)


OUTPUT_FILE = _OutputFile()
DATA = _Named(Path)  # a data folder
CORPUS = _Named(str)  # DOCUMENTS


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; names all missing required flags, not only the first."""
        self._refuse_old_names(ctx, args)
        given, rest, order = self.make_parser(ctx).parse_args(list(args))
        if any(parameter.is_eager for parameter in order):  # --help
            return super().parse_args(ctx, args)
        for parameter in order:  # click would use the last value
            has_one = isinstance(parameter, _Flag) and not (parameter.multiple or parameter.is_flag)
            if has_one and order.count(parameter) > 1:
                raise click.UsageError(f"{parameter.opts[0]} is given twice: expected once", ctx)
        absent = [parameter for parameter in self.params if parameter.name not in given]
        missing = [parameter for parameter in absent if parameter.required]
        settings = given.get("overrides")
        for word in (*(settings if isinstance(settings, tuple) else ()), *rest):
            if not word.startswith("-"):
                raise click.UsageError(_unexpected(word, absent), ctx)
        if len(missing) > 1:
            names = ", ".join(f"'{parameter.opts[0]}'" for parameter in missing)
            raise click.UsageError(f"Missing options {names}.", ctx)
        return super().parse_args(ctx, args)

    def _refuse_old_names(self, ctx: click.Context, args: Sequence[str]) -> None:
        named = {f"--{each.formerly}": each for each in self.params if isinstance(each, _Flag)}
        for word in args:
            flag = word.partition("=")[0].replace("-", "_").replace("__", "--", 1)
            if flag != "--" and flag in named:
                raise click.UsageError(f"{flag} is now --{named[flag].name}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Calls the command's function, unless an output file is also an input."""
        self._name_columns(ctx)
        read = [ctx.params[str(each.name)] for each in self.params if each.type is CORPUS]
        sources = [source for value in read for source in _each(value)]
        for parameter in self.params:
            name = str(parameter.name)
            value = ctx.params[name]
            if parameter.type is OUTPUT_FILE and value is not None:
                _require_own(name, value, ctx.params)
                _require_not_read(value, sources)
        for parameter in self.params:
            if isinstance(parameter.type, _Named) or parameter is OVERRIDES:
                name = str(parameter.name)
                ctx.params[name] = _with_folder(parameter, ctx.params[name])
        ctx.params.pop(str(COLUMNS.name), None)
        return super().invoke(ctx)

    def _name_columns(self, ctx: click.Context) -> None:
        """Appends --columns, if the command has it, to the source that it describes."""
        if not (columns := ctx.params.get(str(COLUMNS.name))):
            return
        for each in self.params:
            if each.type is CORPUS and (value := ctx.params[str(each.name)]) is not None:
                named = tuple(name_columns(one, columns) for one in _each(value))
                ctx.params[str(each.name)] = named if each.multiple else named[0]


def _unexpected(word: str, absent: Sequence[click.Parameter]) -> str:
    """Returns the message for a positional argument, with the missing flag it may belong to."""
    missing = [each for each in absent if each.required]
    named = [each for each in missing if isinstance(each.type, _Named)] or missing
    named = named or [each for each in absent if each.name == "query"]
    hint = f": did you mean {named[0].opts[0]}={shlex.quote(word)}?" if named else ""
    return f"unexpected argument {word!r}{hint}"


def _with_folder(parameter: click.Parameter, value: Any) -> Any:
    """Replaces names of collections by data folders, also in settings."""
    if parameter is OVERRIDES:
        settings = (setting.partition("=") for setting in value)
        return tuple(f"{key}{equals}{_found(name)}" for key, equals, name in settings)
    if isinstance(value, tuple):  # a flag that may be repeated
        return tuple(_with_folder(parameter, each) for each in value)
    return value if value is None else parameter.type.convert(_found(value), parameter, None)


def _found(name: str | Path) -> str | Path:
    if ":" not in str(name):
        return name
    from cocondenser_jax.retriever.data.named import find_data

    return find_data(name)


def _require_own(name: str, output: Path, values: Mapping[str, Any]) -> None:
    """Raises a UserError if the output of flag `name` is also the value of another flag."""
    target = os.path.realpath(output)
    for other, value in values.items():
        for path in _each(value):
            is_path = isinstance(path, Path) or (isinstance(path, str) and os.path.isfile(path))
            if other != name and is_path and os.path.realpath(path) == target:
                raise UserError(f"--{name} and --{other} name the same file: {output}")


def _require_not_read(output: Path, sources: Iterable[str]) -> None:
    """Raises a UserError for an output file that the next call would read as documents."""
    if is_accepted(output.name):
        for source in sources:
            require_not_read(source, output)


def _each(value: Any) -> tuple[Any, ...]:
    """Returns the values of a flag that may be missing or repeated."""
    if isinstance(value, tuple):
        return value
    return () if value is None else (value,)


def command(
    example: str, *flags: click.Parameter
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds a function to the program as a command.

    Args:
      example: an example call without the program's name; its first word names the command.
      flags: the command's flags, passed to the function by name.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = example.split(" --")[0]
        settings = "docs/settings.md has every KEY.\n\n" if OVERRIDES in flags else ""
        PROGRAM.commands[name] = _Command(
            name,
            callback=function,
            params=list(flags),
            help=function.__doc__,
            short_help=(function.__doc__ or "").partition("\n")[0],
            epilog=f"{settings}\b\nexample:\n{wrapped(example)}",
            context_settings={"ignore_unknown_options": OVERRIDES in flags},
        )
        return function

    return decorate


def wrapped(example: str) -> str:
    """Wraps a command at 76 characters, breaking lines before flags."""
    lines = [""]
    for word in f"  cocondenser {example}".split(" --"):
        flag = f" --{word}" if lines[0] else word
        if len(lines[-1]) + len(flag) > 74:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += flag
    return "\n".join(lines)


class _Flag(click.Option):
    goes_with: tuple[str, ...] = ()  # flags, at least one of which is needed for this one
    formerly = ""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Refuses the flag if it would have no effect; `opts` holds the given flags."""
        if not self.goes_with or {*self.goes_with} & {*opts}:
            return super().handle_parse_result(ctx, opts, args)
        if self.name in opts:
            raise click.UsageError(f"--{self.name} goes with {_either(self.goes_with)}", ctx)
        ctx.params[str(self.name)] = None  # a default that has no effect is not checked either
        return None, args


def _either(names: Sequence[str]) -> str:
    return " or ".join(f"--{name}" for name in names)


# Placeholders for the values of flags in the help, other than their types.
_METAVARS = {"--model": "MODEL", "--tokenizer": "MODEL", "--store": "STORE"}


def flag(
    name: str,
    kind: Any,
    meaning: str,
    *,
    default: Any = None,
    metavar: str | None = None,
    goes_with: str | tuple[str, ...] = (),
    required: bool = False,
    multiple: bool = False,
    formerly: str = "",
) -> click.Option:
    """Declares a flag.

    Args:
      name: the name, with dashes.
      kind: a parser of the value; or the default; or the choices, the first being the default (None
        for no default).
      meaning: the help text.
      default: the default for a parser.
      metavar: the placeholder for the value in the help.
      goes_with: one or several flags, at least one of which must be given with this one.
      required: whether the flag is required.
      multiple: whether the flag may be repeated.
      formerly: a former name, without dashes; the error for it names this flag.
    """
    if metavar is None:
        metavar = "N" if isinstance(kind, click.IntRange) else _METAVARS.get(name)
    options: dict[str, Any] = {"metavar": metavar, "required": required, "multiple": multiple}
    if kind is False:
        options["is_flag"] = True
    elif isinstance(kind, tuple):
        options["type"] = click.Choice([choice for choice in kind if choice is not None])
        options["default"] = kind[0]
    elif callable(kind):
        options["type"] = kind
        if default is not None:
            options["default"] = default
    else:
        options["default"] = kind
    needed = (goes_with,) if isinstance(goes_with, str) else goes_with
    if needed:
        meaning = f"with {_either(needed)}: {meaning}"
    option = _Flag([name], help=meaning, **options)
    option.goes_with = needed
    option.formerly = formerly
    return option


required = partial(flag, required=True)


def require_one(**places: str | Path | None) -> None:
    """Raises a UserError unless exactly one of several flags is given."""
    if sum(value is not None for value in places.values()) != 1:
        *others, last = [f"--{name}" for name in places]
        raise UserError(f"give one of {', '.join(others)} and {last}")


# The sources of `corpus.sources.open_records`.
DOCUMENTS = (
    "a .txt, .md, .jsonl, .tsv or .parquet file, a folder or pattern (docs/**/*.md) of them,"
    " a folder of passages,"
    " pydocs[:PACKAGE,...], hf:NAME[:CONFIG[:SPLIT]], tfds:NAME[:SPLIT], beir:NAME, nano:NAME,"
    " ir:NAME (docs/data.md)"
)


_columns = partial(
    flag,
    "--columns",
    str,
    "columns of a .tsv file without a header, such as id,title,text; - skips a column",
    metavar="NAME,NAME",
)
COLUMNS = _columns()
CORPUS_COLUMNS = _columns(goes_with="corpus")


def _parse_task(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise ValueError("expected i/n with 0 <= i < n, such as 0/8")
    return int(match[1]), int(match[2])


def _refuse_unknown_flags(
    context: click.Context, parameter: click.Parameter, words: Sequence[str]
) -> Sequence[str]:
    known = [name for parameter in context.command.params for name in parameter.opts]
    settings = []
    for word in words:
        setting = word if word.startswith("--config.") else _by_last_name(context, word)
        if setting is None:
            raise click.NoSuchOption(word.partition("=")[0], possibilities=known, ctx=context)
        settings.append(setting)
    return tuple(settings)


def _by_last_name(context: click.Context, word: str) -> str | None:
    """Returns the full name of a fine-tuning setting for a word such as `--learning_rate=1e-5`.

    None if no setting has this last name.
    """
    if context.command.name != "finetune":
        return None
    from cocondenser_jax.settings import FINE_TUNING, full_names

    flag, equals, value = word.partition("=")
    names = full_names(flag.removeprefix("--").replace("-", "_"), FINE_TUNING)
    if len(names) > 1:
        several = _either([f"config.{name}" for name in names])
        raise click.UsageError(f"{flag} is the last name of several settings: {several}", context)
    if names and not equals:
        raise click.UsageError(f"a setting is given as {flag}=VALUE", context)
    return f"--config.{names[0]}{equals}{value}" if names else None


OVERRIDES = click.Argument(
    ["overrides"], nargs=-1, callback=_refuse_unknown_flags, metavar="[--config.KEY=VALUE]..."
)
EXPERIMENT = (
    required(
        "--config",
        str,
        "experiment file, your own or a shipped one of configs/",
        metavar="FILE.py[:ARGUMENT]",
    ),
    OVERRIDES,
)
JSON_OUT = flag("--json_out", OUTPUT_FILE, "also write the results to this JSON file")
# Fields of `representation.Given`, which override a model folder's settings.
GIVEN = (
    flag("--pooling", (None, "cls", "mean"), "pooling other than the model's own"),
    flag("--similarity", (None, "dot", "cosine"), "similarity other than the model's own"),
    flag("--query_prompt", str, "text before each query (default: the model's own)"),
    flag("--passage_prompt", str, "text before each passage (default: the model's own)"),
    flag("--dimensions", click.IntRange(1), "keep only the first N dimensions of a vector"),
)
TITLE_SEPARATOR = flag(
    "--title_separator", str, "separator of title and text (default: the model's own, a space)"
)
ignore_identical_ids = partial(
    flag,
    "--ignore_identical_ids",
    False,
    "leave out passages with their query's id, as BEIR does (ArguAna, Quora)",
)
IGNORE_IDENTICAL_IDS = ignore_identical_ids()
COUNT = click.IntRange(1)
FUSIONS = ("min_max", "rrf")
RUN_OF_DATA = (
    required("--data", DATA, "the folder of the queries, or a file of them"),
    flag("--split", str, "use the queries of this split, such as test (default: all queries)"),
    required("--run_out", OUTPUT_FILE, "TREC run to write"),
    flag("--depth", COUNT, "passages per query", default=100),
    JSON_OUT,
)


def precision(chip: str) -> click.Option:
    """Declares --precision; "auto" depends on bfloat16 support of `chip`."""
    meaning = f"number format; auto: bfloat16 if the {chip} supports it"
    return flag("--precision", ("auto", "float32", "bfloat16"), meaning)


TASK = flag(
    "--task",
    _parse_task,
    "run task I, from 0, of N alone: one task per machine",
    default="0/1",
    metavar="I/N",
)
_with_tasks = partial(flag, goes_with="tasks")
ENGINE = (
    flag("--tasks", click.IntRange(2), "divide the work into N tasks, for several workers"),
    _with_tasks("--workers", COUNT, "tasks at a time (default, local: one per GPU or core)"),
    _with_tasks("--executor", get_args(Executor), "where the workers run: docs/many_machines.md"),
    flag("--executor_options", Path, "JSON file with its options", goes_with="executor"),
)
_PACKAGES = {"slurm": "datatrove", "ray": "ray"}  # of the executors


def take(flags: dict[str, Any], kind: Callable[..., T]) -> T:
    """Removes the fields of a named tuple from `flags`, and returns the tuple."""
    names: tuple[str, ...] = getattr(kind, "_fields", ())
    return kind(**{name: flags.pop(name) for name in names if name in flags})


def take_engine(flags: dict[str, Any]) -> Engine | None:
    """Removes the flags of ENGINE from `flags`, and returns the engine; None: one process."""
    options = flags.pop("executor_options")
    engine = take(flags, Engine)
    if engine.tasks is None:
        return None
    if engine.executor in _PACKAGES:
        importlib.import_module(_PACKAGES[engine.executor])  # fails before anything is written
    return engine._replace(options=read_object(options) if options else {})
