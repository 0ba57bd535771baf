"""Checks that a network predicts held-out text better than token frequencies do.

  python -m experiments.learned --run=runs/base --store=stores/wiki --least=1.5 --json_out=OUT

Compares the last MLM loss of a run's probe with the cross-entropy of the same masked tokens under
the store's token frequencies, with which a new network starts. The exit status is 2 if the network
is not better by --least.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cocondenser_jax.corpus.batches import BatchSpec, held_out_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.metrics import logged_lines
from cocondenser_jax.files.whole import read_object, write_json

_PROBED = "probe/mlm_loss"


def held_out_losses(run: Path, store: Path) -> dict[str, float]:
    """Returns the held-out MLM loss of the run and that of the frequencies, in nats per token.

    Raises:
      UserError: if the run's probe measured no MLM loss.
    """
    file = run / "metrics.jsonl"
    probed = [values[_PROBED] for _, values in logged_lines(file) if _PROBED in values]
    if not probed:
        raise UserError(f"{file} has no {_PROBED}: expected a run with a probe and masked tokens")
    config = read_object(run / "run.json")["config"]
    opened = open_store(store)
    spec = BatchSpec(
        seed=config["seed"],
        batch_size=config["data"]["batch_size"],
        length=config["data"]["length"],
        example="span",
        mask_probability=config["data"]["mask_probability"],
        held_out=config["probe"]["documents"],
    )
    batch = held_out_batch(opened, spec)
    counts_V = opened.token_counts() + 1.0
    labels_N = batch.labels_SxM[np.asarray(batch.weights_SxM) > 0]
    frequencies_N = counts_V[labels_N] / counts_V.sum()
    return {"MLM loss": probed[-1], "frequencies": float(-np.log(frequencies_N).mean())}


def require_learned(run: Path, store: Path, least: float) -> dict[str, float]:
    """Returns both losses and their difference.

    Raises:
      UserError: if the difference is less than `least` nats.
    """
    losses = held_out_losses(run, store)
    below = losses["frequencies"] - losses["MLM loss"]
    if not (math.isfinite(below) and below >= least):
        raise UserError(
            f"{run} has learned too little to go on: its held-out MLM loss of"
            f" {losses['MLM loss']:.3f} is {below:.3f} nats below that of token frequencies;"
            f" expected {least} or more"
        )
    return {**losses, "below": below}


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--least", type=float, required=True, help="nats per token")
    parser.add_argument("--json_out", type=Path, required=True)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; a UserError is one line and exit status 2."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    try:
        write_json(given.json_out, require_learned(given.run, given.store, given.least))
    except UserError as error:
        parser.exit(2, f"learned: {error}\n")


if __name__ == "__main__":
    main()
