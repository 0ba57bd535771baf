"""The quickstart: from no pre-training to coCondenser, on docstrings of this machine's packages.

A docstring's first paragraph says what a thing does, the rest explains it. Finding the rest, a
passage, from the first paragraph is a retrieval task that every machine holds. Some docstrings are
held out as queries of dev, to choose settings by, and of test, to measure once; their first
paragraphs are in no training text.

    DIR/started.json   that the quickstart works here
    DIR/data/          the task in BEIR layout, and pretrain.jsonl to pre-train on
    DIR/tokenizer/     WordPiece vocabulary of that text
    DIR/store/         the token store
    DIR/pretraining/   the run folders of the two stages
    DIR/bm25.trec      what BM25 finds for the test queries
    DIR/model/  DIR/retriever/  DIR/index/  DIR/test.trec
                       coCondenser, the retriever made of it, its index over the passages, and
                       what it finds
    DIR/compare/       the same of the others
    DIR/seconds.json   how long each result took, interruptions included
    DIR/results.json   DIR/report.html

A step whose result exists is skipped, so an interrupted quickstart resumes.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.analysis.report import Ranking, ResultRow, result_rows, write_report
from cocondenser_jax.collection.folder import read_queries, read_split
from cocondenser_jax.collection.trec import read_run
from cocondenser_jax.configs import quickstart as pretraining
from cocondenser_jax.configs import quickstart_finetune as finetuning
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.build import build_store, build_vocabulary
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.evaluation.ranking import evaluate_run
from cocondenser_jax.finetune.tasks import finetune
from cocondenser_jax.pretrain.experiment import resolve
from cocondenser_jax.pretrain.warm_start import new_model
from cocondenser_jax.quickstart.steps import make_once, pretrain_model, seconds_of
from cocondenser_jax.retrieval.bm25 import write_bm25_run
from cocondenser_jax.retrieval.encode import Encoding, encode_corpus
from cocondenser_jax.retrieval.index import build_index
from cocondenser_jax.retrieval.search import open_index, retrieve
from cocondenser_jax.storage.files import new_folder, write_json, write_text
from cocondenser_jax.storage.runs import lock_folder, start_or_compare

VOCAB_SIZE = 8192
SEED = 0
N_TEST_QUERIES = 1000
N_DEV_QUERIES = 500
MIN_QUERY_WORDS = 4  # "Examples:" and "See also" are not queries
MIN_PASSAGE_WORDS = 10
STAGES = {"condenser": "Condenser", "cocondenser": "coCondenser"}  # of pre-training, in order
SUMMARY = (
    "A small coCondenser, pre-trained from scratch on the docstrings of this machine and fine-tuned"
    " to find the passage that a docstring's first paragraph belongs to."
)


class Candidate(NamedTuple):
    """A model of the comparison."""

    name: str
    folder: Path  # gets its retriever, index and test.trec
    models: Sequence[Path]  # those of its pre-training; the retriever is made of the last


def quickstart(workdir: Path) -> tuple[list[ResultRow], str]:
    """Compares BM25, no pre-training, Condenser and coCondenser; resumes an earlier call.

    Returns the rows of the comparison, and what they are in a sentence or two. The head of this
    file says what `workdir` will hold.
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
        make_once(workdir, workdir / "bm25.trec", partial(write_bm25_run, data, split="test"))
        for each in candidates:
            make_once(workdir, each.folder / "test.trec", partial(_search, each, data))
        rows = evaluate_candidates(workdir, data, candidates)
        write_json(workdir / "results.json", [row._asdict() for row in rows])
        n_queries = len(read_split(data, "test")[0])
        summary = f"{SUMMARY} Test: {n_queries:,} held-out first paragraphs over all passages."
        runs = {stage: workdir / "pretraining" / stage for stage in STAGES}
        runs |= {each.name: each.folder / "finetuning" for each in candidates}
        write_report(workdir / "report.html", "coCondenser quickstart", summary, runs, rows)
        return rows, summary


def evaluate_candidates(
    workdir: Path, data: Path, candidates: Sequence[Candidate]
) -> list[ResultRow]:
    """Evaluates what BM25 and each model found, and tests each against the last."""
    files = {"BM25": [workdir / "bm25.trec"]}
    for each in candidates:
        files[each.name] = [*each.models, each.folder / "test.trec"]
    _, qrels = read_split(data, "test")
    rankings = [
        Ranking(
            name=name,
            model="" if name == "BM25" else name,
            is_fused=False,
            metrics=evaluate_run(qrels, read_run(results[-1])),
            seconds=seconds_of(workdir, results),
        )
        for name, results in files.items()
    ]
    return result_rows(rankings, [candidates[-1].name])


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
    held_out = set(names[:n_held_out])
    texts = {n: rest if n in held_out else f"{first}\n\n{rest}" for n, first, rest in docs}
    with new_folder(folder) as new:
        _write_lines(new / "corpus.jsonl", passages)
        _write_lines(new / "queries.jsonl", queries)
        _write_lines(new / "pretrain.jsonl", texts)
        (new / "qrels").mkdir()
        for split_name, asked in splits.items():
            rows = "".join(f"{name}\t{name}\t1\n" for name in asked)
            write_text(new / "qrels" / f"{split_name}.tsv", f"query-id\tcorpus-id\tscore\n{rows}")


def _write_lines(path: Path, texts: Mapping[str, str]) -> None:
    """Writes texts by id as JSON lines."""
    lines = (json.dumps({"_id": name, "title": "", "text": text}) for name, text in texts.items())
    write_text(path, "".join(f"{line}\n" for line in lines))


def _pretrain_candidates(workdir: Path, store: Path, tokenizer: Path) -> list[Candidate]:
    """Pre-trains and exports the models that are not there yet."""
    without = workdir / "compare" / "no-pretraining"
    export_new = partial(_export_new, store, tokenizer)
    none = make_once(workdir, without / "model", export_new)
    candidates = [Candidate("no pre-training", without, [none])]
    folders = {"condenser": workdir / "compare" / "condenser", "cocondenser": workdir}
    models = []
    warm_start = ""
    for stage, name in STAGES.items():
        run = workdir / "pretraining" / stage
        train = partial(pretrain_model, _config(stage, store, warm_start), run)
        models.append(make_once(workdir, folders[stage] / "model", train))
        candidates.append(Candidate(name, folders[stage], [*models]))
        warm_start = str(run)
    return candidates


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


def _search(candidate: Candidate, data: Path, out: Path) -> None:
    """Searches with a candidate, once it has a retriever and an index."""
    retriever = candidate.folder / "retriever"
    index = candidate.folder / "index"
    if not retriever.exists():
        config = finetuning.get_config().unlock()
        config.model.folder = str(candidate.models[-1])
        config.data.folder = str(data)
        config.seed = SEED
        trained = candidate.folder / "finetuning" / "retriever"
        if not trained.exists():  # it does if a kill came between these lines
            finetune(config, trained.parent)
        trained.rename(retriever)
    if not index.exists():
        embeddings = candidate.folder / "embeddings"
        # On every machine alike: the figures are compared with those of the README.
        encode_corpus(Encoding(retriever, precision="float32"), data, embeddings)
        build_index(embeddings, index)
        shutil.rmtree(embeddings)
    retrieve(open_index(index, retriever), read_queries(data, "test"), out)
