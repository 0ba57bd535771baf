"""Reads an experiment file and its overrides."""

import ast
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError

_OVERRIDE = "--config."


def load_config(spec: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Loads an experiment file and applies overrides.

    Args:
      spec: a path to a file with `get_config(argument)`, optionally followed by `:argument`. A path
        `configs/x.py` that is not there means the experiment of that name shipped with the package.
      overrides: words of the form `--config.a.b=value`.

    Returns:
      The locked config.

    Raises:
      UserError: if the file, the key or the type of a value is wrong.
    """
    name, _, argument = spec.partition(":")
    module = _load_module(_find(name))
    try:
        config = module.get_config(*[argument] if argument else [])
    except Exception as error:
        raise UserError(f"{spec}: get_config failed: {error!r}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"{spec}: get_config returned no ConfigDict")
    for word in overrides:
        _apply(config, word)
    return config


def _find(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    package = importlib.util.find_spec("cocondenser_jax.configs")
    shipped = (
        [Path(folder) / path.name for folder in package.submodule_search_locations or []]
        if package
        else []
    )
    if path.parent == Path("configs") and shipped and shipped[0].is_file():
        return shipped[0]
    raise UserError(f"no config file {name}: expected a path such as configs/cocondenser.py")


def _load_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"experiment_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # it is a program: it may raise anything
        raise UserError(f"{path} cannot be loaded: {error}") from error
    if not hasattr(module, "get_config"):
        raise UserError(f"{path} has no function get_config")
    return module


def _apply(config: ConfigDict, word: str) -> None:
    """Sets one value; its type must be that of the value it replaces."""
    key, equals, text = word.removeprefix(_OVERRIDE).partition("=")
    if not word.startswith(_OVERRIDE) or not equals:
        raise UserError(f"unknown argument {word!r}: settings are given as --config.key=value")
    *sections, last = key.split(".")
    section: Any = config
    for name in sections:
        section = section.get(name) if isinstance(section, ConfigDict) else None
    if not isinstance(section, ConfigDict) or last not in section:
        known = ", ".join(sorted(section if isinstance(section, ConfigDict) else config))
        raise UserError(f"no setting config.{key}; there is: {known}")
    section[last] = _parse(key, text, section[last])


def _parse(key: str, text: str, old: Any) -> Any:
    if isinstance(old, str):
        return _require_utf8(key, text)
    if isinstance(old, ConfigDict):
        raise UserError(f"config.{key} is a section; set one of {', '.join(sorted(old))} in it")
    wanted = type(old)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = {"true": True, "false": False}.get(text.lower())
    if wanted is float and type(value) is int and abs(value) < 1 << 53:
        value = float(value)
    if type(value) is not wanted or (wanted is float and not math.isfinite(value)):
        raise UserError(
            f"config.{key} is {text!r}; expected a value like {old!r} ({wanted.__name__})"
        )
    return value


def _require_utf8(key: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"config.{key} is {text!r}: not UTF-8") from None
    return text
