r"""The quickstart's two stages: a small model from scratch on the docstrings of this machine.

  cocondenser quickstart --workdir=runs/quickstart

runs both with `condenser` and `cocondenser` as the argument, and is the same as

  cocondenser pretrain --config=configs/quickstart.py:condenser --workdir=runs/condenser \
    --config.data.store=STORE
  cocondenser pretrain --config=configs/quickstart.py:cocondenser --workdir=runs/cocondenser \
    --config.data.store=STORE --config.warm_start=runs/condenser

Batch: 128 spans of 32 tokens (stage 2: of 64 documents) = 4,096 tokens a step, in one direct pass.
Stage 1 is 400 steps, stage 2 is 1,100: one and a half and three minutes on two idle cores.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default
from cocondenser_jax.errors import UserError


def get_config(argument: str = "cocondenser") -> ConfigDict:
    """Returns stage 1 ("condenser") or stage 2 ("cocondenser")."""
    if argument not in ("condenser", "cocondenser"):
        raise UserError(f"configs/quickstart.py:{argument}: expected condenser or cocondenser")
    config = default.get_config().unlock()
    config.data.length = 32

    config.model.hidden_size = 128
    config.model.num_hidden_layers = 2
    config.model.num_attention_heads = 2
    config.model.intermediate_size = 512
    config.model.max_position_embeddings = 64
    config.model.hidden_dropout_prob = 0.0  # every text is seen a few times only
    config.model.attention_probs_dropout_prob = 0.0
    config.model.n_head_layers = 1
    config.model.skip_from = 1

    is_second = argument == "cocondenser"
    config.train.objective = argument
    config.data.batch_size = 64 if is_second else 128
    # From scratch, MLM through the head alone leaves the late layers without a signal, and the CLS
    # vectors collapse into one. Once the contrastive loss teaches them, it is not worth its time.
    config.model.late_mlm = not is_second
    config.train.steps = 1100 if is_second else 400
    config.train.mlm_weight = 0.2 if is_second else 1.0
    config.train.chunk_size = 0
    config.train.dtype = "float32"

    config.optimizer.learning_rate = 1e-3 if is_second else 3e-3  # on dev (ours/settings)
    config.checkpoint.every = 500
    config.probe.every = 250
    config.probe.documents = 200  # of 15,700 that have two spans
    config.log_every = 10
    return config.lock()
