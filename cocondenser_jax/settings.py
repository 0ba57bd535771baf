"""The settings of experiments: how one is declared, and how experiment files are read and checked.

The declarations are in `configs/`: `default.py` for pre-training, `finetune.py`,
`cross_encoder.py` and `sentences.py` for fine-tuning. docs/settings.py prints them as a page.
"""

import ast
import importlib
import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError, lookup

PRETRAINING = "pretrain"
FINE_TUNING = ("retriever", "cross_encoder", "sentences")
# The file of configs/ that declares the settings of a task; `config.task` names the task.
DECLARED_IN = {
    PRETRAINING: "default",
    "retriever": "finetune",
    "cross_encoder": "cross_encoder",
    "sentences": "sentences",
}
GIVEN = "given"  # a text that must not be empty
_LARGEST_WHOLE = 2**32 - 1  # seeds, steps and sizes are passed on as 32-bit numbers


@dataclass(frozen=True)
class Interval:
    """The numbers that a setting may have: as they are printed, and as a test of one."""

    text: str
    holds: Callable[[float], bool]


def at_least(low: float) -> Interval:
    """Makes the interval from a number, itself included."""
    return Interval(f"[{low}, ∞)", lambda x: low <= x)


def above(low: float) -> Interval:
    """Makes the interval from a number, itself excluded."""
    return Interval(f"({low}, ∞)", lambda x: low < x)


def between(low: float, high: float) -> Interval:
    """Makes the interval between two numbers, themselves included."""
    return Interval(f"[{low}, {high}]", lambda x: low <= x <= high)


BELOW_ONE = Interval("[0, 1)", lambda x: 0 <= x < 1)


class Setting(NamedTuple):
    """One setting. Its type is that of its default."""

    default: Any  # the value where an experiment says nothing
    # Numbers, choices, `GIVEN` for a text that must be set, or None for any value of the type.
    allowed: Interval | tuple[str, ...] | str | None
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
    """Loads an experiment file, applies overrides, checks every setting; returns it locked.

    Args:
      spec: a path to a file with `get_config(argument)`, optionally followed by `:argument`. A path
        `configs/x.py` that does not exist means the experiment of that name shipped with the
        package.
      overrides: words of the form `--config.a.b=value`.
      tasks: the tasks that the caller runs.
      complete: whether the settings that have no default must be set.
    """
    match = re.fullmatch(r"(.*\.py)(?::(.*))?", spec, re.DOTALL)  # the path may hold colons
    name, argument = match.groups("") if match else (spec, "")
    try:
        get_config = runpy.run_path(str(_find(name))).get("get_config", lambda *_: None)
        config = get_config(*[argument] if argument else [])
    except UserError:
        raise
    except Exception as error:  # it is a program: it may raise anything
        raise UserError(f"{spec} cannot be loaded: {error!r}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"{spec}: expected a function get_config that returns a ConfigDict")
    _apply(config, overrides)
    task = config.get("task", PRETRAINING)
    if task not in tasks:
        raise UserError(f"{spec} is for the task {task!r}; expected {' or '.join(tasks)}")
    check(config, complete=complete)
    return config


def override(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """Returns a copy with settings changed as `--config.a.b=value` says, checked and locked."""
    changed = config.copy_and_resolve_references()
    _apply(changed, overrides)
    check(changed, complete=False)
    return changed.lock()


def declared_settings(task: str) -> dict[str, Setting]:
    """Returns the settings of a task, by their dotted names."""
    module = importlib.import_module(f"cocondenser_jax.configs.{DECLARED_IN[task]}")
    return dict(module.SETTINGS)


def check(config: ConfigDict, *, complete: bool = True) -> None:
    """Raises a UserError for the first setting whose name, type or value is not as declared."""
    task = config.get("task", PRETRAINING)
    if task not in DECLARED_IN:
        raise UserError(f"config.task is {task!r}; expected {' or '.join(DECLARED_IN)}")
    settings = declared_settings(task)
    values = flatten(config)
    for name in values.keys() ^ settings.keys():
        problem = "is not a setting" if name in values else "is missing"
        raise UserError(f"config.{name} {problem} of this task; see docs/settings.md")
    for name, setting in settings.items():
        if not _is_allowed(setting, values[name], complete):
            raise UserError(f"config.{name} is {values[name]!r}; expected {_expected(setting)}")


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the settings of a config, or of its dictionary, by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping | ConfigDict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _is_allowed(setting: Setting, value: Any, complete: bool) -> bool:
    if type(value) is not type(setting.default):
        return False
    if isinstance(setting.allowed, Interval):
        largest = _LARGEST_WHOLE if type(value) is int else sys.float_info.max
        return value <= largest and setting.allowed.holds(value)
    if setting.allowed == GIVEN:
        return bool(value) or not complete
    return setting.allowed is None or value in setting.allowed


def _expected(setting: Setting) -> str:
    if isinstance(setting.allowed, tuple):
        return " or ".join(map(repr, setting.allowed))
    if setting.allowed == GIVEN:
        return setting.meaning
    kind = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    within = f" in {setting.allowed.text}" if isinstance(setting.allowed, Interval) else ""
    unit = f" ({setting.unit})" if setting.unit else ""
    return f"{kind[type(setting.default)]}{within}{unit}"


def _find(name: str) -> Path:
    """Finds an experiment: a file, or, as configs/NAME.py, one that the package ships."""
    if Path(name).is_file():
        return Path(name)
    folder = Path(importlib.import_module("cocondenser_jax.configs").__path__[0])
    shipped = {f"configs/{path.name}": path for path in sorted(folder.glob("[a-z]*.py"))}
    return lookup(shipped, Path(name).as_posix(), "config file")


def _apply(config: ConfigDict, overrides: Sequence[str]) -> None:
    """Sets values; `check` compares them with the declarations."""
    known = flatten(config, "config.")
    changes = {}
    for word in overrides:
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--config.") or not equals:
            raise UserError(f"unknown argument {word!r}: settings are given as --config.key=value")
        changes[name] = _parse(text, lookup(known, name, "setting"))
    with config.ignore_type():
        config.update_from_flattened_dict(changes, "config.")


def _parse(text: str, old: Any) -> Any:
    """Reads a value as its type is written; whether it is allowed, `check` says."""
    if isinstance(old, str):
        return text
    try:
        value = ast.literal_eval(text)
        return float(value) if type(old) is float and type(value) is int else value
    except (ValueError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)
