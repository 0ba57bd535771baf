"""Makes a data folder of XQuAD's English paragraphs and questions, with answers.jsonl.

  python -m experiments.xquad --json=xquad.en.json --out=data/xquad

The file is https://github.com/google-deepmind/xquad/blob/master/xquad.en.json: 48 articles with 240
paragraphs and 1,190 questions. A passage is a paragraph, and relevant to the questions about it.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder, read_object


def write_folder(source: Path, out: Path) -> None:
    """Writes the folder.

    Raises:
      UserError: if a file is not laid out as SQuAD's.
    """
    passages, questions, judged = [], [], []
    try:
        for i, article in enumerate(read_object(source)["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                name, text = f"{i}-{j}", paragraph["context"]
                passages.append({"_id": name, "title": article["title"], "text": text})
                for question in paragraph["qas"]:
                    answers = [answer["text"] for answer in question["answers"]]
                    asked = {"_id": question["id"], "text": question["question"]}
                    questions.append(asked | {"answers": answers})
                    judged.append(f"{question['id']}\t{name}\t1\n")
    except (KeyError, TypeError) as error:
        raise UserError(f"{source} is not laid out as SQuAD's files: {error}") from None
    with new_folder(out) as folder:
        _write_lines(folder / "corpus.jsonl", passages)
        _write_lines(folder / "queries.jsonl", questions)
        _write_lines(folder / "answers.jsonl", questions)
        (folder / "qrels").mkdir()
        rows = "".join(["query-id\tcorpus-id\tscore\n", *judged])
        (folder / "qrels" / "test.tsv").write_text(rows, encoding="utf-8")


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; a UserError is one line and exit status 2."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    try:
        write_folder(given.json, given.out)
    except UserError as error:
        parser.exit(2, f"xquad: {error}\n")


if __name__ == "__main__":
    main()
