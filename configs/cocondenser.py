r"""coCondenser: a Condenser continues with MLM and the contrastive loss over the target corpus.

Gao & Callan, *Unsupervised corpus aware language model pre-training for dense passage retrieval*,
arXiv 2108.05540, section 4.1: batch of 2,048 documents, two spans each, AdamW, learning rate 1e-4;
8 epochs are those of the authors (github.com/luyug/Condenser), who advise a store of shorter spans,
too (issue 11 there): `corpus --short_span_prob=0.1`.

  cocondenser pretrain --config=configs/cocondenser.py --workdir=runs/cocondenser \
    --config.data.store=stores/msmarco --config.warm_start=runs/condenser

Batch: 2,048 documents x 2 spans = 4,096 spans of 128 tokens = 524,288 tokens a step;
a TPU v3-8 has 4,096 / 8 = 512 spans a core, in 8 chunks of 64.
Length: 3,213,835 MS MARCO documents / 2,048 = 1,569 steps an epoch, x 8 = 12,552 steps.

Beside the paper:
- Its equations 5 and 7 have the MLM loss of the head alone. `model.late_mlm` adds that of the
  backbone's last layer, as the release does (--late_mlm); `--config.model.late_mlm=False` is the
  paper to the letter.
- The release divides the MLM loss by the documents, not the spans, of a batch where it uses the
  gradient cache: its published checkpoints were trained with what is `mlm_weight` 2 here.
- For MS MARCO the authors advise spans of about 80 tokens (issue 11): a store made with
  `corpus --max_length=80 --short_span_prob=0.1`, and `--config.data.length=80`.
- They saw little gain after 4 of the 8 epochs (issue 4): `--config.train.epochs=4` halves the time.
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import default


def get_config(argument: str = "") -> ConfigDict:
    """Returns the experiment."""
    config = default.get_config(argument).unlock()
    config.warm_start = "runs/condenser"
    return config.lock()
