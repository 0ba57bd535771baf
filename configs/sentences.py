"""Fine-tuning a sentence encoder, on the STS Benchmark, sections of Wikipedia, or inference.

Paper: Gao & Callan, "Condenser: a Pre-training Architecture for Dense Retrieval"
(arXiv 2104.08253), sentence similarity.

Commands:
  cocondenser finetune --config=configs/sentences.py:stsb --workdir=runs/stsb \
    --config.model=runs/model --config.data=sts-train.csv
  cocondenser evaluate sentences --sts=sts-test.csv --model=runs/stsb/encoder

  cocondenser finetune --config=configs/sentences.py:triplets --workdir=runs/sections \
    --config.model=runs/model --config.data=train.csv
  cocondenser evaluate sentences --triplets=test.csv --model=runs/sections/encoder

  cocondenser finetune --config=configs/sentences.py:nli --workdir=runs/nli \
    --config.model=runs/model --config.data=AllNLI.tsv.gz
  then `stsb` with --config.model=runs/nli/encoder: the paper's baseline "NLI"

Batches of 16, 2e-5, linear warm-up over a tenth; 1 epoch of inference or triplets (Reimers &
Gurevych, arXiv 1908.10084), 4 of the STS Benchmark, as in sentence-transformers' example for it
(training_stsbenchmark.py). 5,749 pairs × 4 epochs / 16 = 1,437 steps; 942,069 pairs of inference /
16 = 58,879 steps. Expected on the STS Benchmark, Spearman × 100: BERT 82.5, Condenser 85.6, BERT
after inference 84.7. One A100 takes minutes, for inference half an hour, estimated by arithmetic.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs.finetune import SETTINGS as RETRIEVER
from cocondenser_jax.configs.finetune import TRAINING
from cocondenser_jax.errors import UserError
from cocondenser_jax.settings import Interval, Setting, to_config

SETTINGS = {
    "task": Setting("sentences", ("sentences",), "", "what is trained"),
    **TRAINING,
    "epochs": TRAINING["epochs"]._replace(default=4),
    "train_rows": Setting(0, Interval(0), "rows", "drawn from the file by seed; 0: all"),
    "pooling": RETRIEVER["pooling"],
    "length": Setting(64, Interval(3), "tokens", "kept of a sentence"),
    "loss": Setting(
        "cosine",
        ("cosine", "triplet", "softmax"),
        "",
        "for scored pairs; for triplets; for pairs with a label (inference)",
    ),
}


def get_config(argument: str = "stsb") -> ConfigDict:
    """Returns the settings for scored pairs ("stsb"), "triplets", or labelled pairs ("nli")."""
    if argument not in ("stsb", "triplets", "nli"):
        raise UserError(f"configs/sentences.py:{argument}: expected stsb, triplets or nli")
    config = to_config(SETTINGS).unlock()
    config.batch_size = 16
    if argument != "stsb":
        config.epochs = 1
    if argument == "triplets":
        config.length = 128
        config.loss = "triplet"
    if argument == "nli":
        config.loss = "softmax"
    return config.lock()
