"""The quickstart: from no pre-training to coCondenser, on docstrings of this machine's packages.

A docstring's first paragraph says what a thing does, the rest explains it. Finding the rest, a
passage, from the first paragraph is a retrieval task that every machine holds. Some docstrings are
held out as test queries; their first paragraphs are in no training text.

    DIR/data/          the task in BEIR layout, and pretrain.jsonl to pre-train on
    DIR/tokenizer/     WordPiece vocabulary of that text
    DIR/pretraining/   the run folders of the two stages

The rest is that of every pipeline.
"""

from collections import Counter
from collections.abc import Iterator
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
from cocondenser_jax.pretrain.loop import new_model
from cocondenser_jax.quickstart.pipeline import (
    Candidate,
    Outcome,
    compare_models,
    make_once,
    opened,
    pretrained,
    write_beir,
    write_lines,
)
from cocondenser_jax.storage.files import new_folder

VOCAB_SIZE = 8192
SEED = 0
N_TEST_QUERIES = 1000
MIN_QUERY_WORDS = 4  # "Examples:" and "See also" are not queries
MIN_PASSAGE_WORDS = 10
EXAMPLE_QUERIES = (
    "solve a linear system with a triangular matrix",
    "learning rate schedule that decays with a cosine",
    "remove missing values from a table",
)
SUMMARY = (
    "A small coCondenser, pre-trained from scratch on the docstrings of this machine and fine-tuned"
    " to find the passage that a docstring's first paragraph belongs to."
)


def quickstart(workdir: Path) -> Outcome:
    """Compares BM25, no pre-training, Condenser and coCondenser; resumes an earlier call.

    `pipeline.py` and the head of this file say what `workdir` will hold.
    """
    with opened(workdir, {"command": "quickstart"}):
        data, tokenizer, store = (workdir / name for name in ("data", "tokenizer", "store"))
        make_once(workdir, data, write_task)
        text, length = data / "pretrain.jsonl", pretraining.get_config().data.length
        make_once(workdir, tokenizer, build_vocabulary, [str(text)], size=VOCAB_SIZE)
        make_once(workdir, store, build_store, str(text), str(tokenizer), max_tokens=length)
        config = finetuning.get_config().unlock()
        config.seed = SEED
        n_queries = len(read_split(data, "test")[0])
        summary = f"{SUMMARY} Test: {n_queries:,} held-out first paragraphs over all passages."
        return compare_models(
            workdir,
            data,
            _candidates(workdir),
            config,
            "coCondenser quickstart",
            lambda rows: summary,
            EXAMPLE_QUERIES,
        )


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
    test, train = names[:N_TEST_QUERIES], names[N_TEST_QUERIES:]
    passages = {name: rest for name, _, rest in docs}
    queries = {docs[i][0]: docs[i][1] for i in numbers}
    judged = {split: {n: n for n in names} for split, names in (("test", test), ("train", train))}
    held_out = set(test)
    texts = {n: rest if n in held_out else f"{first}\n\n{rest}" for n, first, rest in docs}
    with new_folder(folder) as new:
        write_beir(new, passages, queries, judged)
        write_lines(new / "pretrain.jsonl", texts)


def _candidates(workdir: Path) -> Iterator[Candidate]:
    """Yields the models, each pre-trained and exported when its turn comes."""
    store, compare = workdir / "store", workdir / "compare"
    condenser, cocondenser = (workdir / "pretraining" / s for s in ("condenser", "cocondenser"))

    none = compare / "no-pretraining"
    if not (none / "model").exists():
        shape, params = new_model(_config("condenser", store).model, SEED, open_store(store))
        facts = {"step": 0, "config": {"seed": SEED}}
        export_folder(params, shape, workdir / "tokenizer", none / "model", facts)
    yield Candidate("no pre-training", none, none / "model")

    config, folder = _config("condenser", store), compare / "condenser"
    model = pretrained(workdir, config, condenser, folder / "model")
    yield Candidate("Condenser", folder, model, [condenser])

    config = _config("cocondenser", store, warm_start=str(condenser))
    model = pretrained(workdir, config, cocondenser, workdir / "model")
    yield Candidate("coCondenser", workdir, model, [condenser, cocondenser])


def _config(stage: str, store: Path, warm_start: str = "") -> ConfigDict:
    config = pretraining.get_config(stage).unlock()
    config.data.store, config.seed, config.warm_start = str(store), SEED, warm_start
    return config.lock()
