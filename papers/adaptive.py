"""Adaptive batches, the study in abs.yaml, on queries of MS MARCO's dev.small."""

from papers import commands, marco, models
from papers.data import MSMARCO
from papers.steps import Command, Step

CONFIG = "configs/finetune.py:adaptive"
BATCHES = {10_000: (8, 625), 100_000: (5, 5000)}  # by training queries: pairs, steps to evaluate
EPOCHS = 15
N_RANKED = 3_128_597  # passages
QUERY_AND_PASSAGE = 25.9e9  # floating-point operations to encode them
PASSAGE = 20.8e9


def _splits() -> Step:
    run = marco.bm25()("dev.small")
    out = "$WORK/abs/splits"
    flags = f"--data={MSMARCO.out}", f"--run={run.out}", f"--out={out}"
    return Step(out, [commands.words("python -m papers.abs_data", *flags)], needs=[MSMARCO, run])


SPLITS = _splits()


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
    """3 pairs to remove and the 100 best passages of a query, as in the study's beam search."""
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
    )


# ---- how they are measured ----


def dev(retriever: Step) -> Step:
    """The best of the evaluations during training."""
    return retriever


def full(retriever: Step) -> Step:
    """Measures a retriever on the test queries; every one of about 3 million passages is ranked."""
    embeddings = _embeddings(retriever)
    model, data = f"{retriever.out}/retriever", f"{SPLITS.out}/test"
    out = f"{retriever.out}/full.json"
    run = f"{out}.trec"
    flags = "--split=test", "--depth=100"
    return Step(
        out,
        [
            commands.retrieve(embeddings.out, model, data, run, *flags),
            commands.evaluate(run, f"{data}/qrels.test.tsv", "MRR@100", out),
        ],
        needs=[retriever, embeddings, SPLITS],
    )


def _embeddings(retriever: Step) -> Step:
    model, out = f"{retriever.out}/retriever", f"{retriever.out}/embeddings"
    return Step(
        out,
        [commands.encode(model, f"{SPLITS.out}/test", out, "--dtype=float16")],
        needs=[retriever, SPLITS],
        done="manifest.json",
        flop=N_RANKED * PASSAGE,
    )


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
