"""Sentences by all-MiniLM-L6-v2, and answers to XQuAD's questions by BM25."""

from experiments.data import MINILM, WIKIPEDIA_SECTIONS, XQUAD
from papers import commands
from papers.data import STSBENCHMARK
from papers.steps import Command, Step


def stsb(pooling: str) -> Step:
    """The STS Benchmark, by the model as published or its CLS vector."""
    out = f"$WORK/sentences/stsb.{pooling}.json"
    flag = f"--pooling={pooling}"
    data = f"{STSBENCHMARK.out}/sts-test.csv"
    return Step(
        out,
        [_evaluate("stsb", data, MINILM.out, out, flag)],
        needs=[MINILM, STSBENCHMARK],
    )


def sections(pooling: str) -> Step:
    """Triplets of Wikipedia's sections, likewise."""
    out = f"$WORK/sentences/sections.{pooling}.json"
    flag = f"--pooling={pooling}"
    data = f"{WIKIPEDIA_SECTIONS.out}/sections-test.csv"
    return Step(
        out,
        [_evaluate("sections", data, MINILM.out, out, flag)],
        needs=[MINILM, WIKIPEDIA_SECTIONS],
    )


def tuned_stsb() -> Step:
    """The STS Benchmark by the CLS vector after training on its pairs."""
    out = "$WORK/sentences/stsb.json"
    encoder = f"{out}.encoder"
    train = _train("stsb", f"{STSBENCHMARK.out}/sts-train.csv", encoder, "--epochs=2")
    evaluate = _evaluate("stsb", f"{STSBENCHMARK.out}/sts-test.csv", encoder, out)
    return Step(out, [train, evaluate], needs=[MINILM, STSBENCHMARK])


def tuned_sections() -> Step:
    """Triplets of sections by the CLS vector after training on them."""
    out = "$WORK/sentences/sections.json"
    encoder = f"{out}.encoder"
    folder = WIKIPEDIA_SECTIONS.out
    train = _train("sections", f"{folder}/sections-train.csv", encoder, "--length=64")
    evaluate = _evaluate("sections", f"{folder}/sections-test.csv", encoder, out)
    return Step(out, [train, evaluate], needs=[MINILM, WIKIPEDIA_SECTIONS])


def _train(task: str, data: str, out: str, flag: str) -> Command:
    return commands.words(
        "python -m papers.sentences train",
        f"--task={task}",
        f"--model={MINILM.out}",
        "--pooling=cls",
        f"--data={data}",
        flag,
        "--precision=bfloat16",
        f"--out={out}",
    )


def _evaluate(task: str, data: str, model: str, out: str, *flags: str) -> Command:
    return commands.words(
        "python -m papers.sentences evaluate",
        f"--task={task}",
        f"--data={data}",
        f"--model={model}",
        *flags,
        f"--json_out={out}",
    )


def xquad() -> Step:
    """Measures how often BM25 ranks a passage with the answer among the first k."""
    out = "$WORK/xquad/bm25.json"
    evaluate = commands.words(
        "python -m papers.answers evaluate",
        f"--run={out}.trec",
        f"--answers={XQUAD.out}/answers.jsonl",
        f"--corpus={XQUAD.out}",
        f"--json_out={out}",
    )
    return Step(out, [commands.bm25(XQUAD.out, f"{out}.trec"), evaluate], needs=[XQUAD])
