"""The papers' design: arms that differ in what they claim to, and that begin from a base alone."""

import functools
import json
import math
import os
import re
from pathlib import Path

import pytest

from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.settings import FINE_TUNING, load_config
from experiments import design, learned
from experiments.protocol import checksum
from experiments.reproduce import EXPERIMENTS
from papers.steps import run_steps
from papers.tables import load_tables
from tests.papers.rows import check_row, flags, steps
from tests.papers.tiny_data import execute, write_data

pytestmark = pytest.mark.usefixtures("one_length")

TABLES = load_tables(EXPERIMENTS.folder)
STEPS = steps(EXPERIMENTS, "design/tests") | steps(EXPERIMENTS, "design/arms")
N_SPANS = 289_851  # of the articles


def configs(command):
    """Returns the settings of the design's commands of a kind, by what they make."""
    found = {}
    for step in STEPS.values():
        for words in step.commands:
            if words[1] == command:
                given = dict(flags(words))
                filled = [w.replace("$EPOCHS", "4").replace("$RATE", "0.001") for w in words]
                overrides = [word for word in filled if word.startswith("--config.")]
                tasks = ("pretrain",) if command == "pretrain" else FINE_TUNING
                config = load_config(given["--config"], overrides, tasks=tasks)
                found[given["--workdir"].removeprefix("W/design/")] = config
    return found


@pytest.mark.parametrize(
    "name",
    [
        "design/base",
        "design/first_seed",
        "design/references",
        "design/arms",
        "design/tests",
        "design_gpu/arms",
    ],
)
def test_every_measured_row_names_the_protocol(name):
    current = checksum(design.protocol(name.partition("/")[0]))
    for row, content in TABLES[name]["rows"].items():
        figures = [x for of_test in content["measured"].values() for x in of_test.values()]
        is_measured = None not in figures
        assert is_measured or set(figures) == {None}, row
        assert content.get("protocol") == (current if is_measured else None), row


def test_arms_differ_in_what_they_claim_to():
    arms = configs("pretrain")
    base = arms.pop("base.run")
    assert {name.partition("-")[0].removeprefix("pilots/") for name in arms} == set(
        "A1 A2 A3 A4".split()
    )
    differ = {"train.objective", "warm_start", "init_head", "data.batch_size", "seed",
              "train.steps", "optimizer.learning_rate"}  # fmt: skip
    shared = [flat_without(config, differ) for config in arms.values()]
    assert all(one == shared[0] for one in shared)
    of_base = flat_without(base, differ | {"optimizer.warmup_ratio"})
    assert {name: shared[0][name] for name in of_base} == of_base
    # The papers' losses.
    assert base.model.late_mlm
    assert base.train.mlm_weight == 1.0
    assert base.train.mlm_reduction == "token_mean"
    assert base.train.steps * base.data.batch_size == pytest.approx(5 * N_SPANS, rel=1e-4)
    for name, config in arms.items():
        rows = {"mlm": 1, "condenser": 1, "contrastive": 2, "cocondenser": 2}
        n_spans = config.train.steps * config.data.batch_size * rows[config.train.objective]
        share = 1 / 8 if name.startswith("pilots/") else 1
        assert n_spans == pytest.approx(share * N_SPANS, rel=1e-3)


def flat_without(config, names):
    flat = {f"{group}.{name}": value for group, values in config.to_dict().items()
            if isinstance(values, dict) for name, value in values.items()}  # fmt: skip
    flat |= {name: value for name, value in config.to_dict().items() if not isinstance(value, dict)}
    return {name: value for name, value in flat.items() if name not in names}


@pytest.mark.parametrize(
    ("arm", "objective", "start", "init_head"),
    [
        ("A1", "mlm", "base", False),
        ("A2", "condenser", "base", True),
        ("A3", "contrastive", "A2-{seed}", False),
        ("A4", "cocondenser", "A2-{seed}", False),
    ],
)
def test_an_arm_goes_on_from_its_start_with_the_same_seed(arm, objective, start, init_head):
    arms = configs("pretrain")
    for seed in (0, 1, 2):
        config = arms[f"{arm}-{seed}.run"]
        assert config.seed == seed
        assert config.train.objective == objective
        assert config.warm_start == f"W/design/{start.format(seed=seed)}"
        assert config.init_head == init_head


def test_all_are_fine_tuned_alike():
    tuned = configs("finetune")
    for questions in (100, 2758):
        of_arms = [
            tuned[f"A{arm}-{seed}.{questions}"] for arm in (1, 2, 3, 4) for seed in (0, 1, 2)
        ]
        shared = [flat_without(one, {"model.folder", "seed"}) for one in of_arms]
        assert all(one == shared[0] for one in shared)
        assert shared[0]["data.train_queries"] == questions
        assert [one.seed for one in of_arms] == [0, 1, 2] * 4
    # MS MARCO's recipe.
    assert {(c.data.batch_size, c.data.negatives_per_query) for c in tuned.values()} == {(8, 7)}
    assert {c.data.negatives_run for c in tuned.values()} == {"W/design/bm25.train.trec"}
    assert {c.data.split for c in tuned.values()} == {"train"}


def test_settings_are_chosen_on_dev_alone():
    for step in STEPS.values():
        for choice in step.choices:
            for tried in choice.tried.values():
                (command,) = tried.commands
                assert "--qrels=$WORK/design/questions/dev/qrels/dev.tsv" in command
    # Epochs and rate of fine-tuning are the base's; the rates of arms are their own.
    tuned = next(s for path, s in STEPS.items() if str(path) == "W/design/A3-1.100/retriever")
    assert all("design/base." in one.out for c in tuned.choices for one in c.tried.values())
    trained = STEPS[next(path for path in STEPS if str(path) == "W/design/A3-1")]
    (rate,) = trained.choices
    assert [one.out for one in rate.tried.values()] == [
        f"$WORK/design/pilots/A3-{rate}.2758/dev.trec.json" for rate in (0.0003, 0.001, 0.003)
    ]


@pytest.fixture
def small(monkeypatch):
    make_small(monkeypatch, "design")


def make_small(monkeypatch, study):
    """One rate, one seed and one number of epochs, for two arms."""
    protocol = design.protocol(study)
    for questions in protocol["finetuning"]:
        monkeypatch.setitem(protocol["finetuning"], questions, {"epochs": [1], "rates": [0.001]})
    monkeypatch.setitem(protocol, "arm", protocol["arm"] | {"rates": [0.001], "seeds": [0]})
    tests = {"metric": "MRR@10", "of": [["A2", "A1"]], "questions": [100, 2758]}
    monkeypatch.setitem(protocol, "tests", tests)
    # What is cached are steps of the whole design, which other tests have asked for.
    for name in ("pretrained", "_best_rate"):
        function = functools.cache(getattr(design, name).__wrapped__)
        monkeypatch.setattr(design, name, function)


@pytest.mark.skipif(os.environ.get("REPRODUCE") != "all", reason="make reproduce")
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("small")
def test_the_design_ends_in_its_tests(tmp_path):
    folders = write_data(tmp_path)
    check_row(EXPERIMENTS, "design/tests", "A2 - A1, 100 questions", folders)
    found = folders.work / "design" / "tests" / "A2-A1-2758.json"
    assert json.loads(found.read_text()).keys() == {"difference", "from", "to", "p", "corrected_p"}
    base = json.loads((folders.work / "design" / "base.json").read_text())
    store = open_store(folders.work / "design" / "store")
    counts_V = store.token_counts()
    assert base["frequencies"] == pytest.approx(
        -sum(n * math.log(n / counts_V.sum()) for n in counts_V if n) / counts_V.sum(), rel=0.2
    )
    assert base["below"] == pytest.approx(base["frequencies"] - base["MLM loss"])


@pytest.mark.usefixtures("small")
def test_a_base_that_has_not_learned_stops_the_arms(tmp_path, capsys):
    folders = write_data(tmp_path)
    of_row = steps(EXPERIMENTS, "design/arms", "A1 MLM, 100 questions", folders=folders)

    def run(command):
        if command[2] != "experiments.learned":
            return execute(command)
        capsys.readouterr()
        try:
            learned.main(command[3:])
        except SystemExit as stop:
            return stop.code
        return 0

    with pytest.raises(UserError, match=r"exit status 2: python -m experiments.learned"):
        run_steps(of_row, folders, run)
    error = capsys.readouterr().err
    assert re.fullmatch(
        r"learned: \S+/design/base.run has learned too little to go on: its held-out MLM loss of"
        r" \d\.\d{3} is -?\d\.\d{3} nats below that of token frequencies; expected 1.5 or more\n",
        error,
    )
    made = {path.name for path in (folders.work / "design").iterdir()}
    assert made <= {"tokenizer", "store", "base.run", "base.run.lock"}, made


def test_planned_tests_compare_the_arms_that_they_name():
    """With all seeds of each, in the order of the name."""
    (words,) = STEPS[Path("W/design/tests")].commands
    _, *given, _ = flags(words)
    for (_, name), *of_arms in zip(given[::3], given[1::3], given[2::3], strict=True):
        *arms, n = name.split("-")
        for arm, (_, files) in zip(arms, of_arms, strict=True):
            expected = [f"W/design/{arm}-{seed}.{n}/test.trec.json" for seed in (0, 1, 2)]
            assert files.split(",") == expected
