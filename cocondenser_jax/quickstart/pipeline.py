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

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from cocondenser_jax.analysis.page import write_page
from cocondenser_jax.collection.folder import read_split
from cocondenser_jax.collection.trec import read_run
from cocondenser_jax.convert.to_torch import export_run
from cocondenser_jax.evaluation.ranking import Metrics, evaluate_run
from cocondenser_jax.evaluation.significance import compare
from cocondenser_jax.finetune.tasks import finetune
from cocondenser_jax.quickstart.report import NOTE, ResultRow, comparison_table, read_runs
from cocondenser_jax.quickstart.steps import SECONDS, make_once
from cocondenser_jax.retrieval.bm25 import write_bm25_run
from cocondenser_jax.retrieval.encode import encode_corpus
from cocondenser_jax.retrieval.index import build_index
from cocondenser_jax.retrieval.search import retrieve
from cocondenser_jax.storage.files import read_json, write_json, write_text
from cocondenser_jax.warm_start import pretrain

DEPTH = 100  # passages per test query


class Candidate(NamedTuple):
    """A model of the comparison."""

    name: str
    folder: Path  # gets its retriever, index and test.trec
    model: Path  # the Hugging Face folder that the retriever is made of
    runs: Mapping[Path, Path] = {}  # of its pre-training -> the models exported from them


def pretrain_once(workdir: Path, config: ConfigDict, run: Path, model: Path) -> Path:
    """Pre-trains in the run folder and exports the model, if it is not there; returns the model."""

    def train_and_export(model: Path) -> None:
        pretrain(config, run)
        export_run(run, model)

    return make_once(workdir, model, train_and_export)


def compare_models(
    workdir: Path, data: Path, candidates: Sequence[Candidate], finetuning: ConfigDict
) -> list[ResultRow]:
    """Makes a retriever of each model, searches with it and with BM25, and evaluates them.

    Args:
      workdir: of the pipeline.
      data: a folder with judgments of `train` and `test`.
      candidates: the models; each is tested against the last.
      finetuning: settings of fine-tuning but for model and data.
    """
    find_words = partial(write_bm25_run, data, split="test", depth=DEPTH)
    make_once(workdir, workdir / "bm25.trec", find_words)
    for each in candidates:
        search = partial(_search, each, data, finetuning)
        make_once(workdir, each.folder / "test.trec", search)
    rows = evaluate_models(workdir, data, candidates)
    write_json(workdir / "results.json", [row._asdict() for row in rows])
    return rows


def evaluate_models(workdir: Path, data: Path, candidates: Sequence[Candidate]) -> list[ResultRow]:
    """Evaluates what BM25 and each model found, and tests each against the last."""
    made = {"BM25": [workdir / "bm25.trec"]}
    for each in candidates:
        made[each.name] = [*each.runs.values(), each.folder / "test.trec"]
    _, qrels = read_split(data, "test")
    tested = {name: evaluate_run(qrels, read_run(of[-1])) for name, of in made.items()}
    return result_rows(workdir, tested, made, candidates[-1].name)


def result_rows(
    workdir: Path,
    tested: Mapping[str, Metrics],
    made: Mapping[str, Sequence[Path]],
    against: str,
) -> list[ResultRow]:
    """Returns a row for each ranking, tested against the one that is named.

    Args:
      workdir: of the pipeline.
      tested: name → metrics.
      made: name → the results in `workdir` that it took.
      against: the name.
    """
    seconds = read_json(workdir / SECONDS)
    rows = []
    for name, metrics in tested.items():
        tests = compare(tested[against]["per_query"], metrics["per_query"])
        p_values = {}
        if name != against:
            p_values = {measure: test["randomisation_p"] for measure, test in tests.items()}
        spent = sum(seconds[path.relative_to(workdir).as_posix()] for path in made[name])
        rows.append(ResultRow(name, metrics["mean"], p_values, spent))
    return rows


def write_report(
    workdir: Path,
    title: str,
    summary: str,
    rows: Sequence[ResultRow],
    candidates: Sequence[Candidate],
) -> None:
    """Writes the report: what the rows mean, and the runs of the models."""
    runs = {run.name: run for each in candidates for run in each.runs}
    runs |= {each.name: each.folder / "finetuning" for each in candidates}
    table = comparison_table(rows)
    write_page(workdir / "report.html", title, summary, read_runs(runs), table, NOTE)


def write_beir(
    folder: Path,
    passages: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Mapping[str, Mapping[str, str]],
) -> None:
    """Writes texts by id, and split → query → its relevant passage, in BEIR's layout."""
    write_lines(folder / "corpus.jsonl", passages)
    write_lines(folder / "queries.jsonl", queries)
    (folder / "qrels").mkdir()
    for split, pairs in judged.items():
        rows = "".join(f"{query}\t{passage}\t1\n" for query, passage in pairs.items())
        write_text(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore\n" + rows)


def write_lines(path: Path, texts: Mapping[str, str]) -> None:
    """Writes texts by id as JSON lines."""
    lines = (json.dumps({"_id": name, "title": "", "text": text}) for name, text in texts.items())
    write_text(path, "".join(f"{line}\n" for line in lines))


def _search(candidate: Candidate, data: Path, finetuning: ConfigDict, out: Path) -> None:
    """Searches with a candidate, once it has a retriever and an index."""
    retriever = candidate.folder / "retriever"
    index = candidate.folder / "index"
    if not retriever.exists():
        _make_retriever(candidate, data, finetuning, retriever)
    if not index.exists():
        embeddings = candidate.folder / "embeddings"
        # On every machine alike: the figures are compared with those of the README.
        encode_corpus(retriever, data, embeddings, precision="float32")
        build_index(embeddings, index)
        shutil.rmtree(embeddings)
    retrieve(index, retriever, data, out, split="test", depth=DEPTH)


def _make_retriever(candidate: Candidate, data: Path, finetuning: ConfigDict, out: Path) -> None:
    """Fine-tunes a model."""
    config = finetuning.copy_and_resolve_references()
    config.update(model=str(candidate.model), data=str(data))
    trained = candidate.folder / "finetuning" / "retriever"
    if not trained.exists():  # it does if a kill came between these lines
        finetune(config, trained.parent)
    trained.rename(out)
