"""Every setting of pre-training once, with its unit. Experiments start from this and change a few.

The defaults are those of BERT-base with the hyper-parameters of Gao & Callan, arXiv 2108.05540.
"""

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError


def get_config(argument: str = "") -> ConfigDict:
    """Returns the default experiment; it has no variants."""
    if argument:
        raise UserError(f"this experiment has no variant {argument!r}")
    config = ConfigDict()
    config.seed = 0  # initial parameters, document order, span pairs, masks, dropout
    config.warm_start = (
        ""  # Hugging Face folder or hub name, or one of our run folders; "": scratch
    )
    config.init_head = False  # allow a new Condenser head where the warm start has none

    config.data = ConfigDict()
    config.data.store = ""  # folder that `cocondenser corpus` wrote
    config.data.documents_per_step = 2048  # over all devices of all hosts; two spans of each
    config.data.length = 128  # tokens of a span, with [CLS] and [SEP]

    # The network. With a warm start its sizes are those of what is loaded, and of this section only
    # the head's settings and the dropout rates are read.
    config.model = ConfigDict()
    config.model.model_type = "bert"  # or "roberta"
    config.model.hidden_size = 768
    config.model.num_hidden_layers = 12
    config.model.num_attention_heads = 12
    config.model.intermediate_size = 3072
    config.model.max_position_embeddings = 512
    config.model.hidden_dropout_prob = 0.1
    config.model.attention_probs_dropout_prob = 0.1
    config.model.n_head_layers = 2
    config.model.skip_from = 6  # the backbone layer that the head's "early" tokens come from
    config.model.late_mlm = True  # also predict masked tokens from the backbone's own output

    config.train = ConfigDict()
    config.train.steps = 100_000
    config.train.contrastive = True  # False: MLM only (Condenser); True: coCondenser
    config.train.mlm_weight = 1.0  # weight of the MLM losses beside the contrastive one
    config.train.mlm_reduction = "token_mean"  # or "span_sum", the paper's literal equations
    config.train.chunk_size = 64  # spans per forward pass on a device; 0: the whole batch at once
    config.train.skip_nonfinite = 0  # steps that a run may leave out, for their loss is NaN or inf
    config.train.dtype = "bfloat16"  # of the computation; parameters are always float32

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-4  # peak
    config.optimizer.warmup_ratio = 0.1  # share of the steps
    config.optimizer.weight_decay = 0.01  # none on biases and LayerNorm
    config.optimizer.clip_norm = 1.0  # global norm of the gradient
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-8

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 2_000  # steps
    config.checkpoint.keep = 2  # the latest ones, at least 2: the last may turn out to be damaged
    config.checkpoint.keep_every = 20_000  # steps; such checkpoints are never deleted. 0: none

    config.log_every = 50  # steps
    return config.lock()
