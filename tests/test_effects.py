"""Every setting and every flag has a test of its effect.

Such a test gives a value that is not the default, asserts what changes, and names what it covers:
`@pytest.mark.effect("pretrain optimizer.b1", "search --top_k")`. The marks are read from the source
of the tests and compared with the declared settings and with the parser, so a setting or flag that
is added without a test fails here, and so does the mark of one that is gone.
"""

import argparse
import ast
from pathlib import Path

from cocondenser_jax.cli import _make_parser
from cocondenser_jax.settings import DECLARED_IN, declared_settings

TESTS = Path(__file__).parent
# Asserted by the exit status alone: argparse's own, and the file that names all other settings.
WITHOUT_EFFECT_OF_THEIR_OWN = ("--help", "--version")


def marked():
    """Returns the names in the `effect` marks of all tests."""
    names = set()
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.effect"):
                names |= {argument.value for argument in node.args}  # literals only
    return names


def flags(parser, command=""):
    """Yields "COMMAND --flag" of every flag of a parser and of its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from flags(inner, f"{command} {name}".strip())
        elif action.option_strings and action.option_strings[-1] not in WITHOUT_EFFECT_OF_THEIR_OWN:
            yield f"{command} {action.option_strings[-1]}"


def test_every_setting_has_a_test_of_its_effect():
    declared = {f"{task} {name}" for task in DECLARED_IN for name in declared_settings(task)}
    assert declared == {name for name in marked() if "--" not in name}


def test_every_flag_has_a_test_of_its_effect():
    assert set(flags(_make_parser())) == {name for name in marked() if "--" in name}
