"""MS MARCO documents: 367,013 training queries, the first 512 tokens of 3,213,835 documents."""

from collections.abc import Callable
from typing import Literal

from papers import commands, costs, models, vectors
from papers.commands import Settings
from papers.data import MSMARCO_DOCUMENTS
from papers.steps import Step
from papers.vectors import Passages, Search

N_QUERIES = 367_013
N_DOCUMENTS = 3_213_835
DOCUMENT = 89.8e9  # floating-point operations to encode one, by BERT-base
EIGHT_DOCUMENTS = 723.5e9  # and a query of 32 tokens
WORDS = 1_130  # of a document
CHARACTERS = 6_800
CONFIG = "configs/finetune.py:marco_documents"
DOCUMENTS = Passages(MSMARCO_DOCUMENTS, MSMARCO_DOCUMENTS.out, N_DOCUMENTS, CHARACTERS, DOCUMENT)
SPLITS = {"train": N_QUERIES, "dev": 5_193, "dl19": 43}

Split = Literal["train", "dev", "dl19"]
Ranker = Callable[[Split], Step]  # makes the run of a split


def bm25() -> Ranker:
    """BM25 of URL, title and body, with k1 0.9 and b 0.4."""
    return _bm25_run


def _bm25_run(split: Split) -> Step:
    out = f"$WORK/msmarco-docs/bm25.{split}.trec"
    command = commands.bm25(MSMARCO_DOCUMENTS.out, out, f"--split={split}", "--depth=100")
    return Step(
        out,
        [command],
        needs=[MSMARCO_DOCUMENTS],
        core_seconds=costs.bm25(SPLITS[split], N_DOCUMENTS, WORDS),
        bytes=costs.run_bytes(SPLITS[split] * 100),
    )


def round1(model: str) -> Step:
    """Round 1 on BM25's negatives (Condenser, 4.4)."""
    return _trained(model, "round1", _bm25_run("train"))


def round2(model: str) -> Step:
    """Round 2, again from the pre-trained model, with negatives that round 1 ranks highly."""
    return _trained(model, "round2", _mined(model))


def _trained(model: str, name: str, negatives: Step) -> Step:
    start = models.find(model)
    out = f"$WORK/msmarco-docs/{model}/{name}"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO_DOCUMENTS.out,
        "data.negatives_run": negatives.out,
    }
    return Step(
        out,
        [commands.finetune(CONFIG, out, settings)],
        needs=[start, MSMARCO_DOCUMENTS, negatives],
        done="retriever",
        flop=N_QUERIES * 3 * 3 * EIGHT_DOCUMENTS,
        bytes=costs.MODEL_BYTES,
        scratch=costs.TRAINING_BYTES + costs.stored_bytes(N_DOCUMENTS, CHARACTERS, N_QUERIES * 200),
    )


def _mined(model: str) -> Step:
    lexical = _bm25_run("train")
    run = _dense(round1(model), "train")
    out = f"$WORK/msmarco-docs/{model}/negatives.trec"
    command = commands.mine(
        [lexical.out, run.out], MSMARCO_DOCUMENTS.out, 100, out, "--split=train"
    )
    n_results = 2 * N_QUERIES * 100
    return Step(
        out,
        [command],
        needs=[MSMARCO_DOCUMENTS, lexical, run],
        core_seconds=costs.mining(n_results, n_results),
        bytes=costs.run_bytes(n_results),
    )


def dev(ranked: Step | Ranker) -> Step:
    """Measures a retriever or ranker on the development queries."""
    return _measured(ranked, "dev", "MRR@100")


def dl19(ranked: Step | Ranker) -> Step:
    """Measures a retriever or ranker on the 43 queries of TREC Deep Learning 2019."""
    return _measured(ranked, "dl19", "nDCG@10")


def _measured(ranked: Step | Ranker, split: Split, metrics: str) -> Step:
    run = _dense(ranked, split) if isinstance(ranked, Step) else ranked(split)
    out = f"{run.out}.json"
    qrels = f"{MSMARCO_DOCUMENTS.out}/msmarco-doc{split}-qrels.tsv"
    command = commands.evaluate(run.out, qrels, metrics, out)
    return Step(out, [command], needs=[run, MSMARCO_DOCUMENTS])


def _dense(retriever: Step, split: Split) -> Step:
    folder = MSMARCO_DOCUMENTS.out
    search = Search(MSMARCO_DOCUMENTS, folder, SPLITS[split], 100, (f"--split={split}",))
    return vectors.run(retriever, DOCUMENTS, search, f"{retriever.out}/{split}.trec")
