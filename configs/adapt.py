r"""Adapting a model that has read before to a corpus of one's own: what `adapt` proposes.

  cocondenser adapt --corpus=FOLDER --model=MODEL --workdir=runs/adapted --data=DATA

is, beside the comparison,

  cocondenser corpus --source=FOLDER --tokenizer=MODEL --max_tokens=64 --out=STORE
  cocondenser pretrain --config=configs/adapt.py --workdir=RUN \
    --config.data.store=STORE --config.warm_start=MODEL

with batch, epochs, learning rate and head that fit the corpus, the machine and the model
(cocondenser_jax/quickstart/adapt.py), and then `finetune` with configs/adapt_finetune.py, once
from the adapted and once from the given model. What was measured: all-MiniLM-L6-v2 on 14,296
paragraphs of Wikipedia that have two spans of 64 tokens, 450 steps of 5 seconds on two CPU cores.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default
from cocondenser_jax.errors import UserError


def get_config(argument: str = "") -> ConfigDict:
    """Returns what does not depend on corpus, model and machine."""
    if argument:
        raise UserError(f"configs/adapt.py has no variant {argument!r}")
    config = default.get_config().unlock()
    config.init_head = True  # published checkpoints have none
    config.data.length = 64  # the papers' 128 leave fewer documents with two spans
    config.data.batch_size = 32
    config.train.mlm_weight = 0.2  # as in configs/minilm.py; not compared with others
    config.train.epochs = 1.0
    config.train.dtype = "float32"
    config.train.chunk_size = 0
    config.optimizer.learning_rate = 5e-5
    config.checkpoint.every = 50
    config.checkpoint.keep_every = 0
    config.probe.every = 50
    config.log_every = 10
    return config.lock()
