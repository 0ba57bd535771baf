"""What `adapt` does to all-MiniLM-L6-v2, and what one might train instead for as long."""

from typing import NamedTuple

from experiments.data import MINILM, MPNET, collection
from papers import commands
from papers.commands import Settings
from papers.steps import Step, within

MODELS = {"minilm": MINILM, "mpnet": MPNET}
CORE_MINUTES = 10  # of TSDAE and SimCSE


class Ranked(NamedTuple):
    """A run of the test queries of a collection."""

    run: Step
    data: Step


def _adapted(data: str, length: int = 128, seed: int = 0) -> Step:
    """The folder of `adapt`: the model as published and adapted, their runs and that of BM25."""
    folder = collection(data).out
    out = f"$WORK/adapt/{data}-{seed}"
    command = commands.words(
        "cocondenser adapt",
        f"--corpus={folder}",
        f"--model={MINILM.out}",
        f"--workdir={out}",
        f"--data={folder}",
        f"--config.data.length={length}",
        f"--config.seed={seed}",
    )
    return Step(out, [command], needs=[MINILM, collection(data)], done="test/results.json")


def _compared(data: str) -> Step:
    """The folder of `compare`: the model and all-mpnet-base-v2 as published."""
    folder = collection(data)
    out = f"$WORK/compared/{data}"
    command = commands.words(
        "cocondenser compare",
        f"--data={folder.out}",
        f"--model={MINILM.out}",
        f"--model={MPNET.out}",
        f"--workdir={out}",
    )
    return Step(out, [command], needs=[MINILM, MPNET, folder], done="results.json")


# ---- what ranks ----


def run(data: str, ranking: str, length: int = 128, seed: int = 0) -> Ranked:
    """A run that the test of `adapt` has made, such as bm25 or models/published/dense."""
    return Ranked(within(_adapted(data, length, seed), f"test/{ranking}.trec"), collection(data))


def compared(data: str, ranking: str) -> Ranked:
    """A run that `compare` has made of the model and another, such as models/mpnet/dense."""
    return Ranked(within(_compared(data), f"{ranking}.trec"), collection(data))


def both(data: str, fused: bool = False) -> Ranked:
    """The run of the sum of both models' scores, perhaps fused with that of BM25."""
    folder = _compared(data).out
    out = f"{folder}.both.trec"
    runs = [f"--run={folder}/models/{name}/dense.trec" for name in MODELS]
    command = commands.words("cocondenser fuse", *runs, "--method=min_max", f"--run_out={out}")
    dense = Step(out, [command], needs=[_compared(data)])
    return _ranked(dense, data, _compared_bm25(data) if fused else None)


def with_log(
    data: str, model: str = "minilm", log_split: str | None = None, fused: bool = False
) -> Ranked:
    """The run of a model with a log of queries, perhaps fused with that of BM25."""
    compared = _compared(data)
    out = f"{compared.out}.{model}-log.trec"
    command = commands.words(
        "python -m experiments.query_log",
        f"--model={MODELS[model].out}",
        f"--embeddings={compared.out}/models/{model}/embeddings",
        f"--data={collection(data).out}",
        *([f"--log_split={log_split}"] if log_split else []),
        f"--run_out={out}",
    )
    dense = Step(out, [command], needs=[MODELS[model], compared, collection(data)])
    return _ranked(dense, data, _compared_bm25(data) if fused else None)


def mapped(data: str, fused: bool = False, taught: bool = False) -> Ranked:
    """The run of the model with its vectors centered, or mapped as all-mpnet-base-v2 teaches."""
    compared = _compared(data)
    vectors = f"{compared.out}/models/{{}}/embeddings".format
    out = f"$WORK/adapt/{data}-{'taught' if taught else 'centered'}"
    teacher = [f"--teacher={MPNET.out}", f"--teacher_embeddings={vectors('mpnet')}"]
    command = commands.words(
        "python -m experiments.vector_map",
        f"--model={MINILM.out}",
        f"--embeddings={vectors('minilm')}",
        *(teacher if taught else []),
        f"--out={out}",
    )
    needs = [MINILM, compared, *([MPNET] if taught else [])]
    model = Step(out, [command], needs=needs)
    return _run_of(model, data, _compared_bm25(data) if fused else None)


def alternative(data: str, method: str, fused: bool = False) -> Ranked:
    """The run of the model after TSDAE or SimCSE, perhaps fused with that of BM25."""
    folder = collection(data)
    out = f"$WORK/adapt/{data}-{method}"
    command = commands.words(
        f"python -m experiments.alternatives {method}",
        f"--model={MINILM.out}",
        f"--corpus={folder.out}",
        f"--core_minutes={CORE_MINUTES}",
        f"--out={out}",
    )
    return _run_of(
        Step(out, [command], needs=[MINILM, folder]), data, _bm25(data) if fused else None
    )


def pretrained(data: str, method: str, steps: int, fused: bool = False) -> Ranked:
    """The run of the model after another objective of `pretrain`, on the spans of `adapt`."""
    spans = _adapted(data)
    out = f"$WORK/adapt/{data}-{method}"
    settings: Settings = {
        "data.store": f"{spans.out}/store",
        "warm_start": MINILM.out,
        "train.objective": method,
        "train.chunk_size": 0,
        "train.steps": steps,
    }
    model = Step(out, commands.pretrain("configs/adapt.py", out, settings), needs=[MINILM, spans])
    return _run_of(model, data, _bm25(data) if fused else None)


def _bm25(data: str, seed: int = 0) -> Step:
    return within(_adapted(data, seed=seed), "test/bm25.trec")


def _compared_bm25(data: str) -> Step:
    return within(_compared(data), "bm25.trec")


def _run_of(model: Step, data: str, bm25: Step | None) -> Ranked:
    """The run of a model, fused with that of BM25 if one is named."""
    folder = collection(data)
    out = f"{model.out}.trec"
    embeddings = f"{out}.embeddings"
    encode = commands.encode(model.out, folder.out, embeddings, "--passage_length=256")
    flags = "--split=test", "--depth=100"
    retrieve = commands.retrieve(embeddings, model.out, folder.out, out, *flags)
    return _ranked(Step(out, [encode, retrieve], needs=[model, folder]), data, bm25)


def _ranked(dense: Step, data: str, bm25: Step | None) -> Ranked:
    """A run, fused with that of BM25 if one is named."""
    return Ranked(_fused(dense, bm25) if bm25 else dense, collection(data))


def labeled(
    data: str, model: str, labels: int, epochs: int, fused: bool = False, seed: int = 0
) -> Ranked:
    """The run of the model, published or adapted, after training with in-batch negatives."""
    folder = collection(data)
    start = _adapted(data, seed=seed)
    tuned = f"{start.out}-{model}-{labels}"
    settings: Settings = {
        "model.folder": f"{start.out}/{model}/model",
        "data.folder": folder.out,
        "loss.scale": 20,
        "data.train_queries": labels,
        "data.negatives_per_query": 0,
        "data.batch_size": 32,
        "train.epochs": epochs,
        "optimizer.learning_rate": "2e-5",
        "seed": seed,
    }
    command = commands.finetune("configs/finetune.py", tuned, settings)
    trained = Step(tuned, [command], needs=[start, folder], done="retriever")

    retriever, embeddings = f"{tuned}/retriever", f"{tuned}/embeddings"
    out = f"{tuned}/test.trec"
    encode = commands.encode(retriever, folder.out, embeddings, "--passage_length=256")
    flags = "--split=test", "--depth=100"
    retrieve = commands.retrieve(embeddings, retriever, folder.out, out, *flags)
    dense = Step(out, [encode, retrieve], needs=[trained, folder])
    return Ranked(_fused(dense, _bm25(data, seed)) if fused else dense, folder)


def _fused(run: Step, bm25: Step) -> Step:
    """A run fused with that of BM25, as `adapt` fuses."""
    out = f"{run.out}.fused.trec"
    command = commands.words(
        "cocondenser fuse",
        f"--run={bm25.out}",
        f"--run={run.out}",
        "--method=min_max",
        f"--run_out={out}",
    )
    return Step(out, [command], needs=[run, bm25])


# ---- how it is measured ----


def on_test(ranked: Ranked) -> Step:
    """Measures a run of the test queries."""
    out = f"{ranked.run.out}.json"
    qrels = f"{ranked.data.out}/qrels/test.tsv"
    command = commands.evaluate(ranked.run.out, qrels, "MRR@10,nDCG@10,Recall@100", out)
    return Step(out, [command], needs=[ranked.run, ranked.data])
