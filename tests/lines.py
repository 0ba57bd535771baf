"""Compares what is said with whole lines: a part of one may be right in a wrong line."""

import re

# A folder that pytest made: its name ends in a number, which is not what its folders are named.
_TMP = r"/\S*?[^/\s]\d"


def whole(line):
    """Returns the pattern of a whole line.

    TMP stands for a temporary folder, and "…" for what another library says.
    """
    return f"^{re.escape(line).replace('TMP', _TMP).replace('…', '.*')}$"


def refusal(capsys):
    """Returns what a command that was refused has said last, after the program's name."""
    program, _, line = capsys.readouterr().err.splitlines()[-1].partition(": ")
    assert program == "cocondenser"
    return line
