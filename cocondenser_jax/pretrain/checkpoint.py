"""A run folder: what the run decided (`run.json`) and its checkpoints (Orbax).

run.json            config, model, data hash, seed, versions
checkpoints/<step>/ parameters, optimizer state and step
tokenizer/          the store's tokenizer, so that the run folder can be converted by itself
metrics.jsonl       see metrics.py
"""

import dataclasses
import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.vocabulary import Vocabulary, save_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import new_folder, read_object, write_json
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.step import TrainState, initial_params

LIBRARIES = ("cocondenser_jax", "jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
# Settings that may differ when a run goes on: they change how it is computed or stored, not what.
FREE_SETTINGS = (
    ("train", "chunk_size"),
    ("checkpoint",),
    ("log_every",),
    ("data", "store"),  # the same data may have moved; its hash is compared
    ("warm_start",),  # only read before the first step
)


def open_run(
    workdir: Path, config: ConfigDict, model_config: ModelConfig, store: TokenStore
) -> None:
    """Creates the run folder, or checks that the one there belongs to this experiment.

    Raises:
      UserError: if the folder holds something else, or a run with other settings (which differ).
    """
    run = {
        "config": config.to_dict(),
        "model": model_config.to_dict(),
        "data": {
            "sha256": store.sha256,
            "source": store.manifests[0]["source"],
            "documents": store.n_documents,
            "spans": store.n_spans,
            "tokens": store.n_tokens,
        },
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }
    path = workdir / "run.json"
    if path.exists():
        _require_same(read_object(path), run)
        return
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise UserError(f"{workdir} already holds something that is not a run: choose a new folder")
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create {workdir}: {error.strerror}") from error
    shutil.copytree(store.tokenizer_folder, workdir / "tokenizer", dirs_exist_ok=True)
    write_json(path, run)


def started_model(workdir: Path) -> ModelConfig | None:
    """Returns the model of a run that has a checkpoint to go on from; None where it has none."""
    run = workdir / "run.json"
    return _model_of(run, read_object(run)) if run.is_file() and _steps(workdir) else None


def checkpoint_manager(workdir: Path, config: ConfigDict) -> ocp.CheckpointManager:
    """Opens the checkpoints of a run for writing; saving happens in the background."""
    return _manager(
        workdir,
        save_interval_steps=config.every,
        max_to_keep=config.keep,
        keep_period=config.keep_every or None,
        enable_async_checkpointing=True,
    )


def save(manager: ocp.CheckpointManager, state: TrainState) -> None:
    """Saves the state of one device under its step, whatever the manager's interval."""
    host_state = jax.tree.map(np.asarray, state)
    items = ocp.args.Composite(
        params=ocp.args.StandardSave(host_state.params),
        optimizer=ocp.args.StandardSave(host_state.optimizer_state),
    )
    manager.save(int(state.step), args=items, force=True)


def restore_latest(manager: ocp.CheckpointManager, like: TrainState) -> TrainState:
    """Returns the latest saved state, with NumPy arrays of the shapes of `like`."""
    step = manager.latest_step()
    items = ocp.args.Composite(
        params=ocp.args.StandardRestore(_zeros_like(like.params)),
        optimizer=ocp.args.StandardRestore(_zeros_like(like.optimizer_state)),
    )
    restored = manager.restore(step, args=items)
    return TrainState(jnp.asarray(step, jnp.int32), restored["params"], restored["optimizer"])


def load_run(workdir: Path, step: int | None = None) -> tuple[ModelConfig, Any, dict[str, Any]]:
    """Reads the parameters of a run.

    Args:
      workdir: the run folder.
      step: which checkpoint; None for the latest.

    Returns:
      The model's shape, its parameters as NumPy arrays, and `run.json` with `step` added.

    Raises:
      UserError: if there is no such run or checkpoint.
    """
    if not (workdir / "run.json").is_file():
        raise UserError(f"{workdir} is not a run folder: it has no run.json")
    run = read_object(workdir / "run.json")
    model_config = _model_of(workdir / "run.json", run)
    steps = _steps(workdir)
    if not steps:
        raise UserError(f"{workdir} holds no checkpoint yet")
    if step is not None and step not in steps:
        raise UserError(f"{workdir} has no checkpoint {step}; it has {', '.join(map(str, steps))}")
    chosen = steps[-1] if step is None else step
    target = _zeros_like(jax.eval_shape(lambda: initial_params(model_config, 0)))
    with _manager(workdir) as manager:
        items = ocp.args.Composite(params=ocp.args.StandardRestore(target))
        params = manager.restore(chosen, args=items)["params"]
    return model_config, params, {**run, "step": chosen}


def save_converted(
    out: Path, model_config: ModelConfig, params: Any, vocabulary: Vocabulary, source: str
) -> None:
    """Writes parameters that come from elsewhere as a run folder that a run can start from.

    Raises:
      UserError: if `out` already holds something.
    """
    with new_folder(out) as folder:
        (folder / "tokenizer").mkdir()
        save_tokenizer(vocabulary, folder / "tokenizer", model_config.max_length)
        with _manager(folder) as manager:
            manager.save(0, args=ocp.args.Composite(params=ocp.args.StandardSave(params)))
        write_json(folder / "run.json", {"converted_from": source, "model": model_config.to_dict()})


def _manager(workdir: Path, **options: Any) -> ocp.CheckpointManager:
    """Opens the checkpoints of a run on one host, which waits for no other."""
    folder = (workdir / "checkpoints").absolute()
    folder.mkdir(exist_ok=True)
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"host{jax.process_index()}",
    )
    chosen = ocp.CheckpointManagerOptions(**options, create=False, multiprocessing_options=alone)
    return ocp.CheckpointManager(folder, options=chosen)


def _steps(workdir: Path) -> list[int]:
    """Returns the steps of the checkpoints of a run, in order."""
    names = (path.name for path in (workdir / "checkpoints").glob("*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _model_of(path: Path, run: dict[str, Any]) -> ModelConfig:
    """Returns the shape that a `run.json` says its model has."""
    model = run.get("model")
    kinds: dict[str, Any] = {
        field.name: type(field.default) for field in dataclasses.fields(ModelConfig)
    }
    kinds |= {name: (int, float) for name, kind in kinds.items() if kind is float}
    if not isinstance(model, dict) or not all(
        isinstance(value, kinds.get(name, ())) for name, value in model.items()
    ):
        raise UserError(f"{path} is damaged: it does not say the shape of a model")
    return ModelConfig(**model)


def _zeros_like(tree: Any) -> Any:
    """Returns NumPy arrays of the same shapes: Orbax restores into what it is shown."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)


def _require_same(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises a UserError naming the settings in which two runs differ."""
    if "config" not in saved:
        raise UserError(
            "this folder holds a converted model: start from it with --config.warm_start, in a"
            " new folder"
        )
    free = {("config", *path) for path in FREE_SETTINGS}
    differences = [
        f"{'.'.join(path)} was {old!r}, is {new!r}"
        for path, old, new in _differences(saved, now, ())
        if not any(path[: len(prefix)] == prefix for prefix in free)
        and path[:1] != ("versions",)
        and path[:1] != ("data",)
    ]
    data = saved.get("data")
    if not isinstance(data, dict) or data.get("sha256") != now["data"]["sha256"]:
        differences.append("the data are not the same")
    if differences:
        raise UserError(f"this run folder belongs to another experiment: {'; '.join(differences)}")


def _differences(
    old: Any, new: Any, path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], Any, Any]]:
    """Lists the leaves in which two nested dictionaries differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            found
            for key in sorted(old.keys() | new.keys())
            for found in _differences(old.get(key), new.get(key), (*path, key))
        ]
    return [] if old == new else [(path, old, new)]
