"""Commands of dense retrieval: encode, index, search and retrieve."""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from cocondenser_jax.cli.flags import (
    COLUMNS,
    CORPUS,
    CORPUS_COLUMNS,
    COUNT,
    DOCUMENTS,
    ENGINE,
    FUSIONS,
    GIVEN,
    IGNORE_IDENTICAL_IDS,
    JSON_OUT,
    OUTPUT_FILE,
    RUN_OF_DATA,
    TASK,
    TITLE_SEPARATOR,
    command,
    flag,
    precision,
    require_one,
    required,
    take,
    take_engine,
)
from cocondenser_jax.cli.output import print_command, print_metrics, print_search, print_text
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json

_INDEX = flag("--index", Path, "the folder that index wrote")
_EMBEDDINGS = flag(
    "--embeddings", Path, "or the folder that encode wrote: exact search, in little memory"
)
_MODEL = "the retriever that encoded the passages: a folder or Hub name"
_LANGUAGE = "language for BM25 (default: that of its index, for a new one english)"


def _dense_search(goes_with: tuple[str, ...] = ()) -> tuple[click.Option, ...]:
    """Declares the flags for searching an index or embeddings."""
    dense = partial(flag, goes_with=goes_with)
    return (
        flag(
            "--parameters",
            str,
            "faiss search parameters, such as nprobe=16 or efSearch=64",
            goes_with="index",
        ),
        flag(
            "--device",
            (None, "cpu", "cuda"),
            "device that searches (default: cpu); cuda: a GPU, much faster",
            goes_with="embeddings",
        ),
        flag(
            "--oversampling",
            COUNT,
            "for binary vectors: candidates per returned passage (default: 4)",
            goes_with="embeddings",
        ),
        dense(
            "--hybrid",
            (None, *FUSIONS),
            "also search with BM25 and fuse, see fuse --method; min_max was better in our tests",
        ),
        dense("--query_prompt", str, "text before each query (default: as given to encode)"),
    )


def _vectors(parameters: str | None, device: Any, oversampling: int | None) -> Any:
    """Returns the kind of vector search by the flags of `_dense_search`; None for the default."""
    from cocondenser_jax.retriever.search.opening import Bits, Exact, Faiss

    if device is not None and oversampling is not None:
        raise UserError("--device is for float or int8 embeddings, --oversampling for binary ones")
    if parameters is not None:
        return Faiss(parameters)
    if oversampling is not None:
        return Bits(oversampling)
    return None if device is None else Exact(device)


def _open(
    place: Path,
    model: str,
    parameters: str | None,
    device: Any,
    oversampling: int | None,
    **how: Any,
) -> Any:
    """Opens an index by the flags of `_dense_search`; checks the folder before the model."""
    from cocondenser_jax.files.remote import local_copy
    from cocondenser_jax.model_folder.model import open_model
    from cocondenser_jax.retriever.search.embeddings import read_manifest
    from cocondenser_jax.retriever.search.opening import open_index

    folder = local_copy(place)
    read_manifest(folder)
    vectors = _vectors(parameters, device, oversampling)
    return open_index(folder, open_model(model, None), vectors=vectors, **how)


@command(
    "encode --model=runs/finetune/retriever --corpus=data/msmarco --out=runs/embeddings",
    required("--model", str, "the retriever: a folder or Hub name"),
    required("--corpus", CORPUS, f"passages: {DOCUMENTS}"),
    COLUMNS,
    required("--out", Path, "the folder for the embeddings, or a URL such as gs://bucket/vectors"),
    flag("--batch_size", COUNT, "passages per forward pass (default: 128; on a CPU 32)"),
    flag(
        "--max_length",
        COUNT,
        "tokens per passage (default: as the retriever was trained)",
        formerly="passage_length",
    ),
    flag("--shard_size", COUNT, "passages per shard (default: a twentieth of all, 500 to 5000)"),
    TASK,
    *ENGINE,
    flag(
        "--dtype",
        ("float32", "float16", "int8", "binary"),
        "number format in the shards: 4, 2, 1 or 1/8 bytes a number",
    ),
    precision("GPU or CPU (with jax: the TPU or GPU)"),
    *GIVEN,
    TITLE_SEPARATOR,
    flag("--backend", ("torch", "jax"), "what runs the model; jax: on all TPU cores of this host"),
    flag("--parquet", OUTPUT_FILE, "also write passages and vectors to this file, for a database"),
    JSON_OUT,
)
def encode(model, corpus, out, shard_size, task, backend, parquet, json_out, **flags):
    """Encode passages into vectors; resumes an interrupted run."""
    from cocondenser_jax.files.remote import output_folder
    from cocondenser_jax.model_folder.model import open_model
    from cocondenser_jax.representation import Given
    from cocondenser_jax.retriever.data.folder import corpus_source
    from cocondenser_jax.retriever.search.embeddings import write_parquet
    from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus, require_own_shards
    from cocondenser_jax.retriever.search.quantized import QUANTIZED

    given = take(flags, Given)
    engine = take_engine(flags)
    if task != (0, 1) and (engine or parquet):
        raise UserError("--task runs one task alone: give neither --tasks nor --parquet")
    if parquet and flags["dtype"] in QUANTIZED:
        raise UserError(f"--parquet has no {flags['dtype']}: expected --dtype=float32 or float16")
    source = corpus_source(corpus)  # finds a missing file before a model is downloaded
    with output_folder(out, task, grows=True) as folder:
        require_own_shards(folder, task, in_tasks=engine is not None)
        encoding = Encoding(open_model(model, given), **flags)
        if backend == "jax":
            from cocondenser_jax.flax_encoder import run_in_flax

            encoding = encoding._replace(backend=run_in_flax)
        manifest = encode_corpus(
            encoding, source, folder, shard_size=shard_size, task=task, engine=engine
        )
        if parquet:
            write_parquet(folder, parquet)
    if json_out:
        write_json(json_out, manifest.to_json())
    how = f"{manifest.dimension:,} dimensions, pooling={manifest.representation.pooling}"
    print_text(f"{out}: {manifest.passages:,} passages, {how}")
    if task == (0, 1):
        print_command("search", f"--embeddings={out}", f"--model={model}")


@command(
    "index --embeddings=runs/embeddings --out=runs/index",
    required("--embeddings", Path, "the folder that encode wrote"),
    required("--out", Path, "the folder for the index, or a URL such as s3://bucket/index"),
    flag("--factory", "Flat", "faiss index string, such as IVF1024,Flat or HNSW32; Flat is exact"),
    JSON_OUT,
)
def index(embeddings, out, factory, json_out):
    """Build a faiss index of embeddings."""
    from cocondenser_jax.files.remote import output_folder
    from cocondenser_jax.retriever.search.index import build_index

    with output_folder(out) as folder:
        manifest = build_index(embeddings, folder, factory)
    if json_out:
        write_json(json_out, manifest.to_json())
    print_text(
        f"{out}: {manifest.passages:,} passages, {manifest.dimension:,} dimensions, {factory}"
    )
    print_command("search", f"--index={out}", f"--model={manifest.model}")


@command(
    'search --index=runs/index --model=runs/finetune/retriever --query="oscar winners in 1953"',
    _INDEX,
    _EMBEDDINGS,
    flag("--corpus", CORPUS, f"or passages, for BM25 without a model: {DOCUMENTS}"),
    CORPUS_COLUMNS,
    flag("--model", str, _MODEL, goes_with=("index", "embeddings")),
    *_dense_search(goes_with=("index", "embeddings")),
    flag("--language", str, _LANGUAGE, goes_with=("hybrid", "corpus")),
    flag("--query", str, "query text (default: every line of standard input, until Ctrl-D)"),
    flag("--depth", COUNT, "passages printed", default=10, formerly="top_k"),
    JSON_OUT,
)
def search(index, embeddings, corpus, model, query, depth, json_out, **how):
    """Print the best passages for a query, or for each line of standard input.

    One of --index, --embeddings and --corpus is needed.
    """
    require_one(index=index, embeddings=embeddings, corpus=corpus)
    nothing = "nothing found"
    if corpus is not None:
        nothing += ": no passage has a word of the query (a model finds others too: see encode)"
        find = _lexical_search(corpus, how["language"], depth)
    elif model is None:
        raise UserError("--index and --embeddings need --model: the one that encoded the passages")
    else:
        from cocondenser_jax.retriever.search.search import search_text_timed

        find = partial(search_text_timed, _open(index or embeddings, model, **how), k=depth)
    answers = []
    for text in _typed_queries() if query is None else [query]:
        hits, seconds = find(text)
        print_search(text, hits, nothing)
        if query is None:
            times = [f"{step} {1000 * value:.1f} ms" for step, value in seconds.items()]
            print(f"  {', '.join(times)}", flush=True)
        rows = [{"score": score, **passage._asdict()} for score, passage in hits]
        answers.append({"query": text, "hits": rows})
    if json_out:
        write_json(json_out, answers if query is None else answers[0])


def _lexical_search(
    corpus: str, language: str | None, k: int
) -> Callable[[str], tuple[Any, dict[str, float]]]:
    """Indexes passages for BM25, without PyTorch; returns a search function."""
    from cocondenser_jax.retriever.search.bm25 import find_passages, index_corpus

    index = index_corpus(corpus, language)

    def find(query: str) -> tuple[Any, dict[str, float]]:
        start = time.perf_counter()
        hits = find_passages(index, query, k)
        return hits, {"bm25": time.perf_counter() - start}

    return find


def _typed_queries() -> Iterator[str]:
    """Yields the non-blank lines of standard input; prompts on a terminal."""
    prompt = "query: " if sys.stdin.isatty() else ""
    try:
        while True:
            if query := input(prompt).strip():
                yield query
    except UnicodeDecodeError as error:
        raise UserError("standard input is not UTF-8") from error
    except EOFError:
        if prompt:
            print()  # Ctrl-D leaves the cursor after the prompt


@command(
    "retrieve --index=runs/index --model=runs/retriever --data=data --run_out=runs/test.trec",
    _INDEX,
    _EMBEDDINGS,
    required("--model", str, _MODEL),
    *_dense_search(),
    flag("--language", str, _LANGUAGE, goes_with="hybrid"),
    *RUN_OF_DATA,
    IGNORE_IDENTICAL_IDS,
)
def retrieve(
    index, embeddings, model, data, split, run_out, depth, json_out, ignore_identical_ids, **how
):
    """Search for the queries of a data set and write a TREC run."""
    from cocondenser_jax.retriever.data.folder import (
        judgments_file,
        read_asked,
        relevant_passages,
        warn_of_missing,
    )
    from cocondenser_jax.retriever.data.layouts import numbers_queries
    from cocondenser_jax.retriever.search.search import count_passages, retrieve

    require_one(index=index, embeddings=embeddings)
    # Finds errors in them before the index is opened.
    asked = read_asked(data, split, ignore_identical_ids=ignore_identical_ids)
    relevant = relevant_passages(asked.qrels)
    opened = _open(index or embeddings, model, **how)
    warn_of_missing(count_passages(opened, relevant), relevant, split)
    metrics = retrieve(
        opened,
        asked,
        run_out,
        depth=depth,
        ignore_identical_ids=ignore_identical_ids,
        warns=not numbers_queries(data),
    )
    print_metrics(metrics, json_out)
    if split is not None:
        print_command("evaluate", f"--run={run_out}", f"--qrels={judgments_file(data, split)}")
