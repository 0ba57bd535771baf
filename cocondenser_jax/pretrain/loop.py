"""The training loop: opens or resumes a run, steps, logs, saves."""

import contextlib
import functools
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from cocondenser_jax.corpus.batches import Batch, BatchSpec, read_batches, require_room
from cocondenser_jax.corpus.order import batch_document_ids, epoch_examples, require_examples
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.corpus.tokenizer import N_AROUND
from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.runs import lock_folder, require_own
from cocondenser_jax.files.trackers import require_tracker
from cocondenser_jax.files.whole import require_writable
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain import checkpoint, hosts
from cocondenser_jax.pretrain.accelerators import model_flops, peak_flops
from cocondenser_jax.pretrain.devices import (
    all_devices,
    choose_chunks,
    choose_layout,
    count_devices,
    mapped_step,
    replicate,
    settle_attention,
)
from cocondenser_jax.pretrain.experiment import Experiment, resolve, with_texts_as
from cocondenser_jax.pretrain.probe import Probe, open_probes
from cocondenser_jax.pretrain.recorder import Recorder, open_recorder
from cocondenser_jax.pretrain.signals import between_steps
from cocondenser_jax.pretrain.step import (
    Metrics,
    TrainState,
    check_batch,
    chunk_lengths,
    initial_state,
    new_memory,
    state_shapes,
)
from cocondenser_jax.pretrain.warm_start import first_model

logger = logging.getLogger(__name__)

_MANY_EPOCHS = 40  # the papers have 8

PROFILE_BATCHES = range(1, 5)  # of a process, that --profile_dir traces: not the compilation


def train(
    config: ConfigDict,
    workdir: Path,
    probes: Sequence[Probe] = (),
    profile_dir: Path | None = None,
) -> None:
    """Pre-trains with the objective of an experiment, or resumes from the run's last checkpoint.

    A new run starts from `config.warm_start`, or from a new model. A resumed run does not read
    `warm_start` again, which may have been deleted.

    With several hosts, each calls it with its own store after `hosts.run_on_hosts` has connected
    them; only the first reads and writes the run folder, which docs/architecture.md describes.

    Args:
      config: the settings; see `configs/default.py`.
      workdir: the run folder.
      probes: further measurements during training, besides the held-out documents. Values named in
        `checkpoint.PROBE_CRITERIA` decide which checkpoint is best.
      profile_dir: gets a trace of some steps after the first, for xprof or TensorBoard.

    Raises:
      SystemExit: after saving, if a signal stops the run before its last step; the status is 128
        plus the signal's number, as for a command that a signal ends.
    """
    if hosts.is_first():
        require_tracker(config.tracker)
    if profile_dir is not None:
        require_writable(profile_dir / "trace")
    if config.probe.data and not probes:
        raise UserError(
            f"config.probe.data is {config.probe.data!r}, but no probe searches it: expected one of"
            " `pipelines.pretraining.folder_probes`"
        )
    store = open_store(Path(config.data.store))
    experiment = resolve(config, store)
    run = functools.partial(_train, experiment, store, workdir, probes, profile_dir)
    if hosts.count() > 1:
        run(hosts.stop_after)
    else:
        between_steps(run)


def _train(
    experiment: Experiment,
    store: TokenStore,
    workdir: Path,
    probes: Sequence[Probe],
    profile_dir: Path | None,
    stop_after: Callable[[int], int],
) -> None:
    """Trains until `stop_after`, asked after each step, names a signal to stop there."""
    n_steps = experiment.n_steps
    stopped_by = 0
    with contextlib.ExitStack() as stack:
        if hosts.is_first():
            require_own(workdir / "run.json")
            stack.enter_context(lock_folder(workdir))
        probe_data = {name: value for probe in probes for name, value in probe.record.items()}
        model_config, params = _model_and_params(experiment, workdir, store, probe_data)
        experiment = with_texts_as(experiment, model_config.representation)
        _require_fitting(experiment, model_config, store)
        experiment, fault = _with_attention(experiment, model_config)
        experiment = _with_chunks(experiment, model_config)
        train_step = mapped_step(model_config, experiment.step)
        probe = open_probes(experiment, store, model_config, probes)
        if hosts.is_first():
            computed = _computed(experiment, model_config, fault)
            checkpoint.open_run(workdir, experiment, model_config, store, probe_data, computed)
        state = _open_state(experiment, workdir, model_config, params)
        del params  # otherwise the first device would keep the initial parameters
        first_step = int(state.step)
        recorder = stack.enter_context(open_recorder(workdir, experiment, first_step))
        batches = _batches_after(first_step, experiment, store)
        if not recorder.is_silent:
            _log_length(experiment, store, workdir, first_step)
            batches = _profiled(batches, profile_dir)
        if hosts.count() > 1:
            # Otherwise a SIGTERM before the first step of a resumed run would stop it at step 1.
            stop_after(first_step)

        rates = _Rates(model_config, experiment)
        reader = _MetricsReader(experiment, store, recorder, rates, n_skipped=int(state.skipped))
        state = replicate(state)
        for step, batch in enumerate(rates.counted(batches), first_step + 1):
            state, metrics = train_step(state, batch)
            reader.follow(step, metrics, state)
            stopped_by = stop_after(step)
            probe_values = probe(step, state.params)
            is_due = bool(stopped_by) or step % experiment.save_every == 0 or step == n_steps
            if probe_values or is_due:
                # Log before saving: a resumed run does not log a saved step again.
                reader.read(state)
            if recorder.log_probe(step, probe_values) or is_due:
                recorder.save(state, probe_values)
            recorder.bar.update()
            if stopped_by:
                break
    if stopped_by and step < n_steps:
        where = f"step {step:,} of {n_steps:,}"
        logger.info(
            "%s: stopped and saved after %s; run the same command again to continue", workdir, where
        )
        raise SystemExit(128 + stopped_by)
    _log_end(recorder, workdir, n_steps, rates)


def _model_and_params(
    experiment: Experiment, workdir: Path, store: TokenStore, probe_data: Mapping[str, str]
) -> tuple[ModelConfig, Any | None]:
    """Returns the run's model, and on host 0 the parameters of a run without a checkpoint."""
    model = params = None
    if hosts.is_first():
        model_config = checkpoint.started_model(workdir)
        if model_config is None:
            model_config, params = first_model(experiment, store)
        model = model_config.to_dict()
    facts = {
        "config": experiment.settings,
        "data": store.sha256,
        "probe.data": probe_data,
        "model": model,
    }
    return ModelConfig.from_dict(hosts.broadcast_and_compare(facts)["model"]), params


def _require_fitting(experiment: Experiment, model_config: ModelConfig, store: TokenStore) -> None:
    """Raises a UserError if the store, the batches or the devices do not fit the model."""
    model_config.require_tokenizer(store.path, store.vocab_size, store.pad_id)
    loss, spec = experiment.step.loss, experiment.batches
    n_devices, longest = count_devices(), model_config.longest_text
    check_batch(spec, loss.chunk_size, longest, n_devices, loss.kept_chunks)
    choose_layout(model_config, loss, spec.length, all_devices())
    require_room(spec, store.tokenizer)
    require_examples(store, spec, hosts.count())


def _with_attention(experiment: Experiment, model_config: ModelConfig) -> tuple[Experiment, str]:
    """Returns the experiment with the attention chosen for its devices, see `settle_attention`."""
    settings = experiment.step
    lengths = chunk_lengths(settings.loss, experiment.batches.length)
    loss, fault = settle_attention(model_config, settings.loss, lengths)
    hosts.broadcast_and_compare({"what their kernel of attention gives": loss.attention})
    return experiment._replace(step=settings._replace(loss=loss)), fault


def _with_chunks(experiment: Experiment, model_config: ModelConfig) -> Experiment:
    """Returns the experiment with `auto` chunks replaced by ones that fit all devices."""
    settings = choose_chunks(model_config, experiment.step, experiment.batches)
    loss = settings.loss
    chunks = {"train.chunk_size": loss.chunk_size, "train.kept_chunks": loss.kept_chunks}
    hosts.broadcast_and_compare(chunks)
    return experiment._replace(step=settings)


def _computed(experiment: Experiment, model_config: ModelConfig, fault: str) -> dict[str, Any]:
    """Returns the choices about computing the steps that depend on the devices."""
    loss, length = experiment.step.loss, experiment.batches.length
    return {
        "devices": count_devices(),
        "device": all_devices()[0].device_kind,
        "attention": choose_layout(model_config, loss, length, all_devices()).attention,
        **({"fault": fault} if fault else {}),
        "chunk_size": loss.chunk_size,
        "kept_chunks": loss.kept_chunks,
    }


def _open_state(
    experiment: Experiment, workdir: Path, model_config: ModelConfig, params: Any | None
) -> TrainState:
    """Returns the state of `params`, or if None that of the newest checkpoint."""
    settings = experiment.step
    state = state_shapes(model_config, settings)
    if hosts.is_first():
        if params is None:
            state = checkpoint.restore_latest(workdir, state)
        else:
            memory = new_memory(model_config, settings.loss)
            state = initial_state(params, settings.optimizer, memory)
    state = hosts.from_first(state)
    if int(state.skipped) > settings.skip_nonfinite:
        raise UserError(
            f"this run has skipped {int(state.skipped)} steps that were not finite, but"
            f" config.train.skip_nonfinite is {settings.skip_nonfinite}"
        )
    return state


def _batches_after(step: int, experiment: Experiment, store: TokenStore) -> Iterator[Batch]:
    """Returns this host's part of the batches of all later steps."""
    return read_batches(
        store,
        experiment.batches,
        first_step=step,
        n_steps=experiment.n_steps,
        host=hosts.number(),
        n_hosts=hosts.count(),
    )


def _log_length(experiment: Experiment, store: TokenStore, workdir: Path, first_step: int) -> None:
    """Logs the length of a run, and where it resumes."""
    spec = experiment.batches
    n_examples = experiment.n_steps * spec.batch_size
    tokens_per_span = min(store.n_tokens / store.n_spans + N_AROUND, spec.length)
    n_tokens = experiment.n_steps * spec.n_rows * tokens_per_span
    n_epochs = n_examples / epoch_examples(store, spec)
    parts = [
        f"{experiment.n_steps:,} steps of {spec.batch_size:,} {spec.kind.unit.name}",
        f"{n_epochs:.3g} epochs",
        f"about {float(f'{n_tokens:.3g}'):,.0f} tokens",
        f"on {_devices()}",
    ]
    logger.info("%s: %s", workdir, ", ".join(parts))
    if n_epochs > _MANY_EPOCHS:
        logger.warning(
            "%s: each text is seen %.0f times: the store is small for this run; add text, or give"
            " fewer config.train.steps",
            workdir,
            n_epochs,
        )
    if spec.length < store.max_length:
        logger.warning(
            "%s: spans of the store have up to %d tokens, and config.data.length reads %d of them:"
            " the rest of a longer one is never read",
            *(workdir, store.max_length, spec.length),
        )
    if first_step:
        logger.info("%s: resuming after step %s", workdir, f"{first_step:,}")


def _devices() -> str:
    kind, n_devices = all_devices()[0].device_kind, count_devices()
    return kind if n_devices == 1 else f"{n_devices} x {kind}"


def _log_end(recorder: Recorder, workdir: Path, n_steps: int, rates: "_Rates") -> None:
    """Logs the end of a run: its speed, and which of its probes was the best, if it has any."""
    if recorder.is_silent:
        return
    speed = ""
    if rates.logged:
        speed = f", {statistics.median(rates.logged):,.0f} tokens a second"
    logger.info("%s: finished all %s steps%s", workdir, f"{n_steps:,}", speed)
    if best := checkpoint.best_probe(recorder.probes):
        trend = "still rising" if best.step == n_steps else "no later one was better"
        at = f"step {best.step:,} of {n_steps:,}, {best.metric} {best.value:.4g}"
        logger.info("%s: best probe: %s; %s", workdir, at, trend)


class _Rates:
    """Counts spans and tokens of all hosts, and the seconds spent waiting for batches."""

    def __init__(self, model_config: ModelConfig, experiment: Experiment) -> None:
        loss = experiment.step.loss
        self.flops_per_span = model_flops(model_config, loss, experiment.batches)
        self.peak = peak_flops(all_devices(), loss.dtype)
        self.logged: list[float] = []  # tokens a second, of each time that rates were logged
        self._restart()

    def _restart(self) -> None:
        self.since = time.perf_counter()
        self.waited = 0.0
        self.n_spans = 0
        self.n_tokens = 0

    def counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields the batches of this host, and counts them."""
        before = time.perf_counter()
        for batch in batches:
            self.waited += time.perf_counter() - before
            self.n_spans += len(batch.attention_mask_SxL) * hosts.count()
            self.n_tokens += int(batch.attention_mask_SxL.sum()) * hosts.count()
            yield batch
            before = time.perf_counter()

    def since_last(self) -> dict[str, float]:
        """Returns the rates since the last call; `mfu` is the share of the devices' peak."""
        seconds = max(time.perf_counter() - self.since, 1e-9)
        flops = self.flops_per_span * self.n_spans / seconds
        rates = {
            "spans_per_second": self.n_spans / seconds,
            "tokens_per_second": self.n_tokens / seconds,
            "input_wait_share": self.waited / seconds,
            "model_tflops_per_second": flops / 1e12,
        }
        if self.peak is not None:
            rates["mfu"] = flops / self.peak
        self.logged.append(rates["tokens_per_second"])
        self._restart()
        return rates


class _MetricsReader:
    """Reads the metrics of a step after dispatching the next, so that no device waits for the host.

    Logs those that are due, and stops the run after too many non-finite steps.
    """

    def __init__(
        self,
        experiment: Experiment,
        store: TokenStore,
        recorder: Recorder,
        rates: _Rates,
        n_skipped: int,
    ) -> None:
        self.experiment = experiment
        self.store = store
        self.recorder = recorder
        self.rates = rates
        self.n_skipped = n_skipped
        self._pending: tuple[int, Metrics] | None = None  # a step, and its metrics on the devices

    def follow(self, step: int, metrics: Metrics, state: TrainState) -> None:
        """Takes the metrics of a dispatched step, and reads those of the step before it.

        `state` is that after the step.
        """
        self.read(state)
        self._pending = step, metrics

    def read(self, state: TrainState) -> None:
        """Reads the pending metrics, if any; waits until the devices have finished that step.

        `state` is that after it, or after a later step.
        """
        if self._pending is None:
            return
        step, metrics = self._pending
        self._pending = None
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        n_skipped = int(values.pop("skipped"))
        is_due = step % self.experiment.log_every == 0 or step == self.experiment.n_steps
        if n_skipped > self.n_skipped:
            self.n_skipped = n_skipped
            self._skip(step, values, state)
        elif is_due:
            self.recorder.log_step(step, values | self.rates.since_last())

    def _skip(self, step: int, values: Mapping[str, float], state: TrainState) -> None:
        """Reports a non-finite step with its batch.

        If it is one too many, saves the state from before it, and raises.
        """
        allowed = self.experiment.step.skip_nonfinite
        what = _describe(self.store, self.experiment.batches, step, values)
        if self.n_skipped <= allowed:
            logger.warning("%s; skipped, %d of at most %d", what, self.n_skipped, allowed)
            return
        # Not counting that step: the same command reaches it again.
        self.recorder.save(state._replace(skipped=jnp.int32(allowed)), {})
        raise UserError(
            f"{what}; the run is saved as it was before that step"
            f" (config.train.skip_nonfinite is {allowed})"
        )


def _describe(store: TokenStore, spec: BatchSpec, step: int, metrics: Mapping[str, float]) -> str:
    """Describes a non-finite step and its batch, which follows from seed and step."""
    losses = [f"{name} {x:.4g}" for name, x in metrics.items() if name != "learning_rate"]
    documents = first_three(batch_document_ids(store, spec, step - 1))
    return f"step {step} is not finite ({', '.join(losses)}; documents {documents})"


def _profiled(batches: Iterator[Batch], folder: Path | None) -> Iterator[Batch]:
    """Yields batches, and records a trace during `PROFILE_BATCHES`."""
    if folder is None:
        yield from batches
        return
    with contextlib.ExitStack() as trace:
        for number, batch in enumerate(batches):
            if number == PROFILE_BATCHES.start:
                trace.enter_context(jax.profiler.trace(str(folder)))
            if number == PROFILE_BATCHES.stop:
                trace.close()
            yield batch
