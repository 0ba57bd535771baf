"""Readers of what sentence encoders are trained and evaluated on: pairs and triplets."""

import csv
import math
from pathlib import Path

from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import numbered_lines, parse_object, without_surrogates
from cocondenser_jax.storage.tables import plain_name

LABELS = ("contradiction", "entailment", "neutral")  # of a labelled pair
_TRIPLET_HEADER = ["Sentence1", "Sentence2", "Sentence3"]


def read_scored_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Reads the STS Benchmark: tab-separated genre, file, year, id, score and two sentences.

    Further columns, which some lines have, are not read.

    Returns:
      Two sentences, and how similar people find them, 0 to 5.
    """
    pairs = []
    for number, line in numbered_lines(path):
        fields = line.split("\t")
        if len(fields) < 7:
            raise UserError(
                f"{path}:{number}: expected at least 7 tab-separated fields (genre, file, year, "
                f"id, score, two sentences), found {len(fields)}"
            )
        try:
            score = float(fields[4])
        except ValueError:
            score = math.nan
        if not 0 <= score <= 5:
            raise UserError(f"{path}:{number}: expected a score of 0 to 5, not {fields[4]!r}")
        pairs.append((fields[5], fields[6], score))
    if not pairs:
        raise UserError(f"{path} holds no pairs of sentences")
    return pairs


def read_triplets(path: Path) -> list[tuple[str, str, str]]:
    """Reads triplets: comma-separated, with the header Sentence1,Sentence2,Sentence3.

    That is the layout of the Wikipedia sections of Ein Dor et al., *Learning thematic similarity
    metric using triplet networks* (ACL 2018); columns of other names are not read.

    Returns:
      A sentence, one of the same section, and one of another section of the same article.
    """
    rows = csv.DictReader((f"{line}\n" for _, line in numbered_lines(path)), strict=True)
    triplets = []
    try:
        header = rows.fieldnames or _TRIPLET_HEADER
        if missing := [name for name in _TRIPLET_HEADER if name not in header]:
            expected = ",".join(_TRIPLET_HEADER)
            raise UserError(f"{path}: the header has no {', '.join(missing)}: expected {expected}")
        for row in rows:
            anchor, positive, negative = (row[name] for name in _TRIPLET_HEADER)
            if None in (anchor, positive, negative):
                raise UserError(f"{path}:{rows.line_num}: expected {len(header)} fields")
            triplets.append((anchor, positive, negative))
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num}: {error}") from error
    if not triplets:
        raise UserError(f"{path} holds no triplets")
    return triplets


def read_labelled_pairs(path: Path) -> list[tuple[str, str, int]]:
    """Reads pairs for natural language inference.

    A .tsv is AllNLI.tsv as sentence-transformers distributes it, SNLI and MultiNLI in one file, of
    which the split "train" is read. Any other file is the .jsonl of one of them, of which pairs
    without a label ("-") are left out.

    Returns:
      Two sentences (`sentence1`, `sentence2`), and the number in `LABELS` of what the first says
      about the second (`label`, in .jsonl `gold_label`).
    """
    pairs: list[tuple[str, str, int]] = []
    lines, name = numbered_lines(path), "gold_label"
    if is_tsv := plain_name(path).endswith(".tsv"):
        columns, name = next(lines, (1, ""))[1].split("\t"), "label"
    for number, line in lines:
        where = f"{path}:{number}"
        if is_tsv:
            record = dict(zip(columns, line.split("\t"), strict=False))
            if record.get("split") in ("dev", "test"):
                continue
        else:
            record = parse_object(line, where)
        first, second, label = (record.get(key) for key in ("sentence1", "sentence2", name))
        if label == "-":
            continue
        if label not in LABELS or not isinstance(first, str) or not isinstance(second, str):
            raise UserError(
                f"{where}: expected sentence1, sentence2 and {name}, one of {', '.join(LABELS)}"
            )
        texts = without_surrogates(first), without_surrogates(second)
        pairs.append((*texts, LABELS.index(label)))
    if not pairs:
        raise UserError(f"{path} holds no pairs of sentences")
    return pairs
