"""Builds a token store: splits and tokenizes a corpus once.

Texts are streamed. Memory also holds what identifies duplicates: about 110 bytes per document, or
per document of one task if the work is divided.
"""

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from cocondenser_jax.corpus.folders import require_not_read
from cocondenser_jax.corpus.records import Document, batches
from cocondenser_jax.corpus.sources import hashed, open_source, read_documents, read_pieces
from cocondenser_jax.corpus.spans import MIN_TOKENS, cut_documents
from cocondenser_jax.corpus.store import FORMAT_VERSION, manifest_checksum, open_store
from cocondenser_jax.corpus.tasks import (
    IsRepeated,
    documents_of_task,
    duplicates_of_task,
    find_duplicates,
    hash_task,
    read_task,
    remember_texts,
    require_unchanged,
    stage_file,
)
from cocondenser_jax.corpus.token_files import TokenWriter
from cocondenser_jax.corpus.tokenizer import (
    N_AROUND,
    Learned,
    SpanTokenizer,
    load_tokenizer,
    save_tokenizer,
    special_strings,
    train_tokenizer,
)
from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.runs import lock_folder, require_own, start_or_compare, task_folder
from cocondenser_jax.files.whole import file_sha256, new_folder, read_object, write_json
from cocondenser_jax.files.workers import Engine, run_tasks

logger = logging.getLogger(__name__)

MIN_MAX_LENGTH = MIN_TOKENS + N_AROUND


class StoreSettings(NamedTuple):
    """The settings of a store, as recorded in its manifest."""

    corpus: str
    max_length: int
    short_span_prob: float
    pieces: int = 0  # of the source, once opened


def build_store(
    source: str | Path,
    tokenizer: str | Path,
    out: Path,
    *,
    max_length: int = 128,
    short_span_prob: float = 0.0,
) -> dict[str, Any]:
    """Splits and tokenizes a corpus into a store; returns its manifest.

    Drops and counts documents that are empty, repeat an earlier text exactly, or have no span that
    is long enough.

    Args:
      source: see `sources.open_source`.
      tokenizer: see `tokenizer.load_tokenizer`.
      out: a new folder.
      max_length: longest span in tokens, [CLS] and [SEP] included.
      short_span_prob: see `spans.cut_documents`.
    """
    check_cutting(max_length, short_span_prob)
    require_not_read(source, out)
    source = str(source)
    loaded = load_tokenizer(str(tokenizer))
    with new_folder(out) as folder:
        pieces = open_source(source)
        settings = StoreSettings(
            corpus=source,
            max_length=max_length,
            short_span_prob=short_span_prob,
            pieces=len(pieces),
        )
        documents = tqdm(read_pieces(source, pieces), "corpus", unit=" documents")
        manifest = _write_store(folder, documents, remember_texts(), loaded, settings)
        require_documents(source, manifest)
    return manifest


def build_in_tasks(
    settings: StoreSettings, tokenizer: str, out: Path, engine: Engine
) -> dict[str, Any]:
    """Builds the store of `build_store` in `engine.tasks` tasks; resumes if it was stopped.

    Opened as one store, the task folders hold the same documents in the same order. If the source
    has changed, the folders that depend on it are rebuilt. Returns `counts` and `dropped` of all.
    """
    check_cutting(settings.max_length, settings.short_span_prob)
    require_not_read(settings.corpus, out)
    tokenizer_sha256 = load_tokenizer(tokenizer).sha256
    source = settings.corpus
    n_pieces = len(open_source(source))
    if n_pieces < engine.tasks:
        raise UserError(
            f"{source} has {n_pieces} pieces (files, row groups of Parquet): expected at most as"
            f" many tasks, found {engine.tasks}; split a large file first"
        )
    settings = settings._replace(pieces=n_pieces)
    out = out.absolute()
    settings_file = out / "tasks.json"
    require_own(settings_file)
    with lock_folder(out):
        start_or_compare(
            settings_file,
            {
                **settings._asdict(),
                "tasks": engine.tasks,
                "tokenizer": tokenizer,
                "tokenizer_sha256": tokenizer_sha256,
            },
            free=("tokenizer",),
        )
        _run_stages(settings, tokenizer, out, engine)
        manifests = open_store(out).manifests
        total = {
            key: {name: sum(each[key][name] for each in manifests) for name in manifests[0][key]}
            for key in ("counts", "dropped")
        }
        require_documents(source, total)
        shutil.rmtree(out / "work", ignore_errors=True)
    return total


def _run_stages(settings: StoreSettings, tokenizer: str, out: Path, engine: Engine) -> None:
    """Runs the tasks of all stages; the first always, which tells whether the source changed.

    It runs the other stages unless all folders of the store exist.
    """
    work = out / "work"
    shutil.rmtree(work, ignore_errors=True)

    def run(stage: str, function: Callable[..., object]) -> None:
        def is_done(index: int) -> bool:
            return stage_file(work, stage, index).exists()

        run_tasks(stage, function, is_done, engine, work)

    run("digests", partial(hash_task, settings.corpus, work))
    folders = [task_folder(out, (index, engine.tasks)) for index in range(engine.tasks)]
    _remove_outdated(settings.corpus, folders, out, work)
    if all(each.exists() for each in folders):
        return
    run("duplicates", partial(find_duplicates, work))
    build = partial(build_task, settings, tokenizer, out, work)
    run_tasks("corpus", build, lambda index: folders[index].exists(), engine, work)


def _remove_outdated(source: str, folders: Sequence[Path], out: Path, work: Path) -> None:
    """Removes the folders of tasks whose documents have changed, and of all later tasks.

    A later task may have kept or dropped a document that repeats one of those. `documents.json`
    records what each task read.
    """
    file = out / "documents.json"
    documents = [documents_of_task(work, index) for index in range(len(folders))]
    earlier = read_object(file, {}).get("sha256", [""] * len(folders))
    changed = (now != before for now, before in zip(documents, earlier, strict=True))
    first = next((index for index, is_other in enumerate(changed) if is_other), len(folders))
    if outdated := [folder for folder in folders[first:] if folder.exists()]:
        names = first_three([folder.name for folder in outdated])
        logger.warning("%s has changed: making %s of %s again", source, names, out)
    for folder in outdated:
        shutil.rmtree(folder)
    write_json(file, {"sha256": documents})


def build_task(
    settings: StoreSettings,
    tokenizer: str,
    out: Path,
    work: Path,
    task: tuple[int, int],
) -> None:
    """Makes the folder of task i of n in `out`, as `build_store` does.

    `work` has what the earlier stages wrote about all tasks.
    """
    loaded = load_tokenizer(tokenizer)
    with new_folder(task_folder(out, task)) as folder:
        documents = read_task(settings.corpus, task)
        duplicates = duplicates_of_task(work, task)

        def is_repeated(number: int, _: str) -> bool:
            return number in duplicates

        manifest = _write_store(folder, documents, is_repeated, loaded, settings)
        expected = documents_of_task(work, task[0])
        require_unchanged(settings.corpus, manifest["documents_sha256"], expected)


def check_cutting(max_length: int, short_span_prob: float) -> None:
    """Raises a UserError for settings with which no store can be built."""
    if max_length < MIN_MAX_LENGTH:
        raise UserError(f"max_length is {max_length}: expected at least {MIN_MAX_LENGTH}")
    if not 0 <= short_span_prob <= 1:
        raise UserError(f"short_span_prob is {short_span_prob}: expected 0 to 1")


def require_documents(source: str, manifest: Mapping[str, Any]) -> None:
    """Raises a UserError if no document of the source remains."""
    if not manifest["counts"]["documents"]:
        reasons = ", ".join(f"{n} {reason}" for reason, n in manifest["dropped"].items())
        raise UserError(
            f"{source}: no document with a span of {MIN_TOKENS} tokens remains ({reasons})"
        )


def require_spans(source: str, tokenizer: SpanTokenizer, max_length: int) -> None:
    """Raises a UserError if no document of a source has a span; reads until one does."""
    for batch in batches(read_documents(source)):
        if any(cut_documents(batch, tokenizer, max_length)):
            return
    raise UserError(f"{source}: no document has a span of {MIN_TOKENS} tokens")


def _write_store(
    folder: Path,
    documents: Iterator[Document],
    is_repeated: IsRepeated,
    tokenizer: SpanTokenizer,
    settings: StoreSettings,
) -> dict[str, Any]:
    """Writes the files of a store beside those in `folder`, the manifest last, and returns it."""
    dropped = Counter(dict.fromkeys(("empty", "duplicate", "too_short"), 0))
    n_single = 0
    read = hashlib.sha256()

    def unique_documents() -> Iterator[Document]:
        for number, document in enumerate(hashed(documents, read)):
            if not document.text.strip():
                dropped["empty"] += 1
            elif is_repeated(number, document.text):
                dropped["duplicate"] += 1
            else:
                yield document

    special = special_strings(tokenizer)
    held: Counter[str] = Counter()
    with TokenWriter(folder, tokenizer.vocab_size, settings.max_length) as writer:
        for batch in batches(unique_documents()):
            held.update(string for each in batch for string in special if string in each.text)
            spans_D = cut_documents(batch, tokenizer, settings.max_length, settings.short_span_prob)
            rows = [(d.id, spans) for d, spans in zip(batch, spans_D, strict=True) if spans]
            dropped["too_short"] += len(batch) - len(rows)
            n_single += sum(len(spans) == 1 for _, spans in rows)
            writer.write(rows)
    _warn_of_special(held)
    (folder / "tokenizer").mkdir()
    save_tokenizer(tokenizer, folder / "tokenizer")
    totals = {
        "counts": writer.counts | {"documents_of_one_span": n_single},
        "dropped": dict(dropped),
    }
    manifest = _manifest(folder, settings, read.hexdigest(), tokenizer, totals)
    write_json(folder / "manifest.json", manifest)
    return manifest


def _warn_of_special(n_documents: Mapping[str, int]) -> None:
    """Warns of special tokens in the text, of each with the number of documents that hold it."""
    for string, n in n_documents.items():
        logger.warning(
            "%d documents contain %s: training reads it as ordinary text, search as a special"
            " token, so the vectors of these texts differ",
            n,
            string,
        )


def _manifest(
    folder: Path,
    settings: StoreSettings,
    documents_sha256: str,
    tokenizer: SpanTokenizer,
    totals: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """Returns the manifest of a store whose other files are in `folder`.

    `totals` has what was written and what was left out: `counts` and `dropped`.
    """
    manifest = {
        "format_version": FORMAT_VERSION,
        **settings._asdict(),
        "documents_sha256": documents_sha256,
        "tokenizer": {
            "kind": tokenizer.kind,
            "vocab_size": tokenizer.vocab_size,
            "cls_id": tokenizer.cls_id,
            "sep_id": tokenizer.sep_id,
            "pad_id": tokenizer.pad_id,
            "mask_id": tokenizer.mask_id,
            "special_ids": [*tokenizer.special_ids],
            "sha256": tokenizer.sha256,
        },
        **totals,
        "files": {
            path.relative_to(folder).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": file_sha256(path),
            }
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    }
    return manifest | {"checksum": manifest_checksum(manifest)}


def build_vocabulary(
    sources: Sequence[str],
    out: Path,
    size: int,
    *,
    kind: Learned = "bert",
    lowercase: bool = True,
) -> SpanTokenizer:
    """Learns a tokenizer as `train_tokenizer` from sources (`open_source`); writes a new folder."""
    for source in sources:
        require_not_read(source, out)
    with new_folder(out) as folder:
        opened = [read_documents(name) for name in sources]
        bars = (tqdm(documents, "vocabulary", unit=" documents") for documents in opened)
        texts = (document.text for document in chain.from_iterable(bars))
        tokenizer = train_tokenizer(texts, size, kind, lowercase=lowercase)
        save_tokenizer(tokenizer, folder)
    return tokenizer
