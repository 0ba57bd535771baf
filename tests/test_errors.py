"""How error messages are worded."""

import pytest

from cocondenser_jax.errors import UserError, first_line, first_three, first_words


def test_user_error_is_one_line():
    assert str(UserError("a\nb")) == "a b"


def test_user_error_leaves_the_terminal_alone():
    # It may quote a file: clear the screen, fill the clipboard, overwrite the line, delete.
    quoted = "é\t\x1b[2J \x1b]52;c;cm0=\x07 \x9b2J \x7f \x00"
    escaped = r"\x1b[2J \x1b]52;c;cm0=\x07 \x9b2J \x7f \x00"
    assert str(UserError(quoted)) == f"é\t{escaped}"
    assert "\r" not in str(UserError("a\rb"))
    assert str(UserError("a path \udcff")) == r"a path \xff"


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" one\n  two\tthree", "one two three"),
        ("word " * 1000, "word word …"),
        ("文" * 1000, "文" * 13 + " …"),  # words without spaces between them
    ],
)
def test_first_words_of_a_text(text, shown):
    assert first_words(text, 13) == shown
