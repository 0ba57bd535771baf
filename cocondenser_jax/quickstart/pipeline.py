"""What whole pipelines share: retrievers that are made, searched with and compared; resuming.

    DIR/started.json   which command works here, and on what
    DIR/store/         the token store
    DIR/bm25.trec      what BM25 finds for the test queries
    DIR/model/  DIR/retriever/  DIR/index/  DIR/test.trec
                       the last model of the comparison, the retriever made of it, its index over
                       the passages, and what it finds
    DIR/compare/       the same of the others
    DIR/seconds.json   how long each result took, interruptions included
    DIR/results.json   DIR/report.html

A step whose result exists is skipped, so an interrupted pipeline resumes.
"""

import contextlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cocondenser_jax.analysis.page import searches, write_page
from cocondenser_jax.collection.folder import judgments_file, read_split
from cocondenser_jax.collection.trec import read_run
from cocondenser_jax.convert.to_torch import export_run
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import evaluate_run
from cocondenser_jax.evaluation.significance import compare
from cocondenser_jax.finetune.tasks import finetune
from cocondenser_jax.pretrain.experiment import run_tokens
from cocondenser_jax.quickstart.report import ResultRow, comparison_table, run_sections
from cocondenser_jax.retrieval.bm25 import write_bm25_run
from cocondenser_jax.retrieval.encode import encode_corpus
from cocondenser_jax.retrieval.index import build_index
from cocondenser_jax.retrieval.models import load_retriever
from cocondenser_jax.retrieval.search import open_index, retrieve, search_text
from cocondenser_jax.storage.files import (
    new_folder,
    read_json,
    write_json,
    write_text,
)
from cocondenser_jax.storage.runs import lock_folder, start_or_compare
from cocondenser_jax.warm_start import pretrain

MEASURES = ("MRR@10", "Recall@100", "nDCG@10")
DEPTH = 100  # passages per test query
RESULTS = ("retriever", "index", "test.trec")  # of a candidate


class Candidate(NamedTuple):
    """A model of the comparison."""

    name: str
    folder: Path  # gets `retriever`, `index` and `test.trec`
    model: Path  # the Hugging Face folder that the retriever is made of
    runs: Sequence[Path] = ()  # of its pre-training
    pooling: str = ""  # "": the model folder's own


class Outcome(NamedTuple):
    """What a pipeline found, and how to search its index."""

    rows: list[ResultRow]
    summary: str
    # query -> score, title and text of each passage found, best first
    examples: Mapping[str, Sequence[tuple[float, str, str]]]
    search_command: str
    report: Path


@contextlib.contextmanager
def opened(workdir: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Starts or resumes a pipeline, and keeps other processes out of its folder."""
    with lock_folder(workdir):
        start_or_compare(workdir / "started.json", settings)
        yield


@contextlib.contextmanager
def timed(workdir: Path, result: Path) -> Iterator[None]:
    """Adds the seconds that the block takes to those of a result in `seconds.json`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        name, file = result.relative_to(workdir).as_posix(), workdir / "seconds.json"
        seconds = read_json(file) if file.exists() else {}
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        write_json(file, seconds)


def make_once(workdir: Path, result: Path, make: Callable[..., Any], *of: Any, **how: Any) -> None:
    """Calls `make(*of, result, **how)`, timed, if the result is not there."""
    with timed(workdir, result):
        if not result.exists():
            make(*of, result, **how)


def compare_models(
    workdir: Path,
    data: Path,
    candidates: Iterable[Candidate],
    finetuning: ConfigDict,
    title: str,
    summarise: Callable[[Sequence[ResultRow]], str],
    queries: Sequence[str],
) -> Outcome:
    """Makes a retriever of each model, tests them and BM25, and writes results and report.

    The data has judgments of `test`. A model is asked for when its turn comes; the folder of the
    last one is `workdir`. Settings of fine-tuning are all but model and data; where there are no
    judgments of `train`, only the lengths of texts count. `summarise` says what the rows mean, and
    the queries are searched for as examples.
    """
    sizes: Any = {"split": "test", "depth": DEPTH}
    make_once(workdir, workdir / "bm25.trec", write_bm25_run, data, **sizes)
    compared = []
    for each in candidates:
        retriever, index, run = (each.folder / name for name in RESULTS)
        make_once(workdir, retriever, _make_retriever, each, data, finetuning)
        make_once(workdir, index, _make_index, retriever, data)
        make_once(workdir, run, retrieve, index, retriever, data, **sizes)
        compared.append(each)
    rows = _rows(workdir, data, compared)
    write_json(workdir / "results.json", [row._asdict() for row in rows])
    searcher = open_index(workdir / "index", workdir / "retriever")
    examples = {
        query: [(score, p.title or p.id, p.text) for score, p in search_text(searcher, query, k=3)]
        for query in queries
    }
    places = f"--index={workdir / 'index'}", f"--model={workdir / 'retriever'}"
    program = sys.argv[0] if Path(sys.argv[0]).name == "cocondenser" else "cocondenser"
    command = f"{program} search {shlex.join(places)} --query={shlex.quote(queries[0])}"
    runs = [(run.name, run) for run in dict.fromkeys(run for one in compared for run in one.runs)]
    runs += [(one.name, one.folder / "finetuning") for one in compared]
    outcome = Outcome(rows, summarise(rows), examples, command, workdir / "report.html")
    sections = {
        "Comparison": comparison_table(rows),
        "Example searches": searches(examples, command),
        **run_sections(runs),
    }
    write_page(outcome.report, title, outcome.summary, sections)
    return outcome


def _rows(workdir: Path, data: Path, candidates: Sequence[Candidate]) -> list[ResultRow]:
    """Evaluates what BM25 and each model found, and tests each against the last."""
    results = {"BM25": [workdir / "bm25.trec"]}
    results |= {each.name: [*each.runs, *(each.folder / r for r in RESULTS)] for each in candidates}
    tokens = {each.name: sum(map(_tokens, each.runs)) for each in candidates}
    _, qrels = read_split(data, "test")
    tested = {n: evaluate_run(qrels, read_run(of[-1]), MEASURES) for n, of in results.items()}
    last = tested[candidates[-1].name]
    seconds = read_json(workdir / "seconds.json")
    rows = []
    for name, metrics in tested.items():
        against = compare(last["per_query"], metrics["per_query"])
        p_values = {measure: test["randomisation_p"] for measure, test in against.items()}
        spent = sum(seconds[result.relative_to(workdir).as_posix()] for result in results[name])
        rows.append(ResultRow(name, metrics["mean"], p_values, tokens.get(name, 0.0), spent))
    return rows


def pretrained(workdir: Path, config: ConfigDict, run: Path, model: Path) -> Path:
    """Pre-trains and exports a model that is not there yet, and returns it."""
    if not model.exists():
        with timed(workdir, run):
            pretrain(config, run)
        export_run(run, model)
    return model


def can_train(data: Path) -> bool:
    """Returns whether a data folder has judgments of `train`."""
    with contextlib.suppress(UserError):
        return judgments_file(data, "train").is_file()
    return False


def write_beir(
    folder: Path,
    passages: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Mapping[str, Mapping[str, str]],
) -> None:
    """Writes texts by id, and split → query → its relevant passage, in BEIR's layout."""
    for name, texts in (("corpus", passages), ("queries", queries)):
        write_lines(folder / f"{name}.jsonl", texts)
    (folder / "qrels").mkdir()
    for split, pairs in judged.items():
        rows = "".join(f"{query}\t{passage}\t1\n" for query, passage in pairs.items())
        write_text(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore\n" + rows)


def write_lines(path: Path, texts: Mapping[str, str]) -> None:
    """Writes texts by id as JSON lines."""
    lines = (json.dumps({"_id": name, "title": "", "text": text}) for name, text in texts.items())
    write_text(path, "".join(f"{line}\n" for line in lines))


def _make_retriever(candidate: Candidate, data: Path, finetuning: ConfigDict, out: Path) -> None:
    """Makes a retriever of a model, fine-tuned where there are judgments, else as it is."""
    config = finetuning.copy_and_resolve_references()
    if not can_train(data):
        lengths = config.query_length, config.passage_length
        loaded = load_retriever(candidate.model, *lengths, candidate.pooling or None)
        with new_folder(out) as folder:
            loaded.save_pretrained(str(folder), create_model_card=False)
        return
    config.update(model=str(candidate.model), data=str(data), pooling=candidate.pooling)
    trained = candidate.folder / "finetuning" / "retriever"
    if not trained.exists():  # it does if a kill came between these lines
        finetune(config, trained.parent)
    trained.rename(out)


def _make_index(retriever: Path, data: Path, out: Path) -> None:
    embeddings = out.with_name("embeddings")
    encode_corpus(retriever, data, embeddings)
    build_index(embeddings, out)
    shutil.rmtree(embeddings)


def _tokens(run: Path) -> float:
    config = ConfigDict(read_json(run / "run.json")["config"])
    return run_tokens(config, open_store(Path(config.data.store)))
