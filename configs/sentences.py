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

from cocondenser_jax.configs.finetune import SETTINGS as RETRIEVER
from cocondenser_jax.configs.finetune import TRAINING
from cocondenser_jax.errors import UserError
from cocondenser_jax.settings import Setting, to_config

SETTINGS = {
    "task": Setting("sentences", ("sentences",), "", "what is trained"),
    **TRAINING,
    "epochs": TRAINING["epochs"]._replace(default=4),
    "train_rows": Setting(0, "[0, ∞)", "rows", "drawn from the file by seed; 0: all"),
    "pooling": RETRIEVER["pooling"],
    "length": Setting(64, "[3, ∞)", "tokens", "kept of a sentence"),
    "loss": Setting("cosine", ("cosine", "triplet"), "", "for scored pairs; for triplets"),
    "margin": Setting(5.0, "[0, ∞)", "Euclidean distance", "of the triplet loss"),
}


def get_config(argument: str = "stsb") -> ConfigDict:
    """Returns the settings for scored pairs ("stsb") or triplets ("triplets")."""
    if argument not in ("stsb", "triplets"):
        raise UserError(f"configs/sentences.py:{argument}: expected stsb or triplets")
    config = to_config(SETTINGS).unlock()
    if argument == "triplets":
        config.length = 128
        config.loss = "triplet"
        config.batch_size = 16
        config.epochs = 1
    return config.lock()
