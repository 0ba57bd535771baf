"""A run folder: what the run decided (`run.json`) and its checkpoints (Orbax).

run.json            config, model, data hash, seed, versions
checkpoints/<step>/ parameters, optimizer state, and the checksums of their files
damaged/<step>/     checkpoints that were found damaged when the run resumed from an earlier one
tokenizer/          the store's tokenizer, so that the run folder is all that `convert` needs
metrics.jsonl       see ../metrics.py
nonfinite-<step>.npz  see nonfinite.py
"""

import contextlib
import importlib.metadata
import logging
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict
from orbax.checkpoint import checkpoint_managers as managers

from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.tokenizer import SpanTokenizer, save_tokenizer
from cocondenser_jax.errors import UserError, first_line, require_same
from cocondenser_jax.files import damaged_file, new_folder, read_object, require_absent, write_json
from cocondenser_jax.metrics import logged_lines
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.manager import UNSAVED, in_daemon, open_manager, without_closed_loops
from cocondenser_jax.pretrain.nonfinite import count_batches
from cocondenser_jax.pretrain.step import TrainState, initial_params

logger = logging.getLogger(__name__)

LIBRARIES = ("cocondenser_jax", "jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
UNREADABLE = (OSError, ValueError, KeyError)  # what Orbax raises when a file is broken
# Settings that may differ when a run resumes: they change how it is computed or stored, not what.
FREE_SETTINGS = (
    "config.train.chunk_size",
    "config.train.skip_nonfinite",
    "config.checkpoint.",
    "config.log_every",
    "config.data.store",  # the same data may have moved; its hash is compared
    "config.warm_start",  # only read before the first step
    "config.probe.data",  # may have moved
)
# Where `config.probe.metric` is "": the first of them that the probe measures.
DEFAULT_METRICS = ("ndcg_at_10", "partner_mrr", "mlm_loss")
LOWER_IS_BETTER = "mlm_loss"


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
            "documents": store.n_documents,
            "spans": store.n_spans,
            "tokens": store.n_tokens,
        },
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }
    path = workdir / "run.json"
    if path.exists():
        saved = read_object(path)
        if "config" not in saved:
            raise UserError(
                "this folder holds a converted model: start from it with --config.warm_start, in a"
                " new folder"
            )
        before = _fixed(saved)
        require_same(f"the run in {workdir}", before, dict.fromkeys(before) | _fixed(run))
    else:
        require_absent(workdir, path.name)
        write_json(path, run)
    # Only now: a kill between the two leaves a folder that says which run it is.
    if not (workdir / "tokenizer").exists():
        with new_folder(workdir / "tokenizer") as folder:
            shutil.copytree(store.tokenizer_folder, folder, dirs_exist_ok=True)


def started_model(workdir: Path) -> ModelConfig | None:
    """Returns the model of a run that has a checkpoint to resume from; None where it has none."""
    is_run = (workdir / "run.json").is_file() and _steps(workdir)
    return _read_run(workdir)[0] if is_run else None


@contextlib.contextmanager
def checkpoint_manager(
    workdir: Path, *, every: int, keep: int, keep_every: int
) -> Iterator[ocp.CheckpointManager]:
    """Opens the checkpoints of a run for writing; saving happens in the background.

    An earlier checkpoint is deleted when its successor is complete on the disk, not before. The
    arguments are the settings of `config.checkpoint`. That of the best probe is kept, too.

    Raises:
      UserError: at the end, if the last of them could not be saved.
    """

    def are_best(checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [saved.step for saved in checkpoints]
        best = best_probe(workdir, steps)
        return [best is not None and step == best.step for step in steps]

    kept = [managers.LatestN(keep), SimpleNamespace(should_preserve=are_best)]
    kept += [managers.EveryNSteps(keep_every)] if keep_every else []
    options = {
        "save_interval_steps": every,
        "preservation_policy": managers.AnyPreservationPolicy(kept),
        "enable_async_checkpointing": True,
    }
    with without_closed_loops(), open_manager(workdir / "checkpoints", **options) as manager:
        yield manager
        with _one_line_errors(manager):
            manager.wait_until_finished()


def best_probe(workdir: Path, steps: Sequence[int] | None = None) -> BestProbe | None:
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
    steps = _steps(workdir) if steps is None else steps
    for metric in [asked] if asked else DEFAULT_METRICS:
        sign, name = -1 if metric == LOWER_IS_BETTER else 1, f"probe/{metric}"
        probes = {x["step"]: x[name] for x in logged if math.isfinite(x.get(name, math.nan))}
        if saved := [step for step in probes if step in steps]:
            step = max(saved, key=lambda step: (sign * probes[step], -step))
            n_later = sum(later > step for later in probes)
            return BestProbe(int(step), metric, probes[step], n_later)
    return None


@contextlib.contextmanager
def _one_line_errors(manager: ocp.CheckpointManager) -> Iterator[None]:
    """Turns what Orbax raises when it cannot write into a UserError."""
    try:
        yield
    except UNSAVED as error:
        folder = os.path.realpath(manager.directory)
        raise UserError(
            f"cannot save a checkpoint in {folder}: {first_line(error)}; earlier ones are unchanged"
        ) from error


def save(manager: ocp.CheckpointManager, state: TrainState) -> None:
    """Saves a state under its step, whatever the manager's interval.

    Does nothing where that step is saved already.

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
    with _one_line_errors(manager):
        in_daemon(lambda: manager.save(int(state.step), args=items, force=True))


def restore_latest(manager: ocp.CheckpointManager, workdir: Path, like: TrainState) -> TrainState:
    """Returns a run's latest intact state, with NumPy arrays of the shapes of `like`.

    Later ones that are damaged are moved out of the way, to `damaged/` in the run folder.
    """
    step, restored = _newest_intact(
        manager, workdir, params=like.params, optimizer=like.optimizer_state
    )
    for later in (str(later) for later in _steps(workdir) if later > step):
        shutil.rmtree(workdir / "damaged" / later, ignore_errors=True)
        (workdir / "damaged").mkdir(exist_ok=True)
        (workdir / "checkpoints" / later).rename(workdir / "damaged" / later)
    manager.reload()
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
    steps = _steps(workdir)
    if not steps:
        raise UserError(f"{workdir} holds no checkpoint yet")
    if step == "best" and (best := best_probe(workdir)):
        step = best.step
    if step is not None and step not in steps:
        raise UserError(f"{workdir} has no checkpoint {step}; it has {', '.join(map(str, steps))}")
    like = jax.eval_shape(lambda: initial_params(model_config, 0))
    with open_manager(workdir / "checkpoints") as manager:
        if step is None:
            step, restored = _newest_intact(manager, workdir, params=like)
        else:
            restored = _restore(manager, workdir, step, params=like)
    return model_config, restored["params"], {**run, "step": step}


def save_converted(
    out: Path, model_config: ModelConfig, params: Any, tokenizer: SpanTokenizer, source: str
) -> None:
    """Writes parameters that come from elsewhere as a run folder that a run can start from."""
    with new_folder(out) as folder:
        (folder / "tokenizer").mkdir()
        save_tokenizer(tokenizer, folder / "tokenizer", model_config.max_length)
        items = ocp.args.Composite(params=ocp.args.StandardSave(params))
        with open_manager(folder / "checkpoints") as manager, _one_line_errors(manager):
            in_daemon(lambda: manager.save(0, args=items))
            manager.wait_until_finished()
        write_json(folder / "run.json", {"converted_from": source, "model": model_config.to_dict()})


def _newest_intact(
    manager: ocp.CheckpointManager, workdir: Path, **like: Any
) -> tuple[int, dict[str, Any]]:
    """Restores the newest checkpoint that is intact, with a warning for each that is not."""
    steps = _steps(workdir)
    for step in reversed(steps):
        try:
            return step, _restore(manager, workdir, step, **like)
        except UserError as error:
            logger.warning("%s; trying an earlier one", error)
    raise UserError(
        f"{workdir}: none of its checkpoints ({', '.join(map(str, steps))}) is intact; to start"
        " again, choose a new folder"
    )


def _restore(
    manager: ocp.CheckpointManager, workdir: Path, step: int, **like: Any
) -> dict[str, Any]:
    """Reads items of an intact checkpoint as NumPy arrays of the shapes of `like`."""
    folder = workdir / "checkpoints" / str(step)
    for item in like:
        if (name := damaged_file(folder / item)) is not None:
            raise UserError(f"checkpoint {folder} is damaged ({item}/{name} is not what was saved)")
    # Orbax restores into what it is shown: NumPy arrays give NumPy arrays.
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    targets = {name: ocp.args.StandardRestore(tree) for name, tree in zeros.items()}
    try:
        restored = manager.restore(step, args=ocp.args.Composite(**targets))
    except UNREADABLE as error:
        raise UserError(f"checkpoint {folder} is damaged ({first_line(error)})") from error
    return {name: restored[name] for name in like}


def _steps(workdir: Path) -> list[int]:
    """Returns the steps of the checkpoints of a run, in order."""
    names = (path.name for path in (workdir / "checkpoints").glob("*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _read_run(workdir: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns the shape of a run's model, and all that `run.json` says."""
    path = workdir / "run.json"
    run = read_object(path)
    try:
        return ModelConfig(**run["model"]), run
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"{path} is damaged: it lacks the shape of a model ({error})") from error


def _fixed(run: dict[str, Any]) -> dict[str, Any]:
    """Returns what of a `run.json` stays as it is when the run resumes, by name."""
    flat = flatten_dict({"config": run.get("config"), "model": run.get("model")}, sep=".")
    fixed = {name: value for name, value in flat.items() if not name.startswith(FREE_SETTINGS)}
    data = run.get("data")
    return fixed | {"data.sha256": data.get("sha256") if isinstance(data, dict) else None}
