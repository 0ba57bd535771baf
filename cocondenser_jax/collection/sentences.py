"""Reads what sentence encoders are trained and evaluated on: pairs and triplets."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import read_lines

LABELS = ("contradiction", "entailment", "neutral")  # of a labeled pair
_STS_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
_TRIPLET_COLUMNS = ("Sentence1", "Sentence2", "Sentence3")


class _Tsv(csv.excel_tab):
    quoting = csv.QUOTE_NONE


def read_scored_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Reads the STS Benchmark: two sentences, and their similarity from 0 to 5 as judged by people.

    Tab-separated: genre, file, year, id, score, two sentences; further columns are not read.
    """
    pairs = []
    for where, row in _read_rows(path, _Tsv, _STS_COLUMNS):
        if row["sentence2"] is None:
            raise UserError(
                f"{where}: expected at least 7 tab-separated fields ({', '.join(_STS_COLUMNS)})"
            )
        try:
            score = float(row["score"])
        except ValueError:
            score = math.nan
        if not 0 <= score <= 5:
            raise UserError(f"{where}: expected a score of 0 to 5, not {row['score']!r}")
        pairs.append((row["sentence1"], row["sentence2"], score))
    if not pairs:
        raise UserError(f"{path} holds no pairs of sentences")
    return pairs


def read_triplets(path: Path) -> list[tuple[str, str, str]]:
    """Reads triplets: a sentence, one of the same section, one of another section of the article.

    Comma-separated, with the header Sentence1,Sentence2,Sentence3, as the Wikipedia sections of Ein
    Dor et al. (ACL 2018); columns of other names are not read.
    """
    triplets = []
    for where, row in _read_rows(path):
        anchor, positive, negative = (row.get(name) for name in _TRIPLET_COLUMNS)
        if anchor is None or positive is None or negative is None:
            raise UserError(f"{where}: expected the columns {', '.join(_TRIPLET_COLUMNS)}")
        triplets.append((anchor, positive, negative))
    if not triplets:
        raise UserError(f"{path} holds no triplets")
    return triplets


def read_labelled_pairs(path: Path) -> list[tuple[str, str, int]]:
    """Reads inference pairs: the split "train" of AllNLI.tsv, by sentence-transformers.

    Returns:
      (`sentence1`, `sentence2`, number in `LABELS` of the first one's relation to the second).
    """
    pairs = []
    for where, row in _read_rows(path, _Tsv):
        first, second, label = (row.get(name) for name in ("sentence1", "sentence2", "label"))
        if row.get("split") in ("dev", "test"):
            continue
        if label not in LABELS or first is None or second is None:
            raise UserError(
                f"{where}: expected sentence1, sentence2 and label, one of {', '.join(LABELS)}"
            )
        pairs.append((first, second, LABELS.index(label)))
    if not pairs:
        raise UserError(f"{path} holds no pairs of sentences")
    return pairs


def _read_rows(
    path: Path, dialect: type[csv.Dialect] = csv.excel, columns: Sequence[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields "FILE:LINE" and each row's fields, None where missing; `columns`: without a header."""
    lines = (f"{line}\n" for _, line in read_lines(path))
    rows = csv.DictReader(lines, columns, dialect=dialect, strict=True)
    try:
        for row in rows:
            yield f"{path}:{rows.line_num}", row
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num}: {error}") from error
