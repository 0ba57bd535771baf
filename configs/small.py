r"""A small Condenser and coCondenser from scratch, for a laptop or two cores of a server.

For a corpus of some 25 million tokens, such as 6,600 English Wikipedia articles, in spans of 64
with the vocabulary of bert-base-uncased. On two idle cores, stage 1 should take about three hours
and stage 2 half an hour: 1,650 steps of stage 1 took 35 minutes, 790 of stage 2 took 25.

  cocondenser pretrain --config=configs/small.py:condenser --workdir=runs/wiki-condenser \
    --config.data.store=stores/wiki
  cocondenser pretrain --config=configs/small.py:cocondenser --workdir=runs/wiki-cocondenser \
    --config.data.store=stores/wiki --config.warm_start=runs/wiki-condenser

Stage 1: 64 spans a step, one epoch: 520,000 spans / 64 = 8,100 steps of those articles.
Stage 2: 64 documents x 2 spans = 128 spans a step, 8 epochs: 6,600 / 64 x 8 = 825 steps.
Both stages take at least 300 steps, because fewer teach little, even if a small corpus is then read
several times. Above 40 epochs there is a warning.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default
from cocondenser_jax.errors import UserError


def get_config(argument: str = "cocondenser") -> ConfigDict:
    """Returns stage 1 ("condenser") or stage 2 ("cocondenser")."""
    if argument not in ("condenser", "cocondenser"):
        raise UserError(f"configs/small.py:{argument}: expected condenser or cocondenser")
    config = default.get_config().unlock()
    is_second = argument == "cocondenser"
    config.train.objective = argument
    # From scratch, MLM through the head alone leaves the late layers without a signal, and the CLS
    # vectors collapse into one. Once the contrastive loss teaches them, it is not worth its time.
    config.model.late_mlm = not is_second
    config.data.length = 64
    config.data.batch_size = 64

    config.model.hidden_size = 256
    config.model.num_hidden_layers = 4
    config.model.num_attention_heads = 4
    config.model.intermediate_size = 1024
    config.model.hidden_dropout_prob = 0.0  # one pass over the data: nothing to overfit
    config.model.attention_probs_dropout_prob = 0.0
    config.model.n_head_layers = 1
    config.model.skip_from = 2

    config.train.epochs = 8.0 if is_second else 1.0
    config.train.least_steps = 300
    config.train.chunk_size = 0
    config.train.dtype = "float32"
    config.train.mlm_weight = 0.2 if is_second else 1.0

    config.optimizer.learning_rate = 1e-3
    config.checkpoint.every = 100
    config.log_every = 10
    return config.lock()
