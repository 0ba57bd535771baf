"""Complete texts that commands print and write, compared with those recorded in tests/recorded/.

They notice a line that is missing, moved, or says another thing. What depends on the machine is
masked: folders, checksums, measured numbers, progress bars. After an intended change, RECORD=1
writes the texts anew, and `git diff` shows what became of them:

    RECORD=1 python -m pytest -p no:randomly tests/pipelines tests/retriever/compare tests/cli \
        tests/test_configs.py
"""

import contextlib
import html
import io
import json
import logging
import os
import re
from pathlib import Path

from cocondenser_jax.errors import log_once
from cocondenser_jax.files.whole import read_json

_RECORDED = Path(__file__).with_name("recorded")
_MASKS = {
    r"\b[0-9a-f]{64}\b": "SHA256",
    r"(?m)^.*\[\d\d:\d\d[,<][^\]]*\]\n": "",  # progress bars
    r"  +": "  ",  # columns are as wide as their numbers
    r"(?m) +$": "",
}
# The numbers that depend on the machine, whose place is recorded as 0.
NONE = "(?!)"  # all follow from input made by hand
FLOATS = r"(≤ )?[+-]?\d+\.\d+(e[+-]?\d+)?"
MEASURED = (
    FLOATS + r"|(?m:(?<= )\d[\d,]*$)"  # at the end of a line: seconds, counts
    r"|\d+ minutes?(?= left)|[\d,]+(?= tokens a second)|[\d,]+(?= lines\))"
    r'|(?<=(?:tter|orse|qual)": )\d+'  # queries that are better, worse or equal
)


def assert_recorded(name, sections, folders=None, masked=MEASURED):
    """Compares texts with those that are recorded.

    Args:
      name: of the recorded file, without its suffix.
      sections: the texts by their headings.
      folders: paths that the texts may name, by what is recorded in their place.
      masked: a pattern of the numbers that are not compared.
    """
    text = "".join(f"### {heading}\n{each.strip()}\n\n" for heading, each in sections.items())
    for place, folder in sorted((folders or {}).items(), key=lambda each: -len(str(each[1]))):
        text = text.replace(str(folder), place)
    for mask, instead in {**_MASKS, masked: "0"}.items():
        text = re.sub(mask, instead, text)
    file = _RECORDED / f"{name}.txt"
    if os.environ.get("RECORD"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@contextlib.contextmanager
def all_said():
    """Yields a file that gets what is printed and logged in the block, in its order.

    What training logs depends on the machine, and has tests of its own.
    """
    said = io.StringIO()
    handler, log = logging.StreamHandler(said), logging.getLogger("cocondenser_jax")
    handler.addFilter(lambda record: not record.name.startswith("cocondenser_jax.pretrain"))
    level = log.level
    log.addHandler(handler)
    log_once.cache_clear()  # what an earlier test heard is said again
    log.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield said
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def written(folder, *json_files, inside=()):
    """Returns the names in a folder and in some of its folders, and the content of some files."""
    parents = [folder, *(folder / name for name in inside)]
    names = [path.relative_to(folder).as_posix() for each in parents for path in each.iterdir()]
    return {
        "files": "\n".join(sorted(names)),
        **{name: in_lines(read_json(folder / name)) for name in json_files},
    }


def in_lines(content):
    """Returns the content of a JSON file, a line for each of its parts."""
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    return "\n".join(f"{key}: {json.dumps(part)}" for key, part in parts)


def seen_on(page, of_queries=True):
    """Returns the words that a reader sees on a report, a line for each row, heading or text.

    Args:
      page: the HTML.
      of_queries: whether it includes the queries that are folded in.
    """
    left_out = ["<style.*?</style>", "<dl>.*?</dl>", "<text[^>]*>[^a-df-zA-Z]*</text>"]
    left_out += [] if of_queries else ["<details><summary><span.*?</details>"]
    for part in left_out:
        page = re.sub(part, "", page, flags=re.DOTALL)
    page = re.sub(r"</t[hd]>\s*<t[hd][^>]*>", " | ", " ".join(page.split()))
    page = re.sub(r"</(?!b|span|a|i\b)\w+>", "\n", page)
    lines = (" ".join(line.split()) for line in re.sub("<[^>]*>", " ", page).split("\n"))
    return html.unescape("\n".join(filter(None, lines)))
