"""Adaptive batches, the study in abs.yaml, on queries of MS MARCO's dev.small."""

from papers import commands, costs, marco, models, vectors
from papers.data import MSMARCO_UNTITLED
from papers.steps import Command, Step
from papers.vectors import Passages, Search

CONFIG = "configs/finetune.py:adaptive"
BATCHES = {10_000: (8, 625), 100_000: (5, 5000)}  # by training queries: pairs, steps to evaluate
EPOCHS = 15
N_RANKED = 3_128_597  # passages
QUERY_AND_PASSAGE = 25.9e9  # floating-point operations to encode them
PASSAGE = 20.8e9


def _splits() -> Step:
    run = marco.bm25().run("dev.small")
    out = "$WORK/abs/splits"
    flags = f"--data={MSMARCO_UNTITLED.out}", f"--run={run.out}", f"--out={out}"
    return Step(
        out,
        [commands.words("python -m papers.abs_data", *flags)],
        needs=[MSMARCO_UNTITLED, run],
        bytes=N_RANKED * 340,
    )


SPLITS = _splits()
RANKED = Passages(SPLITS, f"{SPLITS.out}/test", N_RANKED, 340, PASSAGE)


# ---- retrievers, by their batches: learning rate 5e-6, the best of the evaluations ----


def random(model: str, queries: int = 100_000) -> Step:
    """Random batches."""
    return _by_batches(model, queries, "random", "encoder")


def sequential(model: str, queries: int = 100_000) -> Step:
    """Batches in the order of the queries."""
    return _by_batches(model, queries, "sequential", "encoder")


def by_bm25(model: str, queries: int = 100_000) -> Step:
    """Batches that are hard by the scores of BM25."""
    return _by_batches(model, queries, "hard", "bm25")


def by_encoder(model: str, queries: int = 100_000) -> Step:
    """Batches that are hard by the scores of the encoder."""
    return _by_batches(model, queries, "hard", "encoder")


def _by_batches(model: str, queries: int, batches: str, scores: str) -> Step:
    settings = f"--config.data.batches={batches}", f"--config.data.batch_scores={scores}"
    return _trained("cocondenser finetune", model, queries, f"{batches}-{scores}", *settings)


def beam(model: str, queries: int = 100_000) -> Step:
    """Beam search: 3 pairs to remove, as in the study's code, and a query's 100 best passages."""
    flag = "--config.data.batch_depth=100"
    return _trained("python -m papers.abs_beam", model, queries, "beam", flag)


def rank(model: str, queries: int = 100_000) -> Step:
    """Random batches, the loss of learned scores (4.3)."""
    settings = "--config.data.batches=random", "--config.checkpoint.every=0"
    return _trained("python -m papers.abs_rank", model, queries, "rank", *settings)


def _trained(program: str, model: str, queries: int, name: str, *settings: str) -> Step:
    start = models.find(model)
    pairs, every = BATCHES[queries]
    out = f"$WORK/abs/{model}-{queries}-{name}"
    command = commands.words(
        program,
        f"--config={CONFIG}",
        f"--workdir={out}",
        f"--config.model.folder={start.out}",
        f"--config.data.folder={SPLITS.out}",
        f"--config.data.train_queries={queries}",
        f"--config.data.batch_size={pairs}",
        *settings,
        *commands.overrides(commands.LOADING),
        f"--config.eval.every={every}",
        "--config.eval.split=dev",
        f"--config.eval.run={SPLITS.out}/dev.trec",
        f"--json_out={out}/result.json",
    )
    return Step(
        out,
        [command],
        needs=[start, SPLITS],
        done="result.json",
        flop=queries * EPOCHS * 3 * QUERY_AND_PASSAGE,  # without the evaluations
        bytes=costs.MODEL_BYTES,
        scratch=costs.TRAINING_BYTES + costs.stored_bytes(N_RANKED, 340, 0),
    )


# ---- measurements ----


def dev(retriever: Step) -> Step:
    """The best of the evaluations during training."""
    return retriever


def full(retriever: Step) -> Step:
    """Measures a retriever on the test queries, over about 3 million passages."""
    out = f"{retriever.out}/full.json"
    search = Search(SPLITS, RANKED.folder, 4_980, 100, ("--split=test",))
    run = vectors.run(retriever, RANKED, search, f"{out}.trec")
    qrels = f"{RANKED.folder}/qrels.test.tsv"
    return Step(out, [commands.evaluate(run.out, qrels, "MRR@100", out)], needs=[run, SPLITS])


# ---- figures ----


def curves(model: str, queries: int = 100_000) -> Step:
    """Figures 3 and 4: MRR@100 on the development queries during training."""
    runs = {
        "Sequential": sequential(model, queries),
        "Random": random(model, queries),
        "ABS-BM25": by_bm25(model, queries),
        "ABS-Encode": by_encoder(model, queries),
        "ABS-BeamSearch": beam(model, queries),
    }
    out = f"$WORK/figures/abs-{model}-{queries}.svg"
    return Step(out, [_draw("eval_MRR@100", runs, out)], needs=[*runs.values()])


def losses(model: str, queries: int = 100_000) -> Step:
    """Figure 5: the loss of training."""
    runs = {"Random": random(model, queries), "ABS-Encode": by_encoder(model, queries)}
    out = f"$WORK/figures/abs-losses-{model}-{queries}.svg"
    return Step(out, [_draw("loss", runs, out)], needs=[*runs.values()])


def _draw(key: str, runs: dict[str, Step], out: str) -> Command:
    return commands.words(
        "python -m papers.figures.curves",
        f"--key={key}",
        f"--out={out}",
        f"--json_out={out}.json",
        *(f"--run={name},{run.out}" for name, run in runs.items()),
    )
