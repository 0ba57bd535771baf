"""How error messages are worded."""

import pytest

from cocondenser_jax.errors import UserError, first_line, first_three


def test_user_error_is_one_line():
    assert str(UserError("a\nb")) == "a b"


@pytest.mark.parametrize(
    ("message", "line"),
    [("one", "one"), ("\n one\ntwo", "one"), ("one\r\ntwo", "one"), (" \n", "ValueError")],
)
def test_first_line_of_a_message(message, line):
    assert first_line(ValueError(message)) == line


def test_first_three_names():
    assert first_three([]) == ""
    assert first_three(["a", "b", "c"]) == "a, b, c"
    assert first_three(["a", "b", "c", "d"]) == "a, b, c, ..."
