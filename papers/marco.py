"""MS MARCO passages: 502,939 training queries, 532,761 relevant passages among 8,841,823.

A passage judged relevant to a query is never its negative; the papers do not leave those out.
"""

from collections.abc import Callable
from typing import NamedTuple

from cocondenser_jax.errors import lookup
from papers import commands, costs, models, vectors
from papers.commands import Settings
from papers.data import MARCO_TRIPLES, MSMARCO, MSMARCO_UNTITLED
from papers.steps import Epochs, Step, best, choices, label, most
from papers.vectors import Passages, Search

N_QUERIES = 502_939
N_RELEVANT = 532_761
N_PASSAGES = 8_841_823
N_TRIPLES = 400e6
N_DEV = 6_980
SPLITS = {"train": N_QUERIES, "dev.small": N_DEV, "dl19": 43, "held": 2_000}
WORDS = 56  # of a passage
# Floating-point operations to encode, by BERT-base.
PASSAGE = 20.8e9  # of 128 tokens
EIGHT_PASSAGES = 171.5e9  # and a query of 32
PAIR = 26.2e9  # query and passage in one text, for a cross-encoder
EIGHT_PAIRS = 209.4e9
CONFIG = "configs/finetune.py"
ROUND_2_CONFIG = f"{CONFIG}:marco_round2"
CROSS_ENCODER_CONFIG = "configs/cross_encoder.py"


class Collection(NamedTuple):
    """Passages with queries and judgments, and the settings of retrievers for them."""

    passages: Passages
    work: str  # the folder of what is made of them
    settings: Settings

    @property
    def data(self) -> Step:
        """The data folder."""
        return self.passages.data


def _collection(data: Step, characters: float, settings: Settings) -> Collection:
    return Collection(
        passages=Passages(data, data.out, N_PASSAGES, characters, PASSAGE),
        work=data.out.replace("$DATA", "$WORK"),
        settings=settings,
    )


# RocketQA's titles, as Condenser (4.4) and coCondenser (4.2.1) have them, with [SEP] between a
# title and its text, as Tevatron has it; and MS MARCO's own passages, which have none.
TITLED = _collection(MSMARCO, 380, {"model.title_separator": "[SEP]"})
UNTITLED = _collection(MSMARCO_UNTITLED, 340, {})
# While it trains: passages, and at most 400 negatives of each query.
SCRATCH = costs.TRAINING_BYTES + costs.stored_bytes(N_PASSAGES, 380, N_QUERIES * 400)
_COLLECTIONS = {"titled": TITLED, "untitled": UNTITLED}


class Retriever(NamedTuple):
    """A retriever, and the collection that it was trained on and searches."""

    step: Step
    collection: Collection


class Ranker(NamedTuple):
    """A function that makes the run of a split, and the folder of its judgments."""

    run: Callable[[str], Step]
    data: Step


# BM25's, of the official training triples (coCondenser, 4.2.1). About 100,000 queries have none:
# the release leaves them out, here their negatives are drawn from all passages.
_TRIPLES = "$WORK/msmarco/triples.trec"
TRIPLES = Step(
    _TRIPLES,
    [
        commands.words(
            "python -m papers.triples",
            f"--triples={MARCO_TRIPLES.out}",
            "--depth=200",
            f"--out={_TRIPLES}",
        )
    ],
    needs=[MARCO_TRIPLES],
    core_seconds=costs.drawing(N_TRIPLES),
    bytes=costs.run_bytes(400_000 * 200),
)


def negatives(collection: Collection) -> Step:
    """The negatives of round 1, without passages judged relevant."""
    out = f"{collection.work}/negatives.trec"
    command = commands.mine([TRIPLES.out], collection.data.out, 200, out, "--split=train")
    return Step(
        out,
        [command],
        needs=[collection.data, TRIPLES],
        core_seconds=costs.mining(400_000 * 200, 400_000 * 200),
        bytes=costs.run_bytes(400_000 * 200),
    )


# ---- rankings ----


def bm25(k1: float = 0.9, b: float = 0.4) -> Ranker:
    """BM25 over passages without titles.

    The papers have Anserini's figures: 0.184, 0.853 and 0.506 with k1 0.9 and b 0.4, 0.187 and
    0.857 with 0.82 and 0.68.
    """

    def run(split: str) -> Step:
        out = f"$WORK/msmarco/bm25-{k1}-{b}.{split}.trec"
        flags = f"--split={split}", "--depth=1000", f"--k1={k1}", f"--b={b}"
        command = commands.bm25(MSMARCO_UNTITLED.out, out, *flags)
        return Step(
            out,
            [command],
            needs=[MSMARCO_UNTITLED],
            core_seconds=costs.bm25(SPLITS[split], N_PASSAGES, WORDS),
            bytes=costs.run_bytes(SPLITS[split] * 1000),
        )

    return Ranker(run, MSMARCO_UNTITLED)


def round1(model: str, queries: int = 0, epochs: Epochs = 3, passages: str = "titled") -> Retriever:
    """Round 1 on BM25's negatives: 8 queries x 8 passages, 3 epochs, 5e-6 (coCondenser, 4.2.1).

    3 x 532,761 / 8 = 199,785 steps, of 502,939 queries. The author's command (Tevatron,
    examples/coCondenser-marco) has the 400,000 with BM25's negatives: 150,000 steps.
    """
    collection = lookup(_COLLECTIONS, passages, "collection")
    settings: Settings = {"data.train_queries": queries, "train.epochs": f"{epochs}"}
    trained = _trained(
        f"{model}-{queries}/round1-{label(epochs)}",
        models.find(model),
        (collection, negatives(collection)),
        settings,
    )
    flop = (queries or N_RELEVANT) * most(epochs) * 3 * EIGHT_PASSAGES
    return trained._replace(step=trained.step._replace(flop=flop, choices=choices(epochs)))


def _trained(
    name: str,
    start: Step,
    inputs: tuple[Collection, Step],
    settings: Settings,
    config: str = CONFIG,
) -> Retriever:
    """A retriever that is trained for 3 epochs, in a folder of this name; inputs: negatives."""
    collection, pool = inputs
    out = f"{collection.work}/{name}"
    named: Settings = {
        "model.folder": start.out,
        "data.folder": collection.data.out,
        "data.negatives_run": pool.out,
    }
    step = Step(
        out,
        [commands.finetune(config, out, {**named, **collection.settings, **settings})],
        needs=[start, collection.data, pool],
        done="retriever",
        flop=N_RELEVANT * 3 * 3 * EIGHT_PASSAGES,
        bytes=costs.MODEL_BYTES,
        scratch=SCRATCH,
    )
    return Retriever(step, collection)


def round1_few(model: str, queries: int) -> Retriever:
    """Round 1 on few queries, with as many epochs as are best for BERT (Condenser, A.1)."""
    epochs = best(lambda n: held_out("bert", queries, n), of=(5, 10, 40), metric="MRR@10")
    return round1(model, queries, epochs)


def held_out(model: str, queries: int, epochs: int) -> Step:
    """Measures round 1 on the 2,000 queries for choosing the number of epochs."""
    return _measured(round1(model, queries, epochs), "held", "MRR@10")


def round1_projected(model: str, passages: str) -> Retriever:
    """Round 1 with a projection of the CLS vector, v = A h (the draft, equation 6)."""
    collection = lookup(_COLLECTIONS, passages, "collection")
    inputs = collection, negatives(collection)
    return _trained(f"{model}-0/projected", _projected(model), inputs, {})


def _projected(model: str) -> Step:
    start = models.find(model)
    out = f"$WORK/projected/{model}"
    flags = f"--model={start.out}", "--size=768", f"--out={out}"
    return Step(out, [commands.words("python -m papers.project", *flags)], needs=[start])


def round2(model: str, miner: str = "") -> Retriever:
    """Round 2, from the pre-trained model again, with mined negatives (coCondenser, 4.2.1).

    3 epochs are 3 x 532,761 / 8 = 199,785 steps. The author's command has 2 epochs of two files,
    about 400,000 queries with BM25's negatives and 500,000 with mined ones: 2 x 900,000 / 8 =
    225,000. BERT's negatives are mined by Condenser, `miner` (Condenser, 4.4).
    """
    inputs = TITLED, mined(miner or model)
    settings: Settings = {"data.train_queries": 0}
    return _trained(f"{model}-0/round2", models.find(model), inputs, settings, ROUND_2_CONFIG)


def mined(model: str) -> Step:
    """What round 1 ranks high complements the negatives of BM25 (coCondenser, 3.4)."""
    lexical = negatives(TITLED)
    run = dense(round1(model), "train", depth=200)
    out = f"{TITLED.work}/{model}-0/negatives.trec"
    command = commands.mine([lexical.out, run.out], MSMARCO.out, 200, out, "--split=train")
    n_results = 400_000 * 200 + N_QUERIES * 200
    return Step(
        out,
        [command],
        needs=[MSMARCO, lexical, run],
        core_seconds=costs.mining(n_results, n_results),
        bytes=costs.run_bytes(n_results),
    )


# ---- soft labels ----


def soft_labels(model: str) -> Retriever:
    """Round 2, distilled from the scores of a cross-encoder (coCondenser, table 3)."""
    labels = _labels(model)
    settings: Settings = {"loss.name": "soft_labels", "loss.teacher_run": labels.out}
    trained = _trained(
        f"{model}-0/soft", models.find(model), (TITLED, mined(model)), settings, ROUND_2_CONFIG
    )
    return trained._replace(step=trained.step._replace(needs=[*trained.step.needs, labels]))


def _labels(model: str) -> Step:
    """The cross-encoder's scores of all negatives and positives."""
    pool = mined(model)
    judge = cross_encoder(model, pool, f"$WORK/msmarco/{model}-0/judge", {})
    out = f"$WORK/msmarco/{model}-0/labels.trec"
    flags = "--split=train", "--depth=400", "--with_positives"
    return _scored(judge, pool, out, N_QUERIES * 400, *flags)


def _scored(judge: Step, run: Step, out: str, n_pairs: int, *flags: str) -> Step:
    """The passages of a run with the scores of a cross-encoder."""
    command = commands.rerank(f"{judge.out}/cross_encoder", MSMARCO.out, run.out, out, *flags)
    return Step(
        out,
        [command],
        needs=[judge, MSMARCO, run],
        flop=n_pairs * PAIR,
        bytes=costs.run_bytes(n_pairs),
    )


def cross_encoder(model: str, pool: Step, out: str, settings: Settings) -> Step:
    """A cross-encoder that starts from a pre-trained model."""
    start = models.find(model)
    inputs: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO.out,
        "data.negatives_run": pool.out,
    }
    return Step(
        out,
        [commands.finetune(CROSS_ENCODER_CONFIG, out, {**inputs, **settings})],
        needs=[start, MSMARCO, pool],
        done="cross_encoder",
        flop=N_RELEVANT * 3 * 3 * EIGHT_PAIRS,
        bytes=costs.MODEL_BYTES,
        scratch=SCRATCH,
    )


# ---- reranking and fusion ----


def reranked(model: str, seed: int = 42) -> Ranker:
    """The run of round 2, reranked by a cross-encoder trained on such runs."""

    def run(split: str) -> Step:
        judge = cross_encoder(
            model,
            dense(round2(model), "train", depth=200),
            f"$WORK/msmarco/{model}-reranker{seed}",
            {"seed": seed},
        )
        first = dense(round2(model), split)
        out = f"$WORK/msmarco/{model}-reranked{seed}.{split}.trec"
        flags = f"--split={split}", "--depth=1000"
        return _scored(judge, first, out, N_DEV * 1000, *flags)

    return Ranker(run, MSMARCO)


def ensemble(model: str) -> Ranker:
    """The runs of three cross-encoders fused (coCondenser, table 2, has ERNIE and RoBERTa too)."""

    def run(split: str) -> Step:
        runs = [reranked(model, seed).run(split) for seed in (42, 43, 44)]
        out = f"$WORK/msmarco/{model}-ensemble.{split}.trec"
        flags = *(f"--run={one.out}" for one in runs), "--depth=1000", f"--run_out={out}"
        return Step(out, [commands.words("cocondenser fuse", *flags)], needs=runs)

    return Ranker(run, MSMARCO)


# ---- measurements ----


def dev(ranked: Retriever | Ranker) -> Step:
    """Measures a retriever or ranker on the 6,980 development queries."""
    return _measured(ranked, "dev.small", "MRR@10,Recall@100,Recall@1000")


def dl19(ranked: Retriever | Ranker) -> Step:
    """Measures a retriever or ranker on the 43 queries of TREC Deep Learning 2019."""
    return _measured(ranked, "dl19", "nDCG@10")


def _measured(ranked: Retriever | Ranker, split: str, metrics: str) -> Step:
    if isinstance(ranked, Retriever):
        run, data = dense(ranked, split), ranked.collection.data
    else:
        run, data = ranked.run(split), ranked.data
    out = f"{run.out}.json"
    qrels = f"{data.out}/qrels.{split}.tsv"
    return Step(out, [commands.evaluate(run.out, qrels, metrics, out)], needs=[run, data])


def dense(retriever: Retriever, split: str, depth: int = 1000) -> Step:
    """The run of a retriever."""
    step, (passages, _, _) = retriever
    search = Search(passages.data, passages.folder, SPLITS[split], depth, (f"--split={split}",))
    return vectors.run(step, passages, search, f"{step.out}/{split}.trec")


def neighborhood(model: str, miner: str = "") -> Step:
    """The share of round 2's first passages among those of round 1 (coCondenser, figure 3)."""
    first = dense(round1(model), "dev.small")
    second = dense(round2(model, miner), "dev.small")
    out = f"$WORK/figures/neighborhood-{model}.svg"
    command = commands.words(
        "python -m papers.figures.neighborhood",
        f"--stage1={first.out}",
        f"--stage2={second.out}",
        "--n=50,100",
        f"--out={out}",
        f"--json_out={out}.json",
    )
    return Step(out, [command], needs=[first, second])
