"""RocketQA's stages (Qu et al., arXiv 2010.08191) on MS MARCO, with BERT instead of ERNIE."""

from papers import commands, costs, models
from papers.commands import Settings
from papers.data import MSMARCO
from papers.marco import (
    CONFIG,
    N_QUERIES,
    N_RELEVANT,
    PAIR,
    SCRATCH,
    TITLED,
    Retriever,
    cross_encoder,
    dense,
    negatives,
)
from papers.steps import Step

QUERY_AND_PASSAGE = 25.9e9  # floating-point operations to encode them
QUERY_AND_5_PASSAGES = 109.0e9


def cross_batch(model: str) -> Retriever:
    """The first stage: 8,192 queries see each other's positives."""
    start = models.find(model)
    out = f"$WORK/msmarco/{model}-rocketqa/cross-batch"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO.out,
        **TITLED.settings,
        "data.negatives_per_query": 0,
        "data.batch_size": 8192,
        "loss.chunk_size": 64,
        "train.epochs": 40,
        "optimizer.learning_rate": "3e-5",
    }
    step = Step(
        out,
        [commands.finetune(CONFIG, out, settings)],
        needs=[start, MSMARCO],
        done="retriever",
        flop=N_RELEVANT * 40 * 4 * QUERY_AND_PASSAGE,
        bytes=costs.MODEL_BYTES,
        scratch=SCRATCH,
    )
    return Retriever(step, TITLED)


def hard(model: str) -> Retriever:
    """The second stage, with negatives that the first ranks highly."""
    return _on_negatives(model, "hard", _mined(model))


def denoised(model: str) -> Retriever:
    """The third stage, without negatives that a cross-encoder considers relevant."""
    return _on_negatives(model, "denoised", _clean(model))


def _on_negatives(model: str, stage: str, pool: Step) -> Retriever:
    start = models.find(model)
    out = f"$WORK/msmarco/{model}-rocketqa/{stage}"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": MSMARCO.out,
        **TITLED.settings,
        "data.negatives_run": pool.out,
        "data.negatives_per_query": 4,
        "data.batch_size": 4096,
        "loss.chunk_size": 64,
        "train.epochs": 10,
        "optimizer.learning_rate": "1e-5",
    }
    step = Step(
        out,
        [commands.finetune(CONFIG, out, settings)],
        needs=[start, MSMARCO, pool],
        done="retriever",
        flop=N_RELEVANT * 10 * 4 * QUERY_AND_5_PASSAGES,
        bytes=costs.MODEL_BYTES,
        scratch=SCRATCH,
    )
    return Retriever(step, TITLED)


def _mined(model: str) -> Step:
    run = dense(cross_batch(model), "train", depth=200)
    out = f"$WORK/msmarco/{model}-rocketqa/negatives.trec"
    command = commands.mine([run.out], MSMARCO.out, 200, out, "--split=train")
    n_results = N_QUERIES * 200
    return Step(
        out,
        [command],
        needs=[MSMARCO, run],
        core_seconds=costs.mining(n_results, n_results),
        bytes=costs.run_bytes(n_results),
    )


def _clean(model: str) -> Step:
    """The cross-encoder gives each pair a probability."""
    judge = cross_encoder(
        model, negatives(TITLED), f"$WORK/msmarco/{model}-binary", {"loss.name": "binary"}
    )
    pool = _mined(model)
    out = f"$WORK/msmarco/{model}-rocketqa/denoised.trec"
    scores = f"{out}.scores.trec"
    denoise = f"--denoise_run={scores}", "--denoise_below=0.1"
    return Step(
        out,
        [
            commands.rerank(
                f"{judge.out}/cross_encoder",
                MSMARCO.out,
                pool.out,
                scores,
                "--split=train",
                "--depth=200",
            ),
            commands.mine([pool.out], MSMARCO.out, 200, out, "--split=train", *denoise),
        ],
        needs=[MSMARCO, pool, judge],
        flop=N_QUERIES * 200 * PAIR,
        bytes=2 * costs.run_bytes(N_QUERIES * 200),
    )
