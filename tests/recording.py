"""Complete texts that commands print and write, compared with those recorded in tests/recorded/.

They notice a line that is missing, moved, or says another thing. What depends on the machine is
masked: folders, checksums, measured numbers, progress bars. After an
intended change, RECORD=1 writes the texts anew, and `git diff` shows what became of them:

    RECORD=1 python -m pytest -p no:randomly tests/pipelines tests/retriever/compare
"""

import contextlib
import html
import io
import json
import logging
import os
import re
from pathlib import Path

_RECORDED = Path(__file__).with_name("recorded")
_MASKS = {
    r"\b[0-9a-f]{64}\b": "SHA256",
    r"(?m)^.*\[\d\d:\d\d[,<][^\]]*\]\n": "",  # progress bars
    r"(?m)(?<=  )[\d,]+$": "0",  # a table's last column, of seconds
    r"  +": "  ",  # columns are as wide as their numbers
    r"(?m) +$": "",
}
# The numbers that depend on the machine, whose place is recorded as 0.
NONE = "(?!)"  # all follow from input made by hand
DECIMALS = r"(≤ )?[+-]?\d+\.\d+(e[+-]?\d+)?"
ALL = rf"{DECIMALS}|(?<![\w@])\d[\d,]*"


def assert_recorded(name, sections, folders=None, masked=DECIMALS):
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
    """Yields a file that gets what is printed and logged in the block, in its order."""
    said = io.StringIO()
    handler, log = logging.StreamHandler(said), logging.getLogger("cocondenser_jax")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield said
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def written(folder, *json_files):
    """Returns the names in a folder, down to those in its folders, and the content of some."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")))
    tree = "\n".join(name.as_posix() for name in names if len(name.parts) <= 2)
    contents = (json.loads((folder / name).read_text()) for name in json_files)
    texts = (json.dumps(content, indent=1) for content in contents)
    return {"files": tree, **dict(zip(json_files, texts, strict=True))}


def seen_on(page, of_queries=True):
    """Returns the words that a reader sees on a report, a line for each row, heading or text.

    Args:
      page: the HTML.
      of_queries: whether it includes the queries that are folded in.
    """
    left_out = ["<style.*?</style>", "<dl>.*?</dl>", "<text[^>]*>[^a-zA-Z]*</text>"]
    left_out += [] if of_queries else ["<details><summary><span.*?</details>"]
    for part in left_out:
        page = re.sub(part, "", page, flags=re.DOTALL)
    page = re.sub(r"</t[hd]>\s*<t[hd][^>]*>", " | ", " ".join(page.split()))
    page = re.sub(r"</(?!b|span|a|i\b)\w+>", "\n", page)
    lines = (" ".join(line.split()) for line in re.sub("<[^>]*>", " ", page).split("\n"))
    return html.unescape("\n".join(filter(None, lines)))
