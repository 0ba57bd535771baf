"""The shape of a Condenser. Names follow Hugging Face's `config.json` where it has one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cocondenser_jax.backbones import BACKBONES, MAX_LAYERS, Backbone, first_position
from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import (
    ACTIVATIONS,
    POOLINGS,
    SIMILARITIES,
    SPELLINGS,
    Representation,
    from_json,
    is_falling,
    to_json,
)

SIZES = (  # that every `config.json` holds
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
_SIZE = (1, 10_000_000)  # published ones are far below
# Minimum and maximum of each number; numbers that are settings declare theirs.
BOUNDS: dict[str, tuple[float, float]] = {
    "vocab_size": _SIZE,
    "hidden_size": _SIZE,
    "num_hidden_layers": (1, MAX_LAYERS),
    "num_attention_heads": _SIZE,
    "intermediate_size": _SIZE,
    "max_position_embeddings": (3, 10_000_000),  # [CLS], a token, [SEP]
    "type_vocab_size": _SIZE,
    "layer_norm_eps": (1e-30, 1),
    "hidden_dropout_prob": (0, 0.99),
    "attention_probs_dropout_prob": (0, 0.99),
    "initializer_range": (1e-30, 1),
    "local_attention": _SIZE,
    "global_attn_every_n_layers": _SIZE,
    "global_rope_theta": (1, 1_000_000_000_000),
    "local_rope_theta": (1, 1_000_000_000_000),
    "n_head_layers": (0, MAX_LAYERS),
    "skip_from": (0, MAX_LAYERS),
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A backbone and the Condenser head on top of it, if it has one."""

    model_type: str = "bert"  #: a family of `backbones.BACKBONES`
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    #: 514 for RoBERTa: the first `position_offset` rows are never used.
    max_position_embeddings: int = 512
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
    representation: Representation = SPELLINGS["cls"]

    def __post_init__(self) -> None:
        """Raises a UserError for shapes that cannot be built."""
        if self.model_type not in tuple(BACKBONES):
            expected = " or ".join(BACKBONES)
            raise UserError(f"model_type is {self.model_type!r}; expected {expected}")
        for name, (least, most) in BOUNDS.items():
            self._require_within(name, least, most)
            if type(getattr(ModelConfig, name)) is float:  # a config.json may say 0
                object.__setattr__(self, name, float(getattr(self, name)))
        self._require_within("pad_token_id", 0, self.vocab_size - 1)
        fixed = self.backbone.fixed_pad_id
        if fixed is not None and self.pad_token_id != fixed:
            raise UserError(
                f"pad_token_id is {self.pad_token_id}; {self.model_type} models need {fixed}"
            )
        self._require_within("skip_from", 0, self.num_hidden_layers)
        if type(self.late_mlm) is not bool:
            raise UserError(f"late_mlm is {self.late_mlm!r}; expected true or false")
        self._require_representation()
        if not (self.n_head_layers or self.late_mlm):
            raise UserError("a network without a Condenser head needs late_mlm")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of"
                f" num_attention_heads {self.num_attention_heads}"
            )

    def _require_within(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        is_whole = type(getattr(ModelConfig, name)) is int  # the default
        types = (int,) if is_whole else (int, float)
        if type(value) in types and least <= value <= most:
            return
        kind = "a whole number" if is_whole else "a number"
        raise UserError(f"{name} is {value!r}; expected {kind} from {least:,} to {most:,}")

    def _require_representation(self) -> None:
        given = self.representation
        if not isinstance(given, Representation):
            raise UserError(f"representation is {given!r}; expected a Representation")
        if given.pooling not in POOLINGS:
            raise UserError(f"pooling is {given.pooling!r}; expected {' or '.join(POOLINGS)}")
        if given.similarity not in SIMILARITIES:
            expected = " or ".join(SIMILARITIES)
            raise UserError(f"similarity is {given.similarity!r}; expected {expected}")
        size = self.hidden_size
        for layer in given.dense:
            if layer.activation_name not in ACTIVATIONS:
                expected = ", ".join(ACTIVATIONS)
                raise UserError(
                    f"a Dense layer ends in {layer.activation}; expected {expected} of torch.nn"
                )
            if layer.in_features != size or layer.out_features < 1:
                raise UserError(
                    f"a Dense layer makes {layer.out_features} numbers of {layer.in_features}, but"
                    f" the vectors before it have {size}"
                )
            size = layer.out_features
        if not (is_falling(given.sizes) and all(1 <= each <= size for each in given.sizes)):
            raise UserError(
                f"the sizes of vectors are {', '.join(map(str, given.sizes))}; expected whole"
                f" numbers from 1 to {size}, the largest first"
            )

    @property
    def backbone(self) -> Backbone:
        """The backbone's family."""
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
    def vector_size(self) -> int:
        """The number of dimensions of a vector."""
        return self.representation.vector_size(self.hidden_size)

    @property
    def longest_text(self) -> int:
        """The longest text, in tokens, that is encoded: at most `max_length`."""
        return min(self.representation.max_length or self.max_length, self.max_length)

    def require_tokenizer(self, name: object, n_ids: int, pad_id: int) -> None:
        """Raises a UserError if the network would misread this tokenizer's output.

        There may be more word embeddings than tokens: published tables are padded to a multiple,
        and multilingual MiniLM has 250,037 for the 250,002 tokens of XLM-R. The padding token is
        the tokenizer's choice, with one exception: if positions start after `pad_token_id`,
        transformers counts all tokens except that one, so a different padding token would be
        counted too.

        Args:
          name: of the tokenizer, for the message.
          n_ids: its highest token id + 1.
          pad_id: the id that it pads with.
        """
        if n_ids > self.vocab_size:
            raise UserError(
                f"the tokenizer of {name} has token ids up to {n_ids - 1}, but the model has"
                f" {self.vocab_size} word embeddings: it is another model's tokenizer"
            )
        if self.backbone.offset_by_padding and pad_id != self.pad_token_id:
            raise UserError(
                f"the tokenizer of {name} pads with {pad_id}, but pad_token_id of the model is"
                f" {self.pad_token_id}, from which {self.model_type} counts positions"
            )

    def attends_locally(self, index: int | None) -> bool:
        """Whether a layer attends only to nearby tokens; `index` is None for the head's layers."""
        is_local = index is not None and index % self.global_attn_every_n_layers > 0
        return is_local and self.backbone.local_attention

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values."""
        fields = dataclasses.fields(self)
        values = {field.name: getattr(self, field.name) for field in fields}
        return {**values, "representation": to_json(self.representation)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Returns the config that `to_dict` describes; raises a UserError for invalid values."""
        try:
            return cls(**{**values, "representation": from_json(values["representation"])})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"no shape of a model: {error}") from error
