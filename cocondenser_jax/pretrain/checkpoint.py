"""A run folder: what the run decided (`run.json`) and its checkpoints (Orbax).

run.json            config, model, data hash, seed, versions
checkpoints/<step>/ parameters, optimizer state, and the checksums of their files
damaged/<step>/     checkpoints that a run found damaged when it went on from an earlier one
tokenizer/          the store's tokenizer, so that the run folder can be converted by itself
metrics.jsonl       see ../metrics.py
nonfinite-<step>.npz  see nonfinite.py
"""

import contextlib
import importlib.metadata
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.tokenizer import SpanTokenizer, save_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import (
    damaged_file,
    new_folder,
    read_object,
    write_checksums,
    write_json,
)
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.nonfinite import count_batches
from cocondenser_jax.pretrain.step import TrainState, initial_params

logger = logging.getLogger(__name__)

ITEMS = ("params", "optimizer")
_UNFINISHED = {"run.json.partial"}  # what a kill may leave before run.json is there
# One may turn out to be damaged.
LEAST_KEPT = 2
LIBRARIES = ("cocondenser_jax", "jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
# What Orbax and TensorStore raise, of a disk that is full or a file that is broken.
UNSAVED = (OSError, ValueError)
UNREADABLE = (OSError, ValueError, KeyError)
# Settings that may differ when a run goes on: they change how it is computed or stored, not what.
FREE_SETTINGS = (
    ("train", "chunk_size"),
    ("train", "skip_nonfinite"),
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
    if config.checkpoint.keep < LEAST_KEPT:
        raise UserError(
            f"config.checkpoint.keep is {config.checkpoint.keep}: expected at least {LEAST_KEPT},"
            " for the last one may turn out to be damaged"
        )
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
    else:
        if workdir.exists() and not (workdir.is_dir() and _names(workdir) <= _UNFINISHED):
            raise UserError(
                f"{workdir} already holds something that is not a run: choose a new folder"
            )
        write_json(path, run)
    # Only now: a kill between the two leaves a folder that says which run it is.
    if not (workdir / "tokenizer").exists():
        with new_folder(workdir / "tokenizer") as folder:
            shutil.copytree(store.tokenizer_folder, folder, dirs_exist_ok=True)


def started_model(workdir: Path) -> ModelConfig | None:
    """Returns the model of a run that has a checkpoint to go on from; None where it has none."""
    run = workdir / "run.json"
    return _model_of(run, read_object(run)) if run.is_file() and _steps(workdir) else None


@contextlib.contextmanager
def checkpoint_manager(workdir: Path, config: ConfigDict) -> Iterator[ocp.CheckpointManager]:
    """Opens the checkpoints of a run for writing; saving happens in the background.

    An earlier checkpoint is deleted when its successor is complete on the disk, not before.

    Raises:
      UserError: at the end, if the last of them could not be saved.
    """
    manager = _manager(
        workdir,
        save_interval_steps=config.every,
        max_to_keep=config.keep,
        keep_period=config.keep_every or None,
        enable_async_checkpointing=True,
    )
    with _one_error_told():
        try:
            yield manager
            with _told_clearly(manager):
                manager.wait_until_finished()
        except BaseException:
            with contextlib.suppress(*UNSAVED):  # or the same would be raised twice
                manager.close()
            raise
        manager.close()


@contextlib.contextmanager
def _one_error_told() -> Iterator[None]:
    """Silences the other files of a checkpoint after one could not be written.

    Each of them would print that the event loop, which has ended with the first error, is closed.
    """
    before = sys.unraisablehook

    def tell(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = before


def save(manager: ocp.CheckpointManager, state: TrainState) -> None:
    """Saves the state of one device under its step, whatever the manager's interval.

    Where it is saved already, nothing happens.

    Raises:
      UserError: if the checkpoint before this one could not be saved.
    """
    if int(state.step) in manager.all_steps():
        return
    host_state = jax.tree.map(np.asarray, state)
    items = ocp.args.Composite(
        params=ocp.args.StandardSave(host_state.params),
        optimizer=ocp.args.StandardSave(host_state.optimizer_state),
    )
    with _told_clearly(manager):
        manager.save(int(state.step), args=items, force=True)


def restore_latest(manager: ocp.CheckpointManager, like: TrainState) -> TrainState:
    """Returns the latest saved state that is intact, with NumPy arrays of the shapes of `like`.

    Later ones that are damaged are moved out of the way, to `damaged/` in the run folder.

    Raises:
      UserError: if none is intact.
    """
    workdir = Path(manager.directory).parent
    step, restored = _newest_intact(
        manager, workdir, params=like.params, optimizer=like.optimizer_state
    )
    for later in (later for later in _steps(workdir) if later > step):
        _set_aside(workdir, later)
    manager.reload()
    skipped = count_batches(workdir, step)
    return TrainState(
        jnp.int32(step), restored["params"], restored["optimizer"], jnp.int32(skipped)
    )


def load_run(workdir: Path, step: int | None = None) -> tuple[ModelConfig, Any, dict[str, Any]]:
    """Reads the parameters of a run.

    Args:
      workdir: the run folder.
      step: which checkpoint; None for the latest that is intact.

    Returns:
      The model's shape, its parameters as NumPy arrays, and `run.json` with `step` added.

    Raises:
      UserError: if there is no such run or checkpoint, or it is damaged.
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
    like = jax.eval_shape(lambda: initial_params(model_config, 0))
    with _manager(workdir) as manager:
        if step is None:
            step, restored = _newest_intact(manager, workdir, params=like)
        else:
            restored = _restore(manager, workdir, step, params=like)
    return model_config, restored["params"], {**run, "step": step}


def save_converted(
    out: Path, model_config: ModelConfig, params: Any, tokenizer: SpanTokenizer, source: str
) -> None:
    """Writes parameters that come from elsewhere as a run folder that a run can start from.

    Raises:
      UserError: if `out` already holds something.
    """
    with new_folder(out) as folder:
        (folder / "tokenizer").mkdir()
        save_tokenizer(tokenizer, folder / "tokenizer", model_config.max_length)
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
    chosen = ocp.CheckpointManagerOptions(
        **options,
        create=False,
        cleanup_tmp_directories=True,
        multiprocessing_options=alone,
        async_options=ocp.options.AsyncOptions(post_finalization_callback=lambda: _seal(folder)),
    )
    return ocp.CheckpointManager(folder, options=chosen)


def _seal(folder: Path) -> None:
    """Adds checksums to the items of the checkpoint that lacks nothing else but its final name.

    Its other files are Orbax's own, written last, and not needed to read the items.
    """
    (partial,) = folder.glob("*.orbax-checkpoint-tmp*")
    for item in ITEMS:
        if (partial / item).is_dir():
            write_checksums(partial / item)


def _newest_intact(
    manager: ocp.CheckpointManager, workdir: Path, **like: Any
) -> tuple[int, dict[str, Any]]:
    """Restores the newest checkpoint that can be trusted, with a warning for each that cannot."""
    steps = _steps(workdir)
    for step in reversed(steps):
        try:
            return step, _restore(manager, workdir, step, **like)
        except UserError as error:
            logger.warning("%s; an earlier one is looked for", error)
    raise UserError(
        f"{workdir}: none of its checkpoints ({', '.join(map(str, steps))}) is intact; to begin"
        " again, choose a new folder"
    )


def _restore(
    manager: ocp.CheckpointManager, workdir: Path, step: int, **like: Any
) -> dict[str, Any]:
    """Reads items of a checkpoint as NumPy arrays of the shapes of `like`.

    Orbax notices much damage, but no flipped bit of an array.

    Raises:
      UserError: if it is damaged.
    """
    folder = workdir / "checkpoints" / str(step)
    for item in like:
        if (name := damaged_file(folder / item)) is not None:
            raise UserError(f"checkpoint {folder} is damaged ({item}/{name} is not what was saved)")
    targets = {name: ocp.args.StandardRestore(_zeros_like(tree)) for name, tree in like.items()}
    try:
        restored = manager.restore(step, args=ocp.args.Composite(**targets))
    except UNREADABLE as error:
        raise UserError(f"checkpoint {folder} is damaged ({_first_line(error)})") from error
    return {name: restored[name] for name in like}


def _set_aside(workdir: Path, step: int) -> None:
    target = workdir / "damaged" / str(step)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(exist_ok=True)
    (workdir / "checkpoints" / str(step)).rename(target)


@contextlib.contextmanager
def _told_clearly(manager: ocp.CheckpointManager) -> Iterator[None]:
    """Turns what Orbax raises when it cannot write into one line."""
    try:
        yield
    except UNSAVED as error:
        raise UserError(
            f"cannot save a checkpoint in {manager.directory}: {_first_line(error)};"
            " the earlier ones are still there"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _steps(workdir: Path) -> list[int]:
    """Returns the steps of the checkpoints of a run, in order."""
    names = (path.name for path in (workdir / "checkpoints").glob("*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _model_of(path: Path, run: dict[str, Any]) -> ModelConfig:
    """Returns the shape that a `run.json` says its model has."""
    try:
        return ModelConfig(**run["model"])
    except (KeyError, TypeError, UserError) as error:
        raise UserError(
            f"{path} is damaged: it does not say the shape of a model ({error})"
        ) from error


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
