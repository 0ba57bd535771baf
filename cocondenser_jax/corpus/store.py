"""The token store: a corpus that is split and tokenized once, then memory-mapped.

A store is a folder with the arrays of `token_files.py`, the tokenizer in `tokenizer/`, and
`manifest.json` (counts, checksums, origin), written last: without it, a folder is unfinished.
The folders of n tasks open as one store; so do several weighted corpora.
"""

import dataclasses
import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cocondenser_jax.corpus.token_files import Texts, TokenFiles, map_files, read_windows
from cocondenser_jax.corpus.tokenizer import N_AROUND, SpanTokenizer, load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.remote import local_copy
from cocondenser_jax.files.runs import require_same, task_folders
from cocondenser_jax.files.whole import file_sha256, read_object

FORMAT_VERSION = 8
_SPANS_AT_ONCE = 10_000  # spans read at a time to count their tokens


class WeightedCorpus(NamedTuple):
    """One corpus of a store."""

    path: Path
    weight: float  # passes over it in an epoch
    first_document: int
    end_document: int


@dataclasses.dataclass(frozen=True, eq=False)
class TokenStore:
    """An open token store. It is pickled by path, so that workers map the same files."""

    path: Path  #: as given to `open_store`
    manifests: tuple[dict[str, Any], ...]  #: one per folder, in their order
    corpora: tuple[WeightedCorpus, ...]  #: in their order
    n_documents: int  #: D
    n_spans: int  #: N
    n_tokens: int  #: content tokens of all spans
    #: [D + 1] int64; document i is spans first_span_D[i] to first_span_D[i + 1] - 1.
    first_span_D: np.ndarray
    max_length: int  #: longest span in tokens, [CLS] and [SEP] included
    vocab_size: int  #: highest token id + 1
    cls_id: int
    sep_id: int
    pad_id: int
    mask_id: int
    special_ids: tuple[int, ...]  #: ids that stand for no text
    tokenizer_sha256: str  #: `SpanTokenizer.sha256` of the tokenizer that made it
    sha256: str  #: identifies the data; a hash of the checksums of all files
    tokenizer_folder: Path  #: the tokenizer, as transformers loads it
    _files: tuple[TokenFiles, ...] = dataclasses.field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.path,)

    @functools.cached_property
    def tokenizer(self) -> SpanTokenizer:
        """The tokenizer that made the store."""
        return load_tokenizer(str(self.tokenizer_folder))

    @property
    def content_length(self) -> int:
        """Content tokens of the longest span."""
        return self.max_length - N_AROUND

    @functools.cached_property
    def documents_of_pairs(self) -> np.ndarray:
        """The documents that have two spans or more, in ascending order."""
        return np.flatnonzero(np.diff(self.first_span_D) >= 2)

    def document_id(self, index: int) -> str:
        """Returns the id of document `index` in its source."""
        if not 0 <= index < self.n_documents:
            raise IndexError(f"document {index} of {self.n_documents}")
        for files in self._files:
            n_documents = len(files.first_span) - 1
            if index < n_documents:
                break
            index -= n_documents
        begin, end = files.id_offsets[index : index + 2]
        return files.ids[begin : end - 1].tobytes().decode()

    def token_counts(self, n_spans: int = 100_000) -> np.ndarray:
        """Returns `counts_V`, how often each token id occurs in evenly spaced spans."""
        sample_N = np.linspace(0, self.n_spans - 1, min(n_spans, self.n_spans)).astype(np.int64)
        counts_V = np.zeros(self.vocab_size, np.int64)
        for spans_N in np.array_split(sample_N, math.ceil(len(sample_N) / _SPANS_AT_ONCE)):
            texts = self.read_spans(spans_N, self.content_length)
            inside_NxL = np.arange(texts.ids_NxL.shape[1]) < texts.n_tokens_N[:, None]
            counts_V += np.bincount(texts.ids_NxL[inside_NxL], minlength=self.vocab_size)
        return counts_V

    def read_spans(self, spans_N: np.ndarray, length: int) -> Texts:
        """Reads spans by number.

        Args:
          spans_N: span numbers, in any order, with repeats.
          length: L, content tokens to return of each; cuts a longer span after its last whole word.
        """
        spans_N = np.asarray(spans_N, np.int64)
        if len(spans_N) and not 0 <= spans_N.min() <= spans_N.max() < self.n_spans:
            raise IndexError(f"span numbers must be in [0, {self.n_spans})")
        width = min(length, self.content_length)
        texts = Texts(
            ids_NxL=np.zeros((len(spans_N), length), np.int32),
            starts_NxL=np.zeros((len(spans_N), length), np.uint8),
            n_tokens_N=np.zeros(len(spans_N), np.int32),
        )
        first = 0
        for files in self._files:
            end = first + len(files.span_offsets) - 1
            rows = np.flatnonzero((spans_N >= first) & (spans_N < end))
            windows = read_windows(files, spans_N[rows] - first, width)
            texts.ids_NxL[rows, :width] = windows.ids_NxL
            texts.starts_NxL[rows, :width] = windows.starts_NxL
            texts.n_tokens_N[rows] = windows.n_tokens_N
            first = end
        return texts


def require_stores(path: Path) -> None:
    """Raises a UserError for stores (see `open_store`) that are missing or in another format."""
    for _, corpus in _weighted_folders(path):
        for folder in task_folders(corpus):
            _read_manifest(folder)


def open_store(path: Path) -> TokenStore:
    """Opens a store, all folders of its tasks, or several stores, as one, without reading tokens.

    Args:
      path: a folder of `build_store` or `build_in_tasks`, or its URL on an object store; or
        several, separated by commas. Prefix a folder with `N*` to read it N times per epoch:
        `stores/wikipedia,2*stores/books`.
    """
    path = Path(path)
    corpora = []
    folders: list[Path] = []
    manifests: list[dict[str, Any]] = []
    files: list[TokenFiles] = []
    n_documents = 0
    for weight, corpus in _weighted_folders(path):
        own_folders = task_folders(corpus)
        own_manifests = [_read_manifest(folder) for folder in own_folders]
        require_same(own_folders, own_manifests, ["pieces", "short_span_prob"])
        first_document = n_documents
        for folder, manifest in zip(own_folders, own_manifests, strict=True):
            files.append(_map_folder(folder, manifest))
            n_documents += len(files[-1].first_span) - 1
        corpora.append(
            WeightedCorpus(
                path=corpus,
                weight=weight,
                first_document=first_document,
                end_document=n_documents,
            )
        )
        folders += own_folders
        manifests += own_manifests
    require_same(folders, manifests, ["max_length", "tokenizer"])

    # The number of the first span in each folder, and the total.
    bases = np.cumsum([0] + [manifest["counts"]["spans"] for manifest in manifests])
    first_span_D = files[0].first_span  # mapped, not copied
    if len(files) > 1:
        shifted = [each.first_span[:-1] + b for each, b in zip(files, bases[:-1], strict=True)]
        first_span_D = np.concatenate([*shifted, bases[-1:]])
    tokenizer = manifests[0]["tokenizer"]
    checksums = json.dumps([manifest["files"] for manifest in manifests], sort_keys=True)
    return TokenStore(
        path=path,
        manifests=tuple(manifests),
        corpora=tuple(corpora),
        n_documents=n_documents,
        n_spans=int(bases[-1]),
        n_tokens=sum(manifest["counts"]["tokens"] for manifest in manifests),
        first_span_D=first_span_D,
        max_length=manifests[0]["max_length"],
        vocab_size=tokenizer["vocab_size"],
        cls_id=tokenizer["cls_id"],
        sep_id=tokenizer["sep_id"],
        pad_id=tokenizer["pad_id"],
        mask_id=tokenizer["mask_id"],
        special_ids=tuple(tokenizer["special_ids"]),
        tokenizer_sha256=tokenizer["sha256"],
        sha256=hashlib.sha256(checksums.encode()).hexdigest(),
        tokenizer_folder=folders[0] / "tokenizer",
        _files=tuple(files),
    )


def verify_store(path: Path) -> None:
    """Opens a store, reads every file and compares its checksum with the manifest."""
    open_store(path)
    for _, store in _weighted_folders(Path(path)):
        for folder in task_folders(store):
            for name, facts in _read_manifest(folder)["files"].items():
                file = folder / name
                if file_sha256(file) != facts["sha256"]:
                    raise UserError(f"{file} has changed: its checksum is not the manifest's")


def _weighted_folders(path: Path) -> list[tuple[float, Path]]:
    """Lists (weight, folder) of the stores in a path: one, or several separated by commas."""
    if path.is_dir():
        return [(1.0, path)]
    stores = []
    for term in str(path).split(","):
        match = re.fullmatch(r"(?s)(?:(\d+(?:\.\d+)?)\*)?(.+)", term)
        weight = float(match[1] or 1) if match else 0.0
        if match is None or weight == 0:
            raise UserError(f"{path}: expected stores and weights above 0 as in wikipedia,2*books")
        stores.append((weight, local_copy(Path(match[2]))))
    return stores


def _map_folder(folder: Path, manifest: dict[str, Any]) -> TokenFiles:
    for name, facts in manifest["files"].items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size != facts["bytes"]:
            problem = "is missing" if size is None else f"has {size} bytes"
            raise UserError(f"{folder / name} {problem}: expected {facts['bytes']} bytes")
    try:
        return map_files(folder, manifest["tokenizer"]["vocab_size"])
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged: {error}") from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise UserError(f"no store {folder}: expected a folder made by `cocondenser corpus`")
    file = folder / "manifest.json"
    if not file.exists():
        raise UserError(f"{folder} is not a store, or is unfinished: it has no manifest.json")
    manifest = read_object(file)
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{file} has format version {version}, expected {FORMAT_VERSION}: make the store again"
        )
    if manifest.get("checksum") != manifest_checksum(manifest):
        raise UserError(f"{file} is damaged: its checksum is not that of its content")
    paths = [Path(name) for name in manifest["files"]]
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        raise UserError(f"{file} names files outside of its folder")
    return manifest


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Hashes a manifest without its `checksum`."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
