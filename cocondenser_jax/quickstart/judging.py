"""Writes queries and passages to be judged by a person, as a folder that `--data` reads.

    corpus.jsonl  queries.jsonl  qrels/test.tsv

The last one is a form: a line for each passage of each query, with their texts and an empty grade.
Lines that stay empty are left out when it is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cocondenser_jax.collection.beir import write_beir
from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.collection.trec import Run, first_passages
from cocondenser_jax.errors import first_words
from cocondenser_jax.storage.files import new_folder, write_text

N_QUERIES = 30
_DEPTH = 10  # to which two rankings are compared
_POOL_DEPTH = 5  # the passages of each ranking that are to be judged
_CHARACTERS = 500  # of a text in the form
_HEADER = ("score", "query text", "passage text", "query-id", "corpus-id")
FORM = "qrels/test.tsv"


def write_to_judge(
    out: Path,
    passages: Mapping[str, str],
    queries: Mapping[str, str],
    rankings: Sequence[Run],
) -> None:
    """Writes the queries on which two rankings differ most, with the passages to judge.

    Args:
      out: the folder.
      passages: id → text, all that are searched.
      queries: id → text.
      rankings: the two; the first passages of these and of any others are to be judged.
    """
    chosen = most_different(rankings[0], rankings[1])
    rows = ["\t".join(_HEADER)]
    for query in chosen:
        for passage in _pool(query, rankings):
            texts = [_cell(queries[query]), _cell(passages[passage])]
            rows.append("\t".join(["", *texts, _name(query), passage]))
    with new_folder(out) as folder:
        every = (Passage(name, "", text) for name, text in passages.items())
        write_beir(folder, every, {_name(query): queries[query] for query in chosen}, {})
        write_text(folder / FORM, "\n".join([*rows, ""]))


def most_different(run: Run, other: Run) -> list[str]:
    """Returns the 30 queries whose ten first passages are least alike, those first."""

    def shared(query: str) -> int:
        first, second = (first_passages(each.get(query, {}), _DEPTH) for each in (run, other))
        return len({*first}.intersection(second))

    return sorted(run, key=shared)[:N_QUERIES]


def _name(query: str) -> str:
    """Returns the id of a query in the folder: that of a passage would say that it is this one."""
    return f"query-{query}"


def _cell(text: str) -> str:
    """Returns the start of a text on one line, which no spreadsheet takes for a formula."""
    start = first_words(text, _CHARACTERS)
    return f" {start}" if start.startswith(("=", "+", "-", "@")) else start


def _pool(query: str, rankings: Iterable[Run]) -> list[str]:
    """Returns the first passages of all rankings, each once, ordered by name."""
    pool = {name for run in rankings for name in first_passages(run.get(query, {}), _POOL_DEPTH)}
    return sorted(pool)
