"""Every shipped experiment loads and fits together, and a typo in a setting is an error."""

import importlib
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from cocondenser_jax.configs import finetune
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import flatten
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.experiment import resolve_without_store
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.settings import check
from tests.lines import whole
from tests.recording import NONE, assert_recorded
from tests.world import batches_of

# The variants of a file.
ARGUMENTS = dict.fromkeys(("quickstart", "small"), ("condenser", "cocondenser"))
ARGUMENTS["minilm"] = ("mlm", "condenser", "contrastive", "cocondenser")
ARGUMENTS["finetune"] = tuple(finetune.VARIANTS)
FINE_TUNING = {"cross_encoder", "finetune", "quickstart_finetune"}
FOR_A_TPU = ["default", "condenser", "cocondenser"]

NAMES = sorted(path.stem for path in (Path(__file__).parents[1] / "configs").glob("[!_]*.py"))
EXPERIMENTS = [
    f"{name}:{argument}".rstrip(":") for name in NAMES for argument in ARGUMENTS.get(name, [""])
]
PRETRAINING = [name for name in EXPERIMENTS if name.partition(":")[0] not in FINE_TUNING]


def module(name):
    return importlib.import_module(f"cocondenser_jax.configs.{name}")


def load(experiment):
    name, colon, argument = experiment.partition(":")
    return module(name).get_config(argument) if colon else module(name).get_config()


def settings_of(experiment):
    """Returns the settings under their dotted names."""
    return flatten(load(experiment).to_dict())


def test_the_files_are_found():
    assert {"default", "condenser", "cocondenser", "quickstart"} <= set(NAMES)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_config_refuses_unknown_keys_on_every_level(experiment):
    config = load(experiment)
    sections = [config, *(value for value in config.values() if isinstance(value, ConfigDict))]
    for section in sections:
        assert section.is_locked
        with pytest.raises(AttributeError):
            section.no_such_setting = 1


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_setting_has_an_allowed_value(experiment):
    check(load(experiment), complete=False)


def test_settings_are_as_recorded():
    """Those of the default, and what others change: with a wrong number, they would train worse."""
    texts = {}
    for experiment in EXPERIMENTS:
        default = "default" if experiment in PRETRAINING else "finetune"
        defaults = {} if experiment == default else settings_of(default)
        changed = settings_of(experiment).items() - defaults.items()
        texts[experiment] = "\n".join(f"{key} = {value!r}" for key, value in sorted(changed))
    assert_recorded("configs", texts, masked=NONE)


@pytest.mark.parametrize(
    ("name", "setting", "refused", "expected"),
    [
        ("cross_encoder", "data.negatives_run", "", "TREC run to sample negatives from"),
        # Its loss of a positive alone is 0.
        ("cross_encoder", "data.negatives_per_query", 0, "a whole number from 1 passages"),
        # Without another one, a positive has no negative.
        ("finetune", "data.batch_size", 1, "a whole number from 2 queries"),
        ("default", "model.n_head_layers", 0, "a whole number from 1 to 1000 layers"),
        # Masking counts columns in 16 bits.
        ("default", "data.length", 65_537, "a whole number from 3 to 65536 tokens"),
    ],
)
def test_bounds_that_a_task_narrows_hold(name, setting, refused, expected):
    config = load(name)
    given = {"data.folder": "f", "model.folder": "m", "data.store": "s"}
    given = {each: value for each, value in given.items() if each in settings_of(name)}
    if name == "cross_encoder":
        given["data.negatives_run"] = "run.trec"
    config.update_from_flattened_dict(given)
    check(config)
    config.update_from_flattened_dict({setting: refused})
    with pytest.raises(
        UserError, match=whole(f"config.{setting} is {refused!r}; expected {expected}")
    ):
        check(config)


@pytest.mark.parametrize("name", [name for name in NAMES if len(ARGUMENTS.get(name, ())) > 1])
def test_variants_differ_and_the_head_names_them(name):
    configs = [str(load(f"{name}:{argument}")) for argument in ARGUMENTS[name]]
    assert len(set(configs)) == len(configs) - (name == "finetune")  # nq and trivia are alike
    head = module(name).__doc__ or ""
    assert all(argument in head for argument in ARGUMENTS[name])


@pytest.mark.parametrize("objective", ARGUMENTS["minilm"])
def test_every_objective_of_minilm_reads_as_many_spans(objective):
    config = load(f"minilm:{objective}")
    assert config.train.objective == objective
    assert (batches_of(config).n_rows, config.train.steps) == (64, 450)


def test_an_unknown_variant_is_refused():
    with pytest.raises(
        UserError,
        match=whole(
            "configs/minilm.py:ict: expected one of mlm, condenser, contrastive, cocondenser"
        ),
    ):
        load("minilm:ict")
    with pytest.raises(
        UserError,
        match=whole(
            "configs/finetune.py:x: expected one of small, marco_round2, "
            "marco_documents, nq, trivia, adaptive"
        ),
    ):
        load("finetune:x")


@pytest.mark.parametrize("experiment", [name for name in PRETRAINING if name != "default"])
def test_pretraining_config_has_the_settings_of_the_default(experiment):
    settings, defaults = settings_of(experiment), settings_of("default")
    assert settings.keys() == defaults.keys()
    types = {key: type(value) for key, value in settings.items()}
    assert types == {key: type(value) for key, value in defaults.items()}
    assert settings != defaults


@pytest.mark.parametrize(
    ("experiment", "n_devices"),
    [*((name, 1) for name in PRETRAINING), *((name, 8) for name in FOR_A_TPU)],
)
def test_pretraining_config_fits_its_devices(experiment, n_devices):
    config = load(experiment)
    model = ModelConfig(**resolve_without_store(config, 1, 30522, 0).network)
    spec = batches_of(config)
    check_batch(spec, config.train.chunk_size, model.max_length, n_devices, kept_chunks=0)
    chunk_size, n_spans = config.train.chunk_size, spec.n_rows
    assert config.data.batch_size % n_devices == 0
    assert (n_spans // n_devices) % (chunk_size or 1) == 0
    assert config.data.length <= config.model.max_position_embeddings


@pytest.mark.parametrize("name", [name for name in NAMES if name != "default"])
def test_the_head_of_the_file_names_its_command(name):
    head = module(name).__doc__ or ""
    assert f"--config=configs/{name}.py" in head


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_each_call_returns_a_config_of_its_own(experiment):
    first, second = load(experiment), load(experiment)
    with first.unlocked():
        first.changed = True
    assert "changed" not in second
    assert "changed" not in load(experiment)
