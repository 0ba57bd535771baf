"""The papers' design, small but whole: does each of their claims hold, all else equal?

A base learns MLM, as BERT did. From it go on A1 by MLM and A2 by Condenser, and from A2 A3 by the
contrastive loss alone and A4 by coCondenser, each over as many tokens, with the papers' losses, its
best rate and three seeds. All are fine-tuned alike and search the text that they were trained on.
The numbers are the `protocol` of design.yaml, which was written before the first arm ran.
"""

from pathlib import Path
from typing import Any

from cocondenser_jax.errors import lookup
from experiments.data import ARTICLES, BOOLQ_ALL, MINILM
from papers import commands
from papers.commands import Settings
from papers.steps import Best, Step, choices, within
from papers.tables import load_files

PROTOCOL: dict[str, Any] = load_files(Path(__file__).parent)["design"]["protocol"]
CONFIG = "configs/default.py"
ALL = max(PROTOCOL["finetuning"])  # training questions
DEPTH = 1000
METRICS = "MRR@10,Recall@100,Recall@1000"
# Where nobody has a GPU or bfloat16 units the same is computed; who has them needs no other rows.
PRECISION = "--precision=float32"
Rate = float | Best

# ---- text and questions ----

_TOKENIZER = "$WORK/design/tokenizer"
STORE = Step(
    "$WORK/design/store",
    [
        commands.words(
            "cocondenser vocabulary",
            f"--source={ARTICLES.out}",
            f"--size={PROTOCOL['text']['vocabulary']}",
            f"--out={_TOKENIZER}",
        ),
        commands.corpus(
            ARTICLES.out,
            _TOKENIZER,
            "$WORK/design/store",
            f"--max_tokens={PROTOCOL['text']['max_tokens']}",
        ),
    ],
    needs=[ARTICLES],
)
_QUESTIONS = Step(
    "$WORK/design/questions",
    [
        commands.words(
            "python -m experiments.held_questions",
            f"--data={BOOLQ_ALL.out}",
            f"--questions={PROTOCOL['questions']['dev']}",
            f"--passages={PROTOCOL['questions']['passages_of_dev']}",
            "--out=$WORK/design/questions",
        )
    ],
    needs=[BOOLQ_ALL],
)
DATA = within(_QUESTIONS, "all")
DEV = within(_QUESTIONS, "dev")
_NEGATIVES = "$WORK/design/bm25.train.trec"
NEGATIVES = Step(
    _NEGATIVES,
    [commands.bm25(DATA.out, _NEGATIVES, "--split=train", "--depth=200")],
    needs=[DATA],
)

# ---- pre-training ----


def _pretraining(objective: str, steps: int, of: dict[str, Any], seed: int, rate: Rate) -> Settings:
    return {
        "data.store": STORE.out,
        **PROTOCOL["network"],
        **PROTOCOL["pretraining"],
        "train.objective": objective,
        "train.steps": steps,
        "data.batch_size": of["batch"],
        "optimizer.learning_rate": f"{rate}",
        "optimizer.warmup_ratio": of["warmup"],
        "seed": seed,
    }


def _make_base() -> Step:
    """MLM from random parameters; no model where it has learned too little."""
    of = PROTOCOL["base"]
    out = "$WORK/design/base"
    settings = _pretraining(of["objective"], of["steps"], of, of["seed"], of["rate"])
    train, convert = commands.pretrain(CONFIG, out, settings)
    learned = commands.words(
        "python -m experiments.learned",
        f"--run={out}.run",
        f"--store={STORE.out}",
        f"--least={of['least']}",
        f"--json_out={out}.json",
    )
    return Step(out, [train, learned, convert], needs=[STORE])


BASE = _make_base()


def base() -> Step:
    """Measures what the base has learned."""
    return Step(f"{BASE.out}.json", needs=[BASE])


def _start(name: str, seed: int) -> Step:
    return BASE if name == "base" else pretrained(name, seed)


def pretrained(arm: str, seed: int) -> Step:
    """An arm after its pass, at the rate that is best on dev."""
    rate = Best({rate: _pilot(arm, rate) for rate in PROTOCOL["arm"]["rates"]}, "MRR@10", "$RATE")
    return _trained(arm, PROTOCOL["arm"]["steps"], seed, rate, f"$WORK/design/{arm}-{seed}")


def _pilot(arm: str, rate: float) -> Step:
    """Measures on dev a shorter pass at a rate."""
    out = f"$WORK/design/pilots/{arm}-{rate}"
    return _on_dev(_tuned(_trained(arm, PROTOCOL["arm"]["pilot_steps"], 0, rate, out), ALL, 0))


def _trained(arm: str, steps: int, seed: int, rate: Rate, out: str) -> Step:
    of = lookup(PROTOCOL["arms"], arm, "arm") | {"warmup": PROTOCOL["arm"]["warmup"]}
    start = _start(of["start"], seed)
    settings: Settings = {
        **_pretraining(of["objective"], steps, of, seed, rate),
        "warm_start": start.out,
        "init_head": of["objective"] == "condenser",  # the base has none
    }
    commands_of = commands.pretrain(CONFIG, out, settings)
    return Step(out, commands_of, needs=[STORE, start], choices=choices(rate))


# ---- fine-tuning ----


def finetuned(arm: str, questions: int, seed: int) -> Step:
    """The run of an arm that was fine-tuned on some questions, with settings that suit the base."""
    return _searched(_tuned(pretrained(arm, seed), questions, seed), DATA, "test")


def untuned(arm: str, seed: int) -> Step:
    """The run of an arm as it is."""
    model = pretrained(arm, seed)
    out = f"{model.out}.untuned"
    return _searched_by(model, model.out, out, DATA, "test")


def _tuned(model: Step, questions: int, seed: int) -> Step:
    """A retriever; epochs and rate are the best on dev of the base."""
    rate = _best_rate(questions)
    epochs = Best(
        {n: _tried(questions, rate, n) for n in PROTOCOL["finetuning"][questions]["epochs"]},
        "MRR@10",
        "$EPOCHS",
    )
    return _fine_tuned(model, questions, seed, (rate, epochs), f"{model.out}.{questions}")


def _best_rate(questions: int) -> Best:
    of = PROTOCOL["finetuning"][questions]
    middle = of["epochs"][len(of["epochs"]) // 2]
    return Best({rate: _tried(questions, rate, middle) for rate in of["rates"]}, "MRR@10", "$RATE")


def _tried(questions: int, rate: Rate, epochs: int) -> Step:
    """Measures the base on dev after fine-tuning with some settings."""
    shown = "best" if isinstance(rate, Best) else rate
    out = f"{BASE.out}.{questions}-{shown}-{epochs}"
    return _on_dev(_fine_tuned(BASE, questions, 0, (rate, epochs), out))


def _fine_tuned(
    model: Step, questions: int, seed: int, chosen: tuple[Rate, int | Best], out: str
) -> Step:
    rate, epochs = chosen
    settings: Settings = {
        "model.folder": model.out,
        "data.folder": DATA.out,
        "data.negatives_run": NEGATIVES.out,
        "data.train_queries": questions,
        "optimizer.learning_rate": f"{rate}",
        "train.epochs": f"{epochs}",
        "checkpoint.every": 200,
        "seed": seed,
    }
    return Step(
        out,
        [commands.finetune("configs/finetune.py", out, settings)],
        needs=[model, DATA, NEGATIVES],
        done="retriever",
        choices=choices(rate, epochs),
    )


# ---- what is searched, and how it is measured ----


def _searched(retriever: Step, data: Step, split: str) -> Step:
    return _searched_by(retriever, f"{retriever.out}/retriever", retriever.out, data, split)


def _searched_by(need: Step, model: str, out: str, data: Step, split: str) -> Step:
    """The run of a split of questions over all passages of their data folder."""
    embeddings = Step(
        f"{out}/{split}.embeddings",
        [
            commands.encode(
                model,
                data.out,
                f"{out}/{split}.embeddings",
                "--passage_length=128",
                "--dtype=float16",
                PRECISION,
                f"--json_out={out}/{split}.embeddings/encoded.json",
            )
        ],
        needs=[need, data],
        done="encoded.json",
        is_temporary=True,
    )
    run = f"{out}/{split}.trec"
    search = commands.retrieve(
        embeddings.out, model, data.out, run, f"--split={split}", f"--depth={DEPTH}"
    )
    return Step(run, [search], needs=[need, embeddings, data])


def bm25() -> Step:
    """The run of BM25."""
    out = "$WORK/design/bm25.test.trec"
    command = commands.bm25(DATA.out, out, "--split=test", f"--depth={DEPTH}")
    return Step(out, [command], needs=[DATA])


def minilm() -> Step:
    """The run of MiniLM as published."""
    return _searched_by(MINILM, MINILM.out, "$WORK/design/minilm", DATA, "test")


def _on_dev(retriever: Step) -> Step:
    return _measured(_searched(retriever, DEV, "dev"), DEV, "dev")


def on_test(run: Step) -> Step:
    """Measures a run on the test questions."""
    return _measured(run, DATA, "test")


def _measured(run: Step, data: Step, split: str) -> Step:
    out = f"{run.out}.json"
    command = commands.evaluate(run.out, f"{data.out}/qrels/{split}.tsv", METRICS, out)
    return Step(out, [command], needs=[run, data])


def planned(name: str) -> Step:
    """A planned test; all are made at once."""
    of = PROTOCOL["tests"]
    results = {
        (arm, questions): [
            on_test(finetuned(arm, questions, seed)) for seed in PROTOCOL["arm"]["seeds"]
        ]
        for arm in sorted({arm for pair in of["of"] for arm in pair})
        for questions in of["questions"]
    }
    files = {key: ",".join(step.out for step in steps) for key, steps in results.items()}
    tests = [
        f"--test={arm}-{other}-{n}:{files[arm, n]}:{files[other, n]}"
        for n in of["questions"]
        for arm, other in of["of"]
    ]
    out = "$WORK/design/tests"
    command = commands.words(
        "python -m experiments.planned", f"--metric={of['metric']}", *tests, f"--out={out}"
    )
    needs = [step for steps in results.values() for step in steps]
    return within(Step(out, [command], needs=needs), f"{name}.json")
