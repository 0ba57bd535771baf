r"""Adapting a model that has read before to a corpus of one's own: what `adapt` proposes.

  cocondenser adapt --corpus=FOLDER --model=MODEL --workdir=runs/adapted --data=DATA

is, beside the comparison,

  cocondenser corpus --source=FOLDER --tokenizer=MODEL --max_tokens=64 --out=STORE
  cocondenser pretrain --config=configs/adapt.py --workdir=RUN \
    --config.data.store=STORE --config.warm_start=MODEL

with the settings of `propose`, and then `finetune` with those of `propose_finetuning`, once from
the adapted and once from the given model. Where a rule was measured: all-MiniLM-L6-v2 on 14,296
paragraphs of Wikipedia that have two spans of 64 tokens, 450 steps of 5 seconds on two CPU cores.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default, finetune
from cocondenser_jax.errors import UserError

MEASURED_STEPS = 450


def get_config(argument: str = "") -> ConfigDict:
    """Returns what does not depend on corpus, model and machine."""
    if argument:
        raise UserError(f"configs/adapt.py has no variant {argument!r}")
    config = default.get_config().unlock()
    config.init_head = True  # published checkpoints have none
    config.data.length = 64  # measured; the papers' 128 leave fewer documents with two spans
    config.data.batch_size = 32
    config.train.mlm_weight = 0.2  # measured
    config.train.epochs = 1.0
    config.train.dtype = "float32"
    config.train.chunk_size = 0
    config.optimizer.learning_rate = 5e-5
    config.checkpoint.keep_every = 0
    config.log_every = 10
    return config.lock()


def propose(n_documents: int, n_devices: int, on_cpu: bool) -> ConfigDict:
    """Returns the settings for a corpus and a machine.

    Args:
      n_documents: of two spans.
      n_devices: that train.
      on_cpu: whether these are CPUs.
    """
    config = get_config().unlock()
    # 32 were measured. With a device's memory free, the papers' 2,048 on eight of them, as long as
    # an epoch has 100 steps.
    n = 32 if on_cpu else min(256 * n_devices, max(32, n_documents // 100))
    n = min(n, n_documents)
    config.data.batch_size = max(n // n_devices, 1) * n_devices
    if not on_cpu:
        config.train.dtype = "bfloat16"
    if 2 * config.data.batch_size > 64 * n_devices:  # 64 spans at once, as the papers
        config.data.batch_size -= config.data.batch_size % (32 * n_devices)
        config.train.chunk_size = 64
    # As many as make the measured number of steps; the papers' 8 at most.
    epochs = MEASURED_STEPS * config.data.batch_size / max(n_documents, 1)
    config.train.epochs = min(max(epochs, 1.0), 8.0)
    # 5e-5 was measured at 32 documents; the papers have 1e-4 at 2,048.
    config.optimizer.learning_rate = 5e-5 if config.data.batch_size <= 256 else 1e-4
    return config.lock()


def propose_finetuning(n_queries: int, max_length: int) -> ConfigDict:
    """Returns the settings of fine-tuning, but for model and data, where there are labels.

    Args:
      n_queries: to train on.
      max_length: of the model's inputs, in tokens.
    """
    config = finetune.get_config().unlock()
    # docs/results.md, "Fine-tuning a real checkpoint": 32 queries a step, 2e-5, 3 epochs of 809
    # queries and 1 of 2,000.
    config.batch_size = max(min(32, n_queries), 2)
    config.learning_rate = 2e-5
    config.epochs = min(max(2_500 // max(n_queries, 1), 1), 3)
    config.negatives_per_query = 0  # the passages of the other queries
    config.query_length = min(64, max_length)
    config.passage_length = min(256, max_length)  # as sentence-transformers' models are published
    config.checkpoint_every = 100
    config.log_every = 10
    return config.lock()
