"""The settings of experiments: how one is declared, and how experiment files are read and checked.

The declarations are in `configs/`: `default.py` for pre-training, `finetune.py` and
`cross_encoder.py` for fine-tuning. docs/settings.py prints them as a page.
"""

import importlib
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.storage.runs import flatten

PRETRAINING = "pretrain"
FINE_TUNING = ("retriever", "cross_encoder")
# The file of configs/ that declares the settings of a task; `config.task` names the task.
DECLARED_IN = {
    PRETRAINING: "default",
    "retriever": "finetune",
    "cross_encoder": "cross_encoder",
}
GIVEN = "given"  # a text that must not be empty


class Interval(NamedTuple):
    """The numbers that a setting may have, both ends included."""

    low: float
    high: float = 2**32 - 1  # seeds, steps and sizes are passed on as 32-bit numbers

    def __str__(self) -> str:
        return f"from {self.low}" + (f" to {self.high}" if self.high < 2**32 - 1 else "")


class ListOf(NamedTuple):
    """The lists that a setting may have: tuples of any length, their elements of one type."""

    kind: type[int] | type[float] | type[str]
    allowed: Interval | tuple[str, ...] | None = None  # for each element, as in `Setting`


class Setting(NamedTuple):
    """One setting. Its type is that of its default."""

    default: Any  # the value where an experiment says nothing
    # Numbers, choices, `GIVEN` for a text that must be set, or None for any value of the type.
    allowed: Interval | ListOf | tuple[str, ...] | str | None
    unit: str  # of a number; "" where it has none
    meaning: str  # what it does, in one line


def to_config(settings: Mapping[str, Setting]) -> ConfigDict:
    """Returns the defaults as a locked config; a dot in a name makes a section."""
    config = ConfigDict({name.split(".")[0]: {} for name in settings if "." in name})
    config.update_from_flattened_dict({name: setting.default for name, setting in settings.items()})
    return config.lock()


def load_config(
    spec: str,
    overrides: Sequence[str] = (),
    *,
    tasks: Sequence[str] = (PRETRAINING,),
    complete: bool = True,
) -> ConfigDict:
    """Loads an experiment, FILE.py or FILE.py:ARGUMENT, and overrides some of its settings.

    `tasks` and `complete` are those of `check`.
    """
    name, suffix, argument = spec.partition(".py:")  # the path may hold colons
    if suffix:
        name += ".py"
    try:
        get_config = runpy.run_path(str(_find(name)))["get_config"]
        config = get_config(argument) if argument else get_config()
    except UserError:
        raise
    except Exception as error:  # it is a program: it may raise anything
        raise UserError(f"{spec} cannot be loaded: {error!r}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"{spec}: expected a function get_config that returns a ConfigDict")
    changed = override(config, overrides)
    check(changed, tasks=tasks, complete=complete)
    return changed


def override(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """Returns a checked and locked copy, changed as the words `--config.a.b=value` say."""
    check(config, complete=False)
    changed = config.copy_and_resolve_references()
    settings = declared_settings(config.get("task", PRETRAINING))
    known = {f"config.{name}": setting for name, setting in settings.items()}
    changes = {}
    for word in overrides:
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--config.") or not equals:
            raise UserError(f"unknown argument {word!r}: settings are given as --config.key=value")
        changes[name] = _parse(text, lookup(known, name, "setting"))
    with changed.unlocked(), changed.ignore_type():
        changed.update_from_flattened_dict(changes, "config.")
    check(changed, complete=False)
    return changed.lock()


def declared_settings(task: str) -> dict[str, Setting]:
    """Returns the settings of a task, by their dotted names."""
    module = importlib.import_module(f"cocondenser_jax.configs.{DECLARED_IN[task]}")
    return dict(module.SETTINGS)


def check(
    config: ConfigDict, *, complete: bool = True, tasks: Sequence[str] = tuple(DECLARED_IN)
) -> None:
    """Raises a UserError for the first setting whose name, type or value is not as declared.

    `tasks` are those that the caller runs; unless `complete`, what has no default may be unset.
    """
    task = config.get("task", PRETRAINING)
    if task not in tasks:
        raise UserError(f"the config is for the task {task!r}; expected {' or '.join(tasks)}")
    settings = declared_settings(task)
    values = flatten(config.to_dict())
    for name in values.keys() ^ settings.keys():
        problem = "is not a setting" if name in values else "is missing"
        raise UserError(f"config.{name} {problem} of this task; see docs/settings.md")
    for name, setting in settings.items():
        if not _is_allowed(setting, values[name], complete):
            raise UserError(f"config.{name} is {values[name]!r}; expected {_expected(setting)}")


def _is_allowed(setting: Setting, value: Any, complete: bool) -> bool:
    if type(value) is not type(setting.default):
        return False
    if isinstance(setting.allowed, ListOf):
        kind, allowed = setting.allowed
        kinds = (int, float) if kind is float else (kind,)  # (1, 0.5) are numbers
        return all(type(each) in kinds and _is_in(allowed, each) for each in value)
    if setting.allowed == GIVEN:
        return bool(value) or not complete
    return _is_in(setting.allowed, value)


def _is_in(allowed: Any, value: Any) -> bool:
    if isinstance(allowed, Interval):
        return allowed.low <= value <= allowed.high
    return allowed is None or value in allowed


def _expected(setting: Setting) -> str:
    if setting.allowed == GIVEN:
        return setting.meaning
    if isinstance(setting.allowed, ListOf):
        each = _expected_value(setting.allowed.kind, setting.allowed.allowed, setting.unit)
        return f"a list in brackets, each {each}"
    return _expected_value(type(setting.default), setting.allowed, setting.unit)


def _expected_value(kind: type, allowed: Any, unit: str) -> str:
    if isinstance(allowed, tuple) and not isinstance(allowed, Interval):
        return " or ".join(map(repr, allowed))
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    return f"{names[kind]} {allowed or ''} {unit}".rstrip()


def _find(name: str) -> Path:
    """Finds an experiment: a file, or, as configs/NAME.py, one that the package ships."""
    if Path(name).is_file():
        return Path(name)
    folder = Path(importlib.import_module("cocondenser_jax.configs").__path__[0])
    shipped = {f"configs/{path.name}": path for path in sorted(folder.glob("[a-z]*.py"))}
    return lookup(shipped, Path(name).as_posix(), "config file")


def _parse(text: str, setting: Setting) -> Any:
    """Reads a value of the setting's type; a text that is none is left for `check` to refuse."""
    if not isinstance(setting.allowed, ListOf):
        return _parse_value(text, type(setting.default))
    if not (text.startswith("[") and text.endswith("]")):
        return text
    content = text[1:-1].strip()
    words = content.split(",") if content else []
    return tuple(_parse_value(word.strip(), setting.allowed.kind) for word in words)


def _parse_value(text: str, kind: type) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        return text
