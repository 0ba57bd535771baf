"""The quickstart: from no pre-training to coCondenser, on docstrings of this machine's packages.

Finding the rest of a docstring (the passage) from its first paragraph (the query) is a retrieval
task for which every machine has data. Some docstrings are held out as queries of dev, for choosing
settings, and of test, for one final measurement; their first paragraphs are in no training text.

    DIR/started.json   marks the folder as one of the quickstart
    DIR/data/          the task in BEIR layout, and pretrain.jsonl to pre-train on
    DIR/tokenizer/     WordPiece vocabulary of that text
    DIR/store/         the token store
    DIR/pretraining/   the workdirs of the two stages
    DIR/bm25.trec      BM25's results for the test queries
    DIR/model/  DIR/retriever/  DIR/index/  DIR/test.trec
                       coCondenser, the retriever fine-tuned from it, its index of the passages, and
                       its results
    DIR/compare/       the same for the other models
    DIR/seconds.json   seconds that each result took, interruptions included
    DIR/results.json   DIR/report.html

A step whose result exists is skipped, so an interrupted quickstart resumes.
"""

import logging
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.configs import quickstart as pretraining
from cocondenser_jax.configs import quickstart_finetune as finetuning
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.build import build_store, build_vocabulary
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.files.runs import lock_folder, start_or_compare
from cocondenser_jax.files.steps import SECONDS, make_once, seconds_of
from cocondenser_jax.files.whole import new_folder, read_object, write_json
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pipelines.pretraining import pretrain_model
from cocondenser_jax.pretrain.experiment import resolve
from cocondenser_jax.pretrain.warm_start import new_model
from cocondenser_jax.retriever.compare.comparison import (
    Trial,
    measure_all,
    rank_by_bm25,
    rank_by_vectors,
)
from cocondenser_jax.retriever.compare.rankings import Ranking, comparison_table, with_tests
from cocondenser_jax.retriever.compare.report import write_report
from cocondenser_jax.retriever.data.beir import write_beir, write_passages
from cocondenser_jax.retriever.data.folder import read_split, read_texts
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.ranking import DEFAULT_METRICS
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.index import build_index
from cocondenser_jax.retriever.train.tasks import finetune

logger = logging.getLogger(__name__)

VOCAB_SIZE = 8192
SEED = 0
N_TEST_QUERIES = 1000
N_DEV_QUERIES = 500
MIN_QUERY_WORDS = 4  # "Examples:" and "See also" are not queries
MIN_PASSAGE_WORDS = 10
# The steps in order, with their seconds on two idle cores of an AMD EPYC.
STEPS = {
    "reading docstrings": 20,
    "learning the vocabulary, building the token store": 10,
    "pre-training Condenser": 80,
    "pre-training coCondenser": 160,
    "fine-tuning and searching: no pre-training": 45,
    "fine-tuning and searching: Condenser": 45,
    "fine-tuning and searching: coCondenser": 45,
    "comparing": 5,
}
# Seconds at the expected pace that are added to those measured: the first steps are too short.
_EXPECTED_BEFORE = 60
STAGES = {"condenser": "Condenser", "cocondenser": "coCondenser"}  # of pre-training, in order
_RESULTS = ("retriever", "index", "test.trec")  # a candidate's, after pre-training
SUMMARY = (
    "A small coCondenser, pre-trained from scratch on the docstrings of this machine and fine-tuned"
    " to find the passage that a docstring's first paragraph belongs to."
)


class Candidate(NamedTuple):
    """A model in the comparison."""

    name: str
    folder: Path  # for its retriever, index and test.trec
    models: Sequence[Path]  # of its pre-training stages; the last one is fine-tuned


def quickstart(workdir: Path) -> tuple[list[Ranking], str]:
    """Compares BM25, no pre-training, Condenser and coCondenser; resumes an earlier call.

    Args:
      workdir: the output folder, described at the top of this file.

    Returns:
      The compared rankings, and a summary in words.
    """
    with lock_folder(workdir):
        start_or_compare(workdir / "started.json", {"command": "quickstart"})
        _announce(workdir, "reading docstrings")
        data = make_once(workdir, workdir / "data", write_collection)
        _announce(workdir, "learning the vocabulary, building the token store")
        text = str(data / "pretrain.jsonl")
        tokenizer = make_once(workdir, workdir / "tokenizer", _learn_vocabulary, text)
        write_store = partial(build_store, max_length=pretraining.get_config().data.length)
        store = make_once(workdir, workdir / "store", write_store, text, tokenizer)
        candidates = _pretrain_candidates(workdir, store, tokenizer)
        trial = Trial(data, metrics=DEFAULT_METRICS)
        bm25 = rank_by_bm25(workdir, trial)
        for candidate in candidates:
            _announce(workdir, f"fine-tuning and searching: {candidate.name}")
            _search(workdir, candidate, trial)
        _announce(workdir, "comparing")
        rankings = compare_candidates(workdir, trial, bm25, candidates)
        write_json(workdir / "results.json", [each.record() for each in rankings])
        n_queries = len(read_split(data, "test")[0])
        summary = f"{SUMMARY} Test: {n_queries:,} held-out first paragraphs over all passages."
        workdirs = {stage: workdir / "pretraining" / stage for stage in STAGES}
        workdirs |= {candidate.name: candidate.folder / "finetuning" for candidate in candidates}
        table = comparison_table(rankings)
        write_report(workdir / "report.html", "coCondenser quickstart", summary, workdirs, table)
        return rankings, summary


def _announce(workdir: Path, step: str) -> None:
    """Logs the number of the next step, and an estimate of the minutes left.

    The estimate uses this machine's pace in earlier steps, from `seconds.json` in `workdir`.
    """
    number = list(STEPS).index(step)
    expected = list(STEPS.values())
    before, left = sum(expected[:number]), sum(expected[number:])
    spent = sum(read_object(workdir / SECONDS, {}).values())
    pace = (spent + _EXPECTED_BEFORE) / (before + _EXPECTED_BEFORE)
    minutes = math.ceil(left * pace / 60)
    logger.info(
        "step %d of %d: %s; about %d minute%s left",
        *(number + 1, len(STEPS), step, minutes, "" if minutes == 1 else "s"),
    )


def compare_candidates(
    workdir: Path, trial: Trial, bm25: Ranking, candidates: Sequence[Candidate]
) -> list[Ranking]:
    """Evaluates the rankings of BM25 and of each model, and tests all against the last."""
    rankings = [bm25]
    for name, folder, models in candidates:
        results = [*models, *(folder / result for result in _RESULTS)]
        seconds = seconds_of(workdir, results)
        rankings.append(Ranking(name, results[-1], model=name, seconds=seconds))
    measured = measure_all(trial, rankings, lambda _: read_texts(trial.passages))
    return with_tests(measured, [candidates[-1].name])


class Docstring(NamedTuple):
    """A docstring in two parts."""

    name: str
    first: str  # the first paragraph, on one line
    rest: str


def write_collection(out: Path) -> None:
    """Writes the retrieval task in BEIR layout, and the text for pre-training, to `out`.

    Queries are first paragraphs of exactly one docstring. Pre-training sees all passages, like any
    corpus to be searched, but no first paragraph of a held-out docstring.
    """
    docstrings = _split_docstrings()
    splits = _split_queries(docstrings)
    held_out = {*splits["test"], *splits["dev"]}
    texts = {}
    for name, first, rest in docstrings:
        texts[name] = rest if name in held_out else f"{first}\n\n{rest}"
    first_paragraphs = {each.name: each.first for each in docstrings}
    queries = {name: first_paragraphs[name] for names in splits.values() for name in names}
    with new_folder(out) as folder:
        passages = [Passage(each.name, "", each.rest) for each in docstrings]
        qrels = {split: {name: {name: 1} for name in names} for split, names in splits.items()}
        write_beir(folder, passages, queries, qrels)
        write_passages(
            folder / "pretrain.jsonl", (Passage(name, "", text) for name, text in texts.items())
        )


def _split_docstrings() -> list[Docstring]:
    """Returns docstrings with a long enough rest, one for each distinct rest."""
    by_rest: dict[str, Docstring] = {}
    for name, text in read_docstrings():
        first, rest = text.split("\n\n", 1)
        docstring = Docstring(name, " ".join(first.split()), rest.strip())
        # Of several docstrings with the same rest, the first one stays, in the place of the last.
        by_rest[docstring.rest] = by_rest.pop(docstring.rest, docstring)
    return [each for each in by_rest.values() if len(each.rest.split()) >= MIN_PASSAGE_WORDS]


def _split_queries(docstrings: Sequence[Docstring]) -> dict[str, list[str]]:
    """Returns the names of the docstrings that are queries, in random order, by split."""
    n_owners = Counter(each.first for each in docstrings)
    candidates = [
        number
        for number, each in enumerate(docstrings)
        if n_owners[each.first] == 1 and len(each.first.split()) >= MIN_QUERY_WORDS
    ]
    names = [docstrings[n].name for n in np.random.default_rng(0).permutation(candidates).tolist()]
    n_held_out = N_TEST_QUERIES + N_DEV_QUERIES
    return {
        "test": names[:N_TEST_QUERIES],
        "dev": names[N_TEST_QUERIES:n_held_out],
        "train": names[n_held_out:],
    }


def _learn_vocabulary(text: str, out: Path) -> None:
    build_vocabulary([text], out, VOCAB_SIZE)


def _pretrain_candidates(workdir: Path, store: Path, tokenizer: Path) -> list[Candidate]:
    """Pre-trains and exports the missing models."""
    without = workdir / "compare" / "no-pretraining"
    new = make_once(workdir, without / "model", _export_new, store, tokenizer)
    candidates = [Candidate("no pre-training", without, [new])]
    folders = {"condenser": workdir / "compare" / "condenser", "cocondenser": workdir}
    models = []
    warm_start = ""
    for stage, name in STAGES.items():
        _announce(workdir, f"pre-training {name}")
        folder = folders[stage]
        training = workdir / "pretraining" / stage
        config = _config(stage, store, warm_start)
        models.append(make_once(workdir, folder / "model", pretrain_model, config, training))
        candidates.append(Candidate(name, folder, [*models]))
        warm_start = str(training)
    return candidates


def _export_new(store: Path, tokenizer: Path, out: Path) -> None:
    """Exports the initial parameters of pre-training."""
    tokens = open_store(store)
    shape, params = new_model(resolve(_config("condenser", store), tokens), tokens)
    export_folder(params, shape, tokenizer, out, {"step": 0, "config": {"seed": SEED}})


def _config(stage: str, store: Path, warm_start: str = "") -> ConfigDict:
    config = pretraining.get_config(stage).unlock()
    config.data.store = str(store)
    config.seed = SEED
    config.warm_start = warm_start
    return config.lock()


def _search(workdir: Path, candidate: Candidate, trial: Trial) -> None:
    """Makes a candidate's retriever and index, and searches for the test queries."""
    retriever, index, run = (candidate.folder / name for name in _RESULTS)
    make_once(workdir, retriever, _finetune, candidate.models[-1], trial.data)
    make_once(workdir, index, _build_index, retriever, trial.data)
    make_once(workdir, run, rank_by_vectors, index, open_model(retriever), trial)


def _finetune(model: Path, data: Path, out: Path) -> None:
    config = finetuning.get_config().unlock()
    config.model.folder = str(model)
    config.data.folder = str(data)
    config.seed = SEED
    trained = out.parent / "finetuning" / "retriever"
    if not trained.exists():  # it exists after a kill between these lines
        finetune(config, trained.parent)
    trained.rename(out)


def _build_index(retriever: Path, data: Path, out: Path) -> None:
    embeddings = out.parent / "embeddings"
    # In float32 on every machine, since the results are compared with the README's.
    encode_corpus(Encoding(open_model(retriever), precision="float32"), data, embeddings)
    build_index(embeddings, out)
    shutil.rmtree(embeddings)
