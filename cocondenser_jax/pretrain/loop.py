"""The training loop: opens the run, goes on where it stopped, steps, logs, saves."""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict
from tqdm import tqdm

from cocondenser_jax.corpus.batches import Batch, BatchSpec, read_batches
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.metrics import Log, metrics_log
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain import checkpoint, hosts, signals
from cocondenser_jax.pretrain.nonfinite import NonFiniteError, write_batch
from cocondenser_jax.pretrain.step import (
    Metrics,
    TrainState,
    initial_params,
    initial_state,
    pmap_step,
    replicate,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)


def train(
    config: ConfigDict,
    workdir: Path,
    *,
    warm_start: Callable[[], tuple[ModelConfig, Any] | None] = lambda: None,
    label: str = "pretrain",
) -> None:
    """Pre-trains a Condenser or coCondenser, from the start or from the run's last checkpoint.

    On several hosts each calls it, after `hosts.connect`, with a store of its own; only the first
    reads and writes the run folder.

    Args:
      config: the experiment, see `configs/default.py`.
      workdir: the run folder; `checkpoint.py` says what it holds.
      warm_start: gives model and parameters to begin with, or None for a new model of
        `config.model`. It is not called for a run that goes on from a checkpoint: where that run
        began may be gone by then.
      label: what the progress bar says.

    Raises:
      UserError: if the settings do not fit each other, the data, or the run that is there.
      SystemExit: with status 0, once it is saved, where a SIGTERM or Ctrl-C asked it to stop.
    """
    with _signals() as is_to_stop:
        stopped_after = _train(config, workdir, warm_start, label, is_to_stop)
    if stopped_after is not None:
        logger.info("%s: stopped and saved after step %d", workdir, stopped_after)
        raise SystemExit(0)


def _train(
    config: ConfigDict,
    workdir: Path,
    warm_start: Callable[[], tuple[ModelConfig, Any] | None],
    label: str,
    is_to_stop: Callable[[int], bool],
) -> int | None:
    """Does what `train` says; returns the step after which it was stopped, None at its end."""
    store = open_store(Path(config.data.store))
    model_config, params = _beginning(config, workdir, store, warm_start)
    _require_tokenizer(model_config, store)
    train_step = pmap_step(model_config, config)
    if hosts.is_first():
        checkpoint.open_run(workdir, config, model_config, store)

    with _on_first_host(
        lambda: checkpoint.checkpoint_manager(workdir, config.checkpoint)
    ) as manager:
        state = _state_to_begin_with(config, model_config, params, manager)
        first_step, n_steps = int(state.step), config.train.steps
        if first_step and manager is not None:
            logger.info("%s: going on after step %d", workdir, first_step)
        if jax.process_count() > 1:
            # Else a SIGTERM that comes before the first step of a resumed run would stop it at
            # step 1.
            is_to_stop(first_step)
        spec = BatchSpec(config.seed, config.data.documents_per_step, config.data.length)
        batches = read_batches(
            store,
            spec,
            first_step=first_step,
            n_steps=n_steps,
            host=jax.process_index(),
            n_hosts=jax.process_count(),
        )
        stopped = False
        states = replicate(state)
        with (
            _on_first_host(lambda: metrics_log(workdir, first_step)) as log,
            tqdm(
                total=n_steps,
                initial=first_step,
                desc=label,
                unit="step",
                disable=not hosts.is_first(),
            ) as bar,
        ):
            reader = _Reader(config, workdir, store, spec, int(state.skipped), log, bar)
            unread: Metrics | None = None  # of the last step; reading them waits for the device
            try:
                for step in range(first_step + 1, n_steps + 1):
                    batch = reader.meter.time(batches)
                    states, metrics = train_step(states, split_over_devices(batch))
                    if unread is not None:
                        reader.read(step - 1, unread)
                    unread, stopped = metrics, is_to_stop(step)
                    if stopped or step % config.checkpoint.every == 0 or step == n_steps:
                        # Read first: once it is saved, no later run logs this step again.
                        reader.read(step, metrics)
                        unread = None
                        if manager is not None:
                            checkpoint.save(manager, first_replica(states))
                    bar.update()
                    if stopped:
                        break
            except NonFiniteError:
                if manager is not None:
                    checkpoint.save(manager, first_replica(states))
                raise
    return step if stopped else None


def _beginning(
    config: ConfigDict,
    workdir: Path,
    store: TokenStore,
    warm_start: Callable[[], tuple[ModelConfig, Any] | None],
) -> tuple[ModelConfig, Any | None]:
    """Returns the model, and the parameters to begin with: None where there is a checkpoint.

    On other hosts than the first, the parameters are always None.
    """
    model, params = None, None
    if hosts.is_first():
        model_config, params = _beginning_of_first(config, workdir, store, warm_start)
        model = model_config.to_dict()
    mine = {"config": config.to_dict(), "data": store.sha256, "model": model}
    told = json.loads(hosts.text_from_first(json.dumps(mine)))
    for what in ("config", "data"):
        if mine[what] != told[what]:
            raise UserError(f"host {jax.process_index()} has another {what} than host 0")
    return ModelConfig(**told["model"]), params


def _beginning_of_first(
    config: ConfigDict,
    workdir: Path,
    store: TokenStore,
    warm_start: Callable[[], tuple[ModelConfig, Any] | None],
) -> tuple[ModelConfig, Any | None]:
    started = checkpoint.started_model(workdir)
    if started is not None:
        return started, None
    loaded = warm_start()
    if loaded is not None:
        return loaded
    model_config = scratch_model(config, store)
    return model_config, scratch_params(model_config, config.seed, store)


def _state_to_begin_with(
    config: ConfigDict,
    model_config: ModelConfig,
    params: Any | None,
    manager: ocp.CheckpointManager | None,
) -> TrainState:
    """Returns the state of `params`, else of the newest checkpoint, as host 0 has it."""
    state = jax.eval_shape(lambda: initial_state(model_config, config))
    if params is not None:
        state = initial_state(model_config, config, params)
    elif manager is not None:
        state = checkpoint.restore_latest(manager, state)
    state = hosts.from_first(state)
    if int(state.skipped) > config.train.skip_nonfinite:
        raise UserError(
            f"this run has left out {int(state.skipped)} steps that were not finite, but"
            f" config.train.skip_nonfinite is {config.train.skip_nonfinite}"
        )
    return state


def _on_first_host(
    make: Callable[[], contextlib.AbstractContextManager[T]],
) -> contextlib.AbstractContextManager[T | None]:
    """Returns what is made on the first host only, and nothing on the others."""
    return make() if hosts.is_first() else contextlib.nullcontext()


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[int], bool]]:
    """Yields a function that tells, after each step, whether the run was asked to stop there."""
    if jax.process_count() > 1:
        yield hosts.stop_after
    else:
        with signals.postponed() as is_to_stop:
            yield lambda step: is_to_stop()


def first_replica(tree: Any) -> Any:
    """Returns the first local device's copy of every array."""
    return jax.tree.map(lambda x: x.addressable_shards[0].data[0], tree)


def split_over_devices(batch: Batch) -> Batch:
    """Cuts a host's batch into equal parts: a new leading axis of local devices."""
    n_devices = jax.local_device_count()
    return Batch(*(x.reshape(n_devices, -1, *x.shape[1:]) for x in batch))


class _Meter:
    """Throughput and the share of time spent waiting for input, since the last reading."""

    def __init__(self, config: ConfigDict) -> None:
        self._spans_per_step = 2 * config.data.documents_per_step
        self._reset()

    def _reset(self) -> None:
        self._started, self._waited, self._steps, self._tokens = time.perf_counter(), 0.0, 0, 0

    def time(self, batches: Iterator[Batch]) -> Batch:
        """Takes the next batch and counts how long that took."""
        before = time.perf_counter()
        batch = next(batches)
        self._waited += time.perf_counter() - before
        self._steps += 1
        self._tokens += int(batch.attention_mask_SxL.sum()) * jax.process_count()
        return batch

    def read(self) -> dict[str, float]:
        """Returns the rates since the last reading; tokens are counted without padding."""
        seconds = max(time.perf_counter() - self._started, 1e-9)
        rates = {
            "spans_per_second": self._steps * self._spans_per_step / seconds,
            "tokens_per_second": self._tokens / seconds,
            "input_wait_share": self._waited / seconds,
        }
        self._reset()
        return rates


class _Reader:
    """Reads the figures of steps: logs those that are due, tells of those that are not finite."""

    def __init__(
        self,
        config: ConfigDict,
        workdir: Path,
        store: TokenStore,
        batch_spec: BatchSpec,
        n_skipped: int,
        log: Log | None,
        bar: tqdm,
    ) -> None:
        self._config, self._workdir, self._store = config, workdir, store
        self._batch_spec, self._n_skipped = batch_spec, n_skipped
        self._log, self._bar = log, bar
        self.meter = _Meter(config)

    def read(self, step: int, metrics: Metrics) -> None:
        """Waits for the device to be done with the step."""
        n_skipped = int(np.asarray(metrics["skipped"].addressable_shards[0].data)[0])
        due = step % self._config.log_every == 0 or step == self._config.train.steps
        if not due and n_skipped == self._n_skipped:
            return
        values = {name: float(x) for name, x in first_replica(metrics).items() if name != "skipped"}
        if n_skipped > self._n_skipped:
            self._n_skipped = n_skipped
            self._tell_of(step, values)
        elif self._log is not None:
            self._log(step, values | self.meter.read())
            self._bar.set_postfix(loss=f"{values['loss']:.3f}", refresh=False)

    def _tell_of(self, step: int, values: dict[str, float]) -> None:
        told = f"step {step} is not finite"
        if hosts.is_first():
            losses = {name: x for name, x in values.items() if name != "learning_rate"}
            told = write_batch(self._workdir, self._store, self._batch_spec, step, losses)
        allowed = self._config.train.skip_nonfinite
        if self._n_skipped > allowed:
            raise NonFiniteError(
                f"{told}; the run is saved as it was before that step"
                f" (config.train.skip_nonfinite is {allowed})"
            )
        logger.warning("%s; left out, %d of at most %d", told, self._n_skipped, allowed)


def scratch_model(config: ConfigDict, store: TokenStore) -> ModelConfig:
    """Returns the shape of a new model: `config.model`, with the store's vocabulary."""
    sizes = config.model.to_dict()
    return ModelConfig(**sizes, vocab_size=store.vocab_size, pad_token_id=store.pad_id)


def scratch_params(model_config: ModelConfig, seed: int, store: TokenStore) -> Any:
    """Returns new parameters, with the bias of the MLM projection at each token's log frequency.

    The projection is tied to the word embeddings. Where the bias has yet to learn that most words
    are rare, the embeddings learn it in its place: all those of rare words move in one direction,
    and can hardly be told apart afterwards.
    """
    params = initial_params(model_config, seed)
    counts_V = store.token_counts() + 1.0
    params["mlm"]["bias"] = np.log(counts_V / counts_V.sum()).astype(np.float32)
    return params


def _require_tokenizer(model_config: ModelConfig, store: TokenStore) -> None:
    """Raises a UserError where the store was made with another tokenizer than the model's."""
    if (model_config.vocab_size, model_config.pad_token_id) != (store.vocab_size, store.pad_id):
        raise UserError(
            f"the store's tokenizer has {store.vocab_size} tokens and [PAD] {store.pad_id}, the"
            f" model to start from {model_config.vocab_size} and {model_config.pad_token_id}:"
            " build the store with the model's own tokenizer"
        )
