"""Writes queries and passages to be judged by a person, as a folder that `--data` reads.

    corpus.jsonl  queries.jsonl  qrels/test.tsv

The last one is a form: a line for each passage of each query, with their texts and an empty grade.
Lines that stay empty are left out when it is read.

All first passages of every ranking that is compared are to be judged, as many as the metric reads.
If only the first five were, nDCG@10 would prefer fused rankings, whose next five are among the
first five of the rankings that are fused: on MEDLARS by 0.08, where they are not better.
"""

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cocondenser_jax.errors import first_words
from cocondenser_jax.files.whole import new_folder, numbered_lines, write_text
from cocondenser_jax.retriever.data.beir import write_beir
from cocondenser_jax.retriever.data.folder import passage_text, read_queries
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.trec import Firsts

logger = logging.getLogger(__name__)

N_QUERIES = 30  # to judge
TO_JUDGE = "to_judge"  # the folder
_CHARACTERS = 500  # of a text in the form
_HEADER = ("score", "query text", "passage text", "query-id", "corpus-id")
FORM = "qrels/test.tsv"


def write_to_judge(
    out: Path,
    passages: Iterable[Passage],
    queries: Mapping[str, str],
    rankings: Sequence[Firsts],
) -> None:
    """Writes queries with the first passages of rankings, to be judged.

    Args:
      out: the folder. What is there is replaced, unless it has been judged: then it is kept.
      passages: all that are searched.
      queries: id → text, those to judge.
      rankings: of these queries, all that will be compared; what they have is to be judged.
    """
    if out.exists():
        if is_begun(out):
            logger.warning(
                "%s is kept, because lines of it have scores: its passages are those of the call"
                " that wrote it; move it away to get others",
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
    """Returns whether a line of a form has a score."""
    rows = [line for _, line in numbered_lines(folder / FORM)][1:]
    return any(line.partition("\t")[0].strip() for line in rows)


def describe_form(folder: Path) -> str:
    """Says what to judge, and how to give it."""
    n_lines = sum(1 for _ in numbered_lines(folder / FORM)) - 1
    n_queries = len(read_queries(folder))
    return (
        f"judge {n_queries} queries in {folder / FORM} ({n_lines:,} lines), then give"
        f" --data={folder}"
    )


def _noting_texts(passages: Iterable[Passage], texts: dict[str, str]) -> Iterator[Passage]:
    """Yields passages; notes the texts of those that `texts` has."""
    for passage in passages:
        if passage.id in texts:
            texts[passage.id] = passage_text(passage)
        yield passage


def _cell(text: str) -> str:
    """Returns the start of a text on one line, which no spreadsheet takes for a formula."""
    start = first_words(text, _CHARACTERS)
    return f" {start}" if start.startswith(("=", "+", "-", "@")) else start


def _pool(query: str, rankings: Iterable[Firsts]) -> list[str]:
    """Returns the first passages of all rankings, each once, ordered by name."""
    return sorted({name for first in rankings for name in first.get(query, ())})
