"""Steps whose loss or gradient is not finite: `step.py` leaves them out, here they are reported."""

import logging
from collections.abc import Mapping

from cocondenser_jax.corpus.batches import BatchSpec, batch_document_ids
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.errors import UserError, first_three

logger = logging.getLogger(__name__)


class NonFiniteError(UserError):
    """More steps than the settings allow were not finite; the state is from before the last."""


def report_step(
    store: TokenStore,
    spec: BatchSpec,
    allowed: int,
    step: int,
    n_skipped: int,
    metrics: Mapping[str, float],
) -> None:
    """Warns of a step that was left out, the `n_skipped`th; its batch follows from seed and step.

    Raises:
      NonFiniteError: if it is one more than the `allowed` ones.
    """
    losses = [f"{name} {x:.4g}" for name, x in metrics.items() if name != "learning_rate"]
    documents = first_three(batch_document_ids(store, spec, step - 1))
    message = f"step {step} is not finite ({', '.join(losses)}; documents {documents})"
    if n_skipped > allowed:
        raise NonFiniteError(
            f"{message}; the run is saved as it was before that step"
            f" (config.train.skip_nonfinite is {allowed})"
        )
    logger.warning("%s; left out, %d of at most %d", message, n_skipped, allowed)
