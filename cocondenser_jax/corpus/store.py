"""The token store: a corpus cut and tokenised once, memory-mapped ever after.

A store is a folder with the flat arrays that `token_files.py` describes, the tokenizer in
`tokenizer/`, and `manifest.json` with counts, checksums and origin. The manifest is written
last: a folder without it is no store.

A corpus may be cut on n machines into `shard-00000-of-0000n` …; the folder that holds all shards
opens as one store.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from cocondenser_jax.corpus.manifest import read_manifest
from cocondenser_jax.corpus.sources import Document, read_documents, source_bytes
from cocondenser_jax.corpus.spans import MIN_TOKENS, cut_documents
from cocondenser_jax.corpus.token_files import (
    TokenFiles,
    TokenWriter,
    are_consistent,
    map_files,
    read_id,
    read_windows,
)
from cocondenser_jax.corpus.vocabulary import Vocabulary, load_tokenizer, save_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import file_sha256, new_folder, write_json

FORMAT_VERSION = 1
MIN_MAX_TOKENS = MIN_TOKENS + 2
# Documents are cut together until they hold this many characters.
BATCH_CHARACTERS = 1_000_000
BATCH_DOCUMENTS = 4096
# Pages of the table of digests that are kept in memory.
DIGEST_CACHE_KIB = 256 * 1024
_LIBRARIES = ("cocondenser_jax", "numpy", "tokenizers")


def build_store(
    source: str,
    tokenizer: str,
    out: Path,
    *,
    max_tokens: int = 128,
    shard: tuple[int, int] = (0, 1),
) -> dict[str, Any]:
    """Cuts and tokenises a corpus into a store; memory does not grow with the corpus.

    A document that is empty, repeats an earlier one to the letter, or has fewer than two spans
    is left out and counted.

    Args:
      source: see `sources.read_documents`.
      tokenizer: see `vocabulary.load_tokenizer`.
      out: a folder that does not exist yet; for one shard of several, the folder of all shards.
      max_tokens: longest span in tokens, [CLS] and [SEP] included.
      shard: (i, n): keep the documents whose text's hash is i modulo n. Copies of a document
        meet in one shard, so they are found whatever n is.

    Returns:
      The manifest.

    Raises:
      UserError: if an argument or the corpus is wrong, or no document remains.
    """
    index, n_shards = shard
    if not 0 <= index < n_shards:
        raise UserError(f"shard {index}/{n_shards}: expected i/n with 0 <= i < n")
    if max_tokens < MIN_MAX_TOKENS:
        raise UserError(f"max_tokens is {max_tokens}: expected at least {MIN_MAX_TOKENS}")
    vocabulary = load_tokenizer(tokenizer)
    target = out / _shard_name(index, n_shards) if n_shards > 1 else out
    with new_folder(target) as folder:
        dropped: Counter[str] = Counter(empty=0, duplicate=0, single_span=0)
        lost: Counter[str] = Counter()
        with TokenWriter(folder, vocabulary.vocab_size, max_tokens) as writer:
            documents = _kept_documents(source, folder, shard, dropped)
            for batch in _batches(documents):
                spans_D, batch_lost = cut_documents(batch, vocabulary, max_tokens)
                lost += batch_lost
                kept = [
                    (document.id, spans)
                    for document, spans in zip(batch, spans_D, strict=True)
                    if len(spans) >= 2
                ]
                dropped["single_span"] += len(batch) - len(kept)
                writer.write(kept)
        if not writer.n_documents:
            reasons = ", ".join(f"{n} {reason}" for reason, n in dropped.items())
            raise UserError(f"{source}: no document with two spans remains ({reasons})")
        (folder / "tokenizer").mkdir()
        save_tokenizer(vocabulary, folder / "tokenizer")
        manifest = {
            "format_version": FORMAT_VERSION,
            "source": source,
            "max_tokens": max_tokens,
            "shard": [index, n_shards],
            "tokenizer": {
                field.name: getattr(vocabulary, field.name)
                for field in dataclasses.fields(Vocabulary)
                if field.name != "tokenizer"
            },
            "counts": {
                "documents": writer.n_documents,
                "spans": writer.n_spans,
                "tokens": writer.n_tokens,
            },
            "dropped": dict(dropped),
            "dropped_short_spans": lost["short_spans"],
            "truncated_spans": lost["truncated_spans"],
            "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
            "files": {
                path.relative_to(folder).as_posix(): {
                    "bytes": path.stat().st_size,
                    "sha256": file_sha256(path),
                }
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            },
        }
        write_json(folder / "manifest.json", manifest)
    return manifest


def _shard_name(index: int, n_shards: int) -> str:
    return f"shard-{index:05d}-of-{n_shards:05d}"


def _kept_documents(
    source: str, folder: Path, shard: tuple[int, int], dropped: Counter[str]
) -> Iterator[Document]:
    """Yields the shard's documents, but neither empty ones nor copies; shows the progress."""
    index, n_shards = shard
    total = source_bytes(source)
    bar = tqdm(
        desc=f"corpus {index}/{n_shards}" if n_shards > 1 else "corpus",
        total=total,
        unit="B" if total else " documents",
        unit_scale=bool(total),
        smoothing=0,  # tokenising comes in bursts
    )
    on_bytes = bar.update if total else lambda n_bytes: None
    begin = time.monotonic()
    with bar, _digest_table(folder / "digests.sqlite") as is_new:
        for number, document in enumerate(read_documents(source, on_bytes), start=1):
            if not total:
                bar.update()
            elif number % 256 == 0:
                rate = number / (time.monotonic() - begin)
                bar.set_postfix_str(f"{number} documents, {rate:.0f}/s", refresh=False)
            digest = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
            if int.from_bytes(digest[:8], "big") % n_shards != index:
                continue
            if not document.text.strip():
                dropped["empty"] += 1
            elif not is_new(digest):
                dropped["duplicate"] += 1
            else:
                yield document


@contextlib.contextmanager
def _digest_table(path: Path) -> Iterator[Any]:
    """Yields a function that tells whether a digest comes for the first time.

    The table lies on disk, for corpora whose digests do not fit in memory.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA cache_size = -{DIGEST_CACHE_KIB}")
        connection.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        connection.execute("BEGIN")

        def is_new(digest: bytes) -> bool:
            insert = "INSERT OR IGNORE INTO seen VALUES (?)"
            return connection.execute(insert, (digest,)).rowcount == 1

        yield is_new
    finally:
        connection.close()
        path.unlink(missing_ok=True)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    n_characters = 0
    for document in documents:
        batch.append(document)
        n_characters += len(document.text)
        if n_characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch


@dataclasses.dataclass(frozen=True, eq=False)
class TokenStore:
    """An open store. Pickles as its path, so worker processes map the same files.

    Attributes:
      path: the store, or the folder of its shards.
      manifests: one per shard, in their order.
      n_documents: D.
      n_spans: N.
      n_tokens: content tokens of all spans.
      first_span_D: [D + 1] int64; document i is spans first_span_D[i] to first_span_D[i + 1] - 1.
      max_tokens: longest span in tokens, [CLS] and [SEP] included.
      vocab_size: highest token id + 1.
      cls_id: begins an input. `sep_id` ends it, `pad_id` fills it up, `mask_id` hides a token.
      special_ids: ids that stand for no text.
      tokenizer_sha256: `Vocabulary.sha256` of the tokenizer that made it.
      sha256: identifies the data: a hash of the checksums of all files.
      tokenizer_folder: the tokenizer, as transformers loads it.
    """

    path: Path
    manifests: tuple[dict[str, Any], ...]
    n_documents: int
    n_spans: int
    n_tokens: int
    first_span_D: np.ndarray
    max_tokens: int
    vocab_size: int
    cls_id: int
    sep_id: int
    pad_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    tokenizer_sha256: str
    sha256: str
    tokenizer_folder: Path
    _parts: tuple[TokenFiles, ...] = dataclasses.field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.path,)

    def document_id(self, index: int) -> str:
        """Returns the name that the source gave to document `index`."""
        if not 0 <= index < self.n_documents:
            raise IndexError(f"document {index} of {self.n_documents}")
        for part in self._parts:
            n_documents = len(part.first_span) - 1
            if index < n_documents:
                break
            index -= n_documents
        return read_id(part, index)

    def token_counts(self, n_spans: int = 100_000) -> np.ndarray:
        """Returns how often each token id occurs, `counts_V`, in spans taken evenly from all."""
        chosen_N = np.linspace(0, self.n_spans - 1, min(n_spans, self.n_spans)).astype(np.int64)
        counts_V = np.zeros(self.vocab_size, np.int64)
        for spans_N in np.array_split(chosen_N, math.ceil(len(chosen_N) / 10_000)):
            ids_NxL, _, n_tokens_N = self.read_spans(spans_N, self.max_tokens - 2)
            inside_NxL = np.arange(ids_NxL.shape[1]) < n_tokens_N[:, None]
            counts_V += np.bincount(ids_NxL[inside_NxL], minlength=self.vocab_size)
        return counts_V

    def read_spans(
        self, spans_N: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reads spans by number.

        Args:
          spans_N: [N] span numbers, in any order, with repeats.
          length: L, the content tokens to return of each; a longer span is cut after its last
            whole word that fits.

        Returns:
          ids_NxL: int32, 0 behind a span's end.
          word_start_NxL: bool, true where a token begins a word.
          n_tokens_N: int32, content tokens returned of each span.

        Raises:
          IndexError: if a number is outside the store.
        """
        spans_N = np.asarray(spans_N, np.int64)
        if len(spans_N) and not 0 <= spans_N.min() <= spans_N.max() < self.n_spans:
            raise IndexError(f"span numbers must be in [0, {self.n_spans})")
        width = min(length, self.max_tokens - 2)
        if len(self._parts) == 1:
            ids, starts, n_tokens = read_windows(self._parts[0], spans_N, width)
        else:
            ids = np.empty((len(spans_N), width), np.int32)
            starts = np.empty((len(spans_N), width), bool)
            n_tokens = np.empty(len(spans_N), np.int32)
            first = 0
            for part in self._parts:
                n_spans = len(part.span_offsets) - 1
                rows = np.flatnonzero((spans_N >= first) & (spans_N < first + n_spans))
                ids[rows], starts[rows], n_tokens[rows] = read_windows(
                    part, spans_N[rows] - first, width
                )
                first += n_spans
        if width < length:
            padding = ((0, 0), (0, length - width))
            ids, starts = np.pad(ids, padding), np.pad(starts, padding)
        return ids, starts, n_tokens


def open_store(path: Path) -> TokenStore:
    """Opens a store, or all shards in a folder as one; reads no tokens yet.

    Args:
      path: the folder that `build_store` wrote.

    Returns:
      The store, its files memory-mapped.

    Raises:
      UserError: if it is no store, a shard or file is missing or has the wrong size, or shards
        do not belong together.
    """
    path = Path(path)
    folders = _part_folders(path)
    manifests = tuple(read_manifest(folder, FORMAT_VERSION) for folder in folders)
    _check_shards(path, folders, manifests)
    parts = tuple(_open_part(f, m) for f, m in zip(folders, manifests, strict=True))

    bases = np.cumsum([0] + [manifest["counts"]["spans"] for manifest in manifests])
    if len(parts) == 1:
        first_span_D = parts[0].first_span
    else:
        shifted = [part.first_span[:-1] + b for part, b in zip(parts, bases[:-1], strict=True)]
        first_span_D = np.concatenate([*shifted, bases[-1:]])
    tokenizer = manifests[0]["tokenizer"]
    checksums = json.dumps([manifest["files"] for manifest in manifests], sort_keys=True)
    return TokenStore(
        path=path,
        manifests=manifests,
        n_documents=len(first_span_D) - 1,
        n_spans=int(bases[-1]),
        n_tokens=sum(manifest["counts"]["tokens"] for manifest in manifests),
        first_span_D=first_span_D,
        max_tokens=manifests[0]["max_tokens"],
        vocab_size=tokenizer["vocab_size"],
        cls_id=tokenizer["cls_id"],
        sep_id=tokenizer["sep_id"],
        pad_id=tokenizer["pad_id"],
        mask_id=tokenizer["mask_id"],
        special_ids=tuple(tokenizer["special_ids"]),
        tokenizer_sha256=tokenizer["sha256"],
        sha256=hashlib.sha256(checksums.encode()).hexdigest(),
        tokenizer_folder=folders[0] / "tokenizer",
        _parts=parts,
    )


def verify_store(path: Path) -> None:
    """Reads every file of a store and compares its checksum with the manifest.

    Raises:
      UserError: if the store does not open, or a file has changed.
    """
    open_store(path)
    for folder in _part_folders(Path(path)):
        for name, facts in read_manifest(folder, FORMAT_VERSION)["files"].items():
            if file_sha256(folder / name) != facts["sha256"]:
                raise UserError(f"{folder / name} has changed: its checksum is not the manifest's")


def _part_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise UserError(f"no store {path}: expected a folder made by `cocondenser corpus`")
    return sorted(path.glob("shard-*-of-*[0-9]")) or [path]


def _check_shards(path: Path, folders: list[Path], manifests: tuple[dict[str, Any], ...]) -> None:
    if folders == [path]:
        return  # one store, or one shard opened by itself
    n_shards = max(manifest["shard"][1] for manifest in manifests)
    if n_shards > 99_999:  # the names of shards have five digits
        raise UserError(f"{path} is damaged: a manifest says that there are {n_shards} shards")
    present = {folder.name for folder in folders}
    expected = {_shard_name(index, n_shards) for index in range(n_shards)}
    if missing := sorted(expected - present):
        raise UserError(f"{path} lacks {', '.join(missing)}")
    if alien := sorted(present - expected):
        raise UserError(f"{path} also holds {', '.join(alien)}, of another division")
    for what in ("max_tokens", "tokenizer"):
        for folder, manifest in zip(folders, manifests, strict=True):
            if manifest[what] != manifests[0][what]:
                raise UserError(f"{folder} differs from {folders[0].name} in its {what}")


def _open_part(folder: Path, manifest: dict[str, Any]) -> TokenFiles:
    for name, facts in manifest["files"].items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size != facts["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise UserError(f"{folder / name} {found}: expected {facts['bytes']} bytes")
    counts = manifest["counts"]
    try:
        files = map_files(folder, manifest["tokenizer"]["vocab_size"])
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged: {error}") from error
    if not are_consistent(
        files, counts["documents"], counts["spans"], counts["tokens"], manifest["max_tokens"]
    ):
        raise UserError(f"{folder} is damaged: its files do not hold what manifest.json counts")
    return files
