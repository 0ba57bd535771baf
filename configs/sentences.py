"""Fine-tuning a sentence encoder, on the STS Benchmark or on sections of Wikipedia.

Paper: Gao & Callan, "Condenser: a Pre-training Architecture for Dense Retrieval"
(arXiv 2104.08253), sentence similarity.

Commands:
  cocondenser finetune --config=configs/sentences.py:stsb --workdir=runs/stsb \
    --config.model=runs/model --config.data=sts-train.csv
  cocondenser evaluate --sts=sts-test.csv --model=runs/stsb/encoder

  cocondenser finetune --config=configs/sentences.py:triplets --workdir=runs/sections \
    --config.model=runs/model --config.data=train.csv
  cocondenser evaluate --triplets=test.csv --model=runs/sections/encoder
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs.finetune import training_settings
from cocondenser_jax.errors import UserError


def get_config(argument: str = "stsb") -> ConfigDict:
    """Returns the settings for scored pairs ("stsb") or triplets ("triplets")."""
    if argument not in ("stsb", "triplets"):
        raise UserError(f"sentences.py:{argument}: expected 'stsb' or 'triplets'")
    config = training_settings()
    config.task = "sentences"

    # data: a file, the STS Benchmark's .csv or a .csv of triplets
    config.train_rows = 0  # rows drawn from the file, by seed; 0: all

    config.pooling = ""  # "cls" or "mean" instead of the folder's own; a plain folder has "cls"
    config.length = 64 if argument == "stsb" else 128  # tokens of a sentence
    config.loss = "cosine" if argument == "stsb" else "triplet"
    config.margin = 5.0  # of the triplet loss, in Euclidean distance

    config.batch_size = 32 if argument == "stsb" else 16
    config.epochs = 4 if argument == "stsb" else 1
    config.learning_rate = 2e-5  # at its peak
    return config.lock()
