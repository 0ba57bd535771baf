"""The papers' design: does each of their claims hold, all else equal?

A base is trained by MLM, like BERT. A1 (MLM) and A2 (Condenser) continue from the base, A3 (the
contrastive loss alone) and A4 (coCondenser) from A2. Each arm sees the same number of tokens, with
the papers' losses, its best learning rate and its own seeds. All are fine-tuned in the same way and
search the text that they were trained on.

A `study` is a .yaml file with a `protocol` of all numbers, written before the first arm ran.
`design` is for a CPU, `design_gpu` for a GPU that is available for minutes (parts.py).
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.errors import lookup
from experiments.data import ARTICLES, BOOLQ_ALL, MINILM
from papers import commands
from papers.commands import Settings
from papers.steps import Best, Step, choices, within
from papers.tables import load_files

CONFIG = "configs/default.py"
DEPTH = 1000
METRICS = "MRR@10,Recall@100,Recall@1000"
PRECISION = "--precision=float32"  # on every machine
Rate = float | Best


class Run(NamedTuple):
    """The results for the questions of a split, and the folder of their judgments."""

    step: Step
    data: Step
    split: str


def protocol(study: str) -> dict[str, Any]:
    """Returns the protocol of a study."""
    found: dict[str, Any] = load_files(Path(__file__).parent)[study]["protocol"]
    return found


# ---- text and questions ----


def store(study: str) -> Step:
    """The token store of the articles, with a vocabulary learned from them."""
    text = protocol(study)["text"]
    out = f"$WORK/{study}/tokenizer"
    vocabulary = commands.words(
        "cocondenser vocabulary",
        f"--corpus={ARTICLES.out}",
        f"--size={text['vocabulary']}",
        f"--out={out}",
    )
    tokenizer = Step(out, [vocabulary], needs=[ARTICLES])
    out = f"$WORK/{study}/store"
    corpus = commands.corpus(ARTICLES.out, tokenizer.out, out, f"--max_length={text['max_tokens']}")
    return Step(out, [corpus], needs=[ARTICLES, tokenizer])


def questions_of(study: str, part: str) -> Step:
    """BoolQ with some training questions held out as `dev`: `all` splits, or only `dev`."""
    of = protocol(study)["questions"]
    out = f"$WORK/{study}/questions"
    command = commands.words(
        "python -m experiments.held_questions",
        f"--data={BOOLQ_ALL.out}",
        f"--questions={of['dev']}",
        f"--passages={of['passages_of_dev']}",
        f"--out={out}",
    )
    return within(Step(out, [command], needs=[BOOLQ_ALL]), part)


def _negatives(study: str) -> Step:
    data, out = questions_of(study, "all"), f"$WORK/{study}/bm25.train.trec"
    return Step(out, [commands.bm25(data.out, out, "--split=train", "--depth=200")], needs=[data])


# ---- pre-training ----


def _pretraining(study: str, of: dict[str, Any], seed: int, rate: Rate) -> Settings:
    return {
        "data.store": store(study).out,
        **protocol(study)["network"],
        **protocol(study)["pretraining"],
        "train.objective": of["objective"],
        "train.steps": of["steps"],
        "data.batch_size": of["batch"],
        "optimizer.learning_rate": f"{rate}",
        "optimizer.warmup_ratio": of["warmup"],
        "seed": seed,
    }


def base_model(study: str) -> Step:
    """The base: MLM from random parameters, in one or two runs; fails if it learned too little."""
    of = protocol(study)["base"]
    out = f"$WORK/{study}/base"
    settings = _pretraining(study, of, of["seed"], of["rate"])
    before = []
    if "first" in of:
        before = [_first_model(study)]
        settings = {**settings, "warm_start": before[0].out}
    train, convert = commands.pretrain(CONFIG, out, settings)
    learned = commands.words(
        "python -m experiments.learned",
        f"--run={out}.run",
        f"--store={store(study).out}",
        f"--least={of['least']}",
        f"--json_out={out}.json",
    )
    return Step(out, [train, learned, convert], needs=[store(study), *before])


def _first_model(study: str) -> Step:
    """The first of two runs of the base."""
    of = protocol(study)["base"]
    out = f"$WORK/{study}/first"
    settings = _pretraining(study, {**of, **of["first"]}, of["seed"], of["first"]["rate"])
    return Step(out, commands.pretrain(CONFIG, out, settings), needs=[store(study)])


def base(study: str = "design") -> Step:
    """Measures the base's held-out loss."""
    model = base_model(study)
    return Step(f"{model.out}.json", needs=[model])


@functools.cache  # an arm is the start of others, and requested for each row
def pretrained(study: str, arm: str, seed: int) -> Step:
    """An arm after all of its steps, at the best rate on dev."""
    of = protocol(study)["arm"]
    rate = Best({rate: _pilot(study, arm, rate) for rate in of["rates"]}, "MRR@10", "$RATE")
    return _trained(study, arm, (of["steps"], seed, rate), f"$WORK/{study}/{arm}-{seed}")


def _pilot(study: str, arm: str, rate: float) -> Step:
    """Measures an arm with fewer steps, at a given rate, on dev."""
    steps = protocol(study)["arm"]["pilot_steps"]
    out = f"$WORK/{study}/pilots/{arm}-{rate}"
    most = max(protocol(study)["finetuning"])
    return _on_dev(study, _tuned(study, _trained(study, arm, (steps, 0, rate), out), most, 0))


def _trained(study: str, arm: str, length: tuple[int, int, Rate], out: str) -> Step:
    """An arm after some steps, with a given seed and rate."""
    steps, seed, rate = length
    of = lookup(protocol(study)["arms"], arm, "arm")
    is_first = of["start"] == "base"
    start = base_model(study) if is_first else pretrained(study, of["start"], seed)
    numbers = {**of, "steps": steps, "warmup": protocol(study)["arm"]["warmup"]}
    settings: Settings = {
        **_pretraining(study, numbers, seed, rate),
        "warm_start": start.out,
        "init_head": of["objective"] == "condenser",  # the base has none
    }
    commands_of = commands.pretrain(CONFIG, out, settings)
    return Step(out, commands_of, needs=[store(study), start], choices=choices(rate))


# ---- fine-tuning ----


def finetuned(arm: str, questions: int, seed: int, study: str = "design") -> Run:
    """The run of a fine-tuned arm, with the best settings for the base."""
    tuned = _tuned(study, pretrained(study, arm, seed), questions, seed)
    return _searched(study, tuned, "all", "test")


def untuned(arm: str, seed: int, study: str = "design") -> Run:
    """The run of an arm without fine-tuning."""
    model = pretrained(study, arm, seed)
    return _searched_by(study, (model, model.out, f"{model.out}.untuned"), "all", "test")


def _tuned(study: str, model: Step, questions: int, seed: int) -> Step:
    """A fine-tuned retriever, with the base's best epochs and rate on dev."""
    rate = _best_rate(study, questions)
    of = protocol(study)["finetuning"][questions]["epochs"]
    tried = {n: _tried(study, questions, rate, n) for n in of}
    chosen = rate, Best(tried, "MRR@10", "$EPOCHS")
    return _fine_tuned(study, model, (questions, seed), chosen, f"{model.out}.{questions}")


@functools.cache
def _best_rate(study: str, questions: int) -> Best:
    of = protocol(study)["finetuning"][questions]
    middle = of["epochs"][len(of["epochs"]) // 2]
    tried = {rate: _tried(study, questions, rate, middle) for rate in of["rates"]}
    return Best(tried, "MRR@10", "$RATE")


def _tried(study: str, questions: int, rate: Rate, epochs: int) -> Step:
    """Measures the base on dev after fine-tuning with given settings."""
    model = base_model(study)
    shown = "best" if isinstance(rate, Best) else rate
    out = f"{model.out}.{questions}-{shown}-{epochs}"
    return _on_dev(study, _fine_tuned(study, model, (questions, 0), (rate, epochs), out))


def _fine_tuned(
    study: str, model: Step, drawn: tuple[int, int], chosen: tuple[Rate, int | Best], out: str
) -> Step:
    """A retriever, fine-tuned on questions drawn by a seed, with a given rate and epochs."""
    (questions, seed), (rate, epochs) = drawn, chosen
    data, negatives = questions_of(study, "all"), _negatives(study)
    settings: Settings = {
        "model.folder": model.out,
        "data.folder": data.out,
        "data.negatives_run": negatives.out,
        "data.train_queries": questions,
        "optimizer.learning_rate": f"{rate}",
        "train.epochs": f"{epochs}",
        "checkpoint.every": 200,
        "seed": seed,
    }
    return Step(
        out,
        [commands.finetune("configs/finetune.py", out, settings)],
        needs=[model, data, negatives],
        done="retriever",
        choices=choices(rate, epochs),
    )


# ---- search and metrics ----


def _searched(study: str, retriever: Step, part: str, split: str) -> Run:
    names = retriever, f"{retriever.out}/retriever", retriever.out
    return _searched_by(study, names, part, split)


def _searched_by(study: str, names: tuple[Step, str, str], part: str, split: str) -> Run:
    """The run of a split over all passages of a part; `names`: a step, its model, the result."""
    need, model, out = names
    data = questions_of(study, part)
    vectors = f"{out}/{split}.embeddings"
    encode = commands.encode(
        model,
        data.out,
        vectors,
        "--max_length=128",
        "--dtype=float16",
        PRECISION,
        f"--json_out={vectors}/encoded.json",
    )
    embeddings = Step(vectors, [encode], needs=[need, data], done="encoded.json", is_temporary=True)
    run = f"{out}/{split}.trec"
    search = commands.retrieve(
        vectors, model, data.out, run, f"--split={split}", f"--depth={DEPTH}"
    )
    return Run(Step(run, [search], needs=[need, embeddings, data]), data, split)


def bm25(study: str = "design") -> Run:
    """The run of BM25."""
    data, out = questions_of(study, "all"), f"$WORK/{study}/bm25.test.trec"
    command = commands.bm25(data.out, out, "--split=test", f"--depth={DEPTH}")
    return Run(Step(out, [command], needs=[data]), data, "test")


def minilm(study: str = "design") -> Run:
    """The run of MiniLM as published."""
    return _searched_by(study, (MINILM, MINILM.out, f"$WORK/{study}/minilm"), "all", "test")


def _on_dev(study: str, retriever: Step) -> Step:
    return measured(_searched(study, retriever, "dev", "dev"))


def measured(run: Run) -> Step:
    """Measures a run."""
    out = f"{run.step.out}.json"
    qrels = f"{run.data.out}/qrels/{run.split}.tsv"
    command = commands.evaluate(run.step.out, qrels, METRICS, out)
    return Step(out, [command], needs=[run.step, run.data])


def planned(name: str, study: str = "design") -> Step:
    """A planned test; one command makes all of them."""
    of, seeds = protocol(study)["tests"], protocol(study)["arm"]["seeds"]
    results = {
        (arm, n): [measured(finetuned(arm, n, seed, study)) for seed in seeds]
        for arm in sorted({arm for pair in of["of"] for arm in pair})
        for n in of["questions"]
    }
    files = {key: ",".join(step.out for step in steps) for key, steps in results.items()}
    tests = [
        word
        for n in of["questions"]
        for arm, other in of["of"]
        for word in (
            f"--test={arm}-{other}-{n}",
            f"--arm={files[arm, n]}",
            f"--other={files[other, n]}",
        )
    ]
    out = f"$WORK/{study}/tests"
    command = commands.words(
        "python -m experiments.planned", f"--metric={of['metric']}", *tests, f"--out={out}"
    )
    needs = [step for steps in results.values() for step in steps]
    return within(Step(out, [command], needs=needs), f"{name}.json")
