"""The shape of a Condenser. Names are those of Hugging Face's `config.json` where it has one."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

from cocondenser_jax.backbones import BACKBONES, Backbone, first_position
from cocondenser_jax.errors import UserError

SIZES = (  # that every `config.json` holds
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size"
    " max_position_embeddings"
).split()
_OTHER_SIZES = "type_vocab_size", "local_attention", "global_attn_every_n_layers"
# What a vector is: the last layer at [CLS] or its mean over the tokens; as it is, or of length 1.
REPRESENTATIONS = "cls", "mean", "cls-cosine", "mean-cosine"
COSINE_SCALE = 20.0  # of cosines in a softmax: sentence-transformers' default


def size_limit(name: str) -> int:
    """Returns the largest value to accept for a size in `config.json`; published ones are below.

    More layers would fill the memory before anything else could be found wrong with them.
    """
    return 1_000 if name.endswith("layers") else 10_000_000


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A backbone and the Condenser head on top of it, if it has one."""

    model_type: str = "bert"  #: a family of `backbones.BACKBONES`
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512  #: 514 for RoBERTa: `position_offset` are never used
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    pad_token_id: int = 0
    initializer_range: float = 0.02
    # With local attention, as in ModernBERT (Warner et al., arXiv 2412.13663): every n-th layer
    # attends to the whole span, the others to the tokens at most half of `local_attention` away.
    # With rotary positions, each kind of layer has its own base.
    local_attention: int = 128
    global_attn_every_n_layers: int = 3
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    # The Condenser head (Gao & Callan, arXiv 2104.08253, section 3.2).
    n_head_layers: int = 2
    skip_from: int = 6  #: the backbone layer whose output is the head's "early" text, 1-based
    late_mlm: bool = True  #: also predict the masked tokens from the backbone's own output
    representation: Literal["cls", "mean", "cls-cosine", "mean-cosine"] = "cls"

    def __post_init__(self) -> None:
        """Raises a UserError for shapes that cannot be built."""
        self._require("model_type", lambda kind: kind in BACKBONES, " or ".join(BACKBONES))
        known = " or ".join(REPRESENTATIONS)
        self._require("representation", lambda kind: kind in REPRESENTATIONS, known)
        for name in (*SIZES, *_OTHER_SIZES):
            self._require_whole(name, 1, size_limit(name))
        self._require_whole("n_head_layers", 0, size_limit("n_head_layers"))
        self._require_whole("pad_token_id", 0, self.vocab_size - 1)
        self._require_whole("skip_from", 0, self.num_hidden_layers)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            self._require_number(name, lambda rate: 0 <= rate < 1, "a number from 0 to below 1")
        for name in ("global_rope_theta", "local_rope_theta"):
            self._require_number(name, lambda base: 1 < base < math.inf, "a number above 1")
        for name in ("layer_norm_eps", "initializer_range"):
            self._require_number(name, lambda scale: 0 < scale <= 1, "a number above 0, at most 1")
        self._require("late_mlm", lambda value: type(value) is bool, "true or false")
        if not (self.n_head_layers or self.late_mlm):
            raise UserError("a network without a Condenser head needs late_mlm")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of"
                f" num_attention_heads {self.num_attention_heads}"
            )

    def _require_whole(self, name: str, least: int, most: int) -> None:
        expected = f"a whole number from {least} to {most:,}"
        self._require(name, lambda x: type(x) is int and least <= x <= most, expected)

    def _require_number(self, name: str, fits: Callable[[float], bool], expected: str) -> None:
        self._require(name, lambda x: type(x) in (int, float) and fits(x), expected)

    def _require(self, name: str, fits: Callable[[Any], bool], expected: str) -> None:
        value = getattr(self, name)
        if not fits(value):
            raise UserError(f"{name} is {value!r}; expected {expected}")

    @property
    def backbone(self) -> Backbone:
        """What the backbone's family is."""
        return BACKBONES[self.model_type]

    @property
    def position_offset(self) -> int:
        """The first token's position."""
        return first_position(self.model_type, self.pad_token_id)

    @property
    def max_length(self) -> int:
        """The longest span, in tokens."""
        return self.max_position_embeddings - self.position_offset

    @property
    def pools_mean(self) -> bool:
        """Whether the vector is the mean of the last layer over the tokens, [CLS] and [SEP] too."""
        return self.representation.startswith("mean")

    @property
    def is_cosine(self) -> bool:
        """Whether the vector has length 1, so that inner products are cosines."""
        return self.representation.endswith("cosine")

    @property
    def score_scale(self) -> float:
        """What inner products are multiplied by in a contrastive loss."""
        return COSINE_SCALE if self.is_cosine else 1.0

    def attends_locally(self, number: int | None) -> bool:
        """Whether a layer attends to near tokens only, by its number; one of the head has none."""
        is_local = number is not None and number % self.global_attn_every_n_layers > 0
        return is_local and self.backbone.local_attention

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values."""
        return dataclasses.asdict(self)
