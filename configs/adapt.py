r"""Adapting an embedding model to a corpus of one's own: what `adapt` trains with.

  cocondenser adapt --corpus=FOLDER --model=MODEL --workdir=runs/adapted --data=DATA

is, beside the comparison,

  cocondenser corpus --corpus=FOLDER --tokenizer=MODEL --max_length=128 --out=STORE
  cocondenser pretrain --config=configs/adapt.py --workdir=RUN \
    --config.data.store=STORE --config.warm_start=MODEL

with a batch, a number of steps and pairs that fit the corpus and the machine (`fit`). The vector is
the model's own.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default
from cocondenser_jax.errors import UserError

MOST_EPOCHS = 8  # of a small corpus, as the papers train
ON_ACCELERATORS = 256  # pairs in a batch, per device, of a corpus that has enough


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


def fit(n_spans: int, n_devices: int, *, on_cpu: bool) -> ConfigDict:
    """Returns settings for a corpus and a machine: 120 steps of 32 pairs, or 100 of many more.

    A batch takes nine tenths of the spans at most, and no span is read more than MOST_EPOCHS times.

    Args:
      n_spans: of the corpus.
      n_devices: that train.
      on_cpu: whether these are CPUs.
    """
    config = get_config().unlock()
    n = config.data.batch_size
    n_pairs = n * config.train.steps
    if not on_cpu:
        config.train.dtype = "bfloat16"
        config.train.chunk_size = 64
        if n_spans >= 100 * ON_ACCELERATORS * n_devices:
            n = ON_ACCELERATORS * n_devices
            n_pairs = 100 * n
    n = max(min(n, n_spans * 9 // 10) // n_devices, 1) * n_devices
    config.data.batch_size = n
    config.train.steps = max(min(n_pairs, MOST_EPOCHS * n_spans) // n, 1)
    return config.lock()
