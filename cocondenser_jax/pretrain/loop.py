"""The training loop: opens or resumes a run, steps, logs, saves."""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict
from tqdm import tqdm

from cocondenser_jax.corpus.batches import Batch, epoch_examples, read_batches, source_shares
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.errors import UserError, escape_control
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain import checkpoint, experiment, hosts
from cocondenser_jax.pretrain.nonfinite import NonFiniteError, report_step
from cocondenser_jax.pretrain.plan import least_seconds
from cocondenser_jax.pretrain.probe import open_probe
from cocondenser_jax.pretrain.signals import between_steps
from cocondenser_jax.pretrain.step import (
    Metrics,
    StepSettings,
    TrainState,
    check_batch,
    initial_params,
    initial_state,
    mapped_step,
    place,
    state_shapes,
)
from cocondenser_jax.storage.metrics import load_loggers, metrics_log
from cocondenser_jax.storage.runs import lock_folder

logger = logging.getLogger(__name__)

WarmStart = Callable[[], tuple[ModelConfig, Any] | None]


def train(config: ConfigDict, workdir: Path, warm_start: WarmStart = lambda: None) -> None:
    """Pre-trains with the objective of an experiment, from the start or the run's last checkpoint.

    On several hosts each calls it, after `hosts.connect`, with a store of its own; only the first
    reads and writes the run folder; docs/architecture.md says what it holds.

    `warm_start` gives model and parameters to start from, or None for a new model. It is not called
    for a run that resumes: what that run started from may be gone by then.

    Raises:
      SystemExit: with status 0, once it is saved, where a SIGTERM or Ctrl-C asked it to stop.
    """
    if jax.process_count() > 1:
        # JAX catches the signal, and agrees with the other hosts on a step that none has passed.
        _train(config, workdir, warm_start, multihost_utils.reached_preemption_sync_point)
    else:
        between_steps(functools.partial(_train, config, workdir, warm_start))


def _train(
    config: ConfigDict, workdir: Path, warm_start: WarmStart, stop_after: Callable[[int], bool]
) -> None:
    """Trains until `stop_after`, asked after each step, says that it is to stop there."""
    spec = experiment.batch_spec(config)
    stopped = False
    with contextlib.ExitStack() as stack:
        if hosts.is_first():
            stack.enter_context(lock_folder(workdir))
            loggers = load_loggers(config.loggers)
        store = open_store(Path(config.data.store))
        n_steps = experiment.run_length(config, store)
        settings = experiment.step_settings(config, n_steps)
        model_config, params = _model_and_params(config, workdir, store, warm_start)
        check_batch(spec, config.train.chunk_size, model_config.max_length, jax.device_count())
        train_step = mapped_step(model_config, settings)
        probe = open_probe(config, store, model_config)

        save = log = None
        if hosts.is_first():
            checkpoint.open_run(workdir, config, model_config, store)
            keep, keep_every = config.checkpoint.keep, config.checkpoint.keep_every
            writer = checkpoint.checkpoint_writer(
                workdir, keep=keep, keep_every=keep_every, metric=config.probe.metric
            )
            save = stack.enter_context(writer)
        state = _initial_or_restored(model_config, settings, params, workdir)
        first_step, n_skipped = int(state.step), int(state.skipped)
        probes = checkpoint.saved_probes(workdir) if hosts.is_first() else {}
        batches = read_batches(
            store,
            spec,
            first_step=first_step,
            n_steps=n_steps,
            host=jax.process_index(),
            n_hosts=jax.process_count(),
        )
        if hosts.is_first():
            log = stack.enter_context(metrics_log(workdir, first_step, loggers))
            logger.info("%s: %s", workdir, _describe(config, store, model_config, settings))
            shares = zip(store.sources, source_shares(store, spec), strict=True)
            for source, share in shares if len(store.sources) > 1 else ():
                logger.info(
                    "%s: %.1f %% of the examples, from %s", workdir, 100 * share, source.path
                )
            if first_step:
                logger.info("%s: resuming after step %d", workdir, first_step)
        if jax.process_count() > 1:
            # Else a SIGTERM that comes before the first step of a resumed run would stop it at
            # step 1.
            stop_after(first_step)

        name, hidden = escape_control(workdir.name), log is None
        bar = tqdm(total=n_steps, initial=first_step, desc=name, unit="step", disable=hidden)
        stack.enter_context(bar)
        totals = {"since": time.perf_counter(), "waited": 0.0, "spans": 0, "tokens": 0}
        report = functools.partial(report_step, workdir, store, spec, settings.skip_nonfinite)

        def read(step: int, metrics: Metrics) -> None:
            """Logs a step if it is due or not finite; waits for the devices to be done with it."""
            nonlocal n_skipped
            n_skipped_before, n_skipped = n_skipped, int(metrics["skipped"])
            is_due = step % config.log_every == 0 or step == n_steps
            if n_skipped > n_skipped_before:
                report(step, n_skipped, _floats(metrics))
            elif is_due and log is not None:
                log(step, _floats(metrics) | _rates(totals))
                bar.set_postfix(loss=f"{float(metrics['loss']):.3f}", refresh=False)

        state, unread = place(state), None  # the metrics of the step before
        del params  # else the first device would hold what the run started from
        try:
            for step, batch in enumerate(_counted(batches, totals), first_step + 1):
                state, metrics = train_step(state, batch)
                if unread is not None:
                    read(step - 1, unread)
                unread, stopped = metrics, stop_after(step)
                probed = probe(step, state.params)
                is_saved = stopped or step % config.checkpoint.every == 0 or step == n_steps
                if probed or is_saved:
                    # Read first: once it is saved, no later run logs this step again.
                    read(step, metrics)
                    unread = None
                if probed and log is not None:
                    log(step, probed)
                    probes[step] = probed
                    best = checkpoint.best_probe(probes, config.probe.metric)
                    is_saved |= best is not None and best.step == step
                if is_saved and save is not None:
                    save(state, probed)
                bar.update()
                if stopped:
                    break
        except NonFiniteError:
            if save is not None:
                # Without the step that was one too many: the same command reaches it again.
                save(state._replace(skipped=jnp.int32(settings.skip_nonfinite)), {})
            raise
    if stopped:
        logger.info("%s: stopped and saved after step %d", workdir, step)
        raise SystemExit(0)
    if best := checkpoint.best_probe(probes, config.probe.metric):
        trend = "still rising" if best.step == n_steps else "no later one was better"
        at = f"step {best.step:,} of {n_steps:,}, {best.metric} {best.value:.4g}"
        logger.info("%s: best probe: %s; %s", workdir, at, trend)


def _describe(
    config: ConfigDict, store: TokenStore, model: ModelConfig, settings: StepSettings
) -> str:
    """Returns the length of a run in words."""
    n_steps, spec = experiment.run_length(config, store), experiment.batch_spec(config)
    examples = {"span": "spans", "pair": "documents", "cloze": "spans"}[spec.example]
    seconds = least_seconds(model, settings.loss, spec, jax.devices())
    return (
        f"{n_steps:,} steps of {spec.batch_size:,} {examples},"
        f" {n_steps * spec.batch_size / epoch_examples(store, spec):.3g} epochs,"
        f" about {experiment.run_tokens(config, store):.3g} tokens"
        + (f", {n_steps * seconds / 3600:.2g} hours or more" if seconds else "")
    )


def _model_and_params(
    config: ConfigDict, workdir: Path, store: TokenStore, warm_start: WarmStart
) -> tuple[ModelConfig, Any | None]:
    """Returns the run's model, and on host 0 the parameters of a run without a checkpoint."""
    model_config, params = None, None
    if hosts.is_first():
        model_config = checkpoint.started_model(workdir)
        if model_config is None:
            sizes = experiment.network_sizes(config)
            model_config, params = warm_start() or new_model(sizes, config.seed, store)
    model = model_config.to_dict() if model_config else None
    agreed = hosts.agree({"config": config.to_dict(), "data": store.sha256, "model": model})
    model_config = ModelConfig(**agreed["model"])
    if (model_config.vocab_size, model_config.pad_token_id) != (store.vocab_size, store.pad_id):
        raise UserError(
            f"the store's tokenizer has {store.vocab_size} tokens and [PAD] {store.pad_id}, the"
            f" model to start from {model_config.vocab_size} and {model_config.pad_token_id}:"
            " build the store with the model's own tokenizer"
        )
    return model_config, params


def scratch_model(sizes: Mapping[str, Any], store: TokenStore) -> ModelConfig:
    """Returns the shape of a new model: sizes as `network_sizes`, the store's vocabulary."""
    return ModelConfig(**sizes, vocab_size=store.vocab_size, pad_token_id=store.pad_id)


def new_model(sizes: Mapping[str, Any], seed: int, store: TokenStore) -> tuple[ModelConfig, Any]:
    """Returns a new model, with the bias of the MLM projection at each token's log frequency.

    The projection is tied to the word embeddings. While its bias still has to learn that most words
    are rare, the embeddings learn it instead: those of all rare words move in one direction, and
    can hardly be told apart afterwards.
    """
    model_config = scratch_model(sizes, store)
    params = initial_params(model_config, seed)
    counts_V = store.token_counts() + 1.0
    params["mlm"]["bias"] = np.log(counts_V / counts_V.sum()).astype(np.float32)
    return model_config, params


def _initial_or_restored(
    model_config: ModelConfig, settings: StepSettings, params: Any | None, workdir: Path
) -> TrainState:
    """Returns the state of `params`, else of the newest checkpoint, as host 0 has it."""
    state = state_shapes(model_config, settings.optimizer)
    if params is not None:
        state = initial_state(params, settings.optimizer)
    elif hosts.is_first():
        state = checkpoint.restore_latest(workdir, state)
    state = hosts.from_first(state)
    if int(state.skipped) > settings.skip_nonfinite:
        raise UserError(
            f"this run has left out {int(state.skipped)} steps that were not finite, but"
            f" config.train.skip_nonfinite is {settings.skip_nonfinite}"
        )
    return state


def _counted(batches: Iterator[Batch], totals: dict[str, float]) -> Iterator[Batch]:
    """Yields batches; adds up the seconds of waiting for them, their spans, and their tokens."""
    before = time.perf_counter()
    for batch in batches:
        totals["waited"] += time.perf_counter() - before
        totals["spans"] += len(batch.attention_mask_SxL) * jax.process_count()
        totals["tokens"] += int(batch.attention_mask_SxL.sum()) * jax.process_count()
        yield batch
        before = time.perf_counter()


def _rates(totals: dict[str, float]) -> dict[str, float]:
    """Returns rates since the last reading, and the share of time spent waiting for input."""
    now = time.perf_counter()
    seconds = max(now - totals["since"], 1e-9)
    rates = {f"{name}_per_second": totals[name] / seconds for name in ("spans", "tokens")}
    rates["input_wait_share"] = totals["waited"] / seconds
    totals.update(since=now, waited=0.0, spans=0, tokens=0)
    return rates


def _floats(metrics: Metrics) -> dict[str, float]:
    return {name: float(x) for name, x in metrics.items() if name != "skipped"}
