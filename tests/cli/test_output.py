"""How results are printed."""

import pytest

from cocondenser_jax.cli.output import first_words


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
