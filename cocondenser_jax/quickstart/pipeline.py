"""The whole road in one command, on the docstrings of the Python packages of this machine.

A docstring's first paragraph says what a thing does, the rest is a passage that explains it: asking
for the passage with the first paragraph is a retrieval task that every machine holds. Some
docstrings are held out as test queries; their first paragraphs are in no training text.

    DIR/data/          the task in BEIR layout, and pretrain.jsonl, the pre-training text
    DIR/tokenizer/     WordPiece vocabulary of that text
    DIR/store/         its token store
    DIR/pretraining/   the run folders of the two stages
    DIR/model/         the coCondenser, as a Hugging Face folder
    DIR/retriever/     the same, fine-tuned
    DIR/index/         its index over the passages
    DIR/test.trec      what it finds for the test queries
    DIR/compare/       the retrievers it is compared with
    DIR/results.json   DIR/report.html

Every step is skipped where its result is there, so an interrupted quickstart goes on by itself.
"""

import contextlib
import dataclasses
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.analysis.plots import Panel, curve, read_metrics
from cocondenser_jax.collection.folder import read_corpus, read_split
from cocondenser_jax.collection.trec import Run, read_run, write_run
from cocondenser_jax.configs import quickstart as pretraining
from cocondenser_jax.configs import quickstart_finetune as finetuning
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_wordpiece
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import evaluate_run
from cocondenser_jax.files import new_folder, read_json, write_json
from cocondenser_jax.finetune.tasks import finetune
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.loop import scratch_model
from cocondenser_jax.pretrain.step import initial_params
from cocondenser_jax.quickstart import task
from cocondenser_jax.quickstart.report import Example, Hit, ResultRow, write_report
from cocondenser_jax.retrieval.bm25 import bm25_run
from cocondenser_jax.retrieval.encode import encode_corpus
from cocondenser_jax.retrieval.index import build_index
from cocondenser_jax.retrieval.search import open_index, search_run, search_text
from cocondenser_jax.warm_start import pretrain

logger = logging.getLogger(__name__)

VOCAB_SIZE = 8192
EXAMPLE_QUERIES = (
    "solve a linear system with a triangular matrix",
    "learning rate schedule that decays with a cosine",
    "remove missing values from a table",
)


class Outcome(NamedTuple):
    """What the quickstart found out."""

    rows: list[ResultRow]
    examples: list[Example]
    search_command: str
    report: Path


def quickstart(
    workdir: Path, *, compare_all: bool = False, program: str = "cocondenser"
) -> Outcome:
    """Runs the whole road; goes on where an earlier call stopped.

    Args:
      workdir: see the head of this module for what it will hold.
      compare_all: add a Condenser to the comparison, and two more seeds.
      program: what the user types to run the command line.

    Returns:
      The comparison (BM25, the retriever without pre-training, coCondenser), example searches, and
      how to search for oneself.

    Raises:
      UserError: if `workdir` holds something else.
    """
    seconds = _open_workdir(workdir)
    with seconds.count(workdir / "store"):
        _make_corpus(workdir)
    rows = [_bm25_row(workdir, seconds)]
    for seed in (0, 1, 2) if compare_all else (0,):
        rows += _seed_rows(workdir, seed, compare_all, seconds)
    write_json(workdir / "results.json", [dataclasses.asdict(row) for row in rows])
    examples = _search_examples(workdir)
    command = (
        f"{program} search --index={workdir}/index --model={workdir}/retriever"
        f' --query="{EXAMPLE_QUERIES[0]}"'
    )
    _report(workdir, rows, examples, command)
    return Outcome(rows, examples, command, workdir / "report.html")


class _Seconds:
    """Seconds that each result took, kept in a file so that they survive an interruption."""

    def __init__(self, workdir: Path) -> None:
        self._workdir, self._path = workdir, workdir / "seconds.json"
        self._spent: dict[str, float] = read_json(self._path) if self._path.exists() else {}

    @contextlib.contextmanager
    def count(self, result: Path) -> Iterator[None]:
        """Adds the time that the block takes to that of a file or folder in the workdir."""
        start = time.perf_counter()
        try:
            yield
        finally:
            name = result.relative_to(self._workdir).as_posix()
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start
            write_json(self._path, self._spent)

    def of(self, *results: Path) -> float:
        """Returns the seconds of all the results together."""
        return sum(self._spent[path.relative_to(self._workdir).as_posix()] for path in results)


def _open_workdir(workdir: Path) -> _Seconds:
    """Makes the folder, or goes on in that of an earlier quickstart."""
    record = workdir / "seconds.json"
    if workdir.exists() and not record.exists() and (workdir.is_file() or any(workdir.iterdir())):
        raise UserError(f"{workdir} already holds something else: choose a new folder")
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create {workdir}: {error.strerror}") from error
    return _Seconds(workdir)


def _once(folder: Path, make: Callable[[Path], object]) -> None:
    """Makes a folder, whole, unless it is there."""
    if not folder.exists():
        with new_folder(folder) as partial:
            make(partial)


def _make_corpus(workdir: Path) -> None:
    text = workdir / "data" / "pretrain.jsonl"
    _once(workdir / "data", task.write_task)

    def train_tokenizer(out: Path) -> None:
        with text.open(encoding="utf-8") as file:
            texts = (json.loads(line)["text"] for line in file)
            save_tokenizer(train_wordpiece(texts, VOCAB_SIZE), out)

    _once(workdir / "tokenizer", train_tokenizer)
    if not (workdir / "store").exists():
        length = pretraining.get_config().data.length
        tokenizer = str(workdir / "tokenizer")
        build_store(str(text), tokenizer, workdir / "store", max_tokens=length)


def _seed_rows(workdir: Path, seed: int, compare_all: bool, seconds: _Seconds) -> list[ResultRow]:
    """Trains and evaluates the retrievers of one seed; the first coCondenser is the product."""
    compare = workdir / "compare"
    suffix = f", seed {seed}" if compare_all else ""
    main = workdir if seed == 0 else compare / f"cocondenser-{seed}"
    place = compare / f"no-pretraining-{seed}"
    rows = []

    config = _pretraining_config("condenser", workdir, seed)
    if not (place / "model").exists():
        model_config = scratch_model(config.model, open_store(workdir / "store"))
        params = jax.tree.map(np.asarray, initial_params(model_config, seed))
        facts = {"step": 0, "config": {"seed": seed}}
        export_folder(params, model_config, workdir / "tokenizer", place / "model", facts)
    rows.append(_retriever_row(f"no pre-training{suffix}", workdir, place, seed, seconds))

    condenser = main / "pretraining" / "condenser"
    if not (main / "model").exists():
        with seconds.count(condenser):
            pretrain(config, condenser, label=f"Condenser{suffix}")
    if compare_all:
        place = compare / f"condenser-{seed}"
        _export(condenser, place / "model")
        rows.append(
            _retriever_row(f"Condenser{suffix}", workdir, place, seed, seconds, [condenser])
        )

    cocondenser = main / "pretraining" / "cocondenser"
    if not (main / "model").exists():
        with seconds.count(cocondenser):
            config = _pretraining_config("cocondenser", workdir, seed, warm_start=str(condenser))
            pretrain(config, cocondenser, label=f"coCondenser{suffix}")
        _export(cocondenser, main / "model")
    stages = [condenser, cocondenser]
    rows.append(_retriever_row(f"coCondenser{suffix}", workdir, main, seed, seconds, stages))
    return rows


def _pretraining_config(
    stage: str, workdir: Path, seed: int, *, warm_start: str = ""
) -> ConfigDict:
    config = pretraining.get_config(stage).unlock()
    config.data.store = str(workdir / "store")
    config.seed, config.warm_start = seed, warm_start
    return config.lock()


def _export(run: Path, out: Path) -> None:
    if not out.exists():
        model_config, params, facts = load_run(run)
        export_folder(params, model_config, run / "tokenizer", out, facts)


def _bm25_row(workdir: Path, seconds: _Seconds) -> ResultRow:
    path = workdir / "bm25.trec"
    with seconds.count(path):
        run = _run_once(
            path,
            lambda queries: bm25_run(read_corpus(workdir / "data"), queries, depth=100),
            workdir / "data",
        )
    return _row("BM25", workdir, run, seconds.of(path))


def _run_once(path: Path, search: Callable[[dict[str, str]], Run], data: Path) -> Run:
    """Returns the run over the test queries, from the file if it is there."""
    if not path.exists():
        queries, _ = read_split(data, "test")
        write_run(path, search(queries))
    return read_run(path)


def _retriever_row(
    name: str,
    workdir: Path,
    place: Path,
    seed: int,
    seconds: _Seconds,
    stages: Sequence[Path] = (),
) -> ResultRow:
    """Fine-tunes `place/model`, indexes the passages with it, and evaluates it.

    Args:
      name: of the row.
      workdir: holds the data.
      place: where `model` lies, and `retriever` and `index` go.
      seed: of the fine-tuning.
      seconds: the clock.
      stages: runs of pre-training whose time the row includes.
    """
    data = workdir / "data"
    config = finetuning.get_config().unlock()
    config.model, config.data, config.seed = str(place / "model"), str(data), seed
    with seconds.count(place / "retriever"):
        if not (place / "retriever").exists():
            trained = place / "finetuning" / "retriever"
            if not trained.exists():  # it does if a kill came between these lines
                finetune(config.lock(), trained.parent)
            trained.rename(place / "retriever")
        if not (place / "index").exists():
            encode_corpus(place / "retriever", data, place / "embeddings")
            build_index(place / "embeddings", place / "index")
            shutil.rmtree(place / "embeddings")

        def search(queries: dict[str, str]) -> Run:
            index = open_index(place / "index", place / "retriever")
            return search_run(index, queries, depth=100)[0]

        run = _run_once(place / "test.trec", search, data)
    total = seconds.of(*stages, place / "retriever")
    return _row(name, workdir, run, total)


def _row(name: str, workdir: Path, run: Run, seconds: float) -> ResultRow:
    _, qrels = read_split(workdir / "data", "test")
    mean = evaluate_run(qrels, run, ("MRR@10", "Recall@100"))["mean"]
    return ResultRow(name, mean["MRR@10"], mean["Recall@100"], seconds)


def _search_examples(workdir: Path) -> list[Example]:
    searcher = open_index(workdir / "index", workdir / "retriever")
    return [
        Example(
            query,
            [
                Hit(result.score, result.passage.title or result.passage.id, result.passage.text)
                for result in search_text(searcher, query, k=3)[0]
            ],
        )
        for query in EXAMPLE_QUERIES
    ]


def _report(
    workdir: Path, rows: list[ResultRow], examples: list[Example], search_command: str
) -> None:
    stages = {
        "Condenser": read_metrics(workdir / "pretraining" / "condenser" / "metrics.jsonl"),
        "coCondenser": read_metrics(workdir / "pretraining" / "cocondenser" / "metrics.jsonl"),
    }
    # coCondenser comes second in every panel, and so has one colour.
    tuning = {
        "no pre-training": read_metrics(
            workdir / "compare" / "no-pretraining-0" / "finetuning" / "metrics.jsonl"
        ),
        "coCondenser": read_metrics(workdir / "finetuning" / "metrics.jsonl"),
    }

    def lines(runs: dict[str, dict[str, np.ndarray]], key: str) -> list:
        return [curve(label, metrics, key) for label, metrics in runs.items()]

    run = read_json(workdir / "pretraining" / "cocondenser" / "run.json")
    chance = math.log(2 * run["config"]["data"]["documents_per_step"] - 1)
    model, data = run["model"], run["data"]
    write_report(
        workdir / "report.html",
        title="coCondenser quickstart",
        summary="A small coCondenser, pre-trained from scratch on the docstrings of this machine"
        " and fine-tuned to find the passage that a docstring's first paragraph belongs to.",
        facts={
            "pre-training text": f"{data['documents']:,} documents, {data['spans']:,} spans,"
            f" {data['tokens']:,} tokens",
            "model": f"{model['num_hidden_layers']} layers x {model['hidden_size']},"
            f" vocabulary {model['vocab_size']:,}",
            "seed": str(run["config"]["seed"]),
            "data hash": data["sha256"],
            "versions": ", ".join(f"{name} {number}" for name, number in run["versions"].items()),
        },
        panels=[
            Panel("MLM loss per masked token", lines(stages, "head_mlm_loss")),
            Panel(
                "contrastive loss per span",
                lines(stages, "contrastive_loss"),
                reference=(chance, "chance"),
            ),
            Panel("fine-tuning loss per query", lines(tuning, "loss"), from_zero=True),
            Panel("spans per second", lines(stages, "spans_per_second"), from_zero=True),
        ],
        rows=rows,
        table_note=f"{task.N_TEST_QUERIES:,} held-out first paragraphs over all passages. Seconds:"
        " pre-training, fine-tuning, encoding and search.",
        examples=examples,
        search_command=search_command,
    )
