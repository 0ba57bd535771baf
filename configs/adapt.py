r"""Adapting an embedding model to a corpus of one's own: what `adapt` proposes.

  cocondenser adapt --corpus=FOLDER --model=MODEL --workdir=runs/adapted --data=DATA

is, beside the choice of how much of the change is kept and the comparison,

  cocondenser corpus --source=FOLDER --tokenizer=MODEL --max_tokens=128 --out=STORE
  cocondenser pretrain --config=configs/adapt.py --workdir=RUN \
    --config.data.store=STORE --config.warm_start=MODEL

with a batch, a number of steps and pairs that fit the corpus and the machine
(cocondenser_jax/pipelines/proposals.py). The vector is the model's own.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default
from cocondenser_jax.errors import UserError

MOST_EPOCHS = 8  # of a small corpus, as the papers train


def get_config(argument: str = "") -> ConfigDict:
    """Returns what does not depend on corpus and machine."""
    if argument:
        raise UserError(f"configs/adapt.py has no variant {argument!r}")
    config = default.get_config().unlock()
    config.init_head = True  # published checkpoints lack the MLM projection, which is not trained
    config.data.length = 128
    config.data.batch_size = 32
    config.data.pairs = "sentence"
    config.train.objective = "contrastive"
    config.train.steps = 120
    config.train.dtype = "float32"
    config.train.chunk_size = 8  # rows of like length: less padding, for a second forward pass
    config.optimizer.learning_rate = 3e-5
    config.checkpoint.every = 20
    config.probe.every = 60
    config.probe.documents = 300
    config.log_every = 10
    return config.lock()
