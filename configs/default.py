"""Every setting of pre-training, declared once. Experiments start from this and change a few.

The defaults are those of BERT-base with the hyper-parameters of Gao & Callan, arXiv 2108.05540.
A declaration is: default, allowed values, unit, meaning.
"""

from ml_collections import ConfigDict

from cocondenser_jax.backbones import BACKBONES
from cocondenser_jax.declare import AUTO, GIVEN, Interval, ListOf, OrAuto, Setting, to_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.trackers import TRACKERS
from cocondenser_jax.model.config import BOUNDS
from cocondenser_jax.representation import SPELLINGS


def _within(name: str) -> Interval:
    """Returns the numbers that a field of `ModelConfig` may be."""
    return Interval(*BOUNDS[name])


SETTINGS = {
    "seed": Setting(0, Interval(0), "", "initial parameters, order, span pairs, masks, dropout"),
    "warm_start": Setting(
        "", None, "", "what to start from: Hugging Face folder or hub name, or a run folder"
    ),
    "init_head": Setting(
        False, None, "", "start with a random Condenser head if the warm start has none"
    ),
    # The batch.
    "data.store": Setting(
        "",
        GIVEN,
        "",
        "a store made by `corpus`; or several, with weights: `wiki,2*books` reads books twice",
    ),
    "data.batch_size": Setting(
        2048, Interval(1), "examples", "per step, over all devices and hosts; see `train.objective`"
    ),
    "data.length": Setting(
        128, Interval(3, 65_536), "tokens", "longest span, with [CLS] and [SEP]"
    ),
    "data.pairs": Setting(
        "spans",
        ("spans", "sentence", "title", "crops"),
        "",
        "the two texts of a pair: two spans of a document; a sentence and the rest of its span; the"
        " first sentence and the rest (title); two parts of a span (crops)",
    ),
    "data.mask_probability": Setting(
        0.15, Interval(0.15, 0.8), "of the tokens", "masked and predicted"
    ),
    "data.decoder_mask_probability": Setting(
        0.5, Interval(0.15, 0.8), "of the tokens", "the same in the copy that retromae's head reads"
    ),
    # The network. A warm start brings its own sizes; it takes the dropout rates and late_mlm from
    # here, and must have the head that is asked for here or none (init_head).
    "model.model_type": Setting("bert", tuple(BACKBONES), "", "architecture"),
    "model.hidden_size": Setting(768, _within("hidden_size"), "", "width of the network"),
    "model.num_hidden_layers": Setting(
        12, _within("num_hidden_layers"), "layers", "depth of the backbone"
    ),
    "model.num_attention_heads": Setting(
        12, _within("num_attention_heads"), "heads", "must divide the hidden size"
    ),
    "model.intermediate_size": Setting(
        3072, _within("intermediate_size"), "", "width of the feed-forward layers"
    ),
    "model.max_position_embeddings": Setting(
        512, _within("max_position_embeddings"), "tokens", "longest input"
    ),
    "model.hidden_dropout_prob": Setting(
        0.1, _within("hidden_dropout_prob"), "", "dropout of hidden states"
    ),
    "model.attention_probs_dropout_prob": Setting(
        0.1, _within("attention_probs_dropout_prob"), "", "dropout of attention"
    ),
    "model.n_head_layers": Setting(
        2,
        _within("n_head_layers")._replace(low=1),
        "layers",
        "depth of the Condenser head, if the objective has one",
    ),
    "model.skip_from": Setting(
        6,
        _within("skip_from"),
        "layer",
        "backbone layer whose tokens the head reads, from 1; 0: embeddings",
    ),
    "model.late_mlm": Setting(True, None, "", "also predict masked tokens from the last layer"),
    "model.representation": Setting(
        "own",
        ("own", *SPELLINGS),
        "",
        "the trained vector: [CLS] or the mean of the last layer, as it is or normalized (cosine);"
        " own: as in the warm start's folder, otherwise cls",
    ),
    "model.scale": Setting(
        0.0,
        Interval(0),
        "",
        "factor of the scores in a contrastive loss, 1 / temperature; 0: that of the warm start,"
        " otherwise 20 for cosines and 1 for inner products",
    ),
    "model.sizes": Setting(
        (),
        ListOf(int, Interval(1)),
        "",
        "sizes to which vectors may be cut, the largest first, such as [384,192,96]: a contrastive"
        " loss trains each, and exported vectors have the first; []: only the size of the warm"
        " start",
    ),
    # The loss and how it is computed.
    "train.objective": Setting(
        "cocondenser",
        (
            "mlm",
            "condenser",
            "retromae",
            "bow",
            "cocondenser",
            "cobow",
            "contrastive",
            "ict",
        ),
        "",
        "an example is a span (mlm, condenser, retromae; bow: bag-of-words prediction), two spans"
        " of a document (cocondenser; cobow: bag-of-words instead of the head; contrastive: without"
        " MLM), or a sentence and the rest of its span (ict)",
    ),
    "train.epochs": Setting(
        8.0, Interval(1e-6), "epochs", "length of the run: passes over the store"
    ),
    "train.least_steps": Setting(
        0, Interval(0), "steps", "minimum length of a run whose length epochs decide"
    ),
    "train.steps": Setting(0, Interval(0), "steps", "length of the run; 0: epochs decide"),
    "train.mlm_weight": Setting(
        1.0, Interval(0), "", "weight of the MLM loss, and of bag-of-words prediction"
    ),
    "train.mlm_reduction": Setting(
        "token_mean", ("token_mean", "span_sum"), "", "span_sum: equations 5 and 7 of coCondenser"
    ),
    "train.chunk_size": Setting(
        64,
        OrAuto(Interval(0)),
        "spans",
        "per forward pass on a device; 0: the whole batch at once; auto: as many as fit in memory,"
        " on a CPU up to 64",
    ),
    "train.kept_chunks": Setting(
        0,
        OrAuto(Interval(0)),
        "chunks",
        "chunks of a device that a contrastive loss keeps in memory and computes once; the others"
        " are computed twice; auto: as many as fit in memory, on a CPU 0",
    ),
    "train.attention": Setting(
        AUTO,
        (AUTO, "xla", "kernel"),
        "",
        "how it is computed, and on a GPU the LayerNorm after it; auto: with a kernel, if NVIDIA"
        " GPUs since Ampere or TPUs since v4 have one for the network and the length",
    ),
    "train.skip_nonfinite": Setting(
        0, Interval(0), "steps", "with a NaN or infinite loss or gradient that a run may skip"
    ),
    "train.dtype": Setting(
        "bfloat16", ("bfloat16", "float32"), "", "type of activations; parameters are float32"
    ),
    "optimizer.learning_rate": Setting(1e-4, Interval(0, 1), "", "peak learning rate"),
    "optimizer.warmup_ratio": Setting(0.1, Interval(0, 0.99), "of all steps", "linear warm-up"),
    "optimizer.weight_decay": Setting(
        0.01, Interval(0, 1), "", "AdamW; none on biases and LayerNorm"
    ),
    "optimizer.clip_norm": Setting(1.0, Interval(1e-6), "", "largest global norm of the gradient"),
    "optimizer.b1": Setting(0.9, Interval(0, 0.999999), "", "Adam's β₁"),
    "optimizer.b2": Setting(0.999, Interval(0, 0.999999), "", "Adam's β₂"),
    "optimizer.eps": Setting(1e-8, Interval(1e-30, 1), "", "Adam's ε"),
    "checkpoint.every": Setting(2_000, Interval(1), "steps", "interval between checkpoints"),
    "checkpoint.keep": Setting(
        2,
        Interval(2),
        "checkpoints",
        "how many recent ones to keep beside the best; at least two, in case the latest is damaged",
    ),
    # The probe; docs/probe.md says how to read it.
    "probe.every": Setting(
        2_000, Interval(0), "steps", "interval between probes; 0: no probe, no held-out documents"
    ),
    "probe.documents": Setting(
        512, Interval(0), "documents", "held out for the probe; at most a tenth of all"
    ),
    "probe.data": Setting("", None, "", "a BEIR or MS MARCO folder that the probe also searches"),
    "probe.split": Setting("test", None, "", "which queries and judgments of probe.data to use"),
    "probe.passages": Setting(
        5_000, Interval(0), "passages", "searched in probe.data, all relevant ones included; 0: all"
    ),
    "log_every": Setting(50, Interval(1), "steps", "interval between lines of metrics"),
    "tracker": Setting(
        "none", TRACKERS, "", "where metrics go besides metrics.jsonl, see docs/python.md"
    ),
}


def get_config(argument: str = "") -> ConfigDict:
    """Returns the default experiment; it has no variants."""
    if argument:
        raise UserError(f"this experiment has no variant {argument!r}")
    return to_config(SETTINGS)
