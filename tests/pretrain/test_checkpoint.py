"""Checkpoints that were damaged after, or could not be written at all."""

import json
import logging
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.store import manifest_checksum, open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import LOCK
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.pretrain import checkpoint
from cocondenser_jax.pretrain.experiment import resolve
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.step import TrainState, initial_state
from cocondenser_jax.settings import PRETRAINING, declared_settings
from tests.lines import whole
from tests.world import change_settings, model_of, step_of, write_experiment

pytestmark = pytest.mark.usefixtures("one_length")

STEPS = (2, 4, 6)


def state_of(step):
    """A state that shows its step, of arrays that fill a file of some kilobytes."""
    values = np.random.default_rng(step).normal(size=(40, 50)).astype(np.float32)
    w, m = {"w": values}, {"m": values + 1}
    return TrainState(
        step=np.int32(step),
        params=w,
        optimizer_state=m,
        skipped=np.int32(1),
        memory=({"queue": values + 2},),
    )  # type: ignore[arg-type]


@pytest.fixture
def settings():
    return {"keep": 3}


@pytest.fixture
def run(tmp_path, settings):
    save_all(tmp_path, settings, STEPS)
    return tmp_path


def save_all(run, settings, steps):
    with checkpoint.checkpoint_writer(run, **settings) as save:
        for step in steps:
            save(state_of(step), {})


def flip_a_bit(folder):
    path = folder / "params.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(folder):
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lose_a_file(folder):
    (folder / "params.safetensors").unlink()


def spoil_the_checksums(folder):
    (folder / "sha256.json").write_text('{"params')


def half_deleted_without_checksums(folder):
    (folder / "sha256.json").unlink()
    (folder / "state.safetensors").unlink()


def forget_a_skipped_step(folder):
    path = folder / "state.safetensors"
    save_file(load_file(path) | {"skipped": np.array(0, np.int32)}, path)


DAMAGES = (
    flip_a_bit, truncate, lose_a_file, spoil_the_checksums, half_deleted_without_checksums,
    forget_a_skipped_step,
)  # fmt: skip


def restored(run):
    return checkpoint.restore_latest(run, state_of(0))


def assert_state(state, step):
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(state_of(step)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_intact_checkpoint_is_used(
    run,
    settings,
    damage,
    caplog,
):
    assert_state(restored(run), 6)
    damage(run / "checkpoints" / "6")
    with caplog.at_level(logging.WARNING, logger="cocondenser_jax"):
        assert_state(restored(run), 4)
    (line,) = (r.getMessage() for r in caplog.records if r.name.startswith("cocondenser_jax"))
    assert f"{run}/checkpoints/6 is damaged (" in line
    assert "\n" not in line
    # It was put aside, not deleted; its step is saved again; and it may turn out damaged again.
    for _ in range(2):
        assert (run / "damaged" / "6").is_dir()
        save_all(run, settings, (6,))
        assert_state(restored(run), 6)
        damage(run / "checkpoints" / "6")
        assert_state(restored(run), 4)


def test_without_an_intact_checkpoint_nothing_starts(run, settings):
    for step in STEPS:
        flip_a_bit(run / "checkpoints" / str(step))
    with pytest.raises(
        UserError,
        match=whole(
            f"{run}: none of its checkpoints (2, 4, 6) is"
            " intact; to start again, choose a new folder"
        ),
    ):
        restored(run)
    # Nothing was moved: the next attempt must not find an empty folder, and start at 0.
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["2", "4", "6"]


def test_damage_by_command_line(config, tmp_path, capsys):
    write_experiment(tmp_path, config)
    run, store = tmp_path / "run", open_store(Path(config.data.store))
    model_config = model_of(config, store)
    checkpoint.open_run(run, resolve(config, store), model_config, store, {}, {})
    with checkpoint.checkpoint_writer(run, keep=2) as save:
        state = initial_state(init_params(model_config, 0), step_of(config, 6).optimizer, ())
        for step in (2, 4):
            save(state._replace(step=jnp.int32(step)), {})

    flip_a_bit(run / "checkpoints" / "4")
    assert main(["convert", f"--run_dir={run}", "--step=4", f"--out={tmp_path}/model"]) == 2
    assert "checkpoints/4 is damaged (" in capsys.readouterr().err
    assert checkpoint.load_run(run)[2]["step"] == 2
    flip_a_bit(run / "checkpoints" / "2")
    files = sorted(run.rglob("*"))
    assert main(["pretrain", f"--config={tmp_path}/experiment.py", f"--workdir={run}"]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1].startswith(f"cocondenser: {run}: none of its checkpoints (2, 4) is intact")
    assert sorted(run.rglob("*")) == files


@pytest.mark.parametrize(
    "name",
    ["runs[1]", "run*", "run?", r"a\b", "a\nb", "'\"", "--out=x", "%41#$ é", "x" * 200, "Größe 🙂"],
)
def test_a_run_is_read_back_whatever_its_path(tmp_path, settings, name):
    run = tmp_path / name / "run"
    run.mkdir(parents=True)
    save_all(run, settings, STEPS)
    assert_state(restored(run), 6)


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"w": np.zeros((40, 49), np.float32)}, "w"),
        ({"w": np.zeros((40, 50), np.float16)}, "w"),
        ({"v": np.zeros((40, 50), np.float32)}, "v, w"),
        ({"w": np.zeros((40, 50), np.float32), "v": np.zeros(1, np.float32)}, "v"),
        ({}, "w"),
    ],
)
def test_other_arrays_are_not_read(run, params, names, caplog):
    other = state_of(0)._replace(params=params)
    with pytest.raises(
        UserError,
        match=whole(
            f"{run}: none of its checkpoints (2, 4, 6) is"
            " intact; to start again, choose a new folder"
        ),
    ):
        checkpoint.restore_latest(run, other)
    said = f"is damaged: missing, unexpected or of another shape: {names}; trying an earlier one"
    files = [run / "checkpoints" / str(step) / "params.safetensors" for step in (6, 4, 2)]
    assert caplog.messages == [f"{file} {said}" for file in files]


def test_a_tree_of_arrays_is_restored_from_named_ones(tmp_path):
    params = {"layer_0": {"kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3).T}}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lambda step: 0.1))
    tree = {"params": params, "state": optimizer.init(params), "empty": np.zeros((0, 3), np.int8)}
    arrays = checkpoint.named_arrays(tree)
    assert set(arrays) == {
        "params/layer_0/kernel",
        "state/1/0/count",
        "state/1/0/mu/layer_0/kernel",
        "state/1/0/nu/layer_0/kernel",
        "state/1/2/count",
        "empty",
    }
    save_file(arrays, tmp_path / "arrays")
    shapes = jax.eval_shape(lambda: tree)
    restored = checkpoint.read_arrays(tmp_path / "arrays", shapes)
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    for found, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    arrays["params/layer_0/kernel"][:] = 0  # a copy
    assert params["layer_0"]["kernel"].any()


def test_what_a_killed_run_had_begun_to_save_is_removed(run, settings):
    (run / "checkpoints" / "7.partial").mkdir(parents=True)
    save_all(run, settings, (8,))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["4", "6", "8"]


@pytest.mark.parametrize("size", [1000, 100])  # too small for arrays; for checksums, too
def test_a_full_disk_leaves_what_was_there(run, settings, small_disk, size):
    for n_saves in (1, 2):  # found at the end, or when the next is saved
        small_disk(size)
        with pytest.raises(UserError, match=f"cannot write .*{run}/checkpoints/8"):
            save_all(run, settings, (8, 10)[:n_saves])
        small_disk(resource.RLIM_INFINITY)
        assert_state(restored(run), 6)
        # What could not be finished may lie beside them, under a name that is not a step.
        steps = [path.name for path in (run / "checkpoints").iterdir() if path.name.isdecimal()]
        assert sorted(steps) == ["2", "4", "6"]


def test_a_full_disk_is_reported_once(
    tmp_path,
    settings,
    small_disk,
    monkeypatch,
):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_value))
    state = state_of(2)
    many = {str(number): state.params["w"] for number in range(50)}
    small_disk(1000)
    with (
        pytest.raises(UserError, match="cannot write "),
        checkpoint.checkpoint_writer(tmp_path, **settings) as save,
    ):
        save(state._replace(params=many), {})
    assert not seen


UNWRITABLE = """
import sys
from pathlib import Path
from cocondenser_jax.pretrain import checkpoint
from tests.pretrain.test_checkpoint import state_of
with checkpoint.checkpoint_writer(Path(sys.argv[1]), keep=3) as save:
    (Path(sys.argv[1]) / "checkpoints").touch()
    save(state_of(2), {})
"""


def test_what_cannot_be_written_ends_the_process(tmp_path):
    command = [sys.executable, "-c", UNWRITABLE, str(tmp_path)]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1
    assert "UserError: cannot write to" in ended.stderr.splitlines()[-1]


def test_a_second_process_does_not_train_the_same_run(config, tmp_path, hold):
    first = hold(tmp_path / "run")
    with pytest.raises(UserError, match=f"run is in use by process {first.pid} on"):
        train(config, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]


def test_a_run_that_was_killed_while_it_made_its_folder_resumes(config, tmp_path):
    store = open_store(Path(config.data.store))
    arguments = tmp_path / "run", resolve(config, store), model_of(config, store), store, {}, {}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json.partial").write_text("{")
    checkpoint.open_run(*arguments)
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    (tmp_path / "run" / "tokenizer.partial").mkdir()
    checkpoint.open_run(*arguments)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"run.json", "tokenizer"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(
        UserError, match=whole("TMP/other already exists: choose a new folder, or remove it first")
    ):
        checkpoint.open_run(tmp_path / "other", *arguments[1:])


def test_a_run_says_how_it_is_computed_now(config, tmp_path):
    store = open_store(Path(config.data.store))
    arguments = tmp_path, resolve(config, store), model_of(config, store), store, {}
    for computed in ({"attention": "kernel"}, {"attention": "xla", "fault": "NaN"}):
        checkpoint.open_run(*arguments, computed)
        assert json.loads((tmp_path / "run.json").read_text())["computed"] == computed


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("seed", 1),
        ("data.batch_size", 8),
        ("data.length", 14),
        ("model.hidden_size", 8),
        ("train.steps", 7),
        ("optimizer.learning_rate", 0.5),
    ],
)
def test_another_experiment_is_refused_with_the_difference(config, tmp_path, setting, value):
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    checkpoint.open_run(tmp_path / "run", resolve(config, store), model_config, store, {}, {})
    checkpoint.open_run(tmp_path / "run", resolve(config, store), model_config, store, {}, {})
    other = config.copy_and_resolve_references().unlock()
    section, _, name = setting.rpartition(".")
    place = other[section] if section else other
    before = place[name]
    place[name] = value
    with pytest.raises(UserError, match=f"config.{setting}={before}, now it is {value}"):
        checkpoint.open_run(
            tmp_path / "run", resolve(other, store), model_of(other, store), store, {}, {}
        )


# Of a run that is started again, these may differ: the result does not depend on them, or what they
# name is compared by its content.
MAY_DIFFER = {
    "tracker",
    "train.chunk_size",
    "train.kept_chunks",
    "train.attention",
    "train.skip_nonfinite",
    "checkpoint.every",
    "checkpoint.keep",
    "log_every",
    "data.store",
    "probe.data",
}


def test_every_setting_but_these_is_the_same_when_a_run_resumes(config, tmp_path):
    store = open_store(Path(config.data.store))
    experiment, model_config = resolve(config, store), model_of(config, store)
    checkpoint.open_run(tmp_path / "run", experiment, model_config, store, {}, {})
    for name in declared_settings(PRETRAINING):
        settings = config.copy_and_resolve_references().unlock()
        with settings.ignore_type():
            change_settings(settings, {name: "another value"})
        other = experiment._replace(settings=settings.to_dict())
        if name in MAY_DIFFER:
            checkpoint.open_run(tmp_path / "run", other, model_config, store, {}, {})
            continue
        with pytest.raises(UserError, match=f"with config.{name}=.*, now it is 'another value'"):
            checkpoint.open_run(tmp_path / "run", other, model_config, store, {}, {})


def test_another_start_is_refused_until_there_is_a_checkpoint(config, tmp_path):
    """It would be trained from, and run.json would name the first."""
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    checkpoint.open_run(tmp_path / "run", resolve(config, store), model_config, store, {}, {})
    other = config.copy_and_resolve_references().unlock()
    other.warm_start = "moved"
    experiment = resolve(other, store)
    with pytest.raises(UserError, match=r"config\.warm_start='', now it is 'moved'"):
        checkpoint.open_run(tmp_path / "run", experiment, model_config, store, {}, {})
    (tmp_path / "run" / "checkpoints" / "3").mkdir(parents=True)
    checkpoint.open_run(tmp_path / "run", experiment, model_config, store, {}, {})


def test_a_run_keeps_the_weights_of_its_stores(config, tmp_path):
    folder, other = config.data.store, tmp_path / "other"
    shutil.copytree(folder, other)
    both = open_store(Path(f"{folder},3*{other}"))
    model_config = model_of(config, both)
    checkpoint.open_run(tmp_path / "run", resolve(config, both), model_config, both, {}, {})
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    one = json.loads(Path(folder, "manifest.json").read_text())
    assert run["data"] == {
        "sha256": both.sha256,
        "corpus": one["corpus"],
        "stores": [folder, str(other)],
        "weights": [1, 3],
        **{name: 2 * one["counts"][name] for name in ("documents", "spans", "tokens")},
    }
    assert run["steps"] == resolve(config, both).n_steps
    assert run["versions"].keys() == {"cocondenser_jax", *checkpoint.LIBRARIES}
    even = open_store(Path(f"{folder},{other}"))
    with pytest.raises(UserError, match=r"data\.weights=\[1\.0, 3\.0\], now it is \[1\.0, 1\.0\]"):
        checkpoint.open_run(tmp_path / "run", resolve(config, both), model_config, even, {}, {})


def test_other_data_are_refused_and_moved_data_are_not(config, tmp_path):
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    checkpoint.open_run(tmp_path / "run", resolve(config, store), model_config, store, {}, {})
    moved = config.copy_and_resolve_references().unlock()
    moved.data.store = str(tmp_path / "store")
    shutil.copytree(config.data.store, moved.data.store)
    there = open_store(tmp_path / "store")
    checkpoint.open_run(tmp_path / "run", resolve(moved, there), model_config, there, {}, {})
    manifest = tmp_path / "store" / "manifest.json"
    other = json.loads(manifest.read_text())
    other["files"]["tokens.bin"]["sha256"] = other["files"]["tokens.bin"]["sha256"][::-1]
    other["checksum"] = manifest_checksum(other)
    manifest.write_text(json.dumps(other))
    there = open_store(tmp_path / "store")
    with pytest.raises(UserError, match=r"was started with data\.sha256="):
        checkpoint.open_run(tmp_path / "run", resolve(moved, there), model_config, there, {}, {})


@pytest.mark.parametrize(
    ("key", "names"), [("versions", ("jax", "numpy", "cocondenser_jax")), ("data", ("corpus",))]
)
def test_a_run_goes_on_with_other_libraries_and_where_its_corpus_has_moved(
    config, tmp_path, key, names
):
    store = open_store(Path(config.data.store))
    arguments = tmp_path / "run", resolve(config, store), model_of(config, store), store, {}, {}
    checkpoint.open_run(*arguments)
    path = tmp_path / "run" / "run.json"
    run = json.loads(path.read_text())
    assert run[key].keys() >= {*names}
    run[key] |= dict.fromkeys(names, "elsewhere")
    path.write_text(json.dumps(run))
    checkpoint.open_run(*arguments)


def test_a_run_that_is_computed_otherwise_keeps_what_it_was_started_with(config, tmp_path):
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    other = config.copy_and_resolve_references().unlock()
    other.log_every = 7  # may differ
    for settings, attention in ((config, "kernel"), (other, "xla")):
        experiment, computed = resolve(settings, store), {"attention": attention}
        checkpoint.open_run(tmp_path / "run", experiment, model_config, store, {}, computed)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["computed"] == {"attention": "xla"}
    assert run["config"]["log_every"] == config.log_every
