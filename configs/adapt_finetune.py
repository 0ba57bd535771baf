r"""The fine-tuning of `adapt`, of the adapted and of the given model, where there are labels.

  cocondenser finetune --config=configs/adapt_finetune.py --workdir=runs/finetune \
    --config.model=runs/adapted/model --config.data=DATA

docs/results.md, "Fine-tuning a real checkpoint": 32 queries a step with the passages of the others
as negatives, at 2e-5, for 3 epochs of 809 queries. `adapt` lowers what does not fit the model or
the number of queries (cocondenser_jax/quickstart/adapt.py).
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import finetune
from cocondenser_jax.errors import UserError


def get_config(argument: str = "") -> ConfigDict:
    """Returns the settings; `model` and `data` must be named."""
    if argument:
        raise UserError(f"configs/adapt_finetune.py has no variant {argument!r}")
    config = finetune.get_config().unlock()
    config.batch_size = 32
    config.learning_rate = 2e-5
    config.epochs = 3
    config.negatives_per_query = 0  # the passages of the other queries
    config.query_length = 64
    config.passage_length = 256  # as sentence-transformers' models are published
    config.checkpoint_every = 100
    config.log_every = 10
    return config.lock()
