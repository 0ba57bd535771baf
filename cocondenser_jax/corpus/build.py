"""Builds a token store: cuts and tokenizes a corpus once, in bounded memory."""

import contextlib
import hashlib
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from cocondenser_jax.corpus.sources import (
    Document,
    Part,
    open_source,
    read_documents,
    read_parts,
)
from cocondenser_jax.corpus.spans import MIN_TOKENS, cut_documents
from cocondenser_jax.corpus.store import FORMAT_VERSION, manifest_checksum
from cocondenser_jax.corpus.token_files import TokenWriter
from cocondenser_jax.corpus.tokenizer import (
    SpanTokenizer,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import file_sha256, new_folder, write_json
from cocondenser_jax.storage.runs import shard_folder

logger = logging.getLogger(__name__)

MIN_MAX_TOKENS = MIN_TOKENS + 2
BATCH_CHARACTERS = 1_000_000  # of documents that are cut together, at least
DIGEST_CACHE_KIB = 256 * 1024  # of the table of digests, in memory


def build_store(
    source: str,
    tokenizer: str,
    out: Path,
    *,
    max_tokens: int = 128,
    short_span_prob: float = 0.0,
    shard: tuple[int, int] = (0, 1),
) -> dict[str, Any]:
    """Cuts and tokenizes a corpus into a store; returns its manifest.

    Drops and counts documents that are empty, repeat an earlier text exactly, or have no span of
    sufficient length.

    Args:
      source: see `sources.open_source`.
      tokenizer: see `tokenizer.load_tokenizer`.
      out: a new folder; for one shard of several, the folder of all shards.
      max_tokens: longest span in tokens, [CLS] and [SEP] included.
      short_span_prob: see `spans.cut_documents`.
      shard: (i, n): read every nth part of the source, from part i; copies in other shards stay.
        A source of fewer than n parts is read whole, and the documents whose hash is i modulo n
        are kept, so copies fall into the same shard.
    """
    if max_tokens < MIN_MAX_TOKENS:
        raise UserError(f"max_tokens is {max_tokens}: expected at least {MIN_MAX_TOKENS}")
    if not 0 <= short_span_prob <= 1:
        raise UserError(f"short_span_prob is {short_span_prob}: expected 0 to 1")
    loaded = load_tokenizer(tokenizer)
    target = shard_folder(out, shard)
    with new_folder(target) as folder:
        parts = open_source(source)
        dropped: Counter[str] = Counter(empty=0, duplicate=0, too_short=0)
        n_single = 0
        with TokenWriter(folder, loaded.vocab_size, max_tokens) as writer:
            for batch in _batches(_kept_documents(source, parts, folder, shard, dropped)):
                spans_D = cut_documents(batch, loaded, max_tokens, short_span_prob)
                kept = [(d.id, spans) for d, spans in zip(batch, spans_D, strict=True) if spans]
                dropped["too_short"] += len(batch) - len(kept)
                n_single += sum(len(spans) == 1 for _, spans in kept)
                writer.write(kept)
        if not writer.counts["documents"]:
            reasons = ", ".join(f"{n} {reason}" for reason, n in dropped.items())
            raise UserError(
                f"{source}: no document with a span of {MIN_TOKENS} tokens remains ({reasons})"
            )
        (folder / "tokenizer").mkdir()
        save_tokenizer(loaded, folder / "tokenizer")
        manifest = {
            "format_version": FORMAT_VERSION,
            "source": source,
            "parts": len(parts),
            "max_tokens": max_tokens,
            "short_span_prob": short_span_prob,
            "shard": [*shard],
            "tokenizer": {n: value for n, value in vars(loaded).items() if n != "backend"},
            "counts": writer.counts | {"documents_of_one_span": n_single},
            "dropped": dict(dropped),
            "files": {
                path.relative_to(folder).as_posix(): {
                    "bytes": path.stat().st_size,
                    "sha256": file_sha256(path),
                }
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            },
        }
        manifest["checksum"] = manifest_checksum(manifest)
        write_json(folder / "manifest.json", manifest)
    return manifest


def build_vocabulary(
    sources: Sequence[str],
    out: Path,
    size: int,
    *,
    kind: Literal["bert", "roberta"] = "bert",
    lowercase: bool = True,
) -> SpanTokenizer:
    """Learns a tokenizer as `train_tokenizer` from sources (`open_source`); writes a new folder."""
    with new_folder(out) as folder:
        opened = [read_documents(name) for name in sources]
        bars = (tqdm(documents, "vocabulary", unit=" documents") for documents in opened)
        texts = (document.text for document in chain.from_iterable(bars))
        tokenizer = train_tokenizer(texts, size, kind, lowercase=lowercase)
        save_tokenizer(tokenizer, folder)
    return tokenizer


def _kept_documents(
    source: str, parts: Sequence[Part], folder: Path, shard: tuple[int, int], dropped: Counter[str]
) -> Iterator[Document]:
    index, n_shards = shard
    own_parts = parts
    by_parts = 1 < n_shards <= len(parts)
    if by_parts:
        own_parts = parts[index::n_shards]
        logger.info(
            "%s: reading %d of %d parts; copies in other shards are not dropped",
            source,
            len(own_parts),
            len(parts),
        )
    with _digest_table(folder / "digests.sqlite") as is_new:
        for document in tqdm(read_parts(source, own_parts), "corpus", unit=" documents"):
            digest = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
            if not by_parts and int.from_bytes(digest[:8], "big") % n_shards != index:
                continue
            if not document.text.strip():
                dropped["empty"] += 1
            elif not is_new(digest):
                dropped["duplicate"] += 1
            else:
                yield document


@contextlib.contextmanager
def _digest_table(path: Path) -> Iterator[Callable[[bytes], bool]]:
    """Yields a test whether a digest is new; the table is on disk, as it may exceed the memory."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA cache_size = -{DIGEST_CACHE_KIB}")
        connection.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        connection.execute("BEGIN")
        insert = "INSERT OR IGNORE INTO seen VALUES (?)"
        yield lambda digest: connection.execute(insert, (digest,)).rowcount == 1
    finally:
        connection.close()
        path.unlink(missing_ok=True)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    n_characters = 0
    for document in documents:
        batch.append(document)
        n_characters += len(document.text)
        if n_characters >= BATCH_CHARACTERS:
            yield batch
            batch = []
            n_characters = 0
    if batch:
        yield batch
