"""Reads experiment files, overrides their settings and checks them against the declarations."""

import runpy
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ml_collections import ConfigDict

from cocondenser_jax import configs
from cocondenser_jax.configs import cross_encoder, default, finetune
from cocondenser_jax.declare import Setting, check_value, parse
from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.files.runs import flatten

PRETRAINING = "pretrain"
# The file that declares the settings of a task; `config.task` names the task.
DECLARED_IN: dict[str, ModuleType] = {
    PRETRAINING: default,
    "retriever": finetune,
    "cross_encoder": cross_encoder,
}
FINE_TUNING = tuple(task for task in DECLARED_IN if task != PRETRAINING)


def load_config(
    spec: str,
    overrides: Sequence[str],
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
        name = name.replace("-", "_")
        if name in changes:
            raise UserError(f"--{name} is given twice: expected once")
        changes[name] = parse(lookup(known, name, "setting"), text)
    with changed.unlocked(), changed.ignore_type():
        changed.update_from_flattened_dict(changes, "config.")
    check(changed, complete=False)
    return changed.lock()


def full_names(last: str, tasks: Sequence[str]) -> list[str]:
    """Returns the dotted names, in some tasks, of settings with a last name, such as "epochs"."""
    names = {name for task in tasks for name in declared_settings(task)}
    return sorted(name for name in names if name.rpartition(".")[2] == last)


def declared_settings(task: str) -> dict[str, Setting]:
    """Returns the settings of a task, by their dotted names."""
    return dict(DECLARED_IN[task].SETTINGS)


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
    for name in sorted(values.keys() ^ settings.keys()):
        problem = "is not a setting" if name in values else "is missing"
        raise UserError(f"config.{name} {problem} of this task; see docs/settings.md")
    for name, setting in settings.items():
        check_value(name, setting, values[name], complete=complete)


def _find(name: str) -> Path:
    """Finds an experiment: a file, or, as configs/NAME.py, one that the package ships."""
    if Path(name).is_file():
        return Path(name)
    folder = Path(configs.__path__[0])
    shipped = {f"configs/{path.name}": path for path in sorted(folder.glob("[a-z]*.py"))}
    return lookup(shipped, Path(name).as_posix(), "config file")
