"""Reads training data: pairs of query and relevant passage, negatives, numbered judgments."""

import dataclasses
import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import scipy.sparse
from sentence_transformers.base.data_collator import BaseDataCollator
from transformers import TrainerCallback

from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.whole import file_sha256
from cocondenser_jax.retriever.data.folder import (
    candidates_by_query,
    passage_text,
    read_corpus,
    read_split,
    require_known,
    split_files,
    with_positives,
)
from cocondenser_jax.retriever.data.same_text import count_added, with_copies
from cocondenser_jax.retriever.data.stored import StoredTexts, write_texts
from cocondenser_jax.retriever.data.trec import Qrels, Run, read_run
from cocondenser_jax.retriever.train.processes import made_once
from cocondenser_jax.retriever.train.settings import DataSettings

logger = logging.getLogger(__name__)

_FILE = "rows.sqlite"


class Judgments(NamedTuple):
    """Judgments and a teacher's scores, as matrices over numbered queries and passages."""

    queries: dict[str, int]
    passages: dict[str, int]  # from 1; all other passages have number 0
    relevant: scipy.sparse.csr_array  # of bool, (queries, passages + 1)
    teacher: scipy.sparse.csr_array | None  # of float32, the same shape

    def numbers(self, query: str, passages: Sequence[str]) -> list[int]:
        """Returns the number of a query, followed by those of passages."""
        return [self.queries[query], *(self.passages.get(passage, 0) for passage in passages)]


class TrainingData(NamedTuple):
    """The training data of a bi-encoder or cross-encoder."""

    pairs: datasets.Dataset  # `query_id` and `positive_id`
    judgments: Judgments
    queries: Mapping[str, str]  # id → text
    passages: Mapping[str, str]  # id → text for encoders, of the whole collection
    # Query id → ids of passages to draw negatives from, separated by spaces.
    candidates: Mapping[str, str]
    n_negatives: int  # per pair
    seed: int  # for drawing negatives
    checksums: dict[str, str]  # kind → SHA-256 of the input file


@dataclasses.dataclass
class Epoch:
    """The current epoch, set by a callback and read by the sampler and the collator."""

    number: int = 0


class RowCollator:
    """Converts pairs of ids to rows of texts for another data collator.

    The dataset contains only ids, so the collection's texts are neither copied nor hashed.
    """

    def __init__(
        self,
        data: TrainingData,
        epoch: Epoch,
        fill: Callable[[TrainingData, str, list[str]], list[dict[str, Any]]],
        collate: BaseDataCollator,
    ) -> None:
        """`fill` makes rows from the ids of a query and its passages, the first one relevant."""
        self._data = data
        self._epoch = epoch
        self._fill = fill
        self._collate = collate
        self.valid_label_columns = collate.valid_label_columns  # the trainer reads this

    def __call__(self, pairs: Iterable[Mapping[str, str]]) -> dict[str, Any]:
        """Collates the rows of a step's pairs."""
        batch: dict[str, Any] = self._collate(self.fill(pairs))
        return batch

    def fill(self, pairs: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
        """Returns the rows of pairs, with the epoch's negatives."""
        rows = []
        for pair in pairs:
            query, positive = pair["query_id"], pair["positive_id"]
            negatives = draw_negatives(self._data, self._epoch.number, query, positive)
            rows += self._fill(self._data, query, [positive, *negatives])
        return rows


class EpochCallback(TrainerCallback):
    """Sets the epoch before its first batch is made."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Copies the epoch from the trainer's state."""
        self._epoch.number = int(state.epoch or 0)


def sample(n: int, n_rows: int, seed: int, setting: str, what: str) -> list[int]:
    """Draws `n` row numbers, ascending; 0: all. Larger samples contain smaller ones of one seed.

    Raises:
      UserError: for a negative `n` or one above `n_rows`; `setting` and `what` are for the message.
    """
    if not 0 <= n <= n_rows:
        raise UserError(f"{setting} is {n}: expected 1 to {n_rows}, {what}, or 0 for all of them")
    order = np.random.default_rng(seed).permutation(n_rows)
    return sorted(order[: n or n_rows].tolist())


def to_judgments(relevant: Qrels, teacher: Run | None) -> Judgments:
    """Numbers the queries, and all passages that are relevant to them or scored by the teacher."""
    scores = {query: teacher[query] for query in relevant} if teacher else {}
    queries = {query: i for i, query in enumerate(relevant)}
    named = dict.fromkeys(p for table in (relevant, scores) for row in table.values() for p in row)
    passages = {passage: i for i, passage in enumerate(named, start=1)}

    def to_matrix(table: Mapping[str, Mapping[str, float]], dtype: type) -> scipy.sparse.csr_array:
        cells = [(queries[q], passages[p], v) for q, row in table.items() for p, v in row.items()]
        rows, columns, values = zip(*cells, strict=True)
        shape = len(queries), len(passages) + 1
        return scipy.sparse.csr_array((np.array(values, dtype), (rows, columns)), shape=shape)

    teacher_scores = to_matrix(scores, np.float32) if teacher else None
    return Judgments(
        queries=queries,
        passages=passages,
        relevant=to_matrix(relevant, bool),
        teacher=teacher_scores,
    )


def training_pairs(relevant: Qrels) -> datasets.Dataset:
    """Returns a row (`query_id`, `positive_id`) for each query and relevant passage."""
    rows = [{"query_id": q, "positive_id": p} for q, grades in relevant.items() for p in grades]
    return datasets.Dataset.from_list(rows)


def draw_negatives(data: TrainingData, epoch: int, query: str, positive: str) -> list[str]:
    """Draws ids of negatives by (seed, epoch, pair), with repeats if the query has too few."""
    n = data.n_negatives
    if not n:
        return []
    candidates = data.candidates[query].split()
    rng = np.random.default_rng((data.seed, epoch, zlib.crc32(f"{query} {positive}".encode())))
    places = rng.choice(len(candidates), n, replace=len(candidates) < n)
    return [candidates[i] for i in places]


def read_training(
    settings: DataSettings,
    stored: Path,
    teacher_run: Path | None = None,
    title_separator: str = " ",
) -> TrainingData:
    """Reads the pairs of a training set and the candidates for their negatives.

    A query without candidates in `negatives_run` gets a random sample of the passages that are not
    relevant to it. With a `teacher_run`, only passages with a score of the teacher are candidates.
    Copies of a relevant passage under other ids are never negatives.

    Args:
      settings: the data to read.
      stored: a folder for passages and negatives, shared by all processes; its contents are reused
        if they were made from the same files in the same way.
      teacher_run: a TREC run with a cross-encoder's scores.
      title_separator: put between a passage's title and its text.
    """
    files = split_files(settings.folder, settings.split)
    queries, qrels = read_split(settings.folder, settings.split)
    if settings.negatives_per_query and settings.negatives_run:
        files["negatives_run"] = Path(settings.negatives_run)
    if teacher_run:
        files["teacher_run"] = teacher_run
    checksums = {name: file_sha256(file) for name, file in files.items()}
    passages = _store_passages(files["corpus"], checksums["corpus"], title_separator, stored)
    require_known(chain.from_iterable(qrels.values()), passages, "passages", files["judgments"])
    relevant = _draw_queries(settings, qrels)
    known = ((name, passages[name]) for name in chain.from_iterable(relevant.values()))
    judged = with_copies(relevant, known, passages.texts())
    _log_copies(count_added(relevant, judged))
    candidates: Mapping[str, str] = {}
    if "negatives_run" in files:
        candidates = _store_pool(settings, checksums["negatives_run"], judged, passages, stored)
    teacher = None
    if teacher_run:
        teacher = read_run(teacher_run)
        candidates = _scored_candidates(candidates, relevant, teacher, teacher_run)
    return TrainingData(
        pairs=training_pairs(relevant),
        judgments=to_judgments(judged, teacher),
        queries=queries,
        passages=passages,
        candidates=candidates,
        n_negatives=settings.negatives_per_query,
        seed=settings.seed,
        checksums=checksums,
    )


def _draw_queries(settings: DataSettings, qrels: Qrels) -> Qrels:
    """Returns the relevant passages of the queries to train on."""
    judgments = list(with_positives(qrels).items())
    numbers = sample(
        settings.train_queries,
        len(judgments),
        settings.seed,
        "config.data.train_queries",
        "the number of queries with a positive",
    )
    return dict(judgments[i] for i in numbers)


def _log_copies(n_added: int) -> None:
    if n_added:
        logger.warning(
            "%d passages repeat the text of a query's relevant passage: they are not its negatives",
            n_added,
        )


def _store_passages(corpus: Path, checksum: str, title_separator: str, stored: Path) -> StoredTexts:
    texts = ((each.id, passage_text(each, title_separator)) for each in read_corpus(corpus))
    return _store(f"passages-{_sha256([checksum, title_separator])}", texts, stored)


def _store(name: str, texts: Iterable[tuple[str, str]], stored: Path) -> StoredTexts:
    folder = made_once(stored / name, lambda empty: write_texts(empty / _FILE, texts))
    return StoredTexts(folder / _FILE)


def _store_pool(
    settings: DataSettings,
    checksum: str,
    relevant: Qrels,
    passages: StoredTexts,
    stored: Path,
) -> StoredTexts:
    run, depth = Path(settings.negatives_run), settings.negatives_depth

    def pools() -> Iterator[tuple[str, str]]:
        unknown: dict[str, None] = {}
        n_without = 0
        for query, found in candidates_by_query(run, relevant, depth):
            names = [name for name in found if name != query]  # if queries are passages
            unknown |= dict.fromkeys(passages.missing(names))
            n_without += not names
            drawn = names or _draw_pool(settings, query, {*relevant[query], query}, passages)
            yield query, " ".join(drawn)
        require_known(unknown, (), "passages", run)
        if n_without:
            logger.warning(
                "%s has no negative for %d of %d queries: they are drawn from a sample of all"
                " passages except relevant ones and their copies",
                run,
                n_without,
                len(relevant),
            )

    made_of = [passages.path.parent.name, checksum, depth, settings.seed, relevant]
    return _store(f"pool-{_sha256(made_of)}", pools(), stored)


def _draw_pool(
    settings: DataSettings, query: str, left_out: Collection[str], passages: StoredTexts
) -> list[str]:
    """Draws a pool of passages by (seed, query), without those in `left_out`."""
    depth = settings.negatives_depth
    rng = np.random.default_rng((settings.seed, zlib.crc32(query.encode())))
    n_drawn = min(depth + len(left_out), len(passages))
    drawn = passages.ids(rng.choice(len(passages), n_drawn, replace=False).tolist())
    return [name for name in drawn if name not in left_out][:depth]


def _sha256(made_of: Sequence[Any]) -> str:
    """Returns the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def _scored_candidates(
    candidates: Mapping[str, str], relevant: Qrels, teacher: Run, teacher_run: Path
) -> dict[str, str]:
    """Keeps the candidates with a score of the teacher.

    Raises:
      UserError: if a positive has no score, or a query has no scored candidate.
    """
    if missing := [
        f"{query} {passage}"
        for query, passages in relevant.items()
        for passage in passages
        if passage not in teacher.get(query, {})
    ]:
        raise UserError(
            f"{teacher_run} has no score for {len(missing)} relevant passages (query, passage): "
            f"{first_three(missing)}; rerank --with_positives scores them too"
        )
    scored = {
        query: " ".join(passage for passage in passages.split() if passage in teacher[query])
        for query, passages in candidates.items()
    }
    if queries := [query for query, passages in scored.items() if not passages]:
        raise UserError(
            f"{teacher_run} has no score for any negative of {len(queries)} queries: "
            f"{first_three(queries)}"
        )
    return scored
