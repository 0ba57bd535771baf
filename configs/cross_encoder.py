r"""Fine-tuning a cross-encoder: to rerank, to denoise negatives, to teach a bi-encoder.

Papers: Gao et al., "Rethink Training of BERT Rerankers in Multi-Stage Retrieval Pipeline" (arXiv
2101.08751), for the loss over a query's own passages; Qu et al., "RocketQA" (arXiv 2010.08191),
for what is done with it.

Command:
  cocondenser finetune --config=configs/cross_encoder.py --workdir=runs/ce \
    --config.model.folder=runs/model --config.data.folder=DATA \
    --config.data.negatives_run=runs/bm25.train.trec

Arithmetic of a step: 8 queries × (1 positive + 7 negatives) = 64 pairs of at most 160 tokens. A
pair costs about what a passage of its length costs a bi-encoder.
A model folder without a classification head gets one, drawn by seed.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs.finetune import DATA, GENERAL, MODEL, TRAINING
from cocondenser_jax.declare import GIVEN, Interval, Setting, to_config
from cocondenser_jax.errors import UserError

SETTINGS = {
    "task": Setting("cross_encoder", ("cross_encoder",), "", "what is trained"),
    **GENERAL,
    **DATA,
    "data.negatives_run": DATA["data.negatives_run"]._replace(allowed=GIVEN),
    "data.negatives_per_query": DATA["data.negatives_per_query"]._replace(allowed=Interval(1)),
    **MODEL,
    "model.max_length": Setting(
        160, Interval(8), "tokens", "query and passage (32 + 128); the longer is truncated"
    ),
    "loss.name": Setting(
        "softmax",
        ("softmax", "binary"),
        "",
        "softmax over a query's passages: to rank and teach; binary: probabilities, to denoise",
    ),
    **TRAINING,
}


def get_config(argument: str = "") -> ConfigDict:
    """Returns the settings; model, data and run of negatives must be named."""
    if argument:
        raise UserError(f"configs/cross_encoder.py has no variant {argument!r}")
    return to_config(SETTINGS)
