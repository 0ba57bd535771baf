r"""Makes a data folder from BoolQ's questions and the Wikipedia paragraphs that answer them.

python examples/boolq.py --articles=hf:wikimedia/wikipedia:20231101.en --boolq=FOLDER --out=boolq

FOLDER contains BoolQ's train.jsonl and dev.jsonl (Clark et al., arXiv 1905.10044;
https://github.com/google-research-datasets/boolean-questions), with a question, a title and a
passage on each line; dev becomes the split test. --articles is a .jsonl file with id, title and
text, in which each line of a text is a paragraph, or a dataset on the Hugging Face Hub.
--passages=20000 --train=2000 --test=1000 draws a collection of the size of the smaller one in
docs/results.md.

The passages are the paragraphs of at least 20 words in the articles named by BoolQ. For each
question, one paragraph is judged relevant, although others may answer it, too: the paragraph of its
article with the highest Dice overlap of words with BoolQ's passage. A question is left out if no
overlap reaches 0.7, and a training question if its paragraph answers a test question.

From the articles behind our figures this makes the same 218,622 paragraphs with the same ids. With
the first nine tenths of the judged paragraphs instead of BoolQ's passages, it finds 6,319 of 6,320
again. Neither BoolQ's own files nor the Hub's articles were available for a check; another version
of Wikipedia gives other paragraphs and figures. The test questions behind our figures are from
dev.jsonl; the file of their training questions was not recorded.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder, numbered_lines, parse_object

MIN_WORDS = 20  # of a paragraph
MIN_OVERLAP = 0.7
Record = Mapping[str, Any]


def overlap(left: str, right: str) -> float:
    """Returns the Dice coefficient of the sets of lower-case words of two texts."""
    left_words = set(re.findall(r"\w+", left.casefold()))
    right_words = set(re.findall(r"\w+", right.casefold()))
    n_words = len(left_words) + len(right_words)
    return 2 * len(left_words & right_words) / n_words if n_words else 0.0


def split_article(article: Record, title: str) -> list[Record]:
    """Returns an article's lines of at least MIN_WORDS words, as passages."""
    lines = [line.strip() for line in article["text"].split("\n")]
    kept = [line for line in lines if len(line.split()) >= MIN_WORDS]
    return [{"_id": f"{article['id']}#{n}", "title": title, "text": t} for n, t in enumerate(kept)]


def find_answer(passage: str, paragraphs: Sequence[Record]) -> str | None:
    """Returns the id of the paragraph most similar to BoolQ's passage, if similar enough."""
    scores = {one["_id"]: overlap(passage, one["text"]) for one in paragraphs}
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] >= MIN_OVERLAP else None


def make_collection(arguments: argparse.Namespace) -> None:
    """Writes corpus, queries and judgments in BEIR's layout."""
    asked = {"test": list(read_objects(arguments.boolq / "dev.jsonl"))}
    asked["train"] = list(read_objects(arguments.boolq / "train.jsonl"))
    titles = {one["title"].casefold(): one["title"] for part in asked.values() for one in part}
    paragraphs: dict[str, list[Record]] = defaultdict(list)
    for article in read_articles(arguments.articles):
        title = article["title"].casefold()
        if title in titles:
            paragraphs[title] += split_article(article, titles[title])
    draw = Random(0)
    tested: set[str] = set()
    answers: dict[str, dict[str, str]] = {}
    texts: dict[str, str] = {}
    for split, questions in asked.items():
        found = {}
        for number, one in enumerate(questions):
            name = find_answer(one["passage"], paragraphs[one["title"].casefold()])
            if name is not None and name not in tested:  # no paragraph of a test question
                found[f"{split}{number}"] = name
                texts[f"{split}{number}"] = one["question"]
        tested |= set(found.values())
        limit = vars(arguments)[split]
        answers[split] = {query: found[query] for query in choose(draw, list(found), limit)}
    if not all(answers.values()):
        raise UserError(f"{arguments.articles}: too few articles to answer BoolQ's questions")
    corpus = [paragraph for own in paragraphs.values() for paragraph in own]
    needed = {name for judged in answers.values() for name in judged.values()}
    if arguments.passages:
        others = [one["_id"] for one in corpus if one["_id"] not in needed]
        kept = needed | set(choose(draw, others, max(arguments.passages - len(needed), 1)))
        corpus = [one for one in corpus if one["_id"] in kept]
    with new_folder(arguments.out) as folder:
        write_objects(folder / "corpus.jsonl", corpus)
        queries = [query for judged in answers.values() for query in judged]
        write_objects(folder / "queries.jsonl", [{"_id": q, "text": texts[q]} for q in queries])
        (folder / "qrels").mkdir()
        for split, judged in answers.items():
            rows = "".join(f"{query}\t{name}\t1\n" for query, name in judged.items())
            (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)


def choose(draw: Random, names: list[str], limit: int) -> list[str]:
    """Draws `limit` names; all if it is 0 or there are fewer."""
    return draw.sample(names, limit) if 0 < limit < len(names) else names


def read_articles(source: str) -> Iterable[Record]:
    """Streams the records of a .jsonl file, or of a dataset on the Hub (hf:NAME:CONFIG)."""
    if not source.startswith("hf:"):
        return read_objects(Path(source))
    from datasets import load_dataset

    _, name, *config = source.split(":")
    dataset: Iterable[Record] = load_dataset(name, *config, split="train", streaming=True)
    return dataset


def read_objects(path: Path) -> Iterator[Record]:
    """Streams the objects of a .jsonl file, plain or compressed."""
    return (parse_object(line, f"{path}:{number}") for number, line in numbered_lines(path))


def write_objects(path: Path, objects: Iterable[Record]) -> None:
    """Writes a .jsonl file."""
    path.write_text("".join(f"{json.dumps(one)}\n" for one in objects), encoding="utf-8")


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--articles", required=True, help="a .jsonl, or hf:NAME:CONFIG")
    parser.add_argument("--boolq", type=Path, required=True, help="the folder of BoolQ's files")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    for name in ("passages", "train", "test"):
        parser.add_argument(f"--{name}", type=int, default=0, help="so many (default: all)")
    try:
        make_collection(parser.parse_args())
    except UserError as error:
        print(f"boolq: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
