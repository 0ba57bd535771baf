r"""Condenser: BERT-base continues with MLM through the Condenser head, on general text.

Gao & Callan, *Condenser: a pre-training architecture for dense retrieval*, arXiv 2104.08253:
English Wikipedia and BookCorpus, 8 epochs, AdamW, learning rate 1e-4; the batch of 1,024 spans of
128 tokens is that of the authors (github.com/luyug/Condenser, issue 4). Their release ends a tenth
of the spans early: `corpus --short_span_prob=0.1`.

  cocondenser pretrain --config=configs/condenser.py --workdir=runs/condenser \
    --config.data.store=stores/wikipedia,stores/books --config.warm_start=bert-base-uncased

Batch: 1,024 spans of 128 tokens = 131,072 tokens a step; a TPU v3-8 has 1,024 / 8 = 128 spans a
core, in 2 chunks of 64.
The authors saw little gain after 4 of the 8 epochs (issue 4): `--config.train.epochs=4`.
Length: some 36 to 40 million spans / 1,024 x 8 = 283,000 to 312,000 steps.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default


def get_config(argument: str = "") -> ConfigDict:
    """Returns the experiment."""
    config = default.get_config(argument).unlock()
    config.warm_start = "bert-base-uncased"
    config.init_head = True  # BERT has no Condenser head: it begins here
    config.data.batch_size = 1024
    config.train.objective = "condenser"
    return config.lock()
