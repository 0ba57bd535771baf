"""Broken variants of valid input, and what every reader promises about them."""

import copy
import json
import math
import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError

# FUZZ_EXAMPLES=20000 searches longer, with new examples each time; without it they never change.
_EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
_PIECES = st.sampled_from(
    [
        b"",
        b"\xef\xbb\xbf",  # a byte order mark
        b"\x00",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\xe2\x80\xa8",  # a line separator
        b"\t",
        b'"',
        b"\xff",
        b"\xed\xa0\x80",  # a surrogate, as no UTF-8 spells it
        b"\\ud800",
        b"-1",
        b"1e999",
        b"NaN",
        b"9" * 30,
        b"9" * 5000,  # more digits than Python makes an int of
        b"[" * 5000,
        b"{}",
        b"null",
    ]
)
_VALUES = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1,
        1.5,
        math.nan,
        math.inf,
        1 << 31,
        10**30,
        10**400,
        "",
        "x",
        "�",
        "two\nlines",
        "../../x",
        "/etc/passwd",
        [],
        [[]],
        [None],
        {},
        {"x": 1},
    ]
)


class Payload:
    """Unpickled, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def fuzz(share=1.0):
    """Returns the settings of a fuzzer; `share` of FUZZ_EXAMPLES where each takes long."""
    return settings(
        max_examples=max(1, int(share * int(_EXAMPLES))) if _EXAMPLES else 10,
        derandomize=_EXAMPLES is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def assert_read_or_refused(read, *arguments):
    """Calls a reader: whatever its input, it returns or raises a UserError of one line."""
    message = "read"
    try:
        read(*arguments)
    except UserError as error:
        message = str(error)
    assert len(message.splitlines()) == 1


@st.composite
def broken_bytes(draw, data):
    """Cuts, flips, repeats or replaces parts of a file."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = begin + draw(st.sampled_from([0, 1, 2, 8, 64, len(data)]))
        piece = draw(st.one_of(_PIECES, st.binary(max_size=3), st.just(data[begin:end] * 2)))
        data = data[:begin] + piece + data[end:]
    return data


@st.composite
def broken_lines(draw, data):
    """Removes, repeats or swaps lines, or breaks what is in them."""
    lines = data.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 2))] = draw(
            st.lists(st.sampled_from(lines or [b"\n"]), max_size=2)
        )
    data = b"".join(lines)
    return draw(st.one_of(st.just(data), broken_bytes(data)))


@st.composite
def broken_values(draw, value):
    """Replaces, removes or adds values of a nested JSON value."""
    holder = {"": copy.deepcopy(value)}
    for _ in range(draw(st.integers(1, 2))):
        inside, key = draw(st.sampled_from(list(_places(holder))))
        match draw(st.integers(0, 4)):
            case 0 if key != "":
                del inside[key]
            case 1 if isinstance(inside[key], dict):
                name = draw(st.sampled_from(["x", "", "../../x"]))
                inside[key][name] = copy.deepcopy(draw(_VALUES))
            case _:
                inside[key] = copy.deepcopy(draw(_VALUES))
    return holder[""]


def broken_json(value):
    """Breaks a JSON file in its values, or as bytes."""
    return st.one_of(
        broken_values(value).map(lambda broken: json.dumps(broken).encode()),
        broken_bytes(json.dumps(value).encode()),
    )


def fuzz_content(path, valid, read):
    """Reads a valid file, then breaks its lines and bytes again and again."""
    path.write_bytes(valid)
    read(path)

    @fuzz()
    @given(broken_lines(valid) | broken_bytes(valid))
    def check(content):
        path.write_bytes(content)
        assert_read_or_refused(read, path)

    check()


def fuzz_record(path, record, read):
    """Reads files of one JSON record again and again, with values of wrong types."""

    @fuzz()
    @given(broken_json(record))
    def check(content):
        path.write_bytes(content + b"\n")
        assert_read_or_refused(read, path)

    check()


def jsonl(*records):
    """Returns a file with one record per line."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def fuzz_file(folder, name, read, share=1.0):
    """Breaks one file of a folder again and again, and reads the folder; then restores it."""
    path = folder / name
    valid = path.read_bytes()
    broken = broken_json(json.loads(valid)) if name.endswith(".json") else broken_bytes(valid)

    @fuzz(share)
    @given(broken)
    def check(content):
        path.unlink(missing_ok=True)  # what is mapped must not change
        path.write_bytes(content)
        assert_read_or_refused(read, folder)

    read(folder)
    check()
    path.unlink()
    assert_read_or_refused(read, folder)
    path.write_bytes(valid)


def _places(holder):
    """Yields each container and key of a nested value."""
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])
