"""Commands of retrieval, from encode to mine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from cocondenser_jax.cli.flags import (
    COUNT,
    ENGINE,
    GIVEN,
    IGNORE_IDENTICAL_IDS,
    JSON_OUT,
    OUTPUT_FILE,
    TASK,
    command,
    flag,
    make_engine,
    only_one,
    required,
)
from cocondenser_jax.cli.output import print_metrics, print_search
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import write_json

_FUSIONS = ("rrf", "min_max")
_DENSE_INDEX = (
    flag("--index", Path, "the folder that index wrote"),
    flag("--embeddings", Path, "or the folder that encode wrote: exact search, in little memory"),
    required("--model", Path, "the retriever that encoded the passages: a folder or Hub name"),
    flag("--parameters", "", "faiss search parameters, such as nprobe=16 or efSearch=64"),
    flag("--device", ("cpu", "cuda"), "what multiplies --embeddings; cuda: a GPU, much faster"),
    flag("--hybrid", (None, *_FUSIONS), "also search with BM25 and fuse, see fuse --method"),
    flag("--query_prompt", str, "put before queries (default: as encode was told)"),
    flag(
        "--language",
        str,
        "that of BM25's words (default: that of its index, at first english)",
        goes_with="hybrid",
    ),
)
_RUN_OF_DATA = (
    required("--data", Path, "the folder of the queries"),
    flag("--split", str, "use the queries of this split, such as test (default: all queries)"),
    required("--run_out", OUTPUT_FILE, "TREC run to write"),
    flag("--depth", COUNT, "passages per query", default=100),
    JSON_OUT,
)
_PRECISIONS = ("auto", "float32", "bfloat16")
_AUTO = "number format; auto: bfloat16 if the GPU (encode: or CPU) supports it"
_PRECISION = flag("--precision", _PRECISIONS, _AUTO)


@command(
    "encode --model=runs/finetune/retriever --corpus=data/msmarco --out=runs/embeddings",
    required("--model", Path, "the retriever: a folder or Hub name"),
    required("--corpus", Path, "a folder in BEIR or MS MARCO layout, or its file of passages"),
    required("--out", Path, "the folder for the embeddings, or a URL such as gs://bucket/vectors"),
    flag("--batch_size", COUNT, "passages per forward pass (default: 128; on a CPU 32)"),
    flag("--passage_length", int, "tokens per passage (default: as the retriever was trained)"),
    flag("--shard_size", COUNT, "passages per shard (default: a twentieth of all, 500 to 5000)"),
    TASK,
    *ENGINE,
    flag("--dtype", ("float32", "float16"), "number format in the shards"),
    _PRECISION,
    *GIVEN,
    flag("--title_separator", str, "between title and text (default: the model's own, a space)"),
    flag("--backend", ("torch", "jax"), "what runs the model; jax: on all TPU cores of this host"),
    flag("--parquet", OUTPUT_FILE, "also write passages and vectors to this file, for a database"),
    JSON_OUT,
)
def encode(
    model,
    corpus,
    out,
    batch_size,
    passage_length,
    shard_size,
    task,
    tasks,
    workers,
    executor,
    executor_options,
    dtype,
    precision,
    pooling,
    similarity,
    query_prompt,
    passage_prompt,
    dimensions,
    title_separator,
    backend,
    parquet,
    json_out,
):
    """Encode passages into vectors; resumes an interrupted run."""
    from cocondenser_jax.representation import Given
    from cocondenser_jax.retrieval.embeddings import write_parquet
    from cocondenser_jax.retrieval.encode import Encoding, encode_corpus
    from cocondenser_jax.storage.remote import output_folder

    encoding = Encoding(
        model=model,
        passage_length=passage_length,
        given=Given(
            pooling=pooling,
            similarity=similarity,
            query_prompt=query_prompt,
            passage_prompt=passage_prompt,
            title_separator=title_separator,
            dimensions=dimensions,
        ),
        precision=precision,
        dtype=dtype,
        batch_size=batch_size,
    )
    if backend == "jax":
        from cocondenser_jax.flax_encoder import run_in_flax

        encoding = encoding._replace(backend=run_in_flax)
    engine = make_engine(tasks, workers, executor, executor_options)
    if task != (0, 1) and (engine or parquet):
        raise UserError("--task runs one task alone: give neither --tasks nor --parquet")
    with output_folder(out, task, grows=True) as folder:
        manifest = encode_corpus(
            encoding, corpus, folder, shard_size=shard_size, task=task, engine=engine
        )
        if parquet:
            write_parquet(folder, parquet)
    print_metrics(manifest.to_json(), json_out)


@command(
    "index --embeddings=runs/embeddings --out=runs/index",
    required("--embeddings", Path, "the folder that encode wrote"),
    required("--out", Path, "the folder for the index, or a URL such as s3://bucket/index"),
    flag("--factory", "Flat", "faiss index string, such as IVF1024,Flat or HNSW32; Flat is exact"),
    JSON_OUT,
)
def index(embeddings, out, factory, json_out):
    """Build a faiss index of embeddings."""
    from cocondenser_jax.retrieval.index import build_index
    from cocondenser_jax.storage.remote import output_folder

    with output_folder(out) as folder:
        manifest = build_index(embeddings, folder, factory)
    print_metrics(manifest.to_json(), json_out)


@command(
    'search --index=runs/index --model=runs/finetune/retriever --query="oscar winners in 1953"',
    *_DENSE_INDEX,
    flag("--query", str, "query text (default: every line of standard input, until Ctrl-D)"),
    flag("--top_k", COUNT, "passages printed", default=10),
    JSON_OUT,
)
def search(
    index,
    embeddings,
    model,
    parameters,
    device,
    hybrid,
    query_prompt,
    language,
    query,
    top_k,
    json_out,
):
    """Print the best passages for a query, or for each line of standard input."""
    from cocondenser_jax.retrieval.search import VectorSearch, open_index, search_text_timed

    folder = only_one(index=index, embeddings=embeddings)
    opened = open_index(
        folder,
        model,
        vectors=VectorSearch(parameters, device),
        hybrid=hybrid,
        query_prompt=query_prompt,
        language=language,
    )
    answers = []
    for text in _typed_queries() if query is None else [query]:
        hits, seconds = search_text_timed(opened, text, top_k)
        print_search(text, [(s, f"{p.id}  {p.title}".rstrip(), p.text) for s, p in hits])
        if query is None:
            times = [f"{step} {1000 * value:.1f} ms" for step, value in seconds.items()]
            print(f"  {', '.join(times)}", flush=True)
        rows = [{"score": score, **passage._asdict()} for score, passage in hits]
        answers.append({"query": text, "hits": rows})
    if json_out:
        write_json(json_out, answers if query is None else answers[0])


def _typed_queries() -> Iterator[str]:
    """Yields the lines of standard input that are not blank; prompts on a terminal."""
    prompt = "query: " if sys.stdin.isatty() else ""
    try:
        while True:
            if query := input(prompt).strip():
                yield query
    except UnicodeDecodeError as error:
        raise UserError("standard input is not UTF-8") from error
    except EOFError:
        if prompt:
            print()  # Ctrl-D leaves the cursor behind the prompt


@command(
    "retrieve --index=runs/index --model=runs/retriever --data=data --run_out=runs/test.trec",
    *_DENSE_INDEX,
    *_RUN_OF_DATA,
    IGNORE_IDENTICAL_IDS,
)
def retrieve(
    index,
    embeddings,
    model,
    parameters,
    device,
    hybrid,
    query_prompt,
    language,
    data,
    split,
    run_out,
    depth,
    json_out,
    ignore_identical_ids,
):
    """Search for the queries of a data set and write a TREC run."""
    from cocondenser_jax.collection.folder import read_queries, require_other_judgments
    from cocondenser_jax.retrieval.search import VectorSearch, open_index, retrieve

    folder = only_one(index=index, embeddings=embeddings)
    queries = read_queries(data, split)  # a mistake in them need not wait for the index
    if ignore_identical_ids:
        require_other_judgments(data, split)
    opened = open_index(
        folder,
        model,
        vectors=VectorSearch(parameters, device),
        hybrid=hybrid,
        query_prompt=query_prompt,
        language=language,
    )
    metrics = retrieve(
        opened, queries, run_out, depth=depth, ignore_identical_ids=ignore_identical_ids
    )
    print_metrics(metrics, json_out)


@command(
    "bm25 --data=data/msmarco --split=train --run_out=runs/bm25.train.trec",
    *_RUN_OF_DATA,
    IGNORE_IDENTICAL_IDS,
    flag("--k1", click.FloatRange(0), "saturation of term frequency (MS MARCO: 0.82)", default=0.9),
    flag("--b", click.FloatRange(0, 1), "length normalization (MS MARCO: 0.68)", default=0.4),
    flag("--language", "english", "whose endings and stop words are removed; none: of no language"),
)
def bm25(data, split, run_out, depth, json_out, ignore_identical_ids, k1, b, language):
    """Rank the passages of a data set by BM25 and write a TREC run."""
    from cocondenser_jax.retrieval.bm25 import Bm25Settings, write_bm25_run

    metrics = write_bm25_run(
        data,
        run_out,
        split=split,
        depth=depth,
        settings=Bm25Settings(k1=k1, b=b, language=language),
        ignore_identical_ids=ignore_identical_ids,
    )
    print_metrics(metrics, json_out)


def _parse_weights(text: str) -> list[float]:
    return [float(weight) for weight in text.split(",")]


@command(
    "fuse --run=runs/bm25.test.trec --run=runs/test.trec --run_out=runs/fused.trec",
    required("--run", Path, "TREC run; two or more", multiple=True),
    required("--run_out", OUTPUT_FILE, "TREC run to write"),
    flag("--method", _FUSIONS, "by ranks, as 1 / (60 + rank); or by scores scaled to 0 to 1"),
    flag("--weights", _parse_weights, "one per run, in order (default: 1 each)", metavar="W,W"),
    flag("--depth", COUNT, "passages per query", default=100),
    IGNORE_IDENTICAL_IDS,
    JSON_OUT,
)
def fuse(run, run_out, method, weights, depth, ignore_identical_ids, json_out):
    """Fuse several runs into one, by ranks or by scores."""
    from cocondenser_jax.collection.own_passages import (
        drop_identical_ids,
        likely_own_passages,
        warn_of_own_results,
    )
    from cocondenser_jax.collection.trec import read_run, write_run
    from cocondenser_jax.retrieval.fuse import check_runs, fuse_runs

    runs = [read_run(file) for file in run]
    if ignore_identical_ids:  # before ranks and scores are counted
        runs = [drop_identical_ids(each) for each in runs]
    check_runs(dict(zip(map(str, run), runs, strict=True)))
    fused = fuse_runs(runs, method=method, weights=weights, depth=depth)
    warn_of_own_results(fused, likely_own_passages(fused, fused))
    write_run(run_out, fused)
    in_every_run = [query for query in fused if all(query in each for each in runs)]
    print_metrics({"queries": len(fused), "queries in every run": len(in_every_run)}, json_out)


@command(
    "rerank --model=runs/ce/cross_encoder --data=data --run=test.trec --run_out=reranked.trec",
    required("--model", Path, "the cross-encoder: a folder or Hub name"),
    required("--run", Path, "TREC run to score"),
    *_RUN_OF_DATA,
    flag("--batch_size", COUNT, "pairs per forward pass", default=64),
    _PRECISION,
    flag("--with_positives", False, "also score relevant ones of --split, to teach or mine"),
    IGNORE_IDENTICAL_IDS,
)
def rerank(
    model,
    run,
    data,
    split,
    run_out,
    depth,
    json_out,
    batch_size,
    precision,
    with_positives,
    ignore_identical_ids,
):
    """Score the passages of a run with a cross-encoder, and write the reranked run."""
    from cocondenser_jax.retrieval.rerank import Candidates, rerank

    candidates = Candidates(
        data=data,
        run=run,
        split=split,
        depth=depth,
        with_positives=with_positives,
        ignore_identical_ids=ignore_identical_ids,
    )
    metrics = rerank(model, candidates, run_out, batch_size=batch_size, precision=precision)
    print_metrics(metrics, json_out)


@command(
    "mine --run=runs/bm25.trec --run=runs/round1.trec --data=data --out=runs/negatives.trec",
    required("--run", Path, "TREC run; may be repeated", multiple=True),
    required("--data", Path, "the folder of queries and qrels"),
    flag("--split", "train", "mine for the queries of this split"),
    required("--out", OUTPUT_FILE, "TREC run to write"),
    flag("--depth", COUNT, "rank, in each run, of the last passage taken", default=200),
    flag("--denoise_run", Path, "run of rerank (loss=binary): drop passages it finds relevant"),
    flag("--denoise_below", 0.1, "keep passages with a lower probability", goes_with="denoise_run"),
    JSON_OUT,
)
def mine(run, data, split, out, depth, denoise_run, denoise_below, json_out):
    """Collect the negatives that finetune samples from, out of one or more runs."""
    from cocondenser_jax.retrieval.mine import Denoising, mine

    denoising = Denoising(denoise_run, below=denoise_below) if denoise_run else None
    metrics = mine(run, data, split, out, depth=depth, denoising=denoising)
    print_metrics(metrics, json_out)
