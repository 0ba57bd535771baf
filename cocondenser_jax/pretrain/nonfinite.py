"""Steps whose loss or gradient is not finite: `step.py` leaves them out, here they are reported.

`nonfinite-<step>.npz` in the run folder holds the batch of such a step.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cocondenser_jax.corpus.batches import BatchSpec, batch_document_ids, make_batch
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.pretrain import hosts
from cocondenser_jax.storage.files import new_file

logger = logging.getLogger(__name__)


class NonFiniteError(UserError):
    """More steps than the settings allow were not finite; the state is from before the last."""


def report_step(
    workdir: Path,
    store: TokenStore,
    spec: BatchSpec,
    skip_nonfinite: int,
    step: int,
    n_skipped: int,
    metrics: Mapping[str, float],
) -> None:
    """Warns of a step that was left out, the `n_skipped`th; host 0 also writes its batch.

    The file holds the whole batch, of all hosts, with the ids of its documents and the losses.

    Raises:
      NonFiniteError: if it is one more than the `skip_nonfinite` that are allowed.
    """
    message = f"step {step} is not finite"
    if hosts.is_first():
        losses = {name: x for name, x in metrics.items() if name != "learning_rate"}
        ids = batch_document_ids(store, spec, step - 1)
        facts = {"step": step, "seed": spec.seed, "document_ids": ids, **losses}
        arrays: dict[str, Any] = make_batch(store, spec, step - 1)._asdict() | facts
        path = workdir / f"nonfinite-{step}.npz"
        with new_file(path) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in losses.items())
        message += f" ({shown}); its batch (documents {first_three(ids)}) is in {path}"
    if n_skipped > skip_nonfinite:
        raise NonFiniteError(
            f"{message}; the run is saved as it was before that step"
            f" (config.train.skip_nonfinite is {skip_nonfinite})"
        )
    logger.warning("%s; left out, %d of at most %d", message, n_skipped, skip_nonfinite)
