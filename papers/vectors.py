"""Embeddings of collections by retrievers, and exact search in them."""

from typing import NamedTuple

from papers import commands, costs
from papers.steps import Step


class Passages(NamedTuple):
    """A collection that retrievers encode."""

    data: Step
    folder: str  # of the passages, in the data or the data itself
    number: int
    characters: float  # of one, on average
    flop: float  # floating-point operations to encode one, by BERT-base


def embeddings(retriever: Step, passages: Passages) -> Step:
    """The vectors of all passages, in float16."""
    out = f"{retriever.out}/embeddings"
    command = commands.encode(
        f"{retriever.out}/retriever",
        passages.folder,
        out,
        "--dtype=float16",
        f"--json_out={out}/{_ENCODED}",
    )
    return Step(
        out,
        [command],
        needs=[retriever, passages.data],
        done=_ENCODED,
        flop=passages.number * passages.flop,
        bytes=costs.embeddings_bytes(passages.number, passages.characters),
        is_temporary=True,
    )


# The folder and its manifest are there from the start; this file is written at the end.
_ENCODED = "encoded.json"


class Search(NamedTuple):
    """The queries and the depth of a search."""

    data: Step
    folder: str  # of the queries
    n_queries: int
    depth: int
    flags: tuple[str, ...] = ()


def run(retriever: Step, passages: Passages, search: Search, out: str) -> Step:
    """The run of a retriever, by exact search."""
    vectors = embeddings(retriever, passages)
    command = commands.retrieve(
        vectors.out,
        f"{retriever.out}/retriever",
        search.folder,
        out,
        *search.flags,
        f"--depth={search.depth}",
    )
    n_results = search.n_queries * search.depth
    return Step(
        out,
        [command],
        needs=[retriever, vectors, search.data],
        core_seconds=costs.exact_search(search.n_queries, passages.number)
        + costs.mining(0, n_results),
        bytes=costs.run_bytes(n_results),
    )
