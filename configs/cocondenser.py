r"""coCondenser: a Condenser goes on with MLM and the contrastive loss over the target corpus.

Gao & Callan, *Unsupervised corpus aware language model pre-training for dense passage retrieval*,
arXiv 2108.05540, section 4.1: batch of 2,048 documents, two spans each, AdamW, learning rate 1e-4.

  cocondenser pretrain --config=configs/cocondenser.py --workdir=runs/cocondenser \
    --config.data.store=stores/msmarco --config.warm_start=runs/condenser

Batch: 2,048 documents x 2 spans = 4,096 spans of 128 tokens = 524,288 tokens a step;
a TPU v3-8 has 4,096 / 8 = 512 spans a core, in 8 chunks of 64.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default


def get_config(argument: str = "") -> ConfigDict:
    """Returns the experiment."""
    config = default.get_config(argument).unlock()
    config.warm_start = "runs/condenser"
    config.train.steps = 120_000
    return config.lock()
