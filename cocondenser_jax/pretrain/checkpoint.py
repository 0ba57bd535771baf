"""A run folder: the run's settings and facts (`run.json`) and its checkpoints.

docs/architecture.md lists its files. A checkpoint is a folder `checkpoints/<step>`:

    params.safetensors  the parameters
    state.safetensors   all other fields of the state, by their names
    probe.json          the probe's measurements after the step
    sha256.json         checksums of the other files
"""

import contextlib
import importlib.metadata
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from cocondenser_jax import __version__
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.errors import UserError, first_three, whole_message
from cocondenser_jax.files.runs import (
    newest_intact,
    numbered_folders,
    require_intact,
    require_run_folder,
    start_or_compare,
    write_checksums,
)
from cocondenser_jax.files.whole import new_folder, read_object, write_json
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.experiment import Experiment
from cocondenser_jax.pretrain.step import TrainState

logger = logging.getLogger(__name__)

LIBRARIES = ("jax", "flax", "optax", "grain", "numpy")
# May differ when a run resumes: these settings change how a run is computed or stored, not its
# result.
FREE_SETTINGS = (
    "config.train.chunk_size",
    "config.train.kept_chunks",
    "config.train.attention",
    "config.train.skip_nonfinite",
    "config.checkpoint",
    "config.log_every",
    "config.tracker",
    "config.data.store",  # the same data may have moved; its hash is compared
    "config.probe.data",  # so may these files
    "steps",  # follows from others
    "data.corpus",
    "data.stores",
    "computed",
    "versions",
)
# Free once there is a checkpoint, because they are only read before the first step.
_FREE_LATER = ("config.warm_start",)
# The first of these that was measured decides which probe is best.
PROBE_CRITERIA = ("ndcg_at_10", "positive_mrr", "mlm_loss")


# The probe's measurements of a step, by the names that are logged.
ProbeValues = Mapping[str, float]
_PARAMS = "params.safetensors"
_OTHERS = "state.safetensors"
_PROBE = "probe.json"


class BestProbe(NamedTuple):
    """The best of a run's probes; of equal ones, the first."""

    step: int
    metric: str
    value: float


def open_run(
    workdir: Path,
    experiment: Experiment,
    model_config: ModelConfig,
    store: TokenStore,
    probe_data: Mapping[str, str],
    computed: Mapping[str, Any],
) -> None:
    """Creates the run folder, or checks that the one there belongs to this experiment.

    `probe_data` has the checksums, by name, of the data that the probes read. `computed` says how
    the devices compute the run; another process may do it differently.
    """
    run = {
        "config": experiment.settings,
        "model": model_config.to_dict(),
        "data": {
            "sha256": store.sha256,
            "corpus": store.manifests[0]["corpus"],
            "stores": [str(corpus.path) for corpus in store.corpora],
            "weights": [corpus.weight for corpus in store.corpora],
            "documents": store.n_documents,
            "spans": store.n_spans,
            "tokens": store.n_tokens,
        },
        "steps": experiment.n_steps,
        "probe_data": dict(probe_data),
        "computed": dict(computed),
        "versions": {
            "cocondenser_jax": __version__,  # a clone that was not installed has no metadata
            **{name: importlib.metadata.version(name) for name in LIBRARIES},
        },
    }
    free = FREE_SETTINGS + _FREE_LATER if _checkpoints(workdir) else FREE_SETTINGS
    started = start_or_compare(workdir / "run.json", run, free)
    if started.get("computed") != run["computed"]:
        write_json(workdir / "run.json", started | {"computed": run["computed"]})
    # Last, so that a folder left by a kill in between still says which run it belongs to.
    if not (workdir / "tokenizer").exists():
        with new_folder(workdir / "tokenizer") as folder:
            shutil.copytree(store.tokenizer_folder, folder, dirs_exist_ok=True)


def started_model(workdir: Path) -> ModelConfig | None:
    """Returns the model of a run that has a checkpoint to resume from, otherwise None."""
    is_run = (workdir / "run.json").is_file() and _checkpoints(workdir)
    return _read_run(workdir)[0] if is_run else None


@contextlib.contextmanager
def checkpoint_writer(
    workdir: Path, keep: int
) -> Iterator[Callable[[TrainState, ProbeValues], None]]:
    """Yields a function that saves a state and its probe under its step, in the background.

    It does nothing if that step is already saved. An earlier checkpoint is deleted only once its
    successor is complete on disk. The latest `keep` checkpoints are kept, and the one with the best
    probe.

    Raises:
      UserError: at the next save, or at the end, if the previous save failed.
    """

    def write(step: int, arrays: Mapping[str, Any], probe_values: ProbeValues) -> None:
        with new_folder(workdir / "checkpoints" / str(step)) as folder:
            for name, tensors in arrays.items():
                save_file(tensors, folder / name)
            write_json(folder / _PROBE, probe_values)
            write_checksums(folder)
        best = best_probe(saved_probes(workdir))
        for earlier, folder in list(_checkpoints(workdir).items())[:-keep]:
            if not (best and earlier == best.step):
                shutil.rmtree(folder)

    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(_remove_unfinished, workdir)

        def save(state: TrainState, probe_values: ProbeValues) -> None:
            nonlocal last
            last.result()
            step = int(state.step)
            if step not in _checkpoints(workdir):
                # Copied, because the next step overwrites the state.
                arrays = {
                    _PARAMS: named_arrays(state.params),
                    _OTHERS: named_arrays(state._replace(params=())),
                }
                last = pool.submit(write, step, arrays, dict(probe_values))

        yield save
        last.result()


def _remove_unfinished(workdir: Path) -> None:
    """Removes checkpoints that a killed run left unfinished."""
    for folder in (workdir / "checkpoints").glob("*.partial"):
        shutil.rmtree(folder)


def saved_probes(workdir: Path) -> dict[int, ProbeValues]:
    """Returns the probe's measurements of each existing checkpoint, by step."""
    probes: dict[int, ProbeValues] = {}
    for step, folder in _checkpoints(workdir).items():
        with contextlib.suppress(UserError):  # it is damaged: no other command needs it
            probes[step] = read_object(folder / _PROBE)
    return probes


def best_probe(probes: Mapping[int, ProbeValues]) -> BestProbe | None:
    """Returns the best of some steps' probes; None if none has a finite value of a criterion."""
    for name in PROBE_CRITERIA:
        sign = -1 if name == "mlm_loss" else 1  # lower is better
        values = {step: x[f"probe/{name}"] for step, x in probes.items() if f"probe/{name}" in x}
        finite = [step for step, value in sorted(values.items()) if math.isfinite(value)]
        if finite:
            step = max(finite, key=lambda step: sign * values[step])
            return BestProbe(step, name, values[step])
    return None


def restore_latest(workdir: Path, like: TrainState) -> TrainState:
    """Returns a run's latest intact state, with NumPy arrays of the shapes of `like`.

    Damaged later ones are moved to `damaged/` in the run folder.
    """
    checkpoints = _checkpoints(workdir)
    step, state = newest_intact(checkpoints, lambda folder: _read_state(folder, like))
    for later in (folder for number, folder in checkpoints.items() if number > step):
        aside = workdir / "damaged" / later.name
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(exist_ok=True)
        later.rename(aside)
    return state


def load_run(
    workdir: Path, step: int | str | None = None
) -> tuple[ModelConfig, Any, dict[str, Any]]:
    """Reads a run's parameters at a step, or of its latest intact checkpoint.

    The step "best" is that of the best probe. If no step is given and the latest is not the last
    step of the run, a warning names both.

    Returns:
      The model's shape, its parameters as NumPy arrays, and `run.json` with `step` added.
    """
    require_run_folder(workdir, "run.json")
    model_config, run = _read_run(workdir)
    checkpoints = _checkpoints(workdir)
    if not checkpoints:
        raise UserError(f"{workdir} holds no checkpoint yet")
    if step == "best":
        best = best_probe(saved_probes(workdir))
        step = best.step if best else step
    if step is not None and step not in checkpoints:
        there = ", ".join(map(str, checkpoints))
        raise UserError(f"{workdir} has no checkpoint {step}; it has {there}")
    like = jax.eval_shape(lambda: init_params(model_config, 0))
    if step is None:
        step, params = newest_intact(checkpoints, lambda folder: _read_params(folder, like))
        _warn_if_unfinished(workdir, step, run)
    else:
        params = _read_params(checkpoints[int(step)], like)
    return model_config, params, {**run, "step": step}


def _warn_if_unfinished(workdir: Path, step: int, run: Mapping[str, Any]) -> None:
    with contextlib.suppress(KeyError, TypeError):  # of a damaged file, which has other readers
        n_steps = run["steps"]
        if step < n_steps:
            logger.warning(
                "%s has not ended: this is its step %d of %d; `pretrain` resumes it",
                workdir,
                step,
                n_steps,
            )


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Copies the arrays of a tree, by their paths in it: `layer_0/query/kernel`, `1/0/mu/...`."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    # In C's order: safetensors (0.8) writes the memory as it lies.
    return {_path_name(path): np.array(leaf, order="C") for path, leaf in paths}


def read_arrays(path: Path, like: Any) -> Any:
    """Reads the tree whose `named_arrays` a file holds; `like` has its structure and shapes.

    Raises:
      UserError: if names, shapes or types of numbers are not those of `like`.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    expected_specs = {_path_name(each): (leaf.shape, np.dtype(leaf.dtype)) for each, leaf in paths}
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged: {whole_message(error)}") from error
    specs = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if specs != expected_specs:
        names = sorted(
            name for name in specs | expected_specs if specs.get(name) != expected_specs.get(name)
        )
        what = first_three(names)
        raise UserError(f"{path} is damaged: missing, unexpected or of another shape: {what}")
    return jax.tree.unflatten(structure, [arrays[name] for name in expected_specs])


def _path_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _read_state(folder: Path, like: TrainState) -> TrainState:
    params = _read_params(folder, like.params)
    state: TrainState = read_arrays(folder / _OTHERS, like._replace(params=()))
    return state._replace(params=params)


def _read_params(folder: Path, like: Any) -> Any:
    """Reads the parameters of a checkpoint, and checks all its files."""
    require_intact(folder)
    return read_arrays(folder / _PARAMS, like)


def _checkpoints(workdir: Path) -> dict[int, Path]:
    return numbered_folders(workdir / "checkpoints")


def _read_run(workdir: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns the shape of a run's model, and all that `run.json` says."""
    path = workdir / "run.json"
    run = read_object(path)
    try:
        return ModelConfig.from_dict(run["model"]), run
    except (KeyError, UserError) as error:
        raise UserError(f"{path} is damaged: it lacks the shape of a model ({error})") from error
