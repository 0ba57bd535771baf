"""The flat files of a token store: append spans, map them, read spans by number.

  tokens.bin         content tokens of all spans, end to end (no [CLS], no [SEP]); uint16, or
                     uint32 for more than 65,536 entries; then `max_tokens` + 8 zeros, so that
                     a window of `max_tokens` can be read at any span
  word_starts.bin    one bit per token (as `numpy.packbits`): whether it begins a word; padded
                     likewise
  span_offsets.bin   int64 [N + 1]: span i is tokens[span_offsets[i] : span_offsets[i + 1]]
  first_span.bin     int64 [D + 1]: document i is spans first_span[i] to first_span[i + 1] - 1
  ids.txt            names of the documents, each followed by a line feed
  id_offsets.bin     int64 [D + 1]: byte in ids.txt at which each name begins

Numbers are little-endian.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from cocondenser_jax.corpus.spans import Span

FILE_NAMES = (
    "tokens.bin",
    "word_starts.bin",
    "span_offsets.bin",
    "first_span.bin",
    "ids.txt",
    "id_offsets.bin",
)
INT64 = np.dtype("<i8")
_PADDING = 8  # beyond `max_tokens`: whole bytes of word starts are read


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type that holds every token id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class TokenWriter:
    """Appends documents to new files in a folder; complete once the context ends.

    Attributes:
      n_documents: written so far; likewise `n_spans` and `n_tokens`.
    """

    def __init__(self, folder: Path, vocab_size: int, max_tokens: int):
        self.n_documents = self.n_spans = self.n_tokens = 0
        self._n_id_bytes = 0
        self._dtype = token_dtype(vocab_size)
        n_padding = max_tokens + _PADDING
        self._padding = Span(np.zeros(n_padding, np.uint32), np.zeros(n_padding, bool))
        self._bits = np.zeros(0, bool)  # the fewer than eight that fill no byte yet
        self._stack = contextlib.ExitStack()
        tokens, starts, spans, documents, ids, id_ends = (
            self._stack.enter_context((folder / name).open("wb")) for name in FILE_NAMES
        )
        self._tokens, self._starts, self._ids = tokens, starts, ids
        self._span_ends, self._document_ends, self._id_ends = spans, documents, id_ends
        for file in (spans, documents, id_ends):
            file.write(np.zeros(1, INT64).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            self._append([self._padding])
            self._starts.write(np.packbits(self._bits).tobytes())

    def write(self, documents: Sequence[tuple[str, Sequence[Span]]]) -> None:
        """Appends documents, each a name and its spans."""
        if not documents:
            return
        spans = [span for _, document in documents for span in document]
        ids = [f"{name}\n".encode() for name, _ in documents]
        span_ends = self.n_tokens + np.cumsum([len(span.tokens) for span in spans])
        document_ends = self.n_spans + np.cumsum([len(document) for _, document in documents])
        id_ends = self._n_id_bytes + np.cumsum([len(name) for name in ids])

        self._append(spans)
        self._ids.write(b"".join(ids))
        self._span_ends.write(span_ends.astype(INT64).tobytes())
        self._document_ends.write(document_ends.astype(INT64).tobytes())
        self._id_ends.write(id_ends.astype(INT64).tobytes())
        self.n_documents += len(documents)
        self.n_spans += len(spans)
        self.n_tokens = int(span_ends[-1])
        self._n_id_bytes = int(id_ends[-1])

    def _append(self, spans: Sequence[Span]) -> None:
        tokens = np.concatenate([span.tokens for span in spans])
        self._tokens.write(tokens.astype(self._dtype).tobytes())
        bits = np.concatenate([self._bits, *(span.word_starts for span in spans)])
        whole = len(bits) // 8 * 8
        self._starts.write(np.packbits(bits[:whole]).tobytes())
        self._bits = bits[whole:]


class TokenFiles(NamedTuple):
    """The mapped files of one folder.

    Attributes:
      tokens: [T + max_tokens + 8] uint16 or uint32.
      word_starts: uint8, eight tokens each.
      span_offsets: [N + 1] int64.
      first_span: [D + 1] int64.
      ids: uint8.
      id_offsets: [D + 1] int64.
    """

    tokens: np.ndarray
    word_starts: np.ndarray
    span_offsets: np.ndarray
    first_span: np.ndarray
    ids: np.ndarray
    id_offsets: np.ndarray


def map_files(folder: Path, vocab_size: int) -> TokenFiles:
    """Maps the files into memory; reads nothing yet."""
    return TokenFiles(
        tokens=_map(folder / "tokens.bin", token_dtype(vocab_size)),
        word_starts=_map(folder / "word_starts.bin", np.dtype("u1")),
        span_offsets=_map(folder / "span_offsets.bin", INT64),
        first_span=_map(folder / "first_span.bin", INT64),
        ids=_map(folder / "ids.txt", np.dtype("u1")),
        id_offsets=_map(folder / "id_offsets.bin", INT64),
    )


def are_consistent(
    files: TokenFiles, n_documents: int, n_spans: int, n_tokens: int, max_tokens: int
) -> bool:
    """Tells whether the files fit each other and the counts."""
    offsets = (files.span_offsets, files.first_span, files.id_offsets)
    return bool(
        all(len(ascending) and ascending[0] == 0 for ascending in offsets)
        and len(files.first_span) - 1 == len(files.id_offsets) - 1 == n_documents
        and len(files.span_offsets) - 1 == files.first_span[-1] == n_spans
        and len(files.ids) == files.id_offsets[-1]
        and files.span_offsets[-1] == n_tokens
        and len(files.tokens) == n_tokens + max_tokens + _PADDING
        and len(files.word_starts) == -(-len(files.tokens) // 8)
    )


def read_id(files: TokenFiles, document: int) -> str:
    """Returns the name of a document."""
    begin, end = files.id_offsets[document : document + 2]
    return files.ids[begin : end - 1].tobytes().decode()


def read_windows(
    files: TokenFiles, spans_N: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads spans of which no more than `length` < `max_tokens` tokens are wanted.

    Returns:
      ids_NxL int32, word_start_NxL bool and n_tokens_N int32, as `TokenStore.read_spans` says.
    """
    begin_N = files.span_offsets[spans_N]
    n_tokens_N = files.span_offsets[spans_N + 1] - begin_N
    windows = np.lib.stride_tricks.sliding_window_view(files.tokens, length)
    ids_NxL = windows[begin_N].astype(np.int32)
    # One more than wanted tells whether the last word ends within the window.
    starts_NxM = _read_bits(files.word_starts, begin_N, length + 1)

    longer = np.flatnonzero(n_tokens_N > length)
    if len(longer):
        borders = starts_NxM[longer, 1:]
        last_border = length - np.argmax(borders[:, ::-1], axis=1)
        n_tokens_N[longer] = np.where(borders.any(axis=1), last_border, length)

    starts_NxL = starts_NxM[:, :length]
    beyond_NxL = np.arange(length) >= n_tokens_N[:, None]
    ids_NxL[beyond_NxL] = 0
    starts_NxL[beyond_NxL] = False
    return ids_NxL, starts_NxL, n_tokens_N.astype(np.int32)


def _read_bits(packed: np.ndarray, begin_N: np.ndarray, width: int) -> np.ndarray:
    """Returns the `width` bits that follow each bit `begin_N`, as [N, width] bool."""
    n_bytes = -(-width // 8)
    windows = np.lib.stride_tricks.sliding_window_view(packed, n_bytes + 1)
    bytes_NxB = windows[begin_N >> 3].astype(np.uint16)
    # Neighbours side by side, shifted until the first wanted bit leads a byte.
    pairs_NxB = (bytes_NxB[:, :-1] << 8) | bytes_NxB[:, 1:]
    aligned_NxB = (pairs_NxB >> (8 - (begin_N & 7))[:, None]).astype(np.uint8)
    return np.unpackbits(aligned_NxB, axis=1, count=width).view(bool)


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    return np.asarray(np.memmap(path, dtype, "r"))
