"""The quickstart: from no pre-training to coCondenser, on docstrings of this machine's packages.

A docstring's first paragraph says what a thing does, the rest explains it. Finding the rest, a
passage, from the first paragraph is a retrieval task that every machine holds. Some docstrings are
held out as queries of dev, to choose settings by, and of test, to measure once; their first
paragraphs are in no training text.

    DIR/data/          the task in BEIR layout, and pretrain.jsonl to pre-train on
    DIR/tokenizer/     WordPiece vocabulary of that text
    DIR/pretraining/   the run folders of the two stages

The rest is that of every pipeline.
"""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.collection.folder import read_split
from cocondenser_jax.configs import quickstart as pretraining
from cocondenser_jax.configs import quickstart_finetune as finetuning
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.build import build_store, build_vocabulary
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.pretrain.experiment import resolve
from cocondenser_jax.pretrain.loop import new_model
from cocondenser_jax.quickstart.pipeline import (
    Candidate,
    compare_models,
    pretrain_once,
    write_beir,
    write_lines,
    write_report,
)
from cocondenser_jax.quickstart.report import ResultRow
from cocondenser_jax.quickstart.steps import make_once
from cocondenser_jax.storage.files import new_folder
from cocondenser_jax.storage.runs import lock_folder, start_or_compare

VOCAB_SIZE = 8192
SEED = 0
N_TEST_QUERIES = 1000
N_DEV_QUERIES = 500
MIN_QUERY_WORDS = 4  # "Examples:" and "See also" are not queries
MIN_PASSAGE_WORDS = 10
SUMMARY = (
    "A small coCondenser, pre-trained from scratch on the docstrings of this machine and fine-tuned"
    " to find the passage that a docstring's first paragraph belongs to."
)


def quickstart(workdir: Path) -> tuple[list[ResultRow], str]:
    """Compares BM25, no pre-training, Condenser and coCondenser; resumes an earlier call.

    Returns the rows of the comparison, and what they are in a sentence or two. `pipeline.py` and
    the head of this file say what `workdir` will hold.
    """
    with lock_folder(workdir):
        start_or_compare(workdir / "started.json", {"command": "quickstart"})
        data = make_once(workdir, workdir / "data", write_task)
        text = str(data / "pretrain.jsonl")
        learn = partial(build_vocabulary, [text], size=VOCAB_SIZE)
        tokenizer = make_once(workdir, workdir / "tokenizer", learn)
        length = pretraining.get_config().data.length
        tokenize = partial(build_store, text, str(tokenizer), max_tokens=length)
        store = make_once(workdir, workdir / "store", tokenize)
        candidates = _pretrain_candidates(workdir, store, tokenizer)
        config = finetuning.get_config().unlock()
        config.seed = SEED
        rows = compare_models(workdir, data, candidates, config)
        n_queries = len(read_split(data, "test")[0])
        summary = f"{SUMMARY} Test: {n_queries:,} held-out first paragraphs over all passages."
        write_report(workdir, "coCondenser quickstart", summary, rows, candidates)
        return rows, summary


def write_task(folder: Path) -> None:
    """Writes the retrieval task in BEIR layout, and the text to pre-train on, into `folder`.

    Queries are first paragraphs that belong to one docstring only. Pre-training sees all passages,
    as it would see any corpus to be searched, but no first paragraph of a held-out docstring.
    """
    split = [(name, *text.split("\n\n", 1)) for name, text in read_docstrings()]
    docs = [(name, " ".join(first.split()), rest.strip()) for name, first, rest in split]
    docs = list({rest: (name, first, rest) for name, first, rest in reversed(docs)}.values())[::-1]
    docs = [doc for doc in docs if len(doc[2].split()) >= MIN_PASSAGE_WORDS]
    n_owners = Counter(first for _, first, _ in docs)
    asks = [n_owners[first] == 1 and len(first.split()) >= MIN_QUERY_WORDS for _, first, _ in docs]
    numbers = np.random.default_rng(0).permutation(np.flatnonzero(asks)).tolist()
    names = [docs[i][0] for i in numbers]
    n_held_out = N_TEST_QUERIES + N_DEV_QUERIES
    splits = {
        "test": names[:N_TEST_QUERIES],
        "dev": names[N_TEST_QUERIES:n_held_out],
        "train": names[n_held_out:],
    }
    passages = {name: rest for name, _, rest in docs}
    queries = {docs[i][0]: docs[i][1] for i in numbers}
    judged = {split: {name: name for name in asked} for split, asked in splits.items()}
    held_out = set(names[:n_held_out])
    texts = {n: rest if n in held_out else f"{first}\n\n{rest}" for n, first, rest in docs}
    with new_folder(folder) as new:
        write_beir(new, passages, queries, judged)
        write_lines(new / "pretrain.jsonl", texts)


def _pretrain_candidates(workdir: Path, store: Path, tokenizer: Path) -> list[Candidate]:
    """Pre-trains and exports the models that are not there yet."""
    compare = workdir / "compare"
    condenser_run = workdir / "pretraining" / "condenser"
    cocondenser_run = workdir / "pretraining" / "cocondenser"

    without = compare / "no-pretraining"
    export_new = partial(_export_new, store, tokenizer)
    none = make_once(workdir, without / "model", export_new)

    config = _config("condenser", store)
    folder = compare / "condenser"
    condenser = pretrain_once(workdir, config, condenser_run, folder / "model")

    config = _config("cocondenser", store, warm_start=str(condenser_run))
    cocondenser = pretrain_once(workdir, config, cocondenser_run, workdir / "model")

    runs = {condenser_run: condenser, cocondenser_run: cocondenser}
    return [
        Candidate("no pre-training", without, none),
        Candidate("Condenser", folder, condenser, {condenser_run: condenser}),
        Candidate("coCondenser", workdir, cocondenser, runs),
    ]


def _export_new(store: Path, tokenizer: Path, out: Path) -> None:
    """Exports the parameters that pre-training starts from."""
    tokens = open_store(store)
    shape, params = new_model(resolve(_config("condenser", store), tokens), tokens)
    export_folder(params, shape, tokenizer, out, {"step": 0, "config": {"seed": SEED}})


def _config(stage: str, store: Path, warm_start: str = "") -> ConfigDict:
    config = pretraining.get_config(stage).unlock()
    config.data.store = str(store)
    config.seed = SEED
    config.warm_start = warm_start
    return config.lock()
