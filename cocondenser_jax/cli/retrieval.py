"""Commands of retrieval: encode, search, rerank, mine negatives."""

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cocondenser_jax.cli.flags import (
    Arguments,
    Commands,
    Parser,
    add_command,
    add_json_out,
    print_metrics,
    print_search,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import require_absent, write_json

if TYPE_CHECKING:
    from cocondenser_jax.retrieval.search import Result, Searcher


def add_commands(commands: Commands) -> None:
    """Adds them to the command line."""
    _add_encode(commands)
    _add_search(commands)
    _add_rerank(commands)
    _add_mine(commands)


def _add_encode(commands: Commands) -> None:
    command = add_command(
        commands,
        "encode",
        _encode,
        "Encode passages and index them.",
        "--model=runs/finetune/retriever --corpus=data/msmarco --out=runs/index",
    )
    command.add_argument("--model", required=True, type=Path, help="the retriever's folder")
    corpus = "a folder in BEIR, MS MARCO or DPR layout, or its file of passages"
    command.add_argument("--corpus", required=True, type=Path, help=corpus)
    out = "the index; embedding shards go beside it, into OUT.embeddings"
    command.add_argument("--out", required=True, type=Path, help=out)
    factory = "faiss index string (default: Flat); none: only the shards, for search --embeddings"
    command.add_argument("--factory", default="Flat", help=factory)
    command.add_argument("--batch_size", type=int, default=128, help="passages (default: 128)")
    length = "tokens of a passage (default: as the retriever was trained)"
    command.add_argument("--passage_length", type=int, help=length)
    shard = "passages per shard, which is what an interrupted run may lose (default: 5000)"
    command.add_argument("--shard_size", type=int, default=5_000, help=shard)
    dtype = "of the numbers in the shards (default: float32)"
    command.add_argument("--dtype", choices=("float32", "float16"), default="float32", help=dtype)
    _add_precision(command)
    pooling = "instead of the folder's own; a plain folder has cls"
    command.add_argument("--pooling", choices=("cls", "mean"), help=pooling)
    parquet = "also write ids and vectors to this file, for a vector database"
    command.add_argument("--parquet", type=Path, metavar="FILE", help=parquet)
    add_json_out(command)


def _add_precision(command: Parser) -> None:
    precision = "of the matrix products; auto (default): bfloat16 on a GPU that has it"
    choices = ("auto", "float32", "bfloat16")
    command.add_argument("--precision", choices=choices, default="auto", help=precision)


def _encode(arguments: Arguments) -> None:
    from cocondenser_jax.retrieval.encode import encode_corpus
    from cocondenser_jax.retrieval.search import build_index
    from cocondenser_jax.retrieval.shards import write_parquet

    if arguments.factory != "none":
        require_absent(arguments.out)  # now, and not after hours of encoding
    embeddings = arguments.out.with_name(arguments.out.name + ".embeddings")
    manifest = encode_corpus(
        arguments.model,
        arguments.corpus,
        embeddings,
        batch_size=arguments.batch_size,
        passage_length=arguments.passage_length,
        shard_size=arguments.shard_size,
        dtype=arguments.dtype,
        precision=arguments.precision,
        pooling=arguments.pooling,
    )
    if arguments.parquet:
        write_parquet(embeddings, arguments.parquet)
    if arguments.factory != "none":
        manifest = build_index(embeddings, arguments.out, arguments.factory)
    print_metrics(manifest, arguments.json_out)


def _add_search(commands: Commands) -> None:
    command = add_command(
        commands,
        "search",
        _search,
        "Search passages for one query, for those of a data set, or for what is typed.",
        '--index=runs/index --model=runs/finetune/retriever --query="who won the oscar in 1953"',
    )
    where = command.add_argument_group("where: --model with --index or --embeddings, or --bm25")
    where.add_argument("--model", type=Path, help="the retriever that encoded the passages")
    where.add_argument("--index", type=Path, help="a folder that encode made")
    embeddings = "shards that encode made: exact, without an index, in little memory"
    where.add_argument("--embeddings", type=Path, help=embeddings)
    parameters = "of the index, as faiss writes them: nprobe=16 (IVF), efSearch=64 (HNSW)"
    where.add_argument("--parameters", default="", help=parameters)
    bm25 = "rank the passages of --data by BM25, without a model"
    where.add_argument("--bm25", action="store_true", help=bm25)
    k1 = "BM25: saturation of term frequency (default: 0.9; tuned on MS MARCO: 0.82)"
    where.add_argument("--k1", type=float, default=0.9, help=k1)
    b = "BM25: length normalisation (default: 0.4; tuned on MS MARCO: 0.68)"
    where.add_argument("--b", type=float, default=0.4, help=b)
    text = command.add_argument_group("one query, or typed ones: passages are printed")
    text.add_argument("--query", help="the text to search for")
    typed = "read queries from standard input, a line each, until it ends (Ctrl-D)"
    text.add_argument("--interactive", action="store_true", help=typed)
    text.add_argument("--top_k", type=int, default=10, help="passages printed (default: 10)")
    many = command.add_argument_group("queries of a data set: a run is written")
    many.add_argument("--data", type=Path, help="a folder of queries: search for them all")
    many.add_argument("--split", help="only the queries that this split judges")
    many.add_argument("--run_out", type=Path, help="the TREC run to write")
    many.add_argument("--depth", type=int, default=100, help="passages per query (default: 100)")
    add_json_out(command)


def _search(arguments: Arguments) -> None:
    if (arguments.query is not None) + (arguments.data is not None) + arguments.interactive != 1:
        raise UserError("give one of --query TEXT, --interactive, and --data FOLDER")
    vectors = (arguments.index is not None) + (arguments.embeddings is not None)
    if arguments.bm25:
        wrong = vectors or arguments.model is not None or arguments.data is None
    else:
        wrong = vectors != 1 or arguments.model is None
    if wrong:
        raise UserError("give --model with --index or --embeddings, or --bm25 with --data")
    if arguments.parameters and arguments.index is None:
        raise UserError("--parameters are those of an --index")
    for flag in ("top_k", "depth"):
        if getattr(arguments, flag) < 1:
            raise UserError(f"--{flag}={getattr(arguments, flag)}: expected at least 1")
    if arguments.data is not None:
        _write_run(arguments)
    elif arguments.interactive:
        _answer_lines(arguments)
    else:
        _answer(arguments)


def _open(arguments: Arguments) -> "Searcher":
    from cocondenser_jax.retrieval.search import open_embeddings, open_index

    if arguments.index is not None:
        return open_index(arguments.index, arguments.model, parameters=arguments.parameters)
    return open_embeddings(arguments.embeddings, arguments.model)


def _write_run(arguments: Arguments) -> None:
    from cocondenser_jax.collection.folder import read_corpus, read_queries, read_split
    from cocondenser_jax.collection.trec import write_run

    if arguments.run_out is None:
        raise UserError("--data needs --run_out FILE, where the run is written")
    if arguments.split:
        queries, _ = read_split(arguments.data, arguments.split)
    else:
        queries = read_queries(arguments.data)
    figures: dict[str, float] = {"queries": len(queries)}
    if arguments.bm25:
        from cocondenser_jax.retrieval.bm25 import bm25_run

        started = time.perf_counter()
        passages = read_corpus(arguments.data)
        run = bm25_run(passages, queries, arguments.depth, arguments.k1, arguments.b)
        figures["seconds_with_indexing"] = time.perf_counter() - started
    else:
        from cocondenser_jax.retrieval.search import timed_run

        searcher = _open(arguments)
        run, seconds = timed_run(searcher, queries, arguments.depth)
        figures["passages"] = searcher.n_passages
        for part, value in seconds._asdict().items():
            figures[f"{part}_seconds"] = value
            figures[f"{part}_ms_per_query"] = 1000 * value / len(queries)
    write_run(arguments.run_out, run)
    print(arguments.run_out)
    print_metrics(figures, arguments.json_out)


def _answer(arguments: Arguments) -> None:
    from cocondenser_jax.retrieval.search import search_text

    if not arguments.query.strip():
        raise UserError("--query is empty: expected some words")
    hits = _to_hits(search_text(_open(arguments), arguments.query, arguments.top_k))
    print_search(arguments.query, hits)
    if arguments.json_out:
        found = [{"score": s, "title": title, "text": text} for s, title, text in hits]
        write_json(arguments.json_out, {"query": arguments.query, "hits": found})


def _answer_lines(arguments: Arguments) -> None:
    """Answers each line of standard input; asks for it only where someone is there to read."""
    from cocondenser_jax.retrieval.search import timed_text

    if arguments.json_out:
        raise UserError("--interactive prints its answers: --json_out goes with --query or --data")
    searcher = _open(arguments)
    prompt = "query: " if sys.stdin.isatty() else ""
    with contextlib.suppress(EOFError):
        while True:
            try:
                query = input(prompt).strip()
            except UnicodeDecodeError as error:
                raise UserError("standard input is not UTF-8") from error
            if query:
                results, seconds = timed_text(searcher, query, arguments.top_k)
                print_search(query, _to_hits(results))
                encoding, search = (1000 * value for value in seconds)
                print(f"  encoding {encoding:.1f} ms, search {search:.1f} ms", flush=True)
    if prompt:
        print()  # Ctrl-D leaves the cursor behind the prompt


def _to_hits(results: "list[Result]") -> list[tuple[float, str, str]]:
    return [(score, passage.title or passage.id, passage.text) for score, passage in results]


def _add_rerank(commands: Commands) -> None:
    command = add_command(
        commands,
        "rerank",
        _rerank,
        "Score the passages of a run with a cross-encoder; write them in the new order.",
        "--model=runs/ce/cross_encoder --data=data/msmarco --split=test --run=runs/test.trec"
        " --run_out=runs/reranked.trec",
    )
    command.add_argument("--model", required=True, type=Path, help="the cross-encoder's folder")
    command.add_argument("--data", required=True, type=Path, help="folder of queries and passages")
    command.add_argument("--split", help="the judgments whose queries the run has")
    command.add_argument(
        "--run", dest="run_file", required=True, type=Path, help="TREC run to score"
    )
    run_out = "TREC run to write; its scores are the model's logits"
    command.add_argument("--run_out", required=True, type=Path, help=run_out)
    depth = "passages per query to score; those below are dropped (default: 100)"
    command.add_argument("--depth", type=int, default=100, help=depth)
    command.add_argument("--batch_size", type=int, default=64, help="pairs (default: 64)")
    _add_precision(command)
    positives = "also score what --split judges relevant: a teacher's scores for finetune and mine"
    command.add_argument("--with_positives", action="store_true", help=positives)
    add_json_out(command)


def _rerank(arguments: Arguments) -> None:
    from cocondenser_jax.retrieval.rerank import rerank

    figures = rerank(
        arguments.model,
        arguments.data,
        arguments.run_file,
        arguments.run_out,
        split=arguments.split,
        depth=arguments.depth,
        batch_size=arguments.batch_size,
        with_positives=arguments.with_positives,
        precision=arguments.precision,
    )
    print(arguments.run_out)
    print_metrics(figures, arguments.json_out)


def _add_mine(commands: Commands) -> None:
    command = add_command(
        commands,
        "mine",
        _mine,
        "Make the pool of negatives that finetune draws from, of one run or several.",
        "--run=runs/bm25.train.trec --run=runs/round1.train.trec --data=data/msmarco"
        " --out=runs/negatives.trec",
    )
    run = "TREC run, or published negatives (triples of ids, biencoder file); may be repeated"
    command.add_argument(
        "--run", dest="runs", metavar="RUN", action="append", required=True, type=Path, help=run
    )
    command.add_argument("--data", required=True, type=Path, help="the folder of queries and qrels")
    command.add_argument("--split", default="train", help="of the queries (default: train)")
    command.add_argument("--out", required=True, type=Path, help="TREC run to write")
    depth = "rank, in each run, of the last passage taken (default: 200)"
    command.add_argument("--depth", type=int, default=200, help=depth)
    skip_top = "passages at the top of each run not taken (default: 0)"
    command.add_argument("--skip_top", type=int, default=0, help=skip_top)
    answers = (
        "answers to the queries, .jsonl or DPR's .csv: passages that hold one are no negatives"
    )
    command.add_argument("--answers", type=Path, help=answers)
    denoise_run = (
        "run of rerank over these passages, by a cross-encoder trained with config.loss=binary:"
        " keep only what is relevant with a probability below --denoise_below"
    )
    command.add_argument("--denoise_run", type=Path, help=denoise_run)
    below = "a probability, the sigmoid of the run's scores (default: 0.1)"
    command.add_argument("--denoise_below", type=float, default=0.1, help=below)
    add_json_out(command)


def _mine(arguments: Arguments) -> None:
    from cocondenser_jax.retrieval.mine import mine

    figures = mine(
        arguments.runs,
        arguments.data,
        arguments.split,
        arguments.out,
        depth=arguments.depth,
        skip_top=arguments.skip_top,
        holds_answer=_answer_test(arguments) if arguments.answers else None,
        denoise_run=arguments.denoise_run,
        denoise_below=arguments.denoise_below,
    )
    print_metrics(figures, arguments.json_out)


def _answer_test(arguments: Arguments) -> Callable[[str, str], bool]:
    """Returns f(query, passage): whether the passage holds an answer of --answers."""
    from cocondenser_jax.collection.folder import read_corpus
    from cocondenser_jax.evaluation.answers import make_matcher, read_answers

    answers = read_answers(arguments.answers)
    matchers = {query: make_matcher(found) for query, found in answers.items()}
    texts = {passage.id: passage.text for passage in read_corpus(arguments.data)}

    def holds_answer(query: str, passage: str) -> bool:
        if passage not in texts:
            raise UserError(f"the corpus of {arguments.data} has no passage {passage!r}")
        return query in matchers and matchers[query](texts[passage])

    return holds_answer
