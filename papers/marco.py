"""MS MARCO passages: 502,939 training queries, 532,761 relevant passages among 8,841,823.

A passage judged relevant to a query is never its negative; the papers do not leave those out.
"""

from collections.abc import Callable

from papers import commands, models
from papers.commands import Settings
from papers.data import MARCO_TRIPLES, MSMARCO, MSMARCO_UNTITLED
from papers.steps import Epochs, Step, best, label, most

N_QUERIES = 502_939
N_RELEVANT = 532_761
N_PASSAGES = 8_841_823
N_DEV = 6_980
# Floating-point operations to encode, by BERT-base.
PASSAGE = 20.8e9  # of 128 tokens
EIGHT_PASSAGES = 171.5e9  # and a query of 32
PAIR = 26.2e9  # query and passage in one text, for a cross-encoder
EIGHT_PAIRS = 209.4e9
CONFIG = "configs/finetune.py"
ROUND_2_CONFIG = f"{CONFIG}:marco_round2"
CROSS_ENCODER_CONFIG = "configs/cross_encoder.py"

Ranker = Callable[[str], Step]  # makes the run of a split

NEGATIVES_FILE = "$WORK/msmarco/negatives.trec"
# BM25's, of the official training triples (coCondenser, 4.2.1). About 100,000 queries have none:
# the release leaves them out, here their negatives are drawn from all passages.
NEGATIVES = Step(
    NEGATIVES_FILE,
    [
        commands.words(
            "python -m papers.triples",
            f"--triples={MARCO_TRIPLES.out}",
            "--depth=200",
            f"--out={NEGATIVES_FILE}.all",
        ),
        commands.mine([f"{NEGATIVES_FILE}.all"], MSMARCO.out, 200, NEGATIVES_FILE, "--split=train"),
    ],
    needs=[MSMARCO, MARCO_TRIPLES],
)


# ---- what ranks ----


def bm25(k1: float = 0.9, b: float = 0.4) -> Ranker:
    """BM25 over passages without titles.

    The papers have Anserini's figures: 0.184, 0.853 and 0.506 with k1 0.9 and b 0.4, 0.187 and
    0.857 with 0.82 and 0.68.
    """

    def run(split: str) -> Step:
        out = f"$WORK/msmarco/bm25-{k1}-{b}.{split}.trec"
        flags = f"--split={split}", "--depth=1000", f"--k1={k1}", f"--b={b}"
        command = commands.bm25(MSMARCO_UNTITLED.out, out, *flags)
        return Step(out, [command], needs=[MSMARCO_UNTITLED])

    return run


def round1(model: str, queries: int = 0, epochs: Epochs = 3) -> Step:
    """Round 1 on BM25's negatives: 8 queries x 8 passages, 3 epochs, 5e-6 (coCondenser, 4.2.1)."""
    start = models.find(model)
    out = f"$WORK/msmarco/{model}-{queries}/round1-{label(epochs)}"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO.out,
        "data.negatives_run": NEGATIVES.out,
        "data.train_queries": queries,
        "train.epochs": f"{epochs}",
    }
    return Step(
        out,
        [commands.finetune(CONFIG, out, settings)],
        needs=[start, MSMARCO, NEGATIVES],
        done="retriever",
        flop=(queries or N_RELEVANT) * most(epochs) * 3 * EIGHT_PASSAGES,
        epochs=epochs,
    )


def round1_few(model: str, queries: int) -> Step:
    """Round 1 on few queries, with as many epochs as are best for BERT (Condenser, A.1)."""
    epochs = best(lambda n: held_out("bert", queries, n), of=(5, 10, 40), metric="MRR@10")
    return round1(model, queries, epochs)


def held_out(model: str, queries: int, epochs: int) -> Step:
    """Measures round 1 on the 2,000 queries that the number of epochs is chosen by."""
    return _measured(round1(model, queries, epochs), "held", "MRR@10")


def round1_projected(model: str) -> Step:
    """Round 1 with a projection of the CLS vector, v = A h (the draft, equation 6)."""
    start = _projected(model)
    out = f"$WORK/msmarco/{model}-0/projected"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO.out,
        "data.negatives_run": NEGATIVES.out,
    }
    return Step(
        out,
        [commands.finetune(CONFIG, out, settings)],
        needs=[start, MSMARCO, NEGATIVES],
        done="retriever",
        flop=N_RELEVANT * 3 * 3 * EIGHT_PASSAGES,
    )


def _projected(model: str) -> Step:
    start = models.find(model)
    out = f"$WORK/projected/{model}"
    flags = f"--model={start.out}", "--size=768", f"--out={out}"
    return Step(out, [commands.words("python -m papers.project", *flags)], needs=[start])


def round2(model: str, miner: str = "") -> Step:
    """Round 2, from the pre-trained model again, with mined negatives (coCondenser, 4.2.1).

    3 epochs are 3 x 532,761 / 8 = 199,785 steps. The author's command has 2 epochs of two files,
    about 400,000 queries with BM25's negatives and 500,000 with mined ones: 2 x 900,000 / 8 =
    225,000. BERT's negatives are mined by Condenser, `miner` (Condenser, 4.4).
    """
    start = models.find(model)
    negatives = mined(miner or model)
    out = f"$WORK/msmarco/{model}-0/round2"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO.out,
        "data.negatives_run": negatives.out,
        "data.train_queries": 0,
    }
    return Step(
        out,
        [commands.finetune(ROUND_2_CONFIG, out, settings)],
        needs=[start, MSMARCO, negatives],
        done="retriever",
        flop=N_RELEVANT * 3 * 3 * EIGHT_PASSAGES,
    )


def mined(model: str) -> Step:
    """What round 1 ranks high complements the negatives of BM25 (coCondenser, 3.4)."""
    run = dense(round1(model), "train", depth=200)
    out = f"$WORK/msmarco/{model}-0/negatives.trec"
    command = commands.mine([NEGATIVES.out, run.out], MSMARCO.out, 200, out, "--split=train")
    return Step(out, [command], needs=[MSMARCO, NEGATIVES, run])


# ---- soft labels ----


def soft_labels(model: str) -> Step:
    """Round 2, taught by the scores of a cross-encoder (coCondenser, table 3)."""
    start = models.find(model)
    negatives = mined(model)
    labels = _labels(model)
    out = f"$WORK/msmarco/{model}-0/soft"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO.out,
        "data.negatives_run": negatives.out,
        "loss.name": "soft_labels",
        "loss.teacher_run": labels.out,
    }
    return Step(
        out,
        [commands.finetune(ROUND_2_CONFIG, out, settings)],
        needs=[start, MSMARCO, negatives, labels],
        done="retriever",
        flop=N_RELEVANT * 3 * 3 * EIGHT_PASSAGES,
    )


def _labels(model: str) -> Step:
    """The cross-encoder's scores of all negatives and positives."""
    judge = cross_encoder(model, mined(model), f"$WORK/msmarco/{model}-0/judge", {})
    negatives = mined(model)
    out = f"$WORK/msmarco/{model}-0/labels.trec"
    flags = "--split=train", "--depth=400", "--with_positives"
    command = commands.rerank(f"{judge.out}/cross_encoder", MSMARCO.out, negatives.out, out, *flags)
    return Step(out, [command], needs=[judge, MSMARCO, negatives], flop=N_QUERIES * 400 * PAIR)


def cross_encoder(model: str, negatives: Step, out: str, settings: Settings) -> Step:
    """A cross-encoder that starts from a pre-trained model."""
    start = models.find(model)
    inputs: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO.out,
        "data.negatives_run": negatives.out,
    }
    return Step(
        out,
        [commands.finetune(CROSS_ENCODER_CONFIG, out, {**inputs, **settings})],
        needs=[start, MSMARCO, negatives],
        done="cross_encoder",
        flop=N_RELEVANT * 3 * 3 * EIGHT_PAIRS,
    )


# ---- rankings reranked, and several rankings in one ----


def reranked(model: str, seed: int = 42) -> Ranker:
    """The run of round 2, ranked by a cross-encoder that learned from such runs."""

    def run(split: str) -> Step:
        retriever = round2(model)
        judge = cross_encoder(
            model,
            dense(retriever, "train", depth=200),
            f"$WORK/msmarco/{model}-reranker{seed}",
            {"seed": seed},
        )
        first = dense(retriever, split)
        out = f"$WORK/msmarco/{model}-reranked{seed}.{split}.trec"
        flags = f"--split={split}", "--depth=1000"
        command = commands.rerank(f"{judge.out}/cross_encoder", MSMARCO.out, first.out, out, *flags)
        return Step(out, [command], needs=[judge, first, MSMARCO], flop=N_DEV * 1000 * PAIR)

    return run


def ensemble(model: str) -> Ranker:
    """The runs of three cross-encoders fused (coCondenser, table 2, has ERNIE and RoBERTa too)."""

    def run(split: str) -> Step:
        runs = [reranked(model, seed)(split) for seed in (42, 43, 44)]
        out = f"$WORK/msmarco/{model}-ensemble.{split}.trec"
        flags = *(f"--run={one.out}" for one in runs), "--depth=1000", f"--run_out={out}"
        return Step(out, [commands.words("cocondenser fuse", *flags)], needs=runs)

    return run


# ---- how it is measured ----


def dev(ranked: Step | Ranker) -> Step:
    """Measures a retriever, or what makes runs, on the 6,980 development queries."""
    return _measured(ranked, "dev.small", "MRR@10,Recall@100,Recall@1000")


def dl19(ranked: Step | Ranker) -> Step:
    """Measures it on the 43 queries of TREC Deep Learning 2019."""
    return _measured(ranked, "dl19", "nDCG@10")


def _measured(ranked: Step | Ranker, split: str, metrics: str) -> Step:
    run = dense(ranked, split) if isinstance(ranked, Step) else ranked(split)
    out = f"{run.out}.json"
    qrels = f"{MSMARCO.out}/qrels.{split}.tsv"
    return Step(out, [commands.evaluate(run.out, qrels, metrics, out)], needs=[run, MSMARCO])


def dense(retriever: Step, split: str, depth: int = 1000) -> Step:
    """The run of a retriever."""
    embeddings = _embeddings(retriever)
    model = f"{retriever.out}/retriever"
    out = f"{retriever.out}/{split}.trec"
    flags = f"--split={split}", f"--depth={depth}"
    command = commands.retrieve(embeddings.out, model, MSMARCO.out, out, *flags)
    return Step(out, [command], needs=[retriever, embeddings, MSMARCO])


def _embeddings(retriever: Step) -> Step:
    model, out = f"{retriever.out}/retriever", f"{retriever.out}/embeddings"
    return Step(
        out,
        [commands.encode(model, MSMARCO.out, out, "--dtype=float16")],
        needs=[retriever, MSMARCO],
        done="manifest.json",
        flop=N_PASSAGES * PASSAGE,
    )


def neighborhood(model: str, miner: str = "") -> Step:
    """How much of round 2's first passages are among those of round 1 (coCondenser, figure 3)."""
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
