"""Lines: of files, and those that are said, as a whole: a part may be right in a wrong line."""

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


def write_lines(path, lines):
    """Writes a text file."""
    path.write_text("".join(f"{line}\n" for line in lines))


def run_lines(rankings):
    """Yields the lines of a TREC run; a ranking is a query and its passages, as one text."""
    for query, *passages in map(str.split, rankings):
        yield from (f"{query} Q0 {p} {i} {-i} t" for i, p in enumerate(passages, start=1))


def printed(capsys):
    """Returns the words of each line that was printed."""
    return [line.split() for line in capsys.readouterr().out.splitlines()]
