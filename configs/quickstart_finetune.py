r"""The quickstart's fine-tuning: the rest of a docstring is found from its first paragraph.

  cocondenser finetune --config=configs/quickstart_finetune.py --workdir=runs/finetune \
    --config.model.folder=runs/quickstart/model --config.data.folder=runs/quickstart/data

Batch: 64 queries with a passage each; every query has the 63 other passages as negatives.
One epoch is about 11,500 / 64 = 180 steps.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import finetune
from cocondenser_jax.errors import UserError


def get_config(argument: str = "") -> ConfigDict:
    """Returns the settings; model and data must be named."""
    if argument:
        raise UserError(f"configs/quickstart_finetune.py has no variant {argument!r}")
    config = finetune.get_config().unlock()
    config.model.passage_length = 64
    config.data.negatives_per_query = 0
    config.data.batch_size = 64
    config.train.epochs = 1  # for time: three are not worse on dev (ours/settings)
    # On dev as good as 2e-3, better than 5e-4 (ours/rates).
    config.optimizer.learning_rate = 1e-3
    config.log_every = 10
    config.checkpoint.every = 0
    return config.lock()
