"""Every setting and every flag has a test of its effect.

Such a test gives a value that is not the default, asserts what changes, and names what it covers:
`@pytest.mark.effect("pretrain optimizer.b1", "search --depth")`. The marks are read from the source
of the tests and compared with the declared settings and with the parser, so a setting or flag that
is added without a test fails here, and so does the mark of one that is gone. A flag that may be
repeated has a second name, such as "fuse --run...", for a test that gives several.
"""

import ast
from pathlib import Path

import click

from cocondenser_jax.cli.flags import PROGRAM
from cocondenser_jax.settings import DECLARED_IN, declared_settings

TESTS = Path(__file__).parent


def marked():
    """Returns the names in the `effect` marks of all tests."""
    names = set()
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.effect"):
                names |= {argument.value for argument in node.args}  # literals only
    return names


def flags():
    """Yields "COMMAND --flag" of every flag of every command, and "COMMAND --flag..."."""
    for name, command in PROGRAM.commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                (flag,) = parameter.opts
                yield f"{name} {flag}"
                if parameter.multiple:
                    yield f"{name} {flag}..."


def test_every_setting_has_a_test_of_its_effect():
    declared = {f"{task} {name}" for task in DECLARED_IN for name in declared_settings(task)}
    assert declared == {name for name in marked() if "--" not in name}


def test_every_flag_has_a_test_of_its_effect():
    assert set(flags()) == {name for name in marked() if "--" in name}
