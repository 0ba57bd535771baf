"""Holds out training questions for choosing settings, and passages to search for them.

  python -m experiments.held_questions --data=boolq --questions=500 --passages=20000 --out=O

O/all is the data folder with the held-out questions in the split `dev` instead of `train`. O/dev
contains only these questions, the passages that answer them, and a random sample of others.
"""

import argparse
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder
from cocondenser_jax.retriever.data.folder import corpus_file, read_corpus, read_split
from cocondenser_jax.retriever.data.trec import Qrels

SEED = 0  # of the samples


def hold_out(data: Path, n_questions: int, n_passages: int, out: Path) -> None:
    """Writes both folders, described at the top of this file.

    Raises:
      UserError: if no training questions would be left, or there are fewer passages than requested.
    """
    asked, train = read_split(data, "train")
    tested, test = read_split(data, "test")
    if n_questions >= len(train):
        raise UserError(f"{data} has {len(train)} training questions: expected over {n_questions}")
    draw = Random(SEED)
    held = set(draw.sample(sorted(train), n_questions))
    dev = {query: grades for query, grades in train.items() if query in held}
    rest = {query: grades for query, grades in train.items() if query not in held}
    corpus = [*read_corpus(data)]
    answers = {passage for grades in dev.values() for passage in grades}
    others = [passage.id for passage in corpus if passage.id not in answers]
    if not len(answers) <= n_passages <= len(corpus):
        raise UserError(
            f"--passages is {n_passages}: expected {len(answers)}, which answer the held questions,"
            f" to {len(corpus)}, all of {data}"
        )
    kept = answers | set(draw.sample(others, n_passages - len(answers)))
    with new_folder(out) as folder:
        _write(folder / "all", asked | tested, {"train": rest, "dev": dev, "test": test})
        file = corpus_file(data)
        shutil.copy(file, folder / "all" / file.name)
        _write(folder / "dev", {query: asked[query] for query in dev}, {"dev": dev})
        passages = (
            {"_id": one.id, "title": one.title, "text": one.text}
            for one in corpus
            if one.id in kept
        )
        _write_lines(folder / "dev" / "corpus.jsonl", passages)


def _write(folder: Path, queries: Mapping[str, str], splits: Mapping[str, Qrels]) -> None:
    (folder / "qrels").mkdir(parents=True)
    texts = ({"_id": name, "text": text} for name, text in queries.items())
    _write_lines(folder / "queries.jsonl", texts)
    for split, qrels in splits.items():
        rows = (f"{q}\t{p}\t{grade}" for q, grades in qrels.items() for p, grade in grades.items())
        text = "\n".join(["query-id\tcorpus-id\tscore", *rows, ""])
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=int, required=True)
    parser.add_argument("--passages", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; a UserError is one line and exit status 2."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    try:
        hold_out(given.data, given.questions, given.passages, given.out)
    except UserError as error:
        parser.exit(2, f"held_questions: {error}\n")


if __name__ == "__main__":
    main()
