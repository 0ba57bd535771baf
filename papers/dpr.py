r"""Make a data folder from DPR's questions, with answers and, for training, with negatives.

python -m papers.dpr --passages=psgs_w100.tsv.gz --questions=biencoder-nq-train.json.gz \
  --out=data/train
python -m papers.dpr --passages=psgs_w100.tsv.gz --questions=nq-test.qa.csv --out=data/test

OUT receives a link to the passages, `queries.jsonl`, `answers.jsonl` and, for .json files, the
split train (`qrels/train.tsv`) and `negatives.trec`. A question's id is its number, from 0, counted
over all files.

As in DPR's training, the first of `positive_ctxs` is relevant (the others only contain an answer);
negatives are `hard_negative_ctxs` or, if there are none, `negative_ctxs`, which are random.
"""

import argparse
import ast
import csv
import gzip
import json
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ijson

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder, write_text
from cocondenser_jax.retriever.data.trec import write_run
from papers.figures.output import run_script

# What a file of another form, or one that is cut or damaged, can raise.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, LookupError, TypeError),
    *(ijson.JSONError, csv.Error, zlib.error),
)


class Question(NamedTuple):
    """A question, its answers, and the ids of passages."""

    text: str
    answers: list[str]
    positives: list[str]
    negatives: list[str]


def read_questions(path: Path) -> Iterator[Question]:
    """Reads training questions from a .json file, or questions with answers from a .csv file."""
    is_json = ".json" in path.suffixes
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            if is_json:  # may be larger than the memory
                yield from map(_training_question, ijson.items(file, "item"))
                return
            lines = (line.decode() for line in file)
            for row in csv.reader(lines, delimiter="\t"):
                text, answers = row
                yield Question(text, _parse_list(answers), [], [])
    except _UNREADABLE as error:
        raise UserError(f"{path}: expected questions as DPR publishes them: {error!r}") from error


def _training_question(record: Mapping[str, Any]) -> Question:
    positives, hard, random = (
        [str(context.get("passage_id") or context["psg_id"]) for context in record[field]]
        for field in ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
    )
    return Question(record["question"], record["answers"], positives[:1], hard or random)


def _parse_list(text: str) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the backslashes of regular expressions
        try:
            return [str(answer) for answer in ast.literal_eval(text)]
        except SyntaxError as error:
            raise ValueError(f"no list: {text}") from error


def write_folder(files: Sequence[Path], passages: Path, out: Path) -> None:
    """Writes the data folder, described at the top of this file, atomically."""
    by_id: dict[str, Question] = {}
    for file in files:
        n_before = len(by_id)
        by_id |= {str(n_before + i): question for i, question in enumerate(read_questions(file))}
        if len(by_id) == n_before:
            raise UserError(f"{file} holds no questions")
    with new_folder(out) as folder:
        (folder / passages.name).symlink_to(passages.resolve())
        queries = [{"_id": name, "text": question.text} for name, question in by_id.items()]
        _write_lines(folder / "queries.jsonl", queries)
        answers = [{"_id": name, "answers": question.answers} for name, question in by_id.items()]
        _write_lines(folder / "answers.jsonl", answers)
        judged = [f"{name}\t{p}\t1\n" for name, q in by_id.items() for p in q.positives]
        if not judged:
            return
        (folder / "qrels").mkdir()
        header = "query-id\tcorpus-id\tscore\n"
        write_text(folder / "qrels" / "train.tsv", "".join([header, *judged]))
        run = {
            name: {passage: float(-rank) for rank, passage in enumerate(question.negatives)}
            for name, question in by_id.items()
        }
        write_run(folder / "negatives.trec", run, tag="dpr")


def _write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    write_text(path, "".join(f"{json.dumps(record)}\n" for record in records))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _write, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="dpr", description=__doc__, formatter_class=plain, allow_abbrev=False
    )
    parser.add_argument("--passages", type=Path, required=True, help="psgs_w100.tsv.gz")
    questions = "biencoder-NAME-train.json or NAME-test.qa.csv, plain or .gz; may be repeated"
    parser.add_argument("--questions", type=Path, required=True, action="append", help=questions)
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    return parser


def _write(arguments: argparse.Namespace) -> None:
    write_folder(arguments.questions, arguments.passages, arguments.out)


if __name__ == "__main__":
    main()
