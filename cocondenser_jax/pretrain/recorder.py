"""Records a run during training: metrics, checkpoints, and which of its probes is the best."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from cocondenser_jax.errors import escape_control
from cocondenser_jax.files.metrics import metrics_log
from cocondenser_jax.pretrain import checkpoint, hosts
from cocondenser_jax.pretrain.checkpoint import ProbeValues
from cocondenser_jax.pretrain.experiment import Experiment
from cocondenser_jax.pretrain.step import TrainState


class Recorder(NamedTuple):
    """Records a run in its folder and on the terminal; on other hosts than the first, nothing."""

    log: Callable[[int, Mapping[str, float]], None]  # the values of a step
    save: Callable[[TrainState, ProbeValues], None]  # a checkpoint, with its step's probe
    # By step: those of existing checkpoints, and all since this process started.
    probes: dict[int, ProbeValues]
    bar: tqdm
    is_silent: bool

    def log_step(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics of a step, and shows its loss."""
        self.log(step, values)
        self.bar.set_postfix(loss=f"{values['loss']:.3f}", refresh=False)

    def log_probe(self, step: int, values: ProbeValues) -> bool:
        """Logs the probe's measurements, if any; returns whether no earlier step was better."""
        if self.is_silent or not values:
            return False
        self.log(step, values)
        self.probes[step] = values
        best = checkpoint.best_probe(self.probes)
        return best is not None and best.step == step


@contextlib.contextmanager
def open_recorder(workdir: Path, experiment: Experiment, first_step: int) -> Iterator[Recorder]:
    """Yields the recorder of a run that starts, or resumes, after `first_step`."""
    is_silent = not hosts.is_first()
    log = save = _ignore
    probes: dict[int, ProbeValues] = {}
    with contextlib.ExitStack() as stack:
        if not is_silent:
            save = stack.enter_context(checkpoint.checkpoint_writer(workdir, experiment.keep))
            metrics = metrics_log(workdir, first_step, experiment.tracker, experiment.settings)
            log = stack.enter_context(metrics)
            probes = checkpoint.saved_probes(workdir)
        bar = tqdm(
            total=experiment.n_steps,
            initial=first_step,
            desc=escape_control(workdir.name),
            unit="step",
            disable=is_silent,
        )
        stack.enter_context(bar)
        yield Recorder(log=log, save=save, probes=probes, bar=bar, is_silent=is_silent)


def _ignore(*_: Any) -> None:
    """Records nothing."""
