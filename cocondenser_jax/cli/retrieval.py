"""Verbs of the retriever: fine-tune, encode, search, mine negatives."""

from collections.abc import Callable
from pathlib import Path

from cocondenser_jax.cli.flags import (
    Arguments,
    Verbs,
    add_config,
    add_json_out,
    add_verb,
    add_workdir,
    print_figures,
    print_search,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_json


def add_verbs(verbs: Verbs) -> None:
    """Adds them to the command line."""
    _add_finetune(verbs)
    _add_encode(verbs)
    _add_search(verbs)
    _add_mine(verbs)


def _add_finetune(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "finetune",
        _finetune,
        "Fine-tune a retriever on queries and their passages.",
        "--config=configs/finetune.py --workdir=runs/finetune --config.model=runs/model"
        " --config.data=data/msmarco",
    )
    add_config(verb)
    add_workdir(verb, "gets retriever/, metrics and, while running, checkpoints")
    add_json_out(verb)


def _finetune(arguments: Arguments) -> None:
    from cocondenser_jax.experiments import load_config
    from cocondenser_jax.retrieval.train import finetune

    result = finetune(load_config(arguments.config, arguments.overrides), arguments.workdir)
    print_figures(result, arguments.json_out)


def _add_encode(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "encode",
        _encode,
        "Encode passages and index them.",
        "--model=runs/finetune/retriever --corpus=data/msmarco --out=runs/index",
    )
    verb.add_argument("--model", required=True, type=Path, help="the retriever's folder")
    corpus = "a BEIR folder, or a .jsonl file (_id, title, text), also compressed"
    verb.add_argument("--corpus", required=True, type=Path, help=corpus)
    out = "the index; embedding shards go beside it, into OUT.embeddings"
    verb.add_argument("--out", required=True, type=Path, help=out)
    verb.add_argument("--factory", default="Flat", help="faiss index string (default: Flat)")
    verb.add_argument("--batch_size", type=int, default=128, help="passages (default: 128)")
    length = "tokens of a passage (default: as the retriever was trained)"
    verb.add_argument("--passage_length", type=int, help=length)
    verb.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    pooling = "instead of the folder's own; a plain folder has cls"
    verb.add_argument("--pooling", choices=("cls", "mean"), help=pooling)
    add_json_out(verb)


def _encode(arguments: Arguments) -> None:
    from cocondenser_jax.retrieval.encode import encode_corpus
    from cocondenser_jax.retrieval.search import build_index

    embeddings = arguments.out.with_name(arguments.out.name + ".embeddings")
    encode_corpus(
        arguments.model,
        arguments.corpus,
        embeddings,
        batch_size=arguments.batch_size,
        passage_length=arguments.passage_length,
        dtype=arguments.dtype,
        pooling=arguments.pooling,
    )
    print_figures(build_index(embeddings, arguments.out, arguments.factory), arguments.json_out)


def _add_search(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "search",
        _search,
        "Search an index for one query, or for all queries of a data set.",
        '--index=runs/index --model=runs/finetune/retriever --query="who won the oscar in 1953"',
    )
    verb.add_argument("--index", type=Path, help="a folder that encode made")
    verb.add_argument("--model", type=Path, help="the retriever it was made with")
    verb.add_argument("--query", help="print the passages found for this text")
    verb.add_argument("--top_k", type=int, default=10, help="passages printed (default: 10)")
    verb.add_argument("--data", type=Path, help="a BEIR folder: search for all of its queries")
    verb.add_argument("--split", help="only the queries that qrels/SPLIT.tsv judges")
    verb.add_argument("--run_out", type=Path, help="TREC run to write, with --data")
    verb.add_argument("--depth", type=int, default=100, help="passages per query (default: 100)")
    bm25 = "rank the passages of --data by BM25, without index and model"
    verb.add_argument("--bm25", action="store_true", help=bm25)
    add_json_out(verb)


def _search(arguments: Arguments) -> None:
    from cocondenser_jax.evaluation.trec import write_run
    from cocondenser_jax.retrieval.data import read_corpus, read_queries, read_split

    if (arguments.query is None) == (arguments.data is None):
        raise UserError("give either --query TEXT or --data FOLDER (queries in BEIR layout)")
    if arguments.bm25 == (arguments.index is not None and arguments.model is not None):
        raise UserError("give either --index and --model, or --bm25 with --data")
    if arguments.query is not None:
        _print_hits(arguments)
        return
    if arguments.run_out is None:
        raise UserError("--data needs --run_out FILE, where the run is written")
    if arguments.split:
        queries, _ = read_split(arguments.data, arguments.split)
    else:
        queries = read_queries(arguments.data)
    if arguments.bm25:
        from cocondenser_jax.retrieval.bm25 import bm25_run

        run = bm25_run(read_corpus(arguments.data), queries, arguments.depth)
    else:
        from cocondenser_jax.retrieval.search import open_index, search_run

        run = search_run(open_index(arguments.index, arguments.model), queries, arguments.depth)
    write_run(arguments.run_out, run)
    print(arguments.run_out)


def _print_hits(arguments: Arguments) -> None:
    from cocondenser_jax.retrieval.search import open_index, search_text

    if arguments.bm25:
        raise UserError("--query searches an index: give --index and --model")
    searcher = open_index(arguments.index, arguments.model)
    hits = [
        (result.score, result.passage.title or result.passage.id, result.passage.text)
        for result in search_text(searcher, arguments.query, arguments.top_k)
    ]
    print_search(arguments.query, hits)
    if arguments.json_out:
        found = [{"score": s, "title": title, "text": text} for s, title, text in hits]
        write_json(arguments.json_out, {"query": arguments.query, "hits": found})


def _add_mine(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "mine",
        _mine,
        "Make the pool of negatives that finetune draws from, of one run or several.",
        "--run=runs/bm25.train.trec --run=runs/round1.train.trec --data=data/msmarco"
        " --out=runs/negatives.trec",
    )
    run = "TREC run, or published negatives (triples of ids, biencoder file); may be repeated"
    verb.add_argument(
        "--run", dest="runs", metavar="RUN", action="append", required=True, type=Path, help=run
    )
    verb.add_argument("--data", required=True, type=Path, help="the folder of queries and qrels")
    verb.add_argument("--split", default="train", help="of the queries (default: train)")
    verb.add_argument("--out", required=True, type=Path, help="TREC run to write")
    depth = "rank, in each run, of the last passage taken (default: 200)"
    verb.add_argument("--depth", type=int, default=200, help=depth)
    skip_top = "passages at the top of each run not taken (default: 0)"
    verb.add_argument("--skip_top", type=int, default=0, help=skip_top)
    answers = (
        "answers to the queries, .jsonl or DPR's .csv: passages that hold one are no negatives"
    )
    verb.add_argument("--answers", type=Path, help=answers)
    denoise_run = "TREC run of a cross-encoder: keep only what it scores below --denoise_below"
    verb.add_argument("--denoise_run", type=Path, help=denoise_run)
    below = "in the unit of its scores (default: 0.1)"
    verb.add_argument("--denoise_below", type=float, default=0.1, help=below)
    add_json_out(verb)


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
    print_figures(figures, arguments.json_out)


def _answer_test(arguments: Arguments) -> Callable[[str, str], bool]:
    """Returns f(query, passage): whether the passage holds an answer of --answers."""
    from cocondenser_jax.evaluation.answers import make_matcher, read_answers
    from cocondenser_jax.retrieval.data import read_corpus

    answers = read_answers(arguments.answers)
    matchers = {query: make_matcher(found) for query, found in answers.items()}
    texts = {passage.id: passage.text for passage in read_corpus(arguments.data)}

    def holds_answer(query: str, passage: str) -> bool:
        if passage not in texts:
            raise UserError(f"the corpus of {arguments.data} has no passage {passage!r}")
        return query in matchers and matchers[query](texts[passage])

    return holds_answer
