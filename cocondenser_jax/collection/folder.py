"""Reads a data folder: passages, queries, judgments, and passages to draw negatives from.

Files are found one by one, so a folder may mix the layouts of docs/data.md (BEIR, MS MARCO, DPR).
"""

import logging
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from cocondenser_jax.collection import layouts
from cocondenser_jax.collection.layouts import Passage
from cocondenser_jax.collection.trec import Qrels, first_passages, read_qrels, read_run
from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.storage.tables import PASSAGE_FILES, plain_name, plain_suffix

logger = logging.getLogger(__name__)

# Names of files, compressed or not, in the order in which they are looked for.
_QUESTIONS = r"([^/]*-)?SPLIT(\.qa)?\.(csv|json)"
_JUDGMENTS = (
    r"qrels/SPLIT\.tsv",
    r"qrels\.SPLIT\.tsv",
    r"msmarco-docSPLIT-qrels\.tsv",
    _QUESTIONS,
)
_QUERIES = (r"queries\.jsonl", r"queries\.SPLIT\.tsv", r"msmarco-docSPLIT-queries\.tsv")


def passage_text(passage: Passage) -> str:
    """Joins a passage's title, a space and its text, as encoders and BM25 read it."""
    return f"{passage.title} {passage.text}" if passage.title else passage.text


def corpus_file(source: Path) -> Path:
    """Finds the file of passages in a data folder; a file stands for itself."""
    if source.is_file():
        return source
    patterns = [re.escape(name) for name in PASSAGE_FILES]
    return _find(source, patterns, f"holds no {' or '.join(PASSAGE_FILES)}")[0]


def judgments_file(folder: Path, split: str) -> Path:
    """Finds the file of a split's judgments: in DPR's layout, the split is the end of its name."""
    names = f"qrels/{split}.tsv, qrels.{split}.tsv or biencoder-NAME-{split}.json"
    lack = f"has no judgments of split {split!r}: expected {names}"
    return _only(_find(folder, _JUDGMENTS, lack, split), folder)


def split_files(folder: Path, split: str) -> dict[str, Path]:
    """Finds the files that `read_corpus` and `read_split` read: corpus, judgments, queries."""
    judgments = judgments_file(folder, split)
    files = {"corpus": corpus_file(folder), "judgments": judgments}
    if plain_suffix(judgments) == ".tsv":  # other files hold their queries
        files["queries"] = _queries_file(folder, split)
    return files


def read_corpus(source: Path) -> Iterator[Passage]:
    """Yields the passages of a data folder or of its file (see `layouts.read_passages`)."""
    return layouts.read_passages(corpus_file(source))


def read_queries(source: Path, split: str | None = None) -> dict[str, str]:
    """Reads the queries of a data folder, of a split of it, or of one file: id → text."""
    if split is not None:
        return read_split(source, split)[0]
    if source.is_file():
        return layouts.read_queries(source)
    lack = "holds no queries.jsonl, queries.SPLIT.tsv or NAME-SPLIT.qa.csv"
    found = _find(source, (*_QUERIES, _QUESTIONS), lack)
    if plain_suffix(found[0]) in (".csv", ".json"):
        found = [_only(found, source)]
    return _joined_queries(found)


def read_split(folder: Path, split: str) -> tuple[dict[str, str], Qrels]:
    """Reads the queries and judgments of a split; those of DPR's question files are empty."""
    path = judgments_file(folder, split)
    if plain_suffix(path) == ".json":
        questions = layouts.read_training_file(path)
        return questions.queries, questions.qrels
    if plain_suffix(path) == ".csv":
        queries = layouts.read_queries(path)
        return queries, {query: {} for query in queries}
    qrels = read_qrels(path)
    queries = layouts.read_queries(_queries_file(folder, split))
    require_known(qrels, queries, "queries", path)
    return {query: queries[query] for query in qrels}, qrels


def with_positives(qrels: Qrels) -> Qrels:
    """Keeps the relevant passages of the queries that have some; there must be one."""
    relevant = {q: {p: grade for p, grade in qrels[q].items() if grade > 0} for q in qrels}
    kept = {query: passages for query, passages in relevant.items() if passages}
    if n_without := len(qrels) - len(kept):
        logger.warning("%d of %d queries have no positive: not trained on", n_without, len(qrels))
    if not kept:
        raise UserError("no judgment has a score above 0: there is no positive to train on")
    return kept


def read_best_passages(source: Path, qrels: Qrels, depth: int) -> dict[str, list[str]]:
    """Reads the passages from which each query's negatives may come, best first.

    Args:
      source: a TREC run; or published negatives, a .json file of DPR.
      qrels: the judgments of the queries to read.
      depth: passages per query at most.

    Returns:
      query → its passages; an empty list where the source has none.

    Raises:
      UserError: also if a file of DPR has a relevant passage that is not so in `qrels`: it numbers
        other questions.
    """
    positives: Mapping[str, Iterable[str]] = {}
    if plain_suffix(source) == ".json":
        _, positives, best = layouts.read_training_file(source)
    else:
        run = read_run(source)
        best = {query: first_passages(run[query]) for query in qrels if query in run}
    unknown = [
        f"{query} {passage}"
        for query, grades in qrels.items()
        for passage in positives.get(query, ())
        if grades.get(passage, 0) <= 0
    ]
    if unknown:
        raise UserError(
            f"{source} has {len(unknown)} passages as relevant that the split does not judge "
            f"relevant (query, passage): {first_three(unknown)}"
        )
    best = {query: best.get(query, [])[:depth] for query in qrels}
    if not any(best.values()):
        raise UserError(f"{source} has no passage for any of the {len(qrels)} queries of the split")
    return best


def read_candidates(
    source: Path, qrels: Qrels, passages: Container[str], depth: int
) -> dict[str, list[str]]:
    """Reads `read_best_passages` without relevant ones; the corpus, `passages`, must have them."""
    best = read_best_passages(source, qrels, depth)
    candidates = {
        query: [passage for passage in best[query] if grades.get(passage, 0) <= 0]
        for query, grades in qrels.items()
    }
    require_known(chain.from_iterable(candidates.values()), passages, "passages", source)
    return candidates


def read_named(
    corpus: Path, *named: tuple[Path, Mapping[str, Iterable[str]]]
) -> dict[str, Passage]:
    """Reads by id the passages that runs or judgments name; no others are held in memory.

    `corpus` is a data folder or its file, and must have them; `named` are (file, query → passages).
    """
    wanted = {passage for _, ids in named for results in ids.values() for passage in results}
    passages = {passage.id: passage for passage in read_corpus(corpus) if passage.id in wanted}
    for source, ids in named:
        require_known(chain.from_iterable(ids.values()), passages, "passages", source)
    return passages


def require_known(ids: Iterable[str], known: Container[str], what: str, source: Path) -> None:
    """Raises a UserError if a file names ids that are not known; `what`: queries or passages."""
    unknown = list(dict.fromkeys(name for name in ids if name not in known))
    if unknown:
        raise UserError(
            f"{source} names {len(unknown)} {what} that the data does not have: "
            f"{first_three(unknown)}"
        )


def _queries_file(folder: Path, split: str) -> Path:
    lack = f"holds no queries.jsonl, queries.{split}.tsv or msmarco-doc{split}-queries.tsv"
    return _find(folder, _QUERIES, lack, split)[0]


def _find(folder: Path, patterns: Iterable[str], lack: str, split: str | None = None) -> list[Path]:
    """Lists the files, of one split or all, that match the first pattern with any match."""
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {wrong}: expected a folder of passages, queries and judgments")
    paths = sorted(p for p in (*folder.glob("*"), *folder.glob("qrels/*")) if p.is_file())
    split_pattern = "[^/]+" if split is None else re.escape(split)
    for pattern in patterns:
        found: dict[str, Path] = {}
        for path in paths:
            name = f"{path.relative_to(folder).parent / plain_name(path)}"
            if re.fullmatch(pattern.replace("SPLIT", split_pattern), name):
                found.setdefault(name, path)  # the plain file, not its archive
        if found:
            return list(found.values())
    raise UserError(f"{folder} {lack} (plain, .gz, .xz or .zst)")


def _only(found: Sequence[Path], folder: Path) -> Path:
    if len(found) > 1:
        splits = [plain_name(path).rpartition(".")[0] for path in found]
        raise UserError(
            f"{folder} holds several files of questions: name one of the splits "
            f"{first_three(splits)}"
        )
    return found[0]


def _joined_queries(paths: Sequence[Path]) -> dict[str, str]:
    """Joins MS MARCO's files of queries, some of which contain others."""
    joined: dict[str, str] = {}
    for path in paths:
        for query, text in layouts.read_queries(path).items():
            if joined.setdefault(query, text) != text:
                raise UserError(f"{path}: query {query} has another text in another file")
    return joined
