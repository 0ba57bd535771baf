"""Writes queries and passages for manual judgment, as a data folder for `--data`.

    corpus.jsonl  queries.jsonl  qrels/test.tsv

The last file is a form: a line for each passage of each query, with both texts and an empty score.
Lines without a score are ignored when the form is read.

The form pools the first passages of all compared rankings to the depth that the metric reads. With
only five of each, nDCG@10 would favor fused rankings, since their next five are often among the
first five of their sources: by 0.08 on MEDLARS, where fused rankings are not better.
"""

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cocondenser_jax.errors import shortened
from cocondenser_jax.files.whole import new_folder, numbered_lines, write_text
from cocondenser_jax.retriever.data.beir import write_beir
from cocondenser_jax.retriever.data.folder import passage_text, read_queries
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.trec import Firsts

logger = logging.getLogger(__name__)

N_QUERIES = 30  # to judge
TO_JUDGE = "to_judge"  # the folder
_CHARACTERS = 500  # shown of a text in the form
_HEADER = ("score", "query text", "passage text", "query-id", "corpus-id")
FORM = "qrels/test.tsv"


def write_to_judge(
    out: Path,
    passages: Iterable[Passage],
    queries: Mapping[str, str],
    rankings: Sequence[Firsts],
) -> None:
    """Writes a form for judging the first passages of rankings.

    Args:
      out: the folder. An existing form is replaced, or kept if it has any score.
      passages: all searched passages.
      queries: id → text, of the queries to judge.
      rankings: all rankings to compare; their passages are in the form.
    """
    if out.exists():
        if is_begun(out):
            logger.warning(
                "%s is kept, because some of its lines have scores; move it away to get a new form",
                out,
            )
            return
        shutil.rmtree(out)
    pools = {query: _pool(query, rankings) for query in queries}
    texts = dict.fromkeys((name for pool in pools.values() for name in pool), "")
    with new_folder(out) as folder:
        write_beir(folder, _noting_texts(passages, texts), queries, {})
        rows = [
            "\t".join(["", _cell(queries[query]), _cell(texts[name]), query, name])
            for query, pool in pools.items()
            for name in pool
        ]
        write_text(folder / FORM, "\n".join(["\t".join(_HEADER), *rows, ""]))


def is_begun(folder: Path) -> bool:
    """Returns whether any line of a form has a score."""
    rows = [line for _, line in numbered_lines(folder / FORM)][1:]
    return any(line.partition("\t")[0].strip() for line in rows)


def describe_form(folder: Path) -> str:
    """Returns a summary of the form to fill in and the flag for using it."""
    n_lines = sum(1 for _ in numbered_lines(folder / FORM)) - 1
    n_queries = len(read_queries(folder))
    return (
        f"judge {n_queries} queries in {folder / FORM} ({n_lines:,} lines), then give"
        f" --data={folder}"
    )


def _noting_texts(passages: Iterable[Passage], texts: dict[str, str]) -> Iterator[Passage]:
    """Yields passages, and stores the texts of those in `texts`."""
    for passage in passages:
        if passage.id in texts:
            texts[passage.id] = passage_text(passage)
        yield passage


def _cell(text: str) -> str:
    """Returns the start of a text on one line, in a form that no spreadsheet reads as a formula."""
    start = shortened(text, _CHARACTERS)
    return f" {start}" if start.startswith(("=", "+", "-", "@")) else start


def _pool(query: str, rankings: Iterable[Firsts]) -> list[str]:
    """Returns the distinct first passages of all rankings, ordered by id."""
    return sorted({name for first in rankings for name in first.get(query, ())})
