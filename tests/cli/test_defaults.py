"""Defaults and choices of flags are those of the functions that the flags are passed to.

A flag declares its default and its choices a second time, because `--help` imports no library. Here
every command runs without its functions, which only note their arguments: once with its defaults,
and once for each other value of each flag. Whatever changes is what the flag is passed to.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import sys
import textwrap
from typing import Literal, get_args, get_origin, get_type_hints
from unittest.mock import MagicMock

import click
import pytest

from cocondenser_jax.cli import flags, retrieval, training
from cocondenser_jax.cli.flags import PROGRAM

# Beside the required flags; and an index, unless embeddings are.
GIVEN = {"search": ["--model=folder", "--query=words"], "retrieve": []}
EMBEDDINGS = "--embeddings=folder"
# What no function of the package gets: a command reads it itself.
OWN = {"columns", "json_out", "index", "embeddings", "query"}
# Other values of flags that parse their own.
VALUES = {"report": "page.html", "task": "1/2", "weights": "1,2", "step": "7"}


def functions_of(command):
    """Yields (module, name) of the functions that a command imports, itself or where it opens."""
    source = textwrap.dedent(inspect.getsource(command.callback))
    tree = ast.parse(source + inspect.getsource(retrieval._open) * ("_open(" in source))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if inspect.isfunction(getattr(module, alias.name)):
                    yield module, alias.name


@functools.cache
def names_for_types(module):
    """Returns what a module imports for a type checker alone; of other libraries, `object`."""
    names = {}
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                is_ours = line.module.startswith("cocondenser_jax.")
                found = importlib.import_module(line.module) if is_ours else None
                names |= {each.name: getattr(found, each.name, object) for each in line.names}
    return names


def hints_of(annotated):
    """Returns the types of the arguments of a function, or of the fields of a record."""
    return get_type_hints(annotated, localns=names_for_types(annotated.__module__))


class Arguments:
    """Notes what functions are called with: value, default and type by (function, parameter)."""

    def __init__(self):
        self.values = {}
        self.defaults = {}
        self.types = {}

    def note(self, owner, types, defaults, values):
        """Notes the values of parameters or fields; of a record its type, and its fields."""
        for name, value in values.items():
            key = f"{owner}.{name}"
            self.types[key] = types.get(name)
            if name in defaults:
                self.defaults[key] = defaults[name]
            if isinstance(value, tuple) and hasattr(value, "_asdict"):
                kind = type(value)
                self.note(kind.__name__, hints_of(kind), kind._field_defaults, value._asdict())
                value = kind
            if isinstance(value, functools.partial):
                value = (value.func, *value.args)
            self.values[key] = "a result" if isinstance(value, MagicMock) else value

    def noting(self, function):
        """Returns what notes the arguments in place of a function."""
        signature = inspect.signature(function)
        defaults = {
            name: parameter.default
            for name, parameter in signature.parameters.items()
            if parameter.default is not parameter.empty
        }

        @functools.wraps(function)
        def note(*arguments, **options):
            bound = signature.bind(*arguments, **options).arguments
            self.note(function.__name__, hints_of(function), defaults, bound)
            return MagicMock()

        return note


def call(name, words):
    """Returns the arguments that a command passes on."""
    command = PROGRAM.commands[name]
    required = [
        f"--{flag.name}={flag.name}"
        for flag in command.params
        if isinstance(flag, click.Option) and flag.required
    ]
    noted = Arguments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flags, "_PACKAGES", {})
        patch.setattr(flags, "read_object", lambda path: {"from": path})
        patch.setattr(training, "_require_hosts", MagicMock())  # of three flags, one is given
        for module, function in functions_of(command):
            patch.setattr(module, function, noted.noting(getattr(module, function)))
        if name in GIVEN:
            place = [] if EMBEDDINGS in words else ["--index=folder"]
            others = {word.split("=")[0] for word in words}
            own = [word for word in GIVEN[name] if word.split("=")[0] not in others]
            words = [*own, *place, *words]
        with contextlib.suppress(TypeError, ValueError, LookupError):  # what prints needs results
            command.main([*required, *words], standalone_mode=False)
    return noted


def other_words(flag):
    """Returns the words that give a flag each value but its default."""
    if flag.is_flag:
        return [f"--{flag.name}"]
    if isinstance(flag.type, click.Choice):
        values = [choice for choice in flag.type.choices if choice != flag.default]
    elif isinstance(flag.type, click.FloatRange) or flag.type is click.FLOAT:
        values = ["0.3"]
    elif flag.name in VALUES:
        values = [VALUES[flag.name]]
    else:
        values = [str(flag.default + 1) if isinstance(flag.default, int) else "3"]
    return [f"--{flag.name}={value}" for value in values]


def choices_of(hint):
    """Returns the values of a Literal, or of one among the members of a union."""
    members = (hint, *get_args(hint))
    return {value for each in members if get_origin(each) is Literal for value in get_args(each)}


OPTIONAL = [
    (name, flag.name)
    for name, command in PROGRAM.commands.items()
    for flag in command.params
    if isinstance(flag, click.Option)
    and not flag.required
    and flag.name not in OWN
    and (name, flag.name) != ("search", "depth")
    and (name, flag.name) != ("search", "corpus")  # which is searched in place of an index
]


@pytest.mark.parametrize(("name", "flag_name"), OPTIONAL)
def test_a_flag_has_the_default_and_the_choices_of_its_function(name, flag_name):
    by_name = {flag.name: flag for flag in PROGRAM.commands[name].params}
    flag = by_name[flag_name]
    context = []
    needed = flag
    while needed.goes_with:
        needed = by_name[needed.goes_with[0]]
        if needed.name == "embeddings":
            context.append(EMBEDDINGS)
        elif needed.name != "index":  # which is given
            context += other_words(needed)[:1]
    plain = call(name, context)
    given = [call(name, [*context, word]) for word in other_words(flag)]
    passed_to = {
        key
        for noted in given
        for key, value in noted.values.items()
        if key not in plain.values or plain.values[key] != value
    }
    assert passed_to, "no function gets it"
    for key in passed_to & plain.values.keys():
        value = plain.values[key]
        if key in plain.defaults:
            default = plain.defaults[key]
            same = list(value) == list(default) if isinstance(value, list) else value == default
            assert same, f"{key} is {default!r} without the flag, and {value!r} by its default"
        if isinstance(flag.type, click.Choice):
            values = [value, *(noted.values[key] for noted in given)]
            if all(isinstance(each, str | None) for each in values):
                assert {*values} - {None} == choices_of(plain.types[key]), key
