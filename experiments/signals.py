"""What do tests without judgments say of an adapted model, and are they right?

  python -m experiments.signals --adapted=runs/experiments/adapt/scifact-0 --data=data/scifact \
    --json_out=signals-scifact.json
  python -m experiments.signals --summary signals-*.json --json_out=benchmarks/results/signals.json

`--adapted` is a folder of `adapt`. For each alpha, how much of the change of the weights is kept,
the changed model is compared with the published one, alone and fused with BM25, by nDCG@10 and the
randomization test at 0.05: by the judgments of the test split, and by queries made of the documents
that `adapt` held out. The passages are those judged relevant and a sample of the others. A query
without judgments is a part of a document, and relevant is the rest:

  crops      one of two parts of a span; the other
  title      the first sentence; the rest of the span
  sentence   a sentence of five words or more; the rest
  words      six words in a row; the whole span
  keywords   of one of two parts of a span, the six words that fewest texts have; the other part
  agreement  the queries of `words`; relevant are the ten best passages of BM25 and the published
             model, fused by ranks, as `adapt` itself decides (not by nDCG@10, and not fused)
"""

import argparse
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax.cli.output import print_table
from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.examples import MIN_WORDS
from cocondenser_jax.corpus.pairs import split_crops, split_sentence
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.pipelines.agreement import agreement, decode_spans, fused_ranking
from cocondenser_jax.retriever.compare.comparison import FUSION
from cocondenser_jax.retriever.compare.verdict import decide
from cocondenser_jax.retriever.data.folder import (
    passage_text,
    read_corpus,
    read_split,
    relevant_passages,
)
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.significance import compare
from cocondenser_jax.retriever.data.trec import Qrels, Run
from cocondenser_jax.retriever.search.bm25 import bm25_run
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.models import blend, load_retriever
from cocondenser_jax.retriever.search.search import search_vectors
from experiments.pseudo_queries import rarest_words, words_in_a_row

ALPHAS = (1.0, 0.5)  # how much of the change of the weights is kept
N_OTHERS = 1_500  # passages beside those judged relevant
N_HELD_OUT = 300
DEPTH = 100
METRIC = "nDCG@10"
JUDGED = "judged"
RANKINGS = ("alone", "fused")


class Test(NamedTuple):
    """Queries, the passages that only they are to find among, and judgments."""

    queries: dict[str, str]
    own: dict[str, str]  # passages besides those of the collection
    qrels: Qrels


def held_out_tests(store: TokenStore, others: Sequence[str], seed: int = 0) -> dict[str, Test]:
    """Makes the queries of each kind from the documents that `adapt` held out.

    Args:
      store: of the adaptation.
      others: texts of the passages that these are to be found among.
      seed: of what is drawn.
    """
    documents_H = held_out_documents(store, N_HELD_OUT, of_one_span=True)
    spans_H = store.first_span_D[documents_H]
    names = [f"held-out-{number}" for number in documents_H]
    texts = store.read_spans(spans_H, store.max_tokens - 2)
    rng = np.random.default_rng(seed)
    draws_Hx2 = rng.integers(2**64, size=(len(spans_H), 2), dtype=np.uint64)
    wholes = decode_spans(store, texts)
    counts = Counter(word for text in (*others, *wholes) for word in {*text.split()})
    halves = {
        "crops": split_crops(texts, draws_Hx2[:, 0]),
        "title": split_sentence(texts, draws_Hx2, is_first=True),
        "sentence": split_sentence(texts, draws_Hx2, min_words=MIN_WORDS),
    }
    pairs = {
        kind: np.reshape(decode_spans(store, parts), (-1, 2)) for kind, parts in halves.items()
    }
    pairs["words"] = np.array([[words_in_a_row(text, rng), text] for text in wholes])
    parts = pairs["crops"].tolist()
    pairs["keywords"] = np.array([[rarest_words(left, counts), right] for left, right in parts])
    return {kind: _test(names, of_kind) for kind, of_kind in pairs.items()}


def _test(names: Sequence[str], pairs: np.ndarray) -> Test:
    """Makes the test of pairs of query and passage; a pair with an empty text is left out."""
    rows = [(name, *pair) for name, pair in zip(names, pairs.tolist(), strict=True) if all(pair)]
    queries = {name: query for name, query, _ in rows}
    return Test(queries, {name: text for name, _, text in rows}, {q: {q: 1} for q in queries})


def judged_test(data: Path) -> tuple[Test, dict[str, str]]:
    """Returns the test split, and passages by id: those judged relevant, and other ones."""
    queries, qrels = read_split(data, "test")
    relevant = relevant_passages(qrels)
    passages = {passage.id: passage_text(passage) for passage in read_corpus(data)}
    others = [name for name in passages if name not in relevant]
    names = relevant.union(others[:: len(others) // N_OTHERS + 1])
    texts = {name: text for name, text in passages.items() if name in names}
    return Test(queries, {}, qrels), texts


class _Test(NamedTuple):
    """A test, all passages that it searches, and the ranking of BM25."""

    test: Test
    passages: dict[str, str]
    lexical: Run


def compare_alphas(adapted: Path, data: Path) -> list[dict[str, Any]]:
    """Compares the model with each alpha with the published one.

    Args:
      adapted: a folder of `adapt`.
      data: the collection that it was adapted to.

    Returns:
      A row for each alpha and ranking (alone, fused): data, alpha, ranking, and for each kind of
      test `[verdict, difference]` of nDCG@10, or of agreement.
    """
    store = open_store(adapted / "store")
    judged, passages = judged_test(data)
    # Of a held-out document, only what the query leaves of it may be found.
    held_out = {store.document_id(n) for n in held_out_documents(store, N_HELD_OUT, True).tolist()}
    others = {name: text for name, text in passages.items() if name not in held_out}
    kinds = {JUDGED: judged, **held_out_tests(store, list(others.values()))}
    tests = {}
    for kind, test in kinds.items():
        searched = others | test.own if test.own else passages
        lexical = bm25_run(_passages(searched), test.queries, DEPTH)
        tests[kind] = _Test(test, searched, lexical)

    original = load_retriever(adapted / "published" / "model")
    trained = load_retriever(adapted / "model")
    published = _find(original, passages, tests)
    expected = fused_ranking(tests["words"].lexical, published["words"])
    rows = []
    for alpha in tqdm(ALPHAS, desc=data.name, unit="model"):
        changed = _find(blend(original, trained, alpha), passages, tests)
        verdicts: dict[str, list[list[str | float] | None]] = {
            kind: [_judge(test, *runs) for runs in _rankings(test, changed[kind], published[kind])]
            for kind, test in tests.items()
        }
        agreed = [agreement(run["words"], expected) for run in (changed, published)]
        verdicts["agreement"] = [_verdict(compare(*agreed)["agreement"]), None]
        for i, ranking in enumerate(RANKINGS):
            of_kinds = {kind: both[i] for kind, both in verdicts.items()}
            rows.append({"data": data.name, "alpha": alpha, "ranking": ranking, **of_kinds})
    return rows


def _find(
    model: SentenceTransformer, passages: Mapping[str, str], tests: Mapping[str, _Test]
) -> dict[str, Run]:
    """Searches the passages of each kind of test; those they have in common are encoded once."""
    vectors = dict(zip(passages, _encode(model, passages.values()), strict=True))
    runs = {}
    for kind, (test, searched, _) in tests.items():
        own = dict(zip(test.own, _encode(model, test.own.values()), strict=True))
        vectors_NxD = np.stack([own[name] if name in own else vectors[name] for name in searched])
        runs[kind] = search_vectors(model, vectors_NxD, _passages(searched), test.queries, DEPTH)
    return runs


def _encode(model: SentenceTransformer, texts: Collection[str]) -> np.ndarray:
    return np.asarray(model.encode_document(list(texts), show_progress_bar=False))


def _passages(texts: Mapping[str, str]) -> Iterator[Passage]:
    return (Passage(name, "", text) for name, text in texts.items())


def _rankings(test: _Test, changed: Run, published: Run) -> list[tuple[Run, Run]]:
    """Returns both runs alone, and fused with BM25."""
    fused = [fuse_runs([test.lexical, run], FUSION) for run in (changed, published)]
    return [(changed, published), (fused[0], fused[1])]


def _judge(test: _Test, changed: Run, published: Run) -> list[str | float]:
    scores = [
        evaluate_run(test.test.qrels, run, [METRIC])["per_query"] for run in (changed, published)
    ]
    return _verdict(compare(*scores)[METRIC])


def _verdict(compared: Mapping[str, Any]) -> list[str | float]:
    difference = compared["difference"]
    return [decide(difference, compared["randomization_p"]), difference]


def count_right(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Counts how often each kind of test agrees with the judgments.

    Returns:
      A row for each kind and ranking: of `n` models, the number of verdicts that are `right`; of
      those that judgments find worse, how many the kind finds worse (`harm seen`) and better; and
      likewise of those they find better.
    """
    counted = []
    kinds = [name for name in rows[0] if name not in ("data", "alpha", "ranking", JUDGED)]
    for kind in kinds:
        for ranking in RANKINGS:
            pairs = [
                (row[JUDGED][0], row[kind][0])
                for row in rows
                if row["ranking"] == ranking and row[kind]
            ]
            if not pairs:
                continue
            counts = Counter(pairs)
            harmed = sum(true == "harmed" for true, _ in pairs)
            helped = sum(true == "helped" for true, _ in pairs)
            counted.append(
                {
                    "kind": kind,
                    "ranking": ranking,
                    "right": f"{sum(true == said for true, said in pairs)} of {len(pairs)}",
                    "harm seen": f"{counts['harmed', 'harmed']} of {harmed}",
                    "harm called help": f"{counts['harmed', 'helped']} of {harmed}",
                    "help seen": f"{counts['helped', 'helped']} of {helped}",
                }
            )
    return counted


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--adapted", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json_out", type=Path)
    parser.add_argument("--summary", type=Path, nargs="+", metavar="JSON", default=[])
    given = parser.parse_args(arguments)
    if given.summary:
        rows = [row for path in given.summary for row in json.loads(path.read_text())]
        counted = count_right(rows)
        if given.json_out:
            write_json(given.json_out, counted)
        print_table(list(counted[0]), [list(row.values()) for row in counted])
        return
    write_json(given.json_out, compare_alphas(given.adapted, given.data))


if __name__ == "__main__":
    main()
