"""Decides without judgments how much of a change to keep: as much as agrees with the search before.

Queries are a few words in a row of documents that were not trained on. What was found before is the
fused ranking of BM25 and the model as published, and agreement is the fraction of the changed
model's ten best passages that are among its ten best. Finding the document itself would prove
little: it is what training on pairs of its text improves, whatever happens to real queries
(docs/adapt.md).
"""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import regex
import torch
from sentence_transformers import SentenceTransformer

from cocondenser_jax.corpus.scripts import UNSPACED_BLOCKS
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.spans import cut_with_texts
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError, whole_message
from cocondenser_jax.files.whole import read_object, write_json
from cocondenser_jax.retriever.compare.verdict import decide
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.significance import Comparison, compare
from cocondenser_jax.retriever.data.trec import Run, first_passages
from cocondenser_jax.retriever.search.bm25 import Bm25Settings, bm25_run
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.models import blend, uses_bfloat16
from cocondenser_jax.retriever.search.search import search_vectors
from cocondenser_jax.retriever.search.terms import LANGUAGE

logger = logging.getLogger(__name__)

ALPHAS = (1.0, 0.75, 0.5, 0.25)  # how much of the change of the weights is kept, most first
N_PASSAGES = 2_000
N_WORDS = 6
DEPTH = 10
FUSED_DEPTH = 100  # of each ranking that is fused
# In scripts without spaces between words two characters, with their marks, are about a word.
_WORD = regex.compile(rf"(?:[{UNSPACED_BLOCKS}]\p{{M}}*){{1,2}}|[^\s{UNSPACED_BLOCKS}]+")
# What BERT's tokenizer puts around an ideograph.
_SPACE_AT_IDEOGRAPH = regex.compile(
    r"(?<=\p{Han})\ (?=[\p{Han}\p{Hiragana}\p{Katakana}])"
    r"|(?<=[\p{Hiragana}\p{Katakana}])\ (?=\p{Han})"
)


class Sample(NamedTuple):
    """Passages and queries by name."""

    passages: dict[str, str]
    queries: dict[str, str]


class Choice(NamedTuple):
    """How much of the change of a model's weights is kept."""

    alpha: float  # 0 to 1
    tests: dict[str, Comparison]  # alpha → its agreement, compared with the published model's


class Decision(NamedTuple):
    """A choice, and what it was made by."""

    choice: Choice
    sample: Sample  # the queries for which BM25 finds something
    lexical: Run  # of BM25
    published: Run  # of the model as it was
    adapted: Run  # of the model with what is kept of the change


def write_choice(choice: Choice, out: Path) -> None:
    """Writes a choice as JSON."""
    write_json(out, choice._asdict())


def read_choice(path: Path) -> Choice:
    """Reads what `write_choice` wrote."""
    record = read_object(path)
    try:
        return Choice(record["alpha"], record["tests"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({whole_message(error)}): delete it, and the same command makes it"
            " again"
        ) from error


def choose_alpha(
    original: SentenceTransformer,
    changed: SentenceTransformer,
    sample: Sample,
    lexical: Run,
) -> Decision:
    """Chooses the largest of ALPHAS with which a model agrees no less than as published, or 0.

    Args:
      original: the model as published.
      changed: what its training ended with.
      sample: what both search; BM25 finds something for each query.
      lexical: what BM25 finds, see `sample_found`.
    """
    published = dense_run(original, sample)
    expected = fused_ranking(lexical, published)
    before = agreement(published, expected)
    tests = {}
    for alpha in ALPHAS:
        adapted = dense_run(blend(original, changed, alpha), sample)
        test = compare(agreement(adapted, expected), before)["agreement"]
        tests[f"{alpha:g}"] = test
        if decide(test["difference"], test["randomization_p"]) != "harmed":
            return Decision(Choice(alpha, tests), sample, lexical, published, adapted)
    return Decision(Choice(0.0, tests), sample, lexical, published, published)


def sample_store(store: TokenStore, documents_H: np.ndarray, seed: int = 0) -> Sample:
    """Makes queries of held-out documents, and samples spans: theirs, and others by number."""
    own_H = store.first_span_D[documents_H]
    others_N = np.setdiff1d(np.arange(store.n_spans), own_H)
    others_N = others_N[:: len(others_N) // N_PASSAGES + 1]
    queries = {}
    rng = np.random.default_rng(seed)
    for name, text in _texts(store, own_H).items():
        words = [*_WORD.finditer(text)]
        first = rng.integers(max(len(words) - N_WORDS, 0) + 1)
        piece = words[first : first + N_WORDS]
        query = text[piece[0].start() : piece[-1].end()] if piece else ""
        queries[name] = " ".join(query.split())
    return Sample(_texts(store, np.concatenate([own_H, others_N])), queries)


def sample_found(
    store: TokenStore, documents_H: np.ndarray, language: str = LANGUAGE
) -> tuple[Sample, Run]:
    """Samples a store; returns the queries for which BM25 finds something, and what it finds.

    Raises:
      UserError: if there are fewer than two.
    """
    sample = sample_store(store, documents_H)
    return leave_out_unfound(sample, lexical_run(sample, language))


def leave_out_unfound(sample: Sample, lexical: Run) -> tuple[Sample, Run]:
    """Leaves out the queries for which BM25 finds nothing, and says how many.

    There, the fused ranking would be that of the published model, which agrees with itself.
    """
    found = {query: scores for query, scores in lexical.items() if scores}
    if len(found) < 2:
        raise UserError(
            f"BM25 finds something for {len(found)} of {len(lexical)} queries from held-out"
            " documents: expected 2 or more, to compare the models by them"
        )
    if len(found) < len(lexical):
        n_left_out = len(lexical) - len(found)
        logger.warning(
            "BM25 finds nothing for %d of %d queries from held-out documents: they are left out",
            n_left_out,
            len(lexical),
        )
    queries = {query: sample.queries[query] for query in found}
    return Sample(sample.passages, queries), found


def dense_run(model: SentenceTransformer, sample: Sample) -> Run:
    """Finds the best passages of each query by the inner products of a model's vectors."""
    vectors_NxD = encode_texts(model, list(sample.passages.values()))
    passages = (Passage(name, "", text) for name, text in sample.passages.items())
    return search_vectors(model, vectors_NxD, passages, sample.queries, FUSED_DEPTH)


def encode_texts(model: SentenceTransformer, texts: list[str]) -> np.ndarray:
    """Returns the vectors of passages, computed in bfloat16 where `encode` would."""
    halved = uses_bfloat16("auto", on_cpu=True)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=halved):
        return model.encode_document(texts, show_progress_bar=True)


def lexical_run(sample: Sample, language: str = LANGUAGE) -> Run:
    """Finds the best passages of each query by BM25, in a language."""
    passages = (Passage(name, "", text) for name, text in sample.passages.items())
    return bm25_run(passages, sample.queries, FUSED_DEPTH, Bm25Settings(language=language))


def fused_ranking(lexical: Run, dense: Run) -> dict[str, set[str]]:
    """Returns the ten best passages of each query by two runs, fused by ranks."""
    fused = fuse_runs([lexical, dense], "rrf", depth=DEPTH)
    return {query: set(passages) for query, passages in fused.items()}


def agreement(dense: Run, expected: Mapping[str, set[str]]) -> dict[str, dict[str, float]]:
    """Returns, for each query, the fraction of its ten best passages that are expected."""
    fractions = {}
    for query, scores in dense.items():
        passages = first_passages(scores, DEPTH)
        fractions[query] = {"agreement": len(expected[query].intersection(passages)) / DEPTH}
    return fractions


def decode_spans(store: TokenStore, spans: tuple[np.ndarray, ...]) -> list[str]:
    """Returns the texts of spans that are given as `read_spans` gives them."""
    ids_NxL, _, n_tokens_N = spans
    decode = load_tokenizer(str(store.tokenizer_folder)).backend.decode
    texts = (decode(ids[:n]) for ids, n in zip(ids_NxL.tolist(), n_tokens_N, strict=True))
    return [_SPACE_AT_IDEOGRAPH.sub("", text) for text in texts]


def _texts(store: TokenStore, spans_N: np.ndarray) -> dict[str, str]:
    """Returns number → text of spans."""
    texts = decode_spans(store, store.read_spans(spans_N, store.max_tokens - 2))
    return dict(zip(map(str, spans_N.tolist()), texts, strict=True))


def written_texts(store: TokenStore, corpus: str, names: Iterable[str]) -> dict[str, str]:
    """Returns number → text of spans as the corpus has it, for a person to read.

    What decoding gives lacks the characters that the vocabulary lacks, and perhaps capitals. A span
    that is not found again, as where documents share an id, is left out.

    Args:
      store: of the corpus.
      corpus: see `sources.read_documents`.
      names: numbers of spans.
    """
    spans_N = np.array([*map(int, names)])
    documents_N = np.searchsorted(store.first_span_D, spans_N, side="right") - 1
    wanted = defaultdict(list)
    for document, span in zip(documents_N.tolist(), spans_N.tolist(), strict=True):
        wanted[store.document_id(document)].append((span, span - int(store.first_span_D[document])))
    texts = {}
    for document in read_documents(corpus):
        if document.id not in wanted:
            continue
        written = cut_with_texts(document, store.tokenizer, store.max_tokens)
        for span, number in wanted[document.id]:
            ids_1xL, _, n_tokens_1 = store.read_spans(np.array([span]), store.max_tokens - 2)
            if number < len(written):
                found, text = written[number]
                if np.array_equal(found.tokens, ids_1xL[0, : n_tokens_1[0]]):
                    texts[str(span)] = text
    return texts


def as_written(piece: str, text: str) -> str:
    """Returns the part of a text that was decoded as a piece; the piece, if there is none.

    Decoding may lose capitals, accents, and signs that the vocabulary lacks, and adds spaces.
    """
    bare_L = [_bare(character) for character in text]
    # The place of each letter of the bare text, and the end.
    places = [place for place, bare in enumerate(bare_L) for _ in bare] + [len(text)]
    # What may stand between two characters is not the second: a row of dots is gone through once.
    first, *others = map(regex.escape, _bare(piece) or " ")
    wanted = first + "".join(rf"[^\w{other}]*+{other}" for other in others)
    found = regex.search(wanted, "".join(bare_L))
    if found is None:
        return piece
    return " ".join(text[places[found.start()] : places[found.end()]].split())


def _bare(text: str) -> str:
    """Returns a text without capitals, accents and white space."""
    letters = unicodedata.normalize("NFD", text.casefold())
    return "".join(x for x in letters if not (x.isspace() or unicodedata.category(x) == "Mn"))
