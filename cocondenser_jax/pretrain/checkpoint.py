"""A run folder: what the run decided (`run.json`) and its checkpoints.

docs/architecture.md lists its files. A checkpoint is a folder of Orbax's files and their checksums
for each of parameters and optimizer state.
"""

import contextlib
import importlib.metadata
import logging
import math
import shutil
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from cocondenser_jax.corpus.batches import source_shares
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.tokenizer import SpanTokenizer, save_tokenizer
from cocondenser_jax.errors import UserError, first_line
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.experiment import batch_spec
from cocondenser_jax.pretrain.nonfinite import count_batches
from cocondenser_jax.pretrain.step import TrainState, initial_params
from cocondenser_jax.storage.files import new_folder, read_object, write_json
from cocondenser_jax.storage.metrics import logged_lines
from cocondenser_jax.storage.paths import plain_path
from cocondenser_jax.storage.runs import (
    newest_intact,
    numbered_folders,
    require_intact,
    start_or_compare,
    write_checksums,
)

logger = logging.getLogger(__name__)

LIBRARIES = ("cocondenser_jax", "jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
# What may differ when a run resumes: it changes how the run is computed or stored, not what.
FREE_SETTINGS = (
    "config.train.chunk_size",
    "config.train.skip_nonfinite",
    "config.checkpoint",
    "config.log_every",
    "config.loggers",
    "config.data.store",  # the same data may have moved; its hash is compared
    "config.warm_start",  # only read before the first step
    "config.probe.data",  # may have moved
    "data.source",
    "data.stores",
    "versions",
)
# Where `config.probe.metric` is "": the first of them that the probe measures.
DEFAULT_METRICS = ("ndcg_at_10", "partner_mrr", "mlm_loss")


class BestProbe(NamedTuple):
    """The best of a run's probes, the first of those that are equal."""

    step: int
    metric: str
    value: float
    n_later: int  # probes after it


def open_run(
    workdir: Path, config: ConfigDict, model_config: ModelConfig, store: TokenStore
) -> None:
    """Creates the run folder, or checks that the one there belongs to this experiment."""
    run = {
        "config": config.to_dict(),
        "model": model_config.to_dict(),
        "data": {
            "sha256": store.sha256,
            "source": store.manifests[0]["source"],
            "stores": [str(source.path) for source in store.sources],
            "weights": [source.weight for source in store.sources],
            "shares": source_shares(store, batch_spec(config)),
            "documents": store.n_documents,
            "spans": store.n_spans,
            "tokens": store.n_tokens,
        },
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }
    path = workdir / "run.json"
    if "config" not in read_object(path, absent=run):
        raise UserError(
            f"{workdir} holds a converted model: start from it with --config.warm_start, in a new"
            " folder"
        )
    start_or_compare(path, run, FREE_SETTINGS)
    # Only now: a kill between the two leaves a folder that says which run it is.
    if not (workdir / "tokenizer").exists():
        with new_folder(workdir / "tokenizer") as folder:
            shutil.copytree(store.tokenizer_folder, folder, dirs_exist_ok=True)


def started_model(workdir: Path) -> ModelConfig | None:
    """Returns the model of a run that has a checkpoint to resume from; None where it has none."""
    is_run = (workdir / "run.json").is_file() and _checkpoints(workdir)
    return _read_run(workdir)[0] if is_run else None


@contextlib.contextmanager
def checkpoint_writer(
    workdir: Path, *, keep: int, keep_every: int
) -> Iterator[Callable[[TrainState], None]]:
    """Yields a function that saves a state under its step, in the background.

    It does nothing where that step is saved already. An earlier checkpoint is deleted when its
    successor is complete on the disk, not before. The latest `keep` stay, those of multiples of
    `keep_every` (0: none), and that of the best probe.

    Raises:
      UserError: when the next state is saved, or at the end, if the last one could not be.
    """

    def write(step: int, items: dict[str, Any]) -> None:
        _write(workdir, step, items)
        best = best_probe(workdir)
        for earlier, folder in list(_checkpoints(workdir).items())[:-keep]:
            is_multiple = keep_every and earlier % keep_every == 0
            if not is_multiple and not (best and earlier == best.step):
                shutil.rmtree(folder)

    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(_remove_unfinished, workdir)

        def save(state: TrainState) -> None:
            nonlocal last
            last.result()
            step = int(state.step)
            if step not in _checkpoints(workdir):
                items = {"params": state.params, "optimizer": state.optimizer_state}
                # Copied, for the next step overwrites the state.
                last = pool.submit(write, step, jax.tree.map(np.array, items))

        yield save
        last.result()


def _remove_unfinished(workdir: Path) -> None:
    """Removes what a run that was killed had begun to save."""
    for folder in (workdir / "checkpoints").glob("*.partial"):
        shutil.rmtree(folder)


def best_probe(workdir: Path, steps: Container[int] | None = None) -> BestProbe | None:
    """Returns the best probe that a run has logged, by its `probe.metric`; None without any.

    Only those of these steps count, or of the checkpoints that are there.
    """
    log = workdir / "metrics.jsonl"
    if not log.exists():
        return None
    logged = [values for _, values in logged_lines(log)]
    try:
        asked = read_object(workdir / "run.json")["config"]["probe"]["metric"]
    except (KeyError, TypeError):  # another version's, or a model that was converted
        return None
    steps = _checkpoints(workdir) if steps is None else steps
    for metric in [asked] if asked else DEFAULT_METRICS:
        sign, name = -1 if metric == "mlm_loss" else 1, f"probe/{metric}"  # less is better
        probes = {int(x["step"]): x[name] for x in logged if math.isfinite(x.get(name, math.nan))}
        if saved := [step for step in probes if step in steps]:
            step = max(saved, key=lambda step: (sign * probes[step], -step))
            n_later = sum(later > step for later in probes)
            return BestProbe(step, metric, probes[step], n_later)
    return None


def restore_latest(workdir: Path, like: TrainState) -> TrainState:
    """Returns a run's latest intact state, with NumPy arrays of the shapes of `like`.

    Later ones that are damaged are moved out of the way, to `damaged/` in the run folder.
    """
    items = {"params": like.params, "optimizer": like.optimizer_state}
    checkpoints = _checkpoints(workdir)
    step, restored = newest_intact(checkpoints, lambda folder: _restore(folder, items))
    for later in (folder for number, folder in checkpoints.items() if number > step):
        aside = workdir / "damaged" / later.name
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(exist_ok=True)
        later.rename(aside)
    counts = jnp.int32(step), jnp.int32(count_batches(workdir, step))
    return TrainState(counts[0], restored["params"], restored["optimizer"], counts[1])


def load_run(
    workdir: Path, step: int | str | None = None
) -> tuple[ModelConfig, Any, dict[str, Any]]:
    """Reads the parameters of a run at a step, or of its latest checkpoint that is intact.

    The step "best" is that of the best probe.

    Returns:
      The model's shape, its parameters as NumPy arrays, and `run.json` with `step` added.
    """
    if not (workdir / "run.json").is_file():
        raise UserError(f"{workdir} is not a run folder: it has no run.json")
    model_config, run = _read_run(workdir)
    checkpoints = _checkpoints(workdir)
    if not checkpoints:
        raise UserError(f"{workdir} holds no checkpoint yet")
    if step == "best" and (best := best_probe(workdir)):
        step = best.step
    if step is not None and step not in checkpoints:
        there = ", ".join(map(str, checkpoints))
        raise UserError(f"{workdir} has no checkpoint {step}; it has {there}")
    like = {"params": jax.eval_shape(lambda: initial_params(model_config, 0))}
    if step is None:
        step, restored = newest_intact(checkpoints, lambda folder: _restore(folder, like))
    else:
        restored = _restore(checkpoints[int(step)], like)
    return model_config, restored["params"], {**run, "step": step}


def save_converted(
    out: Path, model_config: ModelConfig, params: Any, tokenizer: SpanTokenizer, source: str
) -> None:
    """Writes parameters that come from elsewhere as a run folder that a run can start from."""
    with new_folder(out) as folder:
        (folder / "tokenizer").mkdir()
        save_tokenizer(tokenizer, folder / "tokenizer", model_config.max_length)
        _write(folder, 0, {"params": params})
        write_json(folder / "run.json", {"converted_from": source, "model": model_config.to_dict()})


def _restore(folder: Path, like: dict[str, Any]) -> dict[str, Any]:
    """Reads items of an intact checkpoint as NumPy arrays of the shapes of `like`."""
    for item in like:
        require_intact(folder / item)
    # Orbax restores into what it is shown: NumPy arrays give NumPy arrays.
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    try:
        with plain_path(folder) as plain:
            restored = {
                item: _orbax().restore(plain / item, args=ocp.args.PyTreeRestore(item=tree))
                for item, tree in zeros.items()
            }
        if jax.tree.map(np.shape, restored) != jax.tree.map(np.shape, zeros):
            raise ValueError("its arrays have other shapes than those of the model")
        return restored
    except (OSError, ValueError, KeyError, TypeError) as error:  # Orbax's and TensorStore's
        raise UserError(f"{folder} is damaged ({first_line(error)})") from error


def _write(workdir: Path, step: int, items: dict[str, Any]) -> None:
    """Writes the arrays of trees as a checkpoint, whole or not at all."""
    checkpoints = workdir / "checkpoints"
    try:
        with new_folder(checkpoints / str(step)) as folder:
            for item, tree in items.items():
                (folder / item).mkdir()
                arrays = jax.tree.map(np.asarray, tree)
                _orbax().save(folder / item, args=ocp.args.PyTreeSave(arrays))
                write_checksums(folder / item)
    except (OSError, ValueError, UserError) as error:
        raise UserError(
            f"cannot save a checkpoint in {checkpoints}: {first_line(error)}; earlier ones are"
            " unchanged"
        ) from error


def _orbax() -> ocp.PyTreeCheckpointHandler:
    """Returns what writes and reads a tree of arrays, on one host that waits for no other.

    Without OCDBT, whose merged files Orbax (0.12.8) does not write where a path holds `[`.
    """
    host = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=host, active_processes={host}, barrier_sync_key_prefix=f"host{host}"
    )
    return ocp.PyTreeCheckpointHandler(use_ocdbt=False, multiprocessing_options=alone)


def _checkpoints(workdir: Path) -> dict[int, Path]:
    """Returns the checkpoints of a run by step, in order."""
    return numbered_folders(workdir / "checkpoints")


def _read_run(workdir: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns the shape of a run's model, and all that `run.json` says."""
    path = workdir / "run.json"
    run = read_object(path)
    try:
        return ModelConfig(**run["model"]), run
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"{path} is damaged: it lacks the shape of a model ({error})") from error
