"""The commands that recipes share, as lists of words."""

from collections.abc import Mapping, Sequence

from papers.steps import Command

Settings = Mapping[str, str | int | float | bool]
# Batches are prepared while a GPU computes.
LOADING: Settings = {"data.loader_workers": 2}


def corpus(source: str, tokenizer: str, out: str, *flags: str) -> Command:
    """Makes a token store."""
    return words(
        "cocondenser corpus",
        f"--corpus={source}",
        f"--tokenizer={tokenizer}",
        *flags,
        f"--out={out}",
    )


def pretrain(config: str, out: str, settings: Settings) -> list[Command]:
    """Pre-trains in the folder OUT.run, and makes a Hugging Face folder of the result."""
    run = f"{out}.run"
    return [
        words(
            "cocondenser pretrain", f"--config={config}", f"--workdir={run}", *overrides(settings)
        ),
        words("cocondenser convert", f"--run_dir={run}", f"--out={out}"),
    ]


def finetune(config: str, workdir: str, settings: Settings) -> Command:
    """Fine-tunes a retriever or a cross-encoder."""
    return words(
        "cocondenser finetune",
        f"--config={config}",
        f"--workdir={workdir}",
        *overrides({**settings, **LOADING}),
    )


def mine(runs: Sequence[str], data: str, depth: int, out: str, *flags: str) -> Command:
    """Takes negatives for the training queries from runs."""
    return words(
        "cocondenser mine",
        *(f"--run={run}" for run in runs),
        f"--data={data}",
        *flags,
        f"--depth={depth}",
        f"--run_out={out}",
    )


def encode(model: str, collection: str, out: str, *flags: str) -> Command:
    """Encodes the passages of a collection."""
    return words(
        "cocondenser encode",
        f"--model={model}",
        f"--corpus={collection}",
        f"--out={out}",
        *flags,
    )


def retrieve(embeddings: str, model: str, data: str, out: str, *flags: str) -> Command:
    """Makes the run of a retriever."""
    return words(
        "cocondenser retrieve",
        f"--embeddings={embeddings}",
        f"--model={model}",
        f"--data={data}",
        *flags,
        f"--run_out={out}",
    )


def bm25(data: str, out: str, *flags: str) -> Command:
    """Makes the run of BM25."""
    return words("cocondenser bm25", f"--data={data}", *flags, f"--run_out={out}")


def rerank(model: str, data: str, run: str, out: str, *flags: str) -> Command:
    """Makes the run of a cross-encoder, which ranks the passages of another run."""
    return words(
        "cocondenser rerank",
        f"--model={model}",
        f"--data={data}",
        f"--run={run}",
        *flags,
        f"--run_out={out}",
    )


def evaluate(run: str, qrels: str, metrics: str, out: str) -> Command:
    """Measures a run."""
    return words(
        "cocondenser evaluate",
        f"--run={run}",
        f"--qrels={qrels}",
        f"--metric={metrics}",
        f"--json_out={out}",
    )


def words(program: str, *flags: str) -> Command:
    """Returns the words of a command."""
    return [*program.split(), *flags]


def overrides(settings: Settings) -> list[str]:
    """Returns the flags that change settings."""
    return [f"--config.{name}={value}" for name, value in settings.items()]
