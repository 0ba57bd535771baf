"""Compares, on a few texts, the tokens that training reads with those that search reads.

Training only uses `tokenizer.json`. sentence-transformers also reads settings about capitals from
other files, and transformers rebuilds some tokenizers from a vocabulary.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import normalizers

from cocondenser_jax.corpus.prompts import count_tokens, put_before
from cocondenser_jax.corpus.spans import Span, spans_of_texts
from cocondenser_jax.corpus.token_files import Texts
from cocondenser_jax.corpus.tokenizer import SpanTokenizer
from cocondenser_jax.errors import UserError, whole_message

# With capitals, accents, punctuation, characters that stand alone or that normalizers replace;
# words as long as WordPiece reads them, and longer; one of more tokens than most networks read.
TEXTS = (
    "A Bad Café",
    "ÉCOLE naïve Ångström",
    'it\'s 3.5 °C (U.S.) -- "so"',
    "北京 東京タワー ภาษาไทย",
    "İstanbul ﬁne ½ ①② ß",
    "tab\x0bpage\x0cbreak unit\x1fnext\x85line",
    "it’s “so” – a doctor’s… • no\u00adwrap zero\u200bwidth",  # noqa: RUF001
    f"{'a' * 100} {'a' * 101}",
    " ".join(f"The {number} old Rivers" for number in range(200)),
)


def tokens_in_training(
    tokenizer: SpanTokenizer, texts: Sequence[str], prompt: str
) -> list[list[int]]:
    """Returns the token ids of texts as in training, with the special tokens around them.

    Args:
      tokenizer: the store's.
      texts: words separated by single spaces, one word or more each.
      prompt: put before each text; "" for none.
    """
    spans = spans_of_texts(tokenizer, texts)
    n_columns = 1 + max(len(span.tokens) for span in spans) + count_tokens(prompt, tokenizer)
    joined = put_before(prompt, _padded(spans, n_columns), tokenizer)
    return [
        [tokenizer.cls_id, *ids[:n].tolist(), tokenizer.sep_id]
        for ids, n in zip(joined.ids_NxL, joined.n_tokens_N, strict=True)
    ]


def require_same_tokens(
    name: object,
    tokenizer: SpanTokenizer,
    search: Callable[[str], Sequence[int]],
    prompts: Sequence[str],
    longest: int | None = None,
) -> None:
    """Raises a UserError if training would read other tokens than search does with the model.

    Args:
      name: of the model's folder, for the message.
      tokenizer: of training.
      search: returns the token ids of a text as search reads it.
      prompts: that texts begin with.
      longest: maximum tokens of a text in training; None: no limit.
    """
    for prompt in prompts:
        found = tokens_in_training(tokenizer, TEXTS, prompt)
        for text, ids in zip(TEXTS, found, strict=True):
            expected = [*search(prompt + text)]
            if longest is not None and len(ids) > longest:
                ids = [*ids[: longest - 1], tokenizer.sep_id]
            if ids != expected:
                at = _first_difference(ids, expected)
                theirs, ours = (_spelled(tokenizer, each, at) for each in (expected, ids))
                raise UserError(
                    f"{name} reads {prompt + text[:40]!r} as {theirs}, but its tokenizer.json as"
                    f" {ours}: training would see other tokens than the search (is do_lower_case"
                    " said in another file only?)"
                )


def search_reader(folder: Path, *, lowers_case: bool) -> Callable[[str], list[int]]:
    """Returns a function that tokenizes a text as sentence-transformers does for a model.

    Args:
      folder: of the model's tokenizer.
      lowers_case: see `ModelFolder`.
    """
    from transformers import AutoTokenizer  # slow to import

    try:
        loaded: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library can raise any exception for a broken folder
        raise UserError(
            f"{folder} holds no tokenizer that loads: {whole_message(error)}"
        ) from error
    for side in ("truncation_side", "padding_side"):
        if getattr(loaded, side) != "right":
            raise UserError(f"{folder}: {side} is {getattr(loaded, side)!r}; expected 'right'")
    lower = normalizers.Lowercase().normalize_str if lowers_case else str

    def read(text: str) -> list[int]:
        # Not verbose: it would warn that a model cannot read all of a long text.
        encoded = loaded(lower(text), verbose=False)
        if any(encoded.get("token_type_ids", ())):
            raise UserError(f"{folder} reads texts with token types; expected 0 for each token")
        ids: list[int] = encoded["input_ids"]
        return ids

    return read


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


def _spelled(tokenizer: SpanTokenizer, ids: Sequence[int], at: int) -> list[str]:
    """Returns a few tokens around a position."""
    return [str(tokenizer.backend.id_to_token(i)) for i in ids[max(at - 3, 0) : at + 5]]
