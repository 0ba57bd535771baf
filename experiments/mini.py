"""What pre-training is worth at a size that two cores can try.

On the quickstart's task, or on Wikipedia's paragraphs, its small network is pre-trained from
scratch in five ways or not at all, then fine-tuned on three numbers of training queries, with three
seeds. Every way reads the same number of tokens: 400 steps of 128 spans of 32 (for coCondenser, 100
steps of Condenser and 300 of its own).
"""

from collections.abc import Callable
from typing import NamedTuple

from cocondenser_jax.errors import lookup
from experiments.data import BOOLQ, DOCSTRINGS, QUICKSTART
from papers import commands
from papers.commands import Settings
from papers.data import BERT
from papers.steps import Step, within


class Amount(NamedTuple):
    """How many training queries are in a batch, and how often each is read."""

    batch: int
    epochs: int


class Corpus(NamedTuple):
    """A collection, its token store, and how a model is fine-tuned on all training queries."""

    name: str
    data: Step
    store: Step
    all_queries: Amount


DOCSTRINGS_CORPUS = Corpus(
    name="docstrings",
    data=DOCSTRINGS,
    store=within(QUICKSTART, "store"),
    all_queries=Amount(64, 1),
)
BOOLQ_CORPUS = Corpus(
    name="boolq",
    data=BOOLQ,
    store=Step(
        "$WORK/mini/boolq/store",
        [commands.corpus(BOOLQ.out, BERT.out, "$WORK/mini/boolq/store", "--max_tokens=32")],
        needs=[BERT, BOOLQ],
    ),
    all_queries=Amount(32, 4),
)
FEW_QUERIES = {100: Amount(32, 15), 1000: Amount(32, 4)}
CORPORA = {corpus.name: corpus for corpus in (DOCSTRINGS_CORPUS, BOOLQ_CORPUS)}


# ---- pre-trained models ----


class Way(NamedTuple):
    """A way to pre-train: the objective, the experiment of configs/quickstart.py, the steps."""

    objective: str
    stage: str
    steps: int


MLM = Way("mlm", "condenser", 400)
ICT = Way("ict", "condenser", 400)
CONDENSER = Way("condenser", "condenser", 400)
CONTRASTIVE = Way("contrastive", "cocondenser", 400)
CONTRASTIVE_2000 = Way("contrastive", "cocondenser", 2000)
DIRECT = Way("cocondenser", "cocondenser", 400)


def _none(corpus: Corpus, seed: int) -> Step:
    """The randomly initialized network."""
    out = f"$WORK/mini/{corpus.name}/models/none-{seed}"
    settings: Settings = {
        "data.store": corpus.store.out,
        "seed": seed,
        "train.steps": 1,
        "optimizer.learning_rate": 0.0,
        "probe.every": 0,
    }
    return Step(
        out,
        commands.pretrain("configs/quickstart.py:condenser", out, settings),
        needs=[corpus.store],
    )


def _pretrained(corpus: Corpus, way: Way, seed: int) -> Step:
    """The same network after one objective."""
    out = f"$WORK/mini/{corpus.name}/models/{way.objective}-{way.steps}-{seed}"
    settings: Settings = {
        "data.store": corpus.store.out,
        "seed": seed,
        "train.objective": way.objective,
        "train.steps": way.steps,
        "optimizer.learning_rate": 0.001,
        "probe.every": 0,
    }
    return Step(
        out,
        commands.pretrain(f"configs/quickstart.py:{way.stage}", out, settings),
        needs=[corpus.store],
    )


def _cocondenser(corpus: Corpus, seed: int) -> Step:
    """The same network after 100 steps of Condenser and 300 of coCondenser."""
    start = _pretrained(corpus, CONDENSER._replace(steps=100), seed)
    out = f"$WORK/mini/{corpus.name}/models/cocondenser-{seed}"
    settings: Settings = {
        "data.store": corpus.store.out,
        "seed": seed,
        "warm_start": start.out,
        "train.steps": 300,
        "probe.every": 0,
    }
    return Step(
        out,
        commands.pretrain("configs/quickstart.py:cocondenser", out, settings),
        needs=[corpus.store, start],
    )


def _by(way: Way) -> Callable[[Corpus, int], Step]:
    return lambda corpus, seed: _pretrained(corpus, way, seed)


MODELS: dict[str, Callable[[Corpus, int], Step]] = {
    "none": _none,
    "mlm": _by(MLM),
    "ict": _by(ICT),
    "condenser": _by(CONDENSER),
    "contrastive": _by(CONTRASTIVE),
    "contrastive2000": _by(CONTRASTIVE_2000),
    "direct": _by(DIRECT),
    "cocondenser": _cocondenser,
}


# ---- fine-tuned and measured ----


def on_test(corpus: str, model: str, queries: int = 0, seed: int = 0) -> Step:
    """Measures a model after fine-tuning on some training queries (0: all)."""
    of_corpus: Corpus = lookup(CORPORA, corpus, "corpus")
    amount = FEW_QUERIES[queries] if queries else of_corpus.all_queries
    data = of_corpus.data
    start: Step = lookup(MODELS, model, "model")(of_corpus, seed)
    tuned = f"$WORK/mini/{corpus}/{model}-{queries}-{seed}"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": data.out,
        "data.train_queries": queries,
        "data.batch_size": amount.batch,
        "train.epochs": amount.epochs,
        "seed": seed,
    }
    command = commands.finetune("configs/quickstart_finetune.py", tuned, settings)
    retriever = Step(tuned, [command], needs=[data, start], done="retriever")

    folder, embeddings, run = f"{tuned}/retriever", f"{tuned}/embeddings", f"{tuned}/test.trec"
    qrels = f"{data.out}/qrels/test.tsv"
    out = f"{tuned}.json"
    return Step(
        out,
        [
            commands.encode(folder, data.out, embeddings),
            commands.retrieve(embeddings, folder, data.out, run, "--split=test"),
            commands.evaluate(run, qrels, "MRR@10,Recall@100", out),
        ],
        needs=[data, retriever],
    )
