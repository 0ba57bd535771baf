"""The shape of a Condenser. Names are those of Hugging Face's `config.json` where it has one."""

import dataclasses
from typing import Any, Literal

from cocondenser_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A BERT or RoBERTa backbone and the Condenser head on top of it."""

    model_type: Literal["bert", "roberta"] = "bert"
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512  # RoBERTa: 514, of which the first two are never used
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    pad_token_id: int = 0
    initializer_range: float = 0.02
    # The Condenser head (Gao & Callan, arXiv 2104.08253, section 3.2).
    n_head_layers: int = 2
    skip_from: int = 6  # the backbone layer whose output is the head's "early" text, 1-based
    late_mlm: bool = True  # also predict the masked tokens from the backbone's own output

    def __post_init__(self) -> None:
        """Raises a UserError for shapes that cannot be built."""
        if self.model_type not in ("bert", "roberta"):
            raise UserError(f"model_type is {self.model_type!r}; expected 'bert' or 'roberta'")
        if min(self.hidden_size, self.num_attention_heads, self.num_hidden_layers) < 1:
            raise UserError("hidden_size, num_attention_heads and layers: expected at least 1")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of"
                f" num_attention_heads {self.num_attention_heads}"
            )
        if not 0 <= self.skip_from <= self.num_hidden_layers:
            raise UserError(
                f"skip_from is {self.skip_from}; expected 0 to {self.num_hidden_layers},"
                " the number of backbone layers"
            )
        if self.n_head_layers < 1:
            raise UserError(f"n_head_layers is {self.n_head_layers}; expected at least 1")

    @property
    def position_offset(self) -> int:
        """Index of the first token's position embedding: RoBERTa counts from `pad_token_id + 1`."""
        return self.pad_token_id + 1 if self.model_type == "roberta" else 0

    @property
    def max_length(self) -> int:
        """The longest span, in tokens, that has position embeddings."""
        return self.max_position_embeddings - self.position_offset

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values."""
        return dataclasses.asdict(self)
