"""Every declared setting refuses what is outside its range, before anything is made."""

import dataclasses
import json
import os
import runpy
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from cocondenser_jax.cli import main
from cocondenser_jax.configs import default as pretraining
from cocondenser_jax.declare import GIVEN, Interval, ListOf, OrAuto, Setting, to_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import flatten
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.experiment import resolve_without_store
from cocondenser_jax.representation import SPELLINGS, Representation
from cocondenser_jax.retriever.train.tasks import resolve
from cocondenser_jax.settings import (
    DECLARED_IN,
    PRETRAINING,
    check,
    declared_settings,
    load_config,
    override,
)
from tests.lines import whole

ROOT = Path(__file__).parents[1]
ROWS = [
    pytest.param(task, name, setting, id=f"{task}-{name}")
    for task in DECLARED_IN
    for name, setting in declared_settings(task).items()
]


def wrong_values(setting):
    """Returns values that a setting must refuse, written out by hand for each kind of range."""
    if setting.allowed == GIVEN:
        return ["", 1]
    if setting.allowed is None:
        return [3.5]
    if isinstance(setting.allowed, OrAuto):
        return [setting.allowed.numbers.low - 1, 2**32, True, 2.0, "Auto", ""]
    if not isinstance(setting.allowed, Interval):
        return ["no such choice", 1]
    if isinstance(setting.default, float):
        too_much = 1.1 if setting.allowed.high <= 1 else 1e10
        return [setting.allowed.low - 0.1, too_much, float("nan"), float("inf"), "0.5"]
    return [setting.allowed.low - 1, 2**32, 10**400, True, 2.0]


def complete_config(task):
    config = to_config(declared_settings(task)).unlock()
    for name, setting in declared_settings(task).items():
        if setting.allowed == GIVEN:
            section, _, last = name.rpartition(".")
            (config[section] if section else config)[last] = "somewhere"
    return config


@pytest.mark.parametrize(("task", "name", "setting"), ROWS)
def test_a_value_outside_the_range_is_refused(task, name, setting):
    config = complete_config(task)
    check(config)
    section, _, last = name.rpartition(".")
    place = config[section] if section else config
    for value in wrong_values(setting):
        with place.ignore_type():
            place[last] = value
        expected = (
            "is for the task|expected" if name == "task" else rf"^config\.{name} is .*expected"
        )
        with pytest.raises((UserError, KeyError), match=None if name == "task" else expected):
            check(config)


@pytest.mark.parametrize(
    ("allowed", "text", "default", "inside", "outside"),
    [
        (Interval(0, 0.99), "a number from 0 to 0.99", 0.5, [0.0, 0.99], [1.0, -1e-9]),
        (
            Interval(1e-6),
            "a number from 1e-06",
            0.5,
            [1e-6, 1e9],
            [0.0, 1e10, float("inf"), float("nan")],
        ),
        (Interval(2), "a whole number from 2", 2, [2, 2**32 - 1], [1, 2**32]),
        (Interval(0, 64), "a whole number from 0 to 64", 2, [0, 64], [-1, 65]),
    ],
)
def test_an_interval_means_what_it_says(allowed, text, default, inside, outside, monkeypatch):
    assert str(allowed) == text[text.index("from") :]
    settings = {"x": Setting(default, allowed, "", "a number")}
    monkeypatch.setattr(pretraining, "SETTINGS", settings)
    for value in inside:
        check(to_config({"x": settings["x"]._replace(default=value)}))
    for value in outside:
        with pytest.raises(UserError, match=whole(f"config.x is {value!r}; expected {text}")):
            check(to_config({"x": settings["x"]._replace(default=value)}))


@pytest.mark.parametrize(
    ("spec", "overrides", "message"),
    [
        (
            "configs/default.py",
            ["--config.data.store=s", "--config.data.length=1"],
            "config.data.length is 1; expected a whole number from 3 to 65536 tokens",
        ),
        (
            "configs/default.py",
            ["--config.train.chunk_size=-1"],
            "config.train.chunk_size is -1; expected a whole number from 0 spans, or 'auto'",
        ),
        (
            "configs/default.py",
            [],
            (
                "config.data.store is ''; expected a store made by `corpus`; or several, "
                "with weights: `wiki,2*books` reads books twice"
            ),
        ),
        (
            "configs/default.py",
            ["--config.data.store=s", "--config.train.dtype=float16"],
            "config.train.dtype is 'float16'; expected 'bfloat16' or 'float32'",
        ),
        (
            "configs/finetune.py",
            [],
            "the config is for the task 'retriever'; expected pretrain",
        ),
        (
            "configs/small.py:condensor",
            [],
            "configs/small.py:condensor: expected condenser or cocondenser",
        ),
        (
            "configs/none.py",
            [],
            (
                "no config file 'configs/none.py': did you mean configs/finetune.py or "
                "configs/condenser.py or configs/cocondenser.py?"
            ),
        ),
        (
            "confgs/small.py",
            [],
            (
                "no config file 'confgs/small.py': did you mean configs/small.py or "
                "configs/minilm.py or configs/default.py?"
            ),
        ),
        (
            "other/small.py",
            [],
            (
                "no config file 'other/small.py': did you mean configs/small.py or "
                "configs/minilm.py or configs/default.py?"
            ),
        ),
        (
            "small.py",
            [],
            (
                "no config file 'small.py': did you mean configs/small.py or "
                "configs/minilm.py or configs/default.py?"
            ),
        ),
        (
            "/configs/small.py",
            [],
            (
                "no config file '/configs/small.py': did you mean configs/small.py or "
                "configs/minilm.py or configs/default.py?"
            ),
        ),
    ],
)
def test_a_wrong_experiment_ends_in_one_line(spec, overrides, message):
    with pytest.raises(UserError, match=whole(message)):
        load_config(spec, overrides)


def test_a_config_without_a_setting_or_with_another_is_refused():
    with pytest.raises(
        UserError, match=whole("config.seed is missing of this task; see docs/settings.md")
    ):
        check(to_config({"log_every": Setting(1, None, "", "")} | _without("seed")))
    with pytest.raises(
        UserError, match=whole("config.speed is not a setting of this task; see docs/settings.md")
    ):
        check(to_config(declared_settings(PRETRAINING) | {"speed": Setting(1, None, "", "")}))


def _without(name):
    return {key: setting for key, setting in declared_settings(PRETRAINING).items() if key != name}


def test_a_path_may_hold_colons_and_the_argument_follows_the_last(tmp_path):
    folder = tmp_path / "c:d"
    folder.mkdir()
    (folder / "tiny.py").write_text(
        "from cocondenser_jax.configs import small\nget_config = small.get_config\n"
    )
    store = "--config.data.store=here"
    assert load_config(f"{folder}/tiny.py", [store]).train.objective == "cocondenser"
    condenser = load_config(f"{folder}/tiny.py:condenser", [store])
    assert condenser.train.objective == "condenser"
    assert load_config(f"{folder}/tiny.py:", [store]).train.objective == "cocondenser"


def test_planning_needs_no_store():
    assert load_config("configs/default.py", complete=False, overrides=()).data.store == ""


def test_a_refused_setting_leaves_nothing_behind(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [
        ["pretrain", "--config=configs/default.py", "--config.log_every=0"],
        ["finetune", "--config=configs/finetune.py", "--config.optimizer.warmup_ratio=2"],
    ]
    for command in commands:
        given = ["--config.data.folder=d", "--config.model.folder=m"]
        given = ["--config.data.store=s"] if command[0] == "pretrain" else given
        assert main([*command, *given, "--workdir=run"]) == 2
        assert "expected a" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("task", DECLARED_IN)
def test_every_setting_has_a_meaning_and_its_default_is_allowed(task):
    for name, setting in declared_settings(task).items():
        assert setting.meaning.strip(), name
    check(to_config(declared_settings(task)), complete=False)


def test_a_network_has_the_defaults_and_the_bounds_of_its_settings():
    for name, setting in declared_settings(PRETRAINING).items():
        section, _, field = name.rpartition(".")
        if section != "model" or field in ("representation", "scale", "sizes"):
            continue
        assert getattr(ModelConfig, field) == setting.default, name
        if isinstance(setting.allowed, Interval):
            unlike = ModelConfig(n_head_layers=0, num_hidden_layers=1000, skip_from=0)
            with pytest.raises(UserError, match=f"{field} is .*; expected a"):
                dataclasses.replace(unlike, **{field: setting.allowed.high + 1})


def test_the_page_of_settings_is_up_to_date():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    printed = runpy.run_path(str(ROOT / "docs" / "settings.py"))["settings_page"]()
    assert page == printed, "python docs/settings.py > docs/settings.md"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("1 / 0", "TMP/own.py cannot be loaded: ZeroDivisionError('division by zero')"),
        ("x = 1", "TMP/own.py cannot be loaded: KeyError('get_config')"),
        (
            "get_config = dict",
            "TMP/own.py: expected a function get_config that returns a ConfigDict",
        ),
    ],
)
def test_a_program_that_is_no_experiment_is_refused(tmp_path, program, said):
    (tmp_path / "own.py").write_text(program)
    with pytest.raises(UserError, match=whole(said)):
        load_config(str(tmp_path / "own.py"), [])


@pytest.mark.parametrize("word", ["--seed=1", "config.seed=1", "--config.seed"])
def test_a_word_that_is_no_setting_is_refused(word):
    said = f"unknown argument {word!r}: settings are given as --config.key=value"
    with pytest.raises(UserError, match=whole(said)):
        load_config("configs/small.py", [word])


def test_a_setting_is_given_once():
    words = ["--config.seed=1", "--config.train.chunk_size=2", "--config.train.chunk-size=2"]
    with pytest.raises(
        UserError, match=whole("--config.train.chunk_size is given twice: expected once")
    ):
        load_config("configs/default.py", words, complete=False)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("model.late_mlm=true", True),
        ("model.late_mlm=False", False),
        ("log_every=7", 7),
        ("train.chunk_size=auto", "auto"),
        ("train.chunk_size=7", 7),
        ("train.epochs=2", 2.0),
        ("optimizer.learning_rate=1e-3", 1e-3),
        ("train.dtype=float32", "float32"),
    ],
)
def test_an_override_is_read_by_its_settings_type(given, read):
    config = load_config("configs/default.py", [f"--config.{given}"], complete=False)
    name = given.partition("=")[0]
    value = flatten(config.to_dict())[name]
    assert value == read
    assert type(value) is type(read)


def test_the_spaces_of_a_prompt_are_kept():
    given = ["--config.model.query_prompt=query: "]
    config = load_config("configs/finetune.py", given, tasks=["retriever"], complete=False)
    assert config.model.query_prompt == "query: "


# Settings that are lists; no experiment needs one so far.
LISTS = {
    "model.sizes": Setting((), ListOf(int, Interval(1, 1024)), "dimensions", "where a vector ends"),
    "train.rates": Setting((0.5,), ListOf(float, Interval(0, 1)), "", "of each part"),
    "kinds": Setting(("cls", "mean"), ListOf(str, ("cls", "mean")), "", "what to compare"),
    "names": Setting((), ListOf(str), "", "any"),
}


@pytest.fixture
def lists(monkeypatch):
    """A config of lists, as if they were the settings of pre-training."""
    monkeypatch.setattr(pretraining, "SETTINGS", LISTS)
    return to_config(LISTS)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("model.sizes=[384,192,96]", (384, 192, 96)),
        ("model.sizes=[ 384, 192 ]", (384, 192)),
        ("model.sizes=[]", ()),
        ("train.rates=[1,0.25]", (1.0, 0.25)),
        ("kinds=[mean]", ("mean",)),
        ("names=[a b,c]", ("a b", "c")),
    ],
)
def test_a_list_is_read_from_brackets(lists, given, read):
    value = flatten(override(lists, [f"--config.{given}"]).to_dict())[given.partition("=")[0]]
    assert value == read
    assert [type(each) for each in value] == [type(each) for each in read]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "model.sizes=384",
            (
                "config.model.sizes is '384'; expected a list in brackets, each a whole "
                "number from 1 to 1024 dimensions"
            ),
        ),
        (
            "model.sizes=384,192",
            (
                "config.model.sizes is '384,192'; expected a list in brackets, each a "
                "whole number from 1 to 1024 dimensions"
            ),
        ),
        (
            "model.sizes=[384,192",
            (
                "config.model.sizes is '[384,192'; expected a list in brackets, each a "
                "whole number from 1 to 1024 dimensions"
            ),
        ),
        (
            "model.sizes=[384,]",
            (
                "config.model.sizes is (384, ''); expected a list in brackets, each a "
                "whole number from 1 to 1024 dimensions"
            ),
        ),
        (
            "model.sizes=[384,0]",
            (
                "config.model.sizes is (384, 0); expected a list in brackets, each a whole "
                "number from 1 to 1024 dimensions"
            ),
        ),
        (
            "model.sizes=[38.4]",
            (
                "config.model.sizes is ('38.4',); expected a list in brackets, each a "
                "whole number from 1 to 1024 dimensions"
            ),
        ),
        (
            "train.rates=[0.5,nan]",
            (
                "config.train.rates is (0.5, nan); expected a list in brackets, each a "
                "number from 0 to 1"
            ),
        ),
        (
            "kinds=[cls,max]",
            "config.kinds is ('cls', 'max'); expected a list in brackets, each 'cls' or 'mean'",
        ),
        ("kinds=cls", "config.kinds is 'cls'; expected a list in brackets, each 'cls' or 'mean'"),
    ],
)
def test_what_is_no_such_list_is_refused(lists, given, message):
    with pytest.raises(UserError, match=whole(message)):
        override(lists, [f"--config.{given}"])


def test_an_experiment_gives_a_list_as_python_writes_it(lists):
    with lists.unlocked():
        lists.model.sizes = [384, 192]
        lists.train.rates = (1, 0.5)
    check(lists)
    assert lists.model.sizes == (384, 192)
    for value in ([384, True], ["384"], [384.0], [[384]]):
        with lists.unlocked():
            lists.model.sizes = value
        with pytest.raises(
            UserError,
            match=whole(
                f"config.model.sizes is {tuple(value)!r}; expected a list in brackets, each a"
                " whole number"
                " from 1 to 1024 dimensions"
            ),
        ):
            check(lists)
    assert to_config(LISTS).model.sizes == ()
    check(ConfigDict(json.loads(to_config(LISTS).to_json())))


def test_the_page_shows_lists_as_they_are_typed():
    row = runpy.run_path(str(ROOT / "docs" / "settings.py"))["_row"]
    rows = {name: row(name, setting) for name, setting in LISTS.items()}
    assert rows["model.sizes"].endswith(" | `[]` | list of int from 1 to 1024, dimensions |")
    assert "| `['cls', 'mean']` | list of `'cls'`, `'mean'` |" in rows["kinds"]
    assert "| `[]` | list of str |" in rows["names"]


@pytest.mark.parametrize("given", ["model.late_mlm=1", "log_every=7.0", "train.epochs=two"])
def test_an_override_of_another_type_is_refused(given):
    with pytest.raises(UserError, match=r"is '.*'; expected"):
        load_config("configs/default.py", [f"--config.{given}"], complete=False)


# What each setting becomes, by its dotted name: the fields of the run's plain values that get what
# is given, and no others; or these fields with what they get.
TRAINED = {
    "log_every": "trainer.log_every",
    "tracker": "trainer.tracker",
    "data.split": "data.split",
    "data.train_queries": "data.train_queries",
    "data.negatives_run": "data.negatives_run",
    "data.negatives_per_query": "data.negatives_per_query",
    "data.negatives_depth": "data.negatives_depth",
    "data.loader_workers": "trainer.loader_workers",
    "train.epochs": "trainer.epochs",
    "train.max_steps": "trainer.max_steps",
    "optimizer.learning_rate": "trainer.learning_rate",
    "optimizer.warmup_ratio": "trainer.warmup_ratio",
    "optimizer.weight_decay": "trainer.weight_decay",
    "checkpoint.every": "trainer.checkpoint_every",
}
BECOMES = {
    "pretrain": {
        "seed": "batches.seed step.loss.seed",
        "warm_start": "warm_start",
        "init_head": "init_head",
        "data.batch_size": "batches.batch_size",
        "data.length": "batches.length",
        "data.pairs": "batches.example",
        "data.mask_probability": "batches.mask_probability",
        "data.decoder_mask_probability": "batches.decoder_mask_probability",
        "model.model_type": "network.model_type",
        "model.hidden_size": "network.hidden_size",
        "model.num_hidden_layers": "network.num_hidden_layers",
        "model.num_attention_heads": "network.num_attention_heads",
        "model.intermediate_size": "network.intermediate_size",
        "model.max_position_embeddings": "network.max_position_embeddings",
        "model.hidden_dropout_prob": "network.hidden_dropout_prob",
        "model.attention_probs_dropout_prob": "network.attention_probs_dropout_prob",
        "model.n_head_layers": "network.n_head_layers",
        "model.skip_from": "network.skip_from",
        "model.late_mlm": "network.late_mlm",
        "model.representation": {
            "network.representation": SPELLINGS["mean-cosine"],
            "vectors.representation": SPELLINGS["mean-cosine"],
        },
        "model.scale": {"network.representation": Representation(scale=0.5), "vectors.scale": 0.5},
        "model.sizes": {
            "network.representation": Representation(sizes=(16, 8)),
            "vectors.sizes": (16, 8),
        },
        "train.objective": {
            "step.loss.objective": "ict",
            "batches.example": "cloze",
            "batches.masked": False,
            "network.n_head_layers": 0,
            "network.skip_from": 0,
        },
        "train.mlm_weight": "step.loss.mlm_weight",
        "train.mlm_reduction": "step.loss.mlm_reduction",
        "train.chunk_size": "step.loss.chunk_size",
        "train.kept_chunks": "step.loss.kept_chunks",
        "train.attention": "step.loss.attention",
        "train.skip_nonfinite": "step.skip_nonfinite",
        "train.dtype": "step.loss.dtype",
        "optimizer.learning_rate": "step.optimizer.learning_rate",
        "optimizer.warmup_ratio": "step.optimizer.warmup_ratio",
        "optimizer.weight_decay": "step.optimizer.weight_decay",
        "optimizer.clip_norm": "step.optimizer.clip_norm",
        "optimizer.b1": "step.optimizer.b1",
        "optimizer.b2": "step.optimizer.b2",
        "optimizer.eps": "step.optimizer.eps",
        "checkpoint.every": "save_every",
        "checkpoint.keep": "keep",
        "probe.every": "probe_every",
        "probe.documents": "batches.held_out",
        "log_every": "log_every",
        "tracker": "tracker",
    },
    "retriever": TRAINED
    | {
        "seed": "data.seed batches.seed trainer.seed",
        "data.folder": "data.folder dev.folder",
        "data.batch_size": "batches.batch_size trainer.batch_size",
        "data.batches": "batches.batches",
        "data.batch_scores": "batches.batch_scores",
        "data.batch_depth": "batches.batch_depth",
        "model.folder": "model.folder",
        "model.pooling": "model.given.pooling",
        "model.similarity": "model.given.similarity",
        "model.two_towers": "model.two_towers",
        "model.query_length": "model.query_length",
        "model.passage_length": "model.passage_length",
        "model.query_prompt": "model.given.query_prompt",
        "model.passage_prompt": "model.given.passage_prompt",
        "model.title_separator": "model.given.title_separator",
        "loss.name": "loss.name",
        "loss.teacher_run": "teacher_run",
        "loss.scale": "loss.scale",
        "loss.sizes": {"model.given.dimensions": 16, "loss.sizes": (16, 8)},
        "loss.chunk_size": "loss.chunk_size",
        "train.precision": "dev.precision trainer.precision",
        "eval.every": "dev.every",
        "eval.split": "dev.split",
        "eval.run": "dev.run",
    },
    "cross_encoder": TRAINED
    | {
        "seed": "data.seed trainer.seed",
        "data.folder": "data.folder",
        "data.batch_size": "trainer.batch_size",
        "model.folder": "model_folder",
        "model.max_length": "max_length",
        "loss.name": "loss",
        "train.precision": "trainer.precision",
    },
}
# Of what a run reads beside them: its length by the store, and what `folder_probes` makes.
BESIDE = {"data.store", "train.epochs", "train.least_steps", "train.steps"}
BESIDE |= {"probe.data", "probe.split", "probe.passages"}


def another_value(setting):
    """Returns a value other than the default, as it is typed."""
    if isinstance(setting.allowed, tuple) and not isinstance(setting.allowed, Interval | OrAuto):
        return "[16,8]" if isinstance(setting.allowed, ListOf) else setting.allowed[-1]
    if isinstance(setting.allowed, OrAuto):
        return "4"
    if isinstance(setting.default, bool):
        return str(not setting.default)
    if isinstance(setting.default, str):
        return "given"
    if isinstance(setting.default, int):
        return str(setting.default + 1)
    return "0.5" if setting.default != 0.5 else "0.25"


def fields(value, place=""):
    """Returns the values of a record's fields, and of those of the records in it, by place."""
    if isinstance(value, Representation):
        return {place: value}
    inner = value._asdict() if hasattr(value, "_asdict") else value
    if not isinstance(inner, dict):
        return {place: str(value) if isinstance(value, Path) else value}
    found = {}
    for name, each in inner.items():
        if name not in ("settings", "record"):  # all settings, as they were given
            found |= fields(each, f"{place}.{name}".lstrip("."))
    return found


@pytest.mark.parametrize("task", DECLARED_IN)
def test_each_setting_becomes_what_it_is_for_and_nothing_else(task):
    def resolved(config):
        if task == PRETRAINING:
            return fields(resolve_without_store(config, 10, 100, 0))
        return fields(resolve(config, Path("run")))

    settings = declared_settings(task)
    assert {*BECOMES[task], *(BESIDE if task == PRETRAINING else {"task"})} == {*settings}
    defaults = to_config(settings)
    before = resolved(defaults)
    for name, becomes in BECOMES[task].items():
        changed = override(defaults, [f"--config.{name}={another_value(settings[name])}"])
        value = flatten(changed.to_dict())[name]
        assert value != settings[name].default
        expected = becomes if isinstance(becomes, dict) else dict.fromkeys(becomes.split(), value)
        after = resolved(changed)
        assert {key: each for key, each in after.items() if each != before[key]} == expected, name


def test_an_experiment_of_an_unknown_task_is_refused(tmp_path):
    (tmp_path / "own.py").write_text(
        "from cocondenser_jax.configs import finetune\n\n\n"
        "def get_config():\n"
        "    config = finetune.get_config().unlock()\n"
        "    config.task = 'retreiver'\n"
        "    return config\n"
    )
    said = "the config is for the task 'retreiver'; expected pretrain or retriever or cross_encoder"
    with pytest.raises(UserError, match=whole(said)):
        load_config(str(tmp_path / "own.py"), ["--config.seed=1"])


@pytest.mark.parametrize("text", ["384,192]", "84]", "]"])
def test_a_list_without_its_first_bracket_is_refused(lists, text):
    with pytest.raises(UserError, match=f"model.sizes is '{text}'; expected a list in brackets"):
        override(lists, [f"--config.model.sizes={text}"])
