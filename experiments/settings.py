"""Variants of the quickstart, with one changed setting each.

A recipe makes a retriever; `on_dev` and `on_test` measure it.
"""

from experiments.data import DOCSTRINGS, QUICKSTART
from papers import commands
from papers.commands import Settings
from papers.steps import Step, within

STAGE_1 = "configs/quickstart.py:condenser"
STAGE_2 = "configs/quickstart.py:cocondenser"
TEXT = f"{DOCSTRINGS.out}/pretrain.jsonl"
STORE = within(QUICKSTART, "store")
N_WORDS = 8192  # of the vocabulary
FORMER_RATE = 0.001  # of stage 1
FORMER_STEPS = 500, 1500  # of both stages


# ---- both stages, with one changed setting ----


def quickstart(words: int = N_WORDS, rate: float = FORMER_RATE, late: bool = True) -> Step:
    """The quickstart's retriever, trained longer, with one of these settings changed."""
    return _finetuned(_stage2(words, rate, late))


def fine_tuned(rate: str, epochs: int = 1) -> Step:
    """The retriever after fine-tuning with another learning rate, or for longer."""
    start = _stage2(N_WORDS, FORMER_RATE, late=True)
    out = f"$WORK/settings/rates/{rate}-{epochs}"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": DOCSTRINGS.out,
        "optimizer.learning_rate": rate,
        "train.epochs": epochs,
    }
    command = commands.finetune("configs/quickstart_finetune.py", out, settings)
    return within(Step(out, [command], needs=[DOCSTRINGS, start], done="retriever"), "retriever")


def contrastive() -> Step:
    """The retriever after the contrastive loss alone, for the steps of both stages."""
    out = "$WORK/settings/contrastive"
    settings: Settings = {
        "data.store": STORE.out,
        "seed": 0,
        "train.objective": "contrastive",
        "train.steps": 1500,
        "optimizer.learning_rate": 0.001,
        "probe.every": 0,
    }
    return _finetuned(
        Step(out, commands.pretrain(STAGE_2, out, settings), needs=[STORE]), {"seed": 0}
    )


def _store(words: int) -> Step:
    tokenizer_folder = f"$WORK/settings/{words}/tokenizer"
    flags = f"--corpus={TEXT}", f"--size={words}", f"--out={tokenizer_folder}"
    tokenizer = Step(
        tokenizer_folder,
        [commands.words("cocondenser vocabulary", *flags)],
        needs=[QUICKSTART],
    )
    out = f"$WORK/settings/{words}/store"
    command = commands.corpus(TEXT, tokenizer.out, out, "--max_length=32")
    return Step(out, [command], needs=[QUICKSTART, tokenizer])


def _stage1(words: int, rate: float, late: bool) -> Step:
    store = _store(words)
    out = f"$WORK/settings/{words}/{rate}-{late}/stage1"
    settings: Settings = {
        "data.store": store.out,
        "optimizer.learning_rate": rate,
        "model.late_mlm": late,
        "train.steps": FORMER_STEPS[0],
        "probe.every": 0,
    }
    return Step(out, commands.pretrain(STAGE_1, out, settings), needs=[store])


def _stage2(words: int, rate: float, late: bool) -> Step:
    store, start = _store(words), _stage1(words, rate, late)
    out = f"$WORK/settings/{words}/{rate}-{late}/stage2"
    settings: Settings = {
        "data.store": store.out,
        "warm_start": start.out,
        "train.steps": FORMER_STEPS[1],
        "probe.every": 0,
    }
    return Step(out, commands.pretrain(STAGE_2, out, settings), needs=[store, start])


def _finetuned(model: Step, settings: Settings | None = None) -> Step:
    """The retriever that the quickstart fine-tunes from a model."""
    out = f"{model.out}.tuned"
    inputs: Settings = {"model.folder": model.out, "data.folder": DOCSTRINGS.out}
    command = commands.finetune(
        "configs/quickstart_finetune.py", out, {**inputs, **(settings or {})}
    )
    return within(Step(out, [command], needs=[DOCSTRINGS, model], done="retriever"), "retriever")


# ---- measurements ----


def on_dev(retriever: Step) -> Step:
    """Measures a retriever on the development queries."""
    return _measured(retriever, "dev")


def on_test(retriever: Step) -> Step:
    """Measures a retriever on the test queries; existing vectors are kept."""
    return _measured(retriever, "test")


def _measured(retriever: Step, split: str) -> Step:
    model, data = retriever.out, DOCSTRINGS.out
    out = f"{model}.{split}.json"
    embeddings, run = f"{model}.embeddings", f"{model}.{split}.trec"
    return Step(
        out,
        [
            commands.encode(model, data, embeddings),
            commands.retrieve(embeddings, model, data, run, f"--split={split}"),
            commands.evaluate(run, f"{data}/qrels/{split}.tsv", "MRR@10,Recall@100", out),
        ],
        needs=[DOCSTRINGS, retriever],
    )
