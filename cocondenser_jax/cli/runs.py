"""Commands that write TREC runs from passages or from other runs: bm25, fuse, rerank, mine."""

from pathlib import Path

import click

from cocondenser_jax.cli.flags import (
    CORPUS,
    CORPUS_COLUMNS,
    COUNT,
    DATA,
    DOCUMENTS,
    FUSIONS,
    IGNORE_IDENTICAL_IDS,
    JSON_OUT,
    OUTPUT_FILE,
    RUN_OF_DATA,
    command,
    flag,
    precision,
    required,
)
from cocondenser_jax.cli.output import print_metrics

_CORPUS = flag("--corpus", CORPUS, f"passages (default: those of --data): {DOCUMENTS}")


@command(
    "bm25 --data=data/msmarco --split=train --run_out=runs/bm25.train.trec",
    *RUN_OF_DATA,
    _CORPUS,
    CORPUS_COLUMNS,
    IGNORE_IDENTICAL_IDS,
    flag("--k1", click.FloatRange(0), "saturation of term frequency (MS MARCO: 0.82)", default=0.9),
    flag("--b", click.FloatRange(0, 1), "length normalization (MS MARCO: 0.68)", default=0.4),
    flag("--language", "english", "language of stemmer and stop words; none: neither"),
)
def bm25(data, split, run_out, depth, json_out, corpus, ignore_identical_ids, k1, b, language):
    """Rank passages by BM25 for the queries of a data set and write a TREC run."""
    from cocondenser_jax.retriever.data.layouts import numbers_queries
    from cocondenser_jax.retriever.search.bm25 import Bm25Settings, Searched, write_bm25_run

    metrics = write_bm25_run(
        Searched(data, split, corpus),
        run_out,
        depth=depth,
        settings=Bm25Settings(k1=k1, b=b, language=language),
        ignore_identical_ids=ignore_identical_ids,
        warns=not numbers_queries(data),
    )
    print_metrics(metrics, json_out)


def _parse_weights(text: str) -> list[float]:
    return [float(weight) for weight in text.split(",")]


@command(
    "fuse --run=runs/bm25.test.trec --run=runs/test.trec --run_out=runs/fused.trec",
    required("--run", Path, "TREC run; two or more", multiple=True),
    required("--run_out", OUTPUT_FILE, "TREC run to write"),
    flag("--method", FUSIONS, "by scores scaled to 0 to 1; or by ranks, as 1 / (60 + rank)"),
    flag("--weights", _parse_weights, "one per run, in order (default: 1 each)", metavar="W,W"),
    flag("--depth", COUNT, "passages per query", default=100),
    IGNORE_IDENTICAL_IDS,
    JSON_OUT,
)
def fuse(run, run_out, method, weights, depth, ignore_identical_ids, json_out):
    """Fuse several runs into one, by ranks or by scores."""
    from cocondenser_jax.retriever.data.identical_ids import (
        drop_identical_ids,
        finds_itself,
        warn_of_identical_ids,
    )
    from cocondenser_jax.retriever.data.trec import read_run, write_run
    from cocondenser_jax.retriever.search.fuse import check_runs, fuse_runs

    runs = [read_run(file) for file in run]
    if ignore_identical_ids:  # before ranks and scores are fused
        runs = [drop_identical_ids(each) for each in runs]
    check_runs(dict(zip(map(str, run), runs, strict=True)))
    fused = fuse_runs(runs, method=method, weights=weights, depth=depth)
    warn_of_identical_ids({str(run_out): finds_itself(fused, fused)}, {})
    write_run(run_out, fused)
    in_every_run = [query for query in fused if all(query in each for each in runs)]
    print_metrics({"queries": len(fused), "queries in every run": len(in_every_run)}, json_out)


@command(
    "rerank --model=runs/ce/cross_encoder --data=data --run=test.trec --run_out=reranked.trec",
    required("--model", str, "the cross-encoder: a folder or Hub name"),
    required("--run", Path, "TREC run to score"),
    *RUN_OF_DATA,
    _CORPUS,
    flag("--batch_size", COUNT, "pairs per forward pass", default=64),
    precision("GPU"),
    flag(
        "--with_positives",
        False,
        "also score the relevant passages of --split, for soft labels or mine",
    ),
    IGNORE_IDENTICAL_IDS,
)
def rerank(model, run_out, batch_size, precision, json_out, **candidates):
    """Score the passages of a run with a cross-encoder, and write the reranked run."""
    from cocondenser_jax.retriever.search.rerank import Candidates, rerank

    scored = Candidates(**candidates)
    metrics = rerank(model, scored, run_out, batch_size=batch_size, precision=precision)
    print_metrics(metrics, json_out)


@command(
    "mine --run=runs/bm25.trec --run=runs/round1.trec --data=data --run_out=runs/negatives.trec",
    required("--run", Path, "TREC run; may be repeated", multiple=True),
    required("--data", DATA, "the folder of queries and qrels"),
    flag("--split", "train", "mine for the queries of this split"),
    required("--run_out", OUTPUT_FILE, "TREC run to write", formerly="out"),
    flag("--depth", COUNT, "rank, in each run, of the last passage taken", default=200),
    flag("--denoise_run", Path, "run of rerank (loss=binary): drop passages it finds relevant"),
    flag("--denoise_below", 0.1, "keep passages with a lower probability", goes_with="denoise_run"),
    JSON_OUT,
)
def mine(run, data, split, run_out, depth, denoise_run, denoise_below, json_out):
    """Collect negatives for finetune from one or more runs."""
    from cocondenser_jax.retriever.search.mine import Denoising, mine

    denoising = Denoising(denoise_run, below=denoise_below) if denoise_run else None
    metrics = mine(run, data, split, run_out, depth=depth, denoising=denoising)
    print_metrics(metrics, json_out)
