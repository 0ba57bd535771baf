r"""Fine-tuning a cross-encoder: to rerank, to denoise negatives, to teach a bi-encoder.

Papers: Gao et al., "Rethink Training of BERT Rerankers in Multi-Stage Retrieval Pipeline" (arXiv
2101.08751), for the loss over a query's own passages; Qu et al., "RocketQA" (arXiv 2010.08191),
for what is done with it.

Command:
  cocondenser finetune --config=configs/cross_encoder.py --workdir=runs/ce \
    --config.model=runs/model --config.data=DATA --config.negatives_run=runs/bm25.train.trec

Arithmetic of a step: 8 queries × (1 positive + 7 negatives) = 64 pairs of at most 160 tokens. A
pair costs about what a passage of its length costs a bi-encoder.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs.finetune import training_settings
from cocondenser_jax.errors import UserError


def get_config(argument: str = "") -> ConfigDict:
    """Returns the settings; `model`, `data` and `negatives_run` must be named."""
    if argument:
        raise UserError(f"configs/cross_encoder.py takes no argument, not {argument!r}")
    config = training_settings()
    config.task = "cross_encoder"

    # model: a folder without a head gets one, drawn by seed; a cross-encoder goes on from its own.
    config.max_length = 160  # tokens of a pair: 32 + 128; the longer text is cut, the passage
    # "softmax" over a query's passages: for ranking and teaching. "binary" for each passage: the
    # scores then tell probabilities, which mine --denoise_run needs.
    config.loss = "softmax"

    config.split = "train"  # qrels/<split>.tsv, qrels.<split>.tsv or biencoder-*-<split>.json
    config.train_queries = 0  # queries drawn from those of the split, by seed; 0: all
    config.strict = False  # refuse queries without a positive, in place of counting them
    # To draw negatives from: a TREC run, MS MARCO's triples of ids, or DPR's biencoder file.
    config.negatives_run = ""
    config.negatives_per_query = 7  # per step; drawn anew every epoch
    config.negatives_depth = 200  # best passages of it, per query, to draw from

    config.batch_size = 8  # queries per step
    config.epochs = 3  # over all (query, relevant passage) pairs
    config.learning_rate = 2e-5  # at its peak
    return config.lock()
