"""Steps whose loss or gradient is not finite: `step.py` leaves them out, here is what they leave.

`nonfinite-<step>.npz` in the run folder holds the batch of such a step. The files up to a step are
also the count of steps that a run has left out, so that it survives an interruption.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cocondenser_jax.corpus.batches import BatchSpec, batch_documents, make_batch
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.errors import UserError

SHOWN_IDS = 5


class NonFiniteError(UserError):
    """More steps than the settings allow were not finite; the state is that before the last."""


def write_batch(
    workdir: Path, store: TokenStore, spec: BatchSpec, step: int, losses: Mapping[str, float]
) -> str:
    """Writes the whole batch of a step, of all hosts, with ids of its documents and the losses.

    Args:
      workdir: the run folder.
      store: the tokenised corpus.
      spec: seed, batch size and length.
      step: counts from 1.
      losses: what the step returned.

    Returns:
      What to tell: the step, its losses, the first ids, the file.
    """
    ids = [store.document_id(int(i)) for i in batch_documents(store, spec, step - 1)]
    path = workdir / f"nonfinite-{step}.npz"
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        facts = {"step": step, "seed": spec.seed, "document_ids": ids, **losses}
        arrays = make_batch(store, spec, step - 1)._asdict()
        arrays |= {name: np.asarray(value) for name, value in facts.items()}
        np.savez(file, allow_pickle=False, **arrays)
    partial.replace(path)
    shown = ", ".join(ids[:SHOWN_IDS]) + (", ..." if len(ids) > SHOWN_IDS else "")
    figures = ", ".join(f"{name} {value:.4g}" for name, value in losses.items())
    return f"step {step} is not finite ({figures}); its batch (documents {shown}) is in {path}"


def count_batches(workdir: Path, step: int) -> int:
    """Returns how many steps up to `step` were not finite, and forgets the later ones."""
    paths = {int(path.stem.partition("-")[2]): path for path in workdir.glob("nonfinite-*.npz")}
    for later in [number for number in paths if number > step]:
        paths.pop(later).unlink()
    return len(paths)
