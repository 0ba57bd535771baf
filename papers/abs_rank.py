"""Fine-tune with the learning-to-rank loss of the study of adaptive batches (its equation 14).

python -m papers.abs_rank --config=configs/finetune.py:adaptive --workdir=runs/rank ...

takes the flags of `cocondenser finetune`. The contrastive loss is computed from learned scores
instead of inner products. Their parameters are not in checkpoints and exist in one process only, so
a run cannot be resumed or use several processes.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from cocondenser_jax import cli
from cocondenser_jax.retriever.search.models import new_parameters
from cocondenser_jax.retriever.train import bi_encoder
from cocondenser_jax.retriever.train.losses import InBatchLoss

SEED = 42  # of the scorer


def learned_scores(
    queries_QxD: torch.Tensor, passages_PxD: torch.Tensor, scorer: torch.nn.Linear
) -> torch.Tensor:
    """Returns scores_QxP, σ(W{q, d} + b), {q, d} being the two vectors side by side.

    The study does not define σ: here it is ReLU, as in the authors' code. (With a sigmoid, the loss
    over 7 negatives could not fall below log(1 + 7/e) = 1.27.) Where ReLU makes all scores 0 from
    the start, which SEED decides, nothing is learned. W{q, d} is the sum of a number of q and
    one of d, so all queries rank passages in the same order, ties apart.

    The scorer may be on another device than the vectors, where the scores are.
    """
    with torch.autocast(queries_QxD.device.type, enabled=False):
        of_query_D, of_passage_D = scorer.weight[0].to(queries_QxD.device).chunk(2)
        bias = scorer.bias.to(queries_QxD.device)
        from_query_Qx1 = (queries_QxD.float() @ of_query_D + bias)[:, None]
        return torch.relu(from_query_Qx1 + passages_PxD.float() @ of_passage_D)


class LearnedScores(InBatchLoss):
    """The loss over learned scores; W and b are trained with the model, and discarded."""

    def __init__(self, model: Any, *arguments: Any) -> None:
        """Takes the arguments of `InBatchLoss`, whose scale has no effect."""
        super().__init__(model, *arguments)
        with new_parameters(SEED):
            self.scorer = torch.nn.Linear(2 * model.get_embedding_dimension(), 1)

    def score(self, queries_QxD: torch.Tensor, passages_PxD: torch.Tensor) -> torch.Tensor:
        """Returns scores_QxP, which rank passages during training, too."""
        return learned_scores(queries_QxD, passages_PxD, self.scorer)


def main(argv: Sequence[str]) -> int:
    """Runs `cocondenser finetune` with this loss."""
    parser = argparse.ArgumentParser(prog="abs_rank", add_help=False, allow_abbrev=False)
    parser.add_argument("--workdir", type=Path)
    workdir = parser.parse_known_args(argv)[0].workdir
    if workdir and workdir.exists():
        parser.exit(2, f"abs_rank: {workdir} already exists, and cannot be resumed\n")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        parser.exit(2, "abs_rank: expected one process\n")
    with patch.object(bi_encoder, "InBatchLoss", LearnedScores):
        return cli.main(["finetune", *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
