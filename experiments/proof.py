"""The effect of pre-training on the searched passages, for human-written questions.

Without labels, for a trained model, all-MiniLM-L6-v2: every pre-training reads 28,800 spans, in
pairs for contrastive and coCondenser. From scratch on Wikipedia, with 100 and 2,000 labels.
"""

from experiments import tuned
from experiments.data import ARTICLES, BOOLQ, MINILM
from papers import commands
from papers.commands import Settings
from papers.steps import Step

# ---- MiniLM on BoolQ's paragraphs ----


def bm25() -> Step:
    """The run of BM25."""
    return tuned.bm25_run("boolq", BOOLQ, "test")


def cls() -> Step:
    """The run of the published model's CLS vector."""
    return tuned.untuned_run("boolq", BOOLQ, "cls", 128, precision="float32")


def mean() -> Step:
    """The run of the published model, with mean pooling."""
    return _run("mean", MINILM)


def pretrained(objective: str) -> Step:
    """The run of the CLS vector after pre-training on the paragraphs."""
    store_folder = "$WORK/proof/boolq/store"
    store = Step(
        store_folder,
        [commands.corpus(BOOLQ.out, MINILM.out, store_folder, "--max_length=64")],
        needs=[MINILM, BOOLQ],
    )
    out = f"$WORK/proof/boolq/{objective}-0"
    settings: Settings = {"data.store": store.out, "warm_start": MINILM.out, "seed": 0}
    model = Step(
        out,
        commands.pretrain(f"configs/minilm.py:{objective}", out, settings),
        needs=[MINILM, store],
    )
    return _run(objective, model)


def _run(name: str, model: Step) -> Step:
    out = f"$WORK/proof/boolq/{name}-0-0.test.trec"
    embeddings = f"{out}.embeddings"
    encoding = "--max_length=128", "--batch_size=32"
    searching = "--split=test", "--depth=200"
    return Step(
        out,
        [
            commands.encode(model.out, BOOLQ.out, embeddings, *encoding),
            commands.retrieve(embeddings, model.out, BOOLQ.out, out, *searching),
        ],
        needs=[model, BOOLQ],
    )


# ---- from scratch on Wikipedia, one pass: spans as long as the passages ----

STORE_FOLDER = "$WORK/proof/scratch/store"
STORE = Step(
    STORE_FOLDER,
    [
        commands.words(
            "cocondenser vocabulary",
            f"--corpus={ARTICLES.out}",
            "--size=8192",
            f"--out={STORE_FOLDER}.tokenizer",
        ),
        commands.corpus(
            ARTICLES.out, f"{STORE_FOLDER}.tokenizer", STORE_FOLDER, "--max_length=128"
        ),
    ],
    needs=[ARTICLES],
)


def scratch(model: str, labels: int, epochs: int, rate: float, seed: int) -> Step:
    """The run of the quickstart's network after pre-training, if any, and fine-tuning."""
    start = _untrained() if model == "none" else _pretrained_from_scratch(model, 2270, 0.001)
    out = f"$WORK/proof/scratch/{model}-{labels}-labels-{seed}"
    settings: Settings = {
        "model.folder": start.out,
        "data.folder": BOOLQ.out,
        "data.train_queries": labels,
        "model.passage_length": 128,
        "data.batch_size": 32,
        "train.epochs": epochs,
        "optimizer.learning_rate": rate,
        "seed": seed,
    }
    command = commands.finetune("configs/quickstart_finetune.py", out, settings)
    retriever = Step(out, [command], needs=[start, BOOLQ], done="retriever")
    # bfloat16 is slower on machines without AMX.
    return tuned.run_of(retriever, BOOLQ, precision="float32")


def _untrained() -> Step:
    """The randomly initialized network, after one step with a learning rate of 0."""
    return _pretrained_from_scratch("contrastive", 1, 0.0)


def _pretrained_from_scratch(objective: str, steps: int, rate: float) -> Step:
    out = f"$WORK/proof/scratch/{objective}-{steps}"
    settings: Settings = {
        "data.store": STORE.out,
        "data.length": 128,
        "model.max_position_embeddings": 128,
        "train.objective": objective,
        "train.steps": steps,
        "optimizer.learning_rate": rate,
        "probe.every": 300,
    }
    config = "configs/quickstart.py:cocondenser"
    return Step(out, commands.pretrain(config, out, settings), needs=[STORE])


def on_test(run: Step) -> Step:
    """Measures a run on BoolQ's test questions."""
    return tuned.measured(run, BOOLQ)
