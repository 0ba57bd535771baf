"""The networks of configs/small.py, from scratch on Wikipedia, and what their CLS attends to."""

from experiments.data import ARTICLES, BOOLQ
from papers import commands
from papers.commands import Settings
from papers.data import BERT
from papers.steps import Step

STORE = Step(
    "$WORK/small/store",
    [commands.corpus(ARTICLES.out, BERT.out, "$WORK/small/store", "--max_tokens=64")],
    needs=[ARTICLES, BERT],
)


def _pretrained(name: str, stage: str, settings: Settings, start: Step | None = None) -> Step:
    out = f"$WORK/small/{name}"
    config = f"configs/small.py:{stage}"
    return Step(
        out,
        commands.pretrain(config, out, {"data.store": STORE.out, **settings}),
        needs=[STORE, start] if start else [STORE],
    )


NONE = _pretrained("none", "condenser", {"train.steps": 1, "optimizer.learning_rate": 0.0})
CONDENSER = _pretrained("condenser", "condenser", {"train.steps": 1650})
COCONDENSER = _pretrained(
    "cocondenser",
    "cocondenser",
    {"warm_start": CONDENSER.out, "train.steps": 790},
    start=CONDENSER,
)


def _finetuned() -> Step:
    out = "$WORK/small/small_cocondenser-finetuned"
    settings: Settings = {
        "model.folder": COCONDENSER.out,
        "data.folder": BOOLQ.out,
        "data.negatives_per_query": 0,
        "data.batch_size": 64,
        "optimizer.learning_rate": "3e-4",
        "train.epochs": 10,
    }
    command = commands.finetune("configs/finetune.py", out, settings)
    return Step(out, [command], needs=[COCONDENSER, BOOLQ], done="retriever")


def attention() -> Step:
    """Plots the entropy of the attention of CLS by layer."""
    finetuned = _finetuned()
    models = NONE.out, CONDENSER.out, COCONDENSER.out, f"{finetuned.out}/retriever"
    out = "$WORK/small/attention.svg"
    command = commands.words(
        "python -m papers.figures.attention",
        *(f"--model={model}" for model in models),
        f"--texts={BOOLQ.out}",
        f"--out={out}",
        f"--json_out={out}.json",
    )
    return Step(out, [command], needs=[NONE, CONDENSER, COCONDENSER, finetuned, BOOLQ])
