"""Downloads published collections by name: beir:scifact, nano:SciFact, ir:vaswani.

A collection is downloaded once and stored in BEIR's layout in $COCONDENSER_CACHE, or
~/.cache/cocondenser.
"""

import hashlib
import logging
import re
import shutil
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from tqdm import tqdm

from cocondenser_jax.corpus.records import named_errors
from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.files.remote import cache_folder
from cocondenser_jax.files.whole import new_folder
from cocondenser_jax.retriever.data.beir import write_beir
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.trec import Qrels

logger = logging.getLogger(__name__)

NAMED = "beir:NAME, nano:NAME or ir:NAME (docs/data.md)"
_BEIR_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{}.zip"
# BEIR's archives (Thakur et al., arXiv 2104.08663) and the MD5 hashes published by its authors.
_BEIR = {
    "arguana": "8ad3e3c2a5867cdced806d6503f29b99",
    "climate-fever": "8b66f0a9126c521bae2bde127b4dc99d",
    "cqadupstack": "4e41456d7df8ee7760a7f866133bda78",
    "dbpedia-entity": "c2a39eb420a3164af735795df012ac2c",
    "fever": "5a818580227bfb4b35bb6fa46d9b6c03",
    "fiqa": "17918ed23cd04fb15047f73e6c3bd9d9",
    "hotpotqa": "f412724f78b0d91183a0e86805e16114",
    "msmarco": "444067daf65d982533ea17ebd59501e4",
    "nfcorpus": "a89dba18a62ef92f7d323ec890a0d38d",
    "nq": "d4d3d2e48787a744b6f6e691ff534307",
    "quora": "18fb154900ba42a600f84b839c173167",
    "scidocs": "38121350fc3a4d2f48850f6aff52e4a9",
    "scifact": "5f7d1de60b170fc8027bb7898e2efca1",
    "trec-covid": "ce62140cb23feb9becf6270d0d1fe6d1",
    "webis-touche2020": "46f650ba5a527fc69e0a6521c5a23563",
}
# CQADupStack's archive contains one collection per forum: beir:cqadupstack/english.
_FORUMS = (
    *("android", "english", "gaming", "gis", "mathematica", "physics"),
    *("programmers", "stats", "tex", "unix", "webmasters", "wordpress"),
)
# NanoBEIR as in sentence-transformers: 50 queries of each collection, with few passages.
_NANO_DATASET = "sentence-transformers/NanoBEIR-en"
_NANO = (
    *("ArguAna", "ClimateFEVER", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO"),
    *("NFCorpus", "NQ", "QuoraRetrieval", "SCIDOCS", "SciFact", "Touche2020"),
)
_SPLIT = "test"  # the split of a source with a single set of judgments
_MEMBER = re.compile(r"(corpus|queries)\.jsonl|qrels/[^/]+\.tsv")
_BYTES_AT_ONCE = 1 << 20
_TIMEOUT = 60  # seconds without an answer


def find_data(name: str | Path) -> str | Path:
    """Returns the data folder of a named collection, downloaded once; other values unchanged.

    Raises:
      UserError: for an unknown name, or a download that fails.
    """
    scheme, colon, rest = str(name).partition(":")
    if not colon or scheme not in _FETCH or Path(name).exists():
        return name
    if not rest:
        raise UserError(f"{name}: expected {NAMED}")
    folder = cache_folder() / scheme / quote(rest, safe="")
    if not folder.is_dir():
        with new_folder(folder) as partial, named_errors(str(name)):
            _FETCH[scheme](rest, partial)
    logger.info("%s is in %s", name, folder)
    return folder


def _fetch_beir(name: str, folder: Path) -> None:
    archive, _, forum = name.partition("/")
    md5 = lookup(_BEIR, archive, "collection of BEIR")
    if archive == "cqadupstack":
        lookup(dict.fromkeys(_FORUMS), forum, "forum of beir:cqadupstack/FORUM")
    elif forum:
        raise UserError(f"beir:{archive} has no parts: leave out /{forum}")
    path = folder / "archive.zip"
    url = _BEIR_URL.format(archive)
    if (found := _download(url, path)) != md5:
        raise UserError(f"{url} has the MD5 {found}, expected {md5}: cut short, or changed")
    _unpack(path, PurePosixPath(name), folder)
    path.unlink()


def _download(url: str, path: Path) -> str:
    """Downloads a file; returns its MD5 in hexadecimal."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, path.open("wb") as file:
            size = answer.headers.get("Content-Length")
            bar = tqdm(desc=url, total=size and int(size), unit="B", unit_scale=True)
            with bar:
                while block := answer.read(_BYTES_AT_ONCE):
                    digest.update(block)
                    file.write(block)
                    bar.update(len(block))
    except OSError as error:  # the base class of urllib's errors
        reason = getattr(error, "reason", error)
        raise UserError(f"{url} cannot be fetched: {reason}") from error
    return digest.hexdigest()


def _unpack(archive: Path, place: PurePosixPath, folder: Path) -> None:
    """Extracts a data folder's files, found at `place` in a zip archive, to `folder`."""
    with zipfile.ZipFile(archive) as opened:
        for member in opened.namelist():
            path = PurePosixPath(member)
            if not path.is_relative_to(place):
                continue
            name = str(path.relative_to(place))
            if _MEMBER.fullmatch(name):
                (folder / name).parent.mkdir(exist_ok=True)
                with opened.open(member) as packed, (folder / name).open("wb") as target:
                    shutil.copyfileobj(packed, target)


def _fetch_nano(name: str, folder: Path) -> None:
    import datasets  # slow to import

    known = {each.casefold(): each for each in _NANO}
    split = f"Nano{lookup(known, name.casefold(), 'collection of NanoBEIR')}"

    def load(config: str) -> Iterable[dict[str, Any]]:
        rows: Iterable[dict[str, Any]] = datasets.load_dataset(_NANO_DATASET, config, split=split)
        return rows

    qrels: Qrels = {}
    for row in load("qrels"):
        found = row["corpus-id"]
        for passage in found if isinstance(found, list) else [found]:
            qrels.setdefault(row["query-id"], {})[passage] = int(row.get("score", 1))
    passages = (Passage(row["_id"], row.get("title") or "", row["text"]) for row in load("corpus"))
    queries = {row["_id"]: row["text"] for row in load("queries")}
    write_beir(folder, passages, queries, {_SPLIT: qrels})


def _fetch_ir(name: str, folder: Path) -> None:
    import ir_datasets

    try:
        dataset = ir_datasets.load(name)
    except KeyError:
        raise UserError(f"ir_datasets has no {name!r}: its names are at ir-datasets.com") from None
    if not dataset.has_docs() or not dataset.has_queries():
        raise UserError(f"ir:{name} has no documents or no queries, as ir:vaswani does")
    qrels: Qrels = {}
    if dataset.has_qrels():
        for judged in dataset.qrels_iter():
            qrels.setdefault(judged.query_id, {})[judged.doc_id] = int(judged.relevance)
    queries = {query.query_id: query.default_text() for query in dataset.queries_iter()}
    passages = tqdm(_ir_passages(dataset), f"ir:{name}", dataset.docs_count(), unit=" passages")
    write_beir(folder, passages, queries, {_SPLIT: qrels} if qrels else {})


def _ir_passages(dataset: Any) -> Iterator[Passage]:
    for document in dataset.docs_iter():
        title = getattr(document, "title", None)
        text = getattr(document, "text", None)
        if isinstance(title, str) and isinstance(text, str):
            yield Passage(document.doc_id, title, text)
        else:
            yield Passage(document.doc_id, "", document.default_text())


_FETCH: dict[str, Callable[[str, Path], None]] = {
    "beir": _fetch_beir,
    "nano": _fetch_nano,
    "ir": _fetch_ir,
}
