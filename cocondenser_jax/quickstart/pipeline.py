"""The whole pipeline in one command, on the docstrings of this machine's Python packages.

    DIR/data/          the task (see `task`) in BEIR layout, and pretrain.jsonl to pre-train on
    DIR/tokenizer/     WordPiece vocabulary of that text
    DIR/store/         its token store
    DIR/pretraining/   the run folders of the two stages
    DIR/model/         the coCondenser, as a Hugging Face folder
    DIR/retriever/     the same, fine-tuned
    DIR/index/         its index over the passages
    DIR/test.trec      what it finds for the test queries
    DIR/bm25.trec      what BM25 finds for them
    DIR/compare/       the retrievers it is compared with
    DIR/seconds.json   how long each result took, interruptions included
    DIR/results.json   DIR/report.html

A step whose result exists is skipped, so an interrupted quickstart resumes.
"""

import contextlib
import json
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.collection.folder import read_split
from cocondenser_jax.collection.trec import read_run
from cocondenser_jax.configs import quickstart as pretraining
from cocondenser_jax.configs import quickstart_finetune as finetuning
from cocondenser_jax.convert.to_torch import export_folder, export_run
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_wordpiece
from cocondenser_jax.evaluation.ranking import evaluate_run
from cocondenser_jax.files import new_folder, read_json, require_absent, write_json
from cocondenser_jax.finetune.tasks import finetune
from cocondenser_jax.locks import held
from cocondenser_jax.pretrain.loop import scratch_model
from cocondenser_jax.pretrain.step import initial_params
from cocondenser_jax.quickstart.report import Examples, ResultRow, write_report
from cocondenser_jax.quickstart.task import write_task
from cocondenser_jax.retrieval.bm25 import write_bm25_run
from cocondenser_jax.retrieval.encode import encode_corpus
from cocondenser_jax.retrieval.index import build_index
from cocondenser_jax.retrieval.search import open_index, retrieve, search_text
from cocondenser_jax.warm_start import pretrain

VOCAB_SIZE = 8192
DEPTH = 100  # passages per test query
EXAMPLE_QUERIES = (
    "solve a linear system with a triangular matrix",
    "learning rate schedule that decays with a cosine",
    "remove missing values from a table",
)


class Outcome(NamedTuple):
    """What the quickstart found, and how to search its index."""

    rows: list[ResultRow]
    examples: Examples
    search_command: str
    report: Path


def quickstart(
    workdir: Path, *, compare_all: bool = False, program: str = "cocondenser"
) -> Outcome:
    """Runs the whole pipeline; resumes where an earlier call stopped.

    Args:
      workdir: the head of this module says what it will hold.
      compare_all: add a Condenser to the comparison, and two more seeds.
      program: how the printed search command calls the command line.

    Returns:
      The comparison (BM25, the retriever without pre-training, coCondenser), example searches, and
      the command for a search.

    Raises:
      UserError: if `workdir` holds anything but a quickstart, is in use, or cannot be made.
    """
    with held(workdir):
        if not (workdir / "seconds.json").exists():
            require_absent(workdir, "seconds.json")
            write_json(workdir / "seconds.json", {})
        _make_store(workdir)
        bm25 = workdir / "bm25.trec"
        with _timed(workdir, bm25):
            if not bm25.exists():
                write_bm25_run(workdir / "data", bm25, split="test", depth=DEPTH)
        rows = [_row(workdir, "BM25", bm25, [bm25])]
        for seed in (0, 1, 2) if compare_all else (0,):
            for name, folder, runs in _models(workdir, seed, compare_all):
                _make_retriever(workdir, folder, seed)
                rows.append(
                    _row(workdir, name, folder / "test.trec", [*runs, folder / "retriever"])
                )
        write_json(workdir / "results.json", [row._asdict() for row in rows])
        examples = _search_examples(workdir)
        places = f"--index={workdir / 'index'}", f"--model={workdir / 'retriever'}"
        query = f'--query="{EXAMPLE_QUERIES[0]}"'
        command = f"{program} search {shlex.join(places)} {query}"
        report = write_report(workdir, rows, examples, command)
        return Outcome(rows, examples, command, report)


@contextlib.contextmanager
def _timed(workdir: Path, result: Path) -> Iterator[None]:
    """Adds the seconds that the block takes to those of a result in `seconds.json`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        name = result.relative_to(workdir).as_posix()
        seconds = read_json(workdir / "seconds.json")
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        write_json(workdir / "seconds.json", seconds)


def _make_store(workdir: Path) -> None:
    """Makes the task, a vocabulary, and the store to pre-train on."""
    data, tokenizer, store = (workdir / name for name in ("data", "tokenizer", "store"))
    with _timed(workdir, store):
        if not data.exists():
            with new_folder(data) as folder:
                write_task(folder)
        text = data / "pretrain.jsonl"
        if not tokenizer.exists():
            with new_folder(tokenizer) as folder, text.open(encoding="utf-8") as file:
                texts = (json.loads(line)["text"] for line in file)
                save_tokenizer(train_wordpiece(texts, VOCAB_SIZE), folder)
        if not store.exists():
            length = pretraining.get_config().data.length
            build_store(str(text), str(tokenizer), store, max_tokens=length)


def _models(workdir: Path, seed: int, compare_all: bool) -> Iterator[tuple[str, Path, list[Path]]]:
    """Yields the models of one seed, each pre-trained and exported when its turn comes.

    Yields:
      The model's name, the folder whose `model` it is, and the run folders of its pre-training.
    """
    compare, store = workdir / "compare", workdir / "store"
    main = workdir if seed == 0 else compare / f"cocondenser-{seed}"
    condenser, cocondenser = (main / "pretraining" / s for s in ("condenser", "cocondenser"))
    suffix = f", seed {seed}" if compare_all else ""

    folder = compare / f"no-pretraining-{seed}"
    if not (folder / "model").exists():
        sizes = _pretraining_config("condenser", store, seed).model
        shape = scratch_model(sizes, open_store(store))
        params = jax.tree.map(np.asarray, initial_params(shape, seed))
        facts = {"step": 0, "config": {"seed": seed}}
        export_folder(params, shape, workdir / "tokenizer", folder / "model", facts)
    yield f"no pre-training{suffix}", folder, []

    if not (main / "model").exists():
        config = _pretraining_config("condenser", store, seed)
        with _timed(workdir, condenser):
            pretrain(config, condenser, label=f"Condenser{suffix}")
    if compare_all:
        folder = compare / f"condenser-{seed}"
        if not (folder / "model").exists():
            export_run(condenser, folder / "model")
        yield f"Condenser{suffix}", folder, [condenser]

    if not (main / "model").exists():
        config = _pretraining_config("cocondenser", store, seed, warm_start=str(condenser))
        with _timed(workdir, cocondenser):
            pretrain(config, cocondenser, label=f"coCondenser{suffix}")
        export_run(cocondenser, main / "model")
    yield f"coCondenser{suffix}", main, [condenser, cocondenser]


def _pretraining_config(stage: str, store: Path, seed: int, warm_start: str = "") -> ConfigDict:
    config = pretraining.get_config(stage).unlock()
    config.data.store, config.seed, config.warm_start = str(store), seed, warm_start
    return config.lock()


def _make_retriever(workdir: Path, folder: Path, seed: int) -> None:
    """Fine-tunes `folder/model`, indexes the passages with it, and searches for the queries."""
    data = workdir / "data"
    retriever, index, run = (folder / name for name in ("retriever", "index", "test.trec"))
    with _timed(workdir, retriever):
        if not retriever.exists():
            config = finetuning.get_config().unlock()
            config.model, config.data, config.seed = str(folder / "model"), str(data), seed
            trained = folder / "finetuning" / "retriever"
            if not trained.exists():  # it does if a kill came between these lines
                finetune(config.lock(), trained.parent)
            trained.rename(retriever)
        if not index.exists():
            encode_corpus(retriever, data, folder / "embeddings")
            build_index(folder / "embeddings", index)
            shutil.rmtree(folder / "embeddings")
        if not run.exists():
            retrieve(index, retriever, data, run, split="test", depth=DEPTH)


def _row(workdir: Path, name: str, run: Path, results: list[Path]) -> ResultRow:
    """Evaluates a run file; the row's seconds are those of `results`."""
    _, qrels = read_split(workdir / "data", "test")
    mean = evaluate_run(qrels, read_run(run), ("MRR@10", "Recall@100"))["mean"]
    seconds = read_json(workdir / "seconds.json")
    spent = sum(seconds[result.relative_to(workdir).as_posix()] for result in results)
    return ResultRow(name, mean["MRR@10"], mean["Recall@100"], spent)


def _search_examples(workdir: Path) -> Examples:
    searcher = open_index(workdir / "index", workdir / "retriever")
    return {
        query: [
            (score, passage.title or passage.id, passage.text)
            for score, passage in search_text(searcher, query, k=3)
        ]
        for query in EXAMPLE_QUERIES
    }
