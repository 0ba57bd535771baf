"""Commands of retrieval: encode, index, search, retrieve, bm25, fuse, rerank, mine."""

import sys
from collections.abc import Iterator
from pathlib import Path

from cocondenser_jax.cli.flags import (
    Command,
    Parser,
    chosen,
    numbers,
    part,
    print_metrics,
    print_search,
    require_together,
)
from cocondenser_jax.errors import UserError, escape_control
from cocondenser_jax.storage.files import write_json


def encode(command: Parser) -> Command:
    """Encode passages into vectors; resumes an interrupted run."""
    command.path("--model", "the retriever: a folder or hub name")
    command.path("--corpus", "a folder in BEIR, MS MARCO or DPR layout, or its file of passages")
    command.path("--out", "the folder for the embeddings, in shards")
    size = "passages per forward pass (default: 128; where PyTorch computes on a CPU: 32)"
    command.flag("--batch_size", size, type=int)
    length = "tokens of a passage (default: as the retriever was trained)"
    command.flag("--passage_length", length, type=int)
    shard = (
        "passages per shard, which is what an interrupted run may lose (default: a twentieth of "
        "the corpus, within 500 to 5000)"
    )
    command.flag("--shard_size", shard, type=int)
    machine = (
        "i/n: encode part i of n (from 0), on n machines; point index, retrieve or search at --out"
        " when all n are there"
    )
    command.flag("--shard", machine, type=part, metavar="I/N")
    dtypes = ("float32", "float16")
    command.flag("--dtype", "of the numbers in the shards", "float32", choices=dtypes)
    _add_precision(command)
    pooling = "instead of the folder's own; a plain folder has cls"
    command.flag("--pooling", pooling, choices=("cls", "mean"))
    backend = "what runs the transformer; jax: on a TPU, all devices of this host"
    command.flag("--backend", backend, "torch", choices=("torch", "jax"))
    parquet = "also write ids and vectors to this file, for a vector database"
    command.path("--parquet", parquet, required=False, metavar="FILE")
    command.add_json_out()
    arguments = yield "--model=runs/finetune/retriever --corpus=data/msmarco --out=runs/embeddings"

    from cocondenser_jax.retrieval.embeddings import write_parquet
    from cocondenser_jax.retrieval.encode import encode_corpus

    options = chosen(arguments, "batch_size passage_length shard_size shard dtype")
    options |= chosen(arguments, "precision pooling")
    if arguments.backend == "jax":
        from cocondenser_jax.flax_encoder import run_in_flax

        options["backend"] = run_in_flax
    manifest = encode_corpus(arguments.model, arguments.corpus, arguments.out, **options)
    if arguments.parquet:
        write_parquet(arguments.out, arguments.parquet, arguments.shard or (0, 1))
    print_metrics(manifest, arguments.json_out)


def index(command: Parser) -> Command:
    """Build a faiss index of embeddings."""
    command.path("--embeddings", "the folder that encode wrote")
    command.path("--out", "the folder for the index")
    factory = "faiss index string, such as IVF1024,Flat or HNSW32; Flat is exact"
    command.flag("--factory", factory, "Flat")
    command.add_json_out()
    arguments = yield "--embeddings=runs/embeddings --out=runs/index"

    from cocondenser_jax.retrieval.index import build_index

    manifest = build_index(arguments.embeddings, arguments.out, arguments.factory)
    print_metrics(manifest, arguments.json_out)


def search(command: Parser) -> Command:
    """Print the best passages for a query, or for each line of standard input."""
    _add_dense_index(command)
    query = "the text to search for (default: every line of standard input, until Ctrl-D)"
    command.flag("--query", query)
    command.flag("--top_k", "passages printed", 10)
    command.add_json_out()
    example = '--index=runs/index --model=runs/finetune/retriever --query="oscar winners in 1953"'
    arguments = yield example

    from cocondenser_jax.retrieval.search import open_index, search_text

    index = open_index(arguments.folder, arguments.model, parameters=arguments.parameters)
    typed = arguments.query is None
    answers = []
    for query in _typed_queries() if typed else [arguments.query]:
        found = search_text(index, query, arguments.top_k)
        print_search(query, [(s, f"{p.id}  {p.title}".rstrip(), p.text) for s, p in found])
        if typed:
            parts = [f"{part} {1000 * value:.1f} ms" for part, value in index.seconds.items()]
            print(f"  {', '.join(parts)}", flush=True)
        hits = [{"score": score, **passage._asdict()} for score, passage in found]
        answers.append({"query": query, "hits": hits})
    if arguments.json_out:
        write_json(arguments.json_out, answers if typed else answers[0])


def _typed_queries() -> Iterator[str]:
    """Yields the lines of standard input that are not blank; prompts where it is a terminal."""
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


def retrieve(command: Parser) -> Command:
    """Search for the queries of a data set and write a TREC run."""
    _add_dense_index(command)
    _add_run_out(command)
    arguments = yield (
        "--index=runs/index --model=runs/finetune/retriever --data=data/msmarco --split=test"
        " --run_out=runs/test.trec"
    )

    from cocondenser_jax.retrieval.search import retrieve

    places = (arguments.folder, arguments.model, arguments.data, arguments.run_out)
    metrics = retrieve(*places, **chosen(arguments, "split depth parameters"))
    print(escape_control(str(arguments.run_out)))
    print_metrics(metrics, arguments.json_out)


def bm25(command: Parser) -> Command:
    """Rank the passages of a data set by BM25 and write a TREC run."""
    _add_run_out(command)
    command.flag("--k1", "saturation of term frequency; tuned on MS MARCO: 0.82", 0.9)
    command.flag("--b", "length normalisation; tuned on MS MARCO: 0.68", 0.4)
    arguments = yield "--data=data/msmarco --split=train --run_out=runs/bm25.train.trec"

    from cocondenser_jax.retrieval.bm25 import write_bm25_run

    options = chosen(arguments, "split depth k1 b")
    metrics = write_bm25_run(arguments.data, arguments.run_out, **options)
    print(escape_control(str(arguments.run_out)))
    print_metrics(metrics, arguments.json_out)


def _add_dense_index(command: Parser) -> None:
    where = command.add_mutually_exclusive_group(required=True)
    index = "the folder that index wrote"
    where.add_argument("--index", dest="folder", type=Path, help=index)
    embeddings = "or the folder that encode wrote: exact, without an index, in little memory"
    where.add_argument("--embeddings", dest="folder", type=Path, help=embeddings)
    command.path("--model", "the retriever that encoded the passages: a folder or hub name")
    parameters = "of the index, as faiss writes them: nprobe=16 (IVF), efSearch=64 (HNSW)"
    command.add_argument("--parameters", default="", help=parameters)


def _add_run_out(command: Parser) -> None:
    command.path("--data", "the folder of the queries")
    command.flag("--split", "the judgments whose queries to search for (default: all queries)")
    command.path("--run_out", "TREC run to write")
    command.flag("--depth", "passages per query", 100)
    command.add_json_out()


def _add_precision(command: Parser) -> None:
    precision = (
        "of the matrix products; auto: bfloat16 on a GPU that has it; on a CPU without bfloat16"
        " units, such as AMX, PyTorch is slower with it than with float32"
    )
    command.flag("--precision", precision, "auto", choices=("auto", "float32", "bfloat16"))


def fuse(command: Parser) -> Command:
    """Fuse several runs into one, by ranks or by scores."""
    command.path("--run", "TREC run; two or more", dest="runs", metavar="RUN", action="append")
    command.path("--run_out", "TREC run to write")
    method = (
        "rrf, reciprocal rank fusion: a passage's sum of 1 / (60 + rank);"
        " min_max: the sum of its scores, moved to 0 to 1 for each query of a run"
    )
    command.flag("--method", method, "rrf", choices=("rrf", "min_max"))
    weights = "of the runs, in their order, separated by commas (default: 1 each)"
    command.flag("--weights", weights, type=numbers, metavar="W")
    command.flag("--depth", "passages per query", 100)
    command.add_json_out()
    arguments = yield "--run=runs/bm25.test.trec --run=runs/test.trec --run_out=runs/fused.trec"

    from cocondenser_jax.collection.trec import read_run, write_run
    from cocondenser_jax.retrieval.fuse import fuse_runs

    runs = [read_run(file) for file in arguments.runs]
    fused = fuse_runs(runs, **chosen(arguments, "method weights depth"))
    write_run(arguments.run_out, fused)
    print(escape_control(str(arguments.run_out)))
    shared = sum(all(query in run for run in runs) for query in fused)
    print_metrics({"queries": len(fused), "queries in every run": shared}, arguments.json_out)


def rerank(command: Parser) -> Command:
    """Score the passages of a run with a cross-encoder; write them in the new order."""
    command.path("--model", "the cross-encoder: a folder or hub name")
    command.path("--run", "TREC run to score")
    _add_run_out(command)
    command.flag("--batch_size", "pairs", 64)
    _add_precision(command)
    positives = "also score what --split judges relevant: a teacher's scores for finetune and mine"
    command.flag("--with_positives", positives, action="store_true")
    arguments = yield (
        "--model=runs/ce/cross_encoder --data=data/msmarco --split=test --run=runs/test.trec"
        " --run_out=runs/reranked.trec"
    )

    from cocondenser_jax.retrieval.rerank import rerank

    options = chosen(arguments, "split depth batch_size with_positives precision")
    metrics = rerank(arguments.model, arguments.data, arguments.run, arguments.run_out, **options)
    print(escape_control(str(arguments.run_out)))
    print_metrics(metrics, arguments.json_out)


def mine(command: Parser) -> Command:
    """Make the pool of negatives that finetune draws from, of one run or several."""
    run = "TREC run, or published negatives (triples of ids, biencoder file); may be repeated"
    command.path("--run", run, dest="runs", metavar="RUN", action="append")
    command.path("--data", "the folder of queries and qrels")
    command.flag("--split", "of the queries (default: train)")
    command.path("--out", "TREC run to write")
    command.flag("--depth", "rank, in each run, of the last passage taken", 200)
    command.flag("--skip_top", "passages at the top of each run not taken", 0)
    answers = "answers to the queries, .jsonl or DPR's .csv: leave out passages that hold one"
    command.path("--answers", answers, required=False)
    denoise_run = (
        "run of rerank over these passages, by a cross-encoder trained with config.loss=binary:"
        " keep only those that are relevant with a probability below --denoise_below"
    )
    command.path("--denoise_run", denoise_run, required=False)
    below = "with --denoise_run: a probability, the sigmoid of the run's scores (default: 0.1)"
    command.flag("--denoise_below", below, type=float, metavar="P")
    pseudo = (
        "with --denoise_run, instead of --split: judgments to write (DATA/qrels/SPLIT.tsv, or"
        " DATA/qrels.SPLIT.tsv beside queries.SPLIT.tsv): of that run's passages, those with a"
        " probability above --pseudo_above are relevant"
    )
    command.path("--pseudo_qrels", pseudo, required=False, metavar="FILE")
    above = "with --pseudo_qrels: a probability (default: 0.9)"
    command.flag("--pseudo_above", above, type=float, metavar="P")
    command.add_json_out()
    arguments = yield (
        "--run=runs/bm25.train.trec --run=runs/round1.train.trec --data=data/msmarco"
        " --out=runs/negatives.trec"
    )

    from cocondenser_jax.retrieval.mine import mine

    require_together(arguments, denoise_below="denoise_run", pseudo_qrels="denoise_run")
    require_together(arguments, pseudo_above="pseudo_qrels")
    if arguments.pseudo_qrels and arguments.split is not None:
        raise UserError("--pseudo_qrels labels the queries of --denoise_run, not those of --split")
    split = "train" if arguments.split is None else arguments.split
    options = chosen(arguments, "depth skip_top answers denoise_run denoise_below")
    options |= chosen(arguments, "pseudo_qrels pseudo_above")
    metrics = mine(arguments.runs, arguments.data, split, arguments.out, **options)
    print_metrics(metrics, arguments.json_out)
