"""How a setting is declared, and what its declaration says of a value.

The declarations are in `configs/`: `default.py` for pre-training, `finetune.py` and
`cross_encoder.py` for fine-tuning.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError

GIVEN = "given"  # a text that must not be empty


class Interval(NamedTuple):
    """The numbers that a setting may have, both ends included."""

    low: float
    high: float = 2**32 - 1  # seeds, steps and sizes are passed on as 32-bit numbers

    def __str__(self) -> str:
        return f"from {self.low}" + (f" to {self.high}" if self.high < 2**32 - 1 else "")


AUTO = "auto"  # the value of a setting that the machine decides


class OrAuto(NamedTuple):
    """Whole numbers, or `AUTO`."""

    numbers: Interval

    def __str__(self) -> str:
        return f"{self.numbers}, or {AUTO!r}"


class ListOf(NamedTuple):
    """The lists that a setting may have: tuples of any length, their elements of one type."""

    kind: type[int] | type[float] | type[str]
    allowed: Interval | tuple[str, ...] | None = None  # for each element, as in `Setting`


class Setting(NamedTuple):
    """One setting. Its type is that of its default, but for `OrAuto`."""

    default: Any  # the value where an experiment says nothing
    # Numbers, choices, `GIVEN` for a text that must be set, or None for any value of the type.
    allowed: Interval | OrAuto | ListOf | tuple[str, ...] | str | None
    unit: str  # of a number; "" where it has none
    meaning: str  # what it does, in one line


def to_config(settings: Mapping[str, Setting]) -> ConfigDict:
    """Returns the defaults as a locked config; a dot in a name makes a section."""
    config = ConfigDict({name.split(".")[0]: {} for name in settings if "." in name})
    config.update_from_flattened_dict({name: setting.default for name, setting in settings.items()})
    return config.lock()


def check_value(name: str, setting: Setting, value: Any, *, complete: bool) -> None:
    """Raises a UserError if the setting may not have the value.

    Unless `complete`, a text that must be set may be empty.
    """
    if not _is_allowed(setting, value, complete):
        raise UserError(f"config.{name} is {value!r}; expected {_expected(setting)}")


def _is_allowed(setting: Setting, value: Any, complete: bool) -> bool:
    if isinstance(setting.allowed, ListOf):
        kind, allowed = setting.allowed
        kinds = (int, float) if kind is float else (kind,)  # (1, 0.5) are numbers
        is_list = type(value) in (tuple, list)  # a config that was read from JSON has lists
        return is_list and all(type(each) in kinds and _is_in(allowed, each) for each in value)
    if isinstance(setting.allowed, OrAuto):
        return value == AUTO or (type(value) is int and _is_in(setting.allowed.numbers, value))
    if type(value) is not type(setting.default):
        return False
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
    if isinstance(setting.allowed, OrAuto):
        return f"{_expected_value(int, setting.allowed.numbers, setting.unit)}, or {AUTO!r}"
    return _expected_value(type(setting.default), setting.allowed, setting.unit)


def _expected_value(kind: type, allowed: Any, unit: str) -> str:
    if isinstance(allowed, tuple) and not isinstance(allowed, Interval):
        return " or ".join(map(repr, allowed))
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    return f"{names[kind]} {allowed or ''} {unit}".rstrip()


def parse(setting: Setting, text: str) -> Any:
    """Reads a value of the setting's type; a text that is none is left for `check_value`."""
    if isinstance(setting.allowed, OrAuto):
        return _parse_value(int, text)
    if not isinstance(setting.allowed, ListOf):
        return _parse_value(type(setting.default), text)
    if not (text.startswith("[") and text.endswith("]")):
        return text
    content = text[1:-1].strip()
    words = content.split(",") if content else []
    return tuple(_parse_value(setting.allowed.kind, word.strip()) for word in words)


def _parse_value(kind: type, text: str) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        return text
