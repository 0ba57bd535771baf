r"""Condenser: BERT-base goes on with MLM through the Condenser head, on general text.

Gao & Callan, *Condenser: a pre-training architecture for dense retrieval*, arXiv 2104.08253:
English Wikipedia and BookCorpus, spans of 128 tokens, 8 epochs, AdamW, learning rate 1e-4.

  cocondenser pretrain --config=configs/condenser.py --workdir=runs/condenser \
    --config.data.store=stores/wikipedia --config.warm_start=bert-base-uncased

Batch: 1,024 documents x 2 spans = 2,048 spans of 128 tokens = 262,144 tokens a step;
a TPU v3-8 has 2,048 / 8 = 256 spans a core, in 4 chunks of 64.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default


def get_config(argument: str = "") -> ConfigDict:
    """Returns the experiment."""
    config = default.get_config(argument).unlock()
    config.warm_start = "bert-base-uncased"
    config.init_head = True  # BERT has no Condenser head: it begins here
    config.data.documents_per_step = 1024
    config.train.contrastive = False
    config.train.steps = 100_000
    return config.lock()
