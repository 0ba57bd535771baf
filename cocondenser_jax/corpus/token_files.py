"""Writes, maps and reads the flat files of a token store.

  tokens.bin        content tokens of all spans, end to end (no [CLS], no [SEP]); uint16, or uint32
                    for more than 65,536 entries; then `max_length` zeros, so that a window of that
                    many can be read at any span
  starts.bin        uint8 for each token: 2 where it starts a sentence, 1 where another word, else
                    0; then zeros likewise
  span_offsets.bin  int64 [N + 1]: span i is tokens[span_offsets[i] : span_offsets[i + 1]]
  first_span.bin    int64 [D + 1]: document i is spans first_span[i] to first_span[i + 1] - 1
  ids.txt           names of the documents, each followed by a line feed
  id_offsets.bin    int64 [D + 1]: byte in ids.txt where each name starts

Numbers are little-endian.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from cocondenser_jax.corpus.spans import STARTS_PROMPT, Span

INT64 = np.dtype("<i8")


class TokenFiles(NamedTuple):
    """The mapped files of one folder."""

    tokens: np.ndarray  # [T + max_length] uint16 or uint32
    starts: np.ndarray  # [T + max_length] uint8
    span_offsets: np.ndarray  # [N + 1] int64
    first_span: np.ndarray  # [D + 1] int64
    ids: np.ndarray  # uint8
    id_offsets: np.ndarray  # [D + 1] int64


class Texts(NamedTuple):
    """The content tokens of N texts in L columns."""

    ids_NxL: np.ndarray  # int32, 0 after a text's end
    # uint8: 1 where a token starts a word, 2 where it starts a sentence too, 3 in a prompt
    starts_NxL: np.ndarray
    n_tokens_N: np.ndarray  # int32, content tokens of each text


FILE_NAMES = [f"{name}.txt" if name == "ids" else f"{name}.bin" for name in TokenFiles._fields]


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type that can hold every token id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class TokenWriter:
    """Appends documents to new files in a folder; complete once the context ends."""

    def __init__(self, folder: Path, vocab_size: int, max_length: int):
        self.counts = {"documents": 0, "spans": 0, "tokens": 0}  # written so far
        self._dtype = token_dtype(vocab_size)
        self._max_length = max_length
        self._stack = contextlib.ExitStack()
        self._files = {
            name: self._stack.enter_context((folder / name).open("wb")) for name in FILE_NAMES
        }
        for name in ("span_offsets.bin", "first_span.bin", "id_offsets.bin"):
            self._append(name, np.zeros(1, INT64))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            self._append("tokens.bin", np.zeros(self._max_length, self._dtype))
            self._append("starts.bin", np.zeros(self._max_length, np.uint8))

    def write(self, documents: Sequence[tuple[str, Sequence[Span]]]) -> None:
        """Appends documents, each a name and its spans."""
        if not documents:
            return
        spans = [span for _, document in documents for span in document]
        ids = [f"{name}\n".encode() for name, _ in documents]
        span_ends = self.counts["tokens"] + np.cumsum([len(span.tokens) for span in spans])
        n_spans_D = [len(document) for _, document in documents]
        document_ends = self.counts["spans"] + np.cumsum(n_spans_D)
        id_ends = self._files["ids.txt"].tell() + np.cumsum([len(name) for name in ids])

        tokens = np.concatenate([span.tokens for span in spans])
        self._append("tokens.bin", tokens.astype(self._dtype))
        self._append("starts.bin", np.concatenate([span.starts for span in spans]))
        self._append("span_offsets.bin", span_ends.astype(INT64))
        self._append("first_span.bin", document_ends.astype(INT64))
        self._append("ids.txt", np.frombuffer(b"".join(ids), np.uint8))
        self._append("id_offsets.bin", id_ends.astype(INT64))
        self.counts["documents"] += len(documents)
        self.counts |= {"spans": int(document_ends[-1]), "tokens": int(span_ends[-1])}

    def _append(self, name: str, values: np.ndarray) -> None:
        self._files[name].write(values.tobytes())


def map_files(folder: Path, vocab_size: int) -> TokenFiles:
    """Maps the files into memory without reading them."""
    byte: np.dtype = np.dtype("u1")
    dtypes = [token_dtype(vocab_size), byte, INT64, INT64, byte, INT64]
    paths = [folder / name for name in FILE_NAMES]
    # An empty file, such as the names of a store without documents, cannot be mapped.
    return TokenFiles(
        *(
            np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.zeros(0, dtype)
            for path, dtype in zip(paths, dtypes, strict=True)
        )
    )


def read_windows(files: TokenFiles, spans_N: np.ndarray, length: int) -> Texts:
    """Reads at most `length` < `max_length` tokens of spans, as `TokenStore.read_spans`."""
    begin_N = files.span_offsets[spans_N]
    n_tokens_N = files.span_offsets[spans_N + 1] - begin_N
    windows = np.lib.stride_tricks.sliding_window_view
    # One more token than wanted shows whether the last word ends within the window.
    texts = Texts(
        ids_NxL=windows(files.tokens, length + 1)[begin_N].astype(np.int32),
        starts_NxL=windows(files.starts, length + 1)[begin_N],
        n_tokens_N=n_tokens_N.astype(np.int32),
    )
    return cut_after_words(texts, length)


def cut_after_words(texts: Texts, length: int) -> Texts:
    """Cuts texts longer than `length` columns after their last whole word within them.

    The first word, after a prompt if there is one, is cut inside if it is longer.
    """
    ids_NxM, starts_NxM, n_tokens_N = texts
    n_tokens_N = n_tokens_N.copy()
    longer = np.flatnonzero(n_tokens_N > length)
    if len(longer):
        starts_JxM = starts_NxM[longer, : length + 1]
        borders = (starts_JxM[:, 1:] > 0) & (starts_JxM[:, :-1] != STARTS_PROMPT)
        last_border = length - np.argmax(borders[:, ::-1], axis=1)
        n_tokens_N[longer] = np.where(borders.any(axis=1), last_border, length)
    inside_NxL = np.arange(length) < n_tokens_N[:, None]
    return Texts(
        ids_NxL=np.where(inside_NxL, ids_NxM[:, :length], 0),
        starts_NxL=np.where(inside_NxL, starts_NxM[:, :length], 0),
        n_tokens_N=n_tokens_N,
    )
