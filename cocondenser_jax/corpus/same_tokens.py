"""Compares the tokens that training reads of a few texts with those that the search reads.

Training looks words up in what `tokenizer.json` says. sentence-transformers obeys what other files
say of capitals, too, and transformers makes some tokenizers anew from a vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cocondenser_jax.corpus.prompts import put_before
from cocondenser_jax.corpus.spans import Span, spans_of_texts
from cocondenser_jax.corpus.token_files import Texts
from cocondenser_jax.corpus.tokenizer import SpanTokenizer
from cocondenser_jax.errors import UserError

# With capitals, accents, punctuation, characters that stand alone or that normalizers replace; and
# one of more tokens than local attention sees.
TEXTS = (
    "A Bad Café",
    "ÉCOLE naïve Ångström",
    'it\'s 3.5 °C (U.S.) -- "so"',
    "北京 東京タワー ภาษาไทย",
    "İstanbul ﬁne ½ ①② ß",
    " ".join(f"The {number} old Rivers" for number in range(60)),
)


def tokens_in_training(
    tokenizer: SpanTokenizer, texts: Sequence[str], prompt: str = ""
) -> list[list[int]]:
    """Returns the token ids of texts as training has them, with what stands around a text.

    Args:
      tokenizer: the store's.
      texts: words separated by single spaces, one word or more each.
      prompt: that stands before each; "" for none.
    """
    spans = spans_of_texts(tokenizer, texts)
    longest = max(len(span.tokens) for span in spans)
    n_columns = longest + len(tokenizer.backend.encode(prompt, add_special_tokens=False).ids)
    joined = put_before(prompt, _padded(spans, n_columns), tokenizer)
    return [
        [*tokenizer.prefix_ids, *ids[:n].tolist(), *tokenizer.suffix_ids]
        for ids, n in zip(joined.ids_NxL, joined.n_tokens_N, strict=True)
    ]


def require_same_tokens(
    name: object, tokenizer: SpanTokenizer, library: Any, prompts: Sequence[str] = ("",)
) -> None:
    """Raises a UserError where training would read other tokens than the model is searched with.

    Args:
      name: of the model's folder, for the message.
      tokenizer: of training.
      library: transformers' tokenizer, as the search has it.
      prompts: that texts begin with.
    """
    for prompt in prompts:
        found = tokens_in_training(tokenizer, TEXTS, prompt)
        for text, ids in zip(TEXTS, found, strict=True):
            expected = library(prompt + text)["input_ids"]
            if ids != expected:
                at = _first_difference(ids, expected)
                raise UserError(
                    f"{name} reads {prompt + text[:40]!r} as"
                    f" {_spelled(library, expected, at)}, but its tokenizer.json as"
                    f" {_spelled(library, ids, at)}: training would see other tokens than the"
                    " search (is do_lower_case said in another file only?)"
                )


def _padded(spans: Sequence[Span], n_columns: int) -> Texts:
    ids_NxL = np.zeros((len(spans), n_columns), np.int32)
    starts_NxL = np.zeros((len(spans), n_columns), np.uint8)
    n_tokens_N = np.array([len(span.tokens) for span in spans], np.int32)
    for i, span in enumerate(spans):
        ids_NxL[i, : n_tokens_N[i]] = span.tokens
        starts_NxL[i, : n_tokens_N[i]] = span.starts
    return Texts(ids_NxL, starts_NxL, n_tokens_N)


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _spelled(library: Any, ids: Sequence[int], at: int) -> list[str]:
    """Returns some tokens around a place."""
    tokens: list[str] = library.convert_ids_to_tokens(ids[max(at - 3, 0) : at + 5])
    return tokens
