"""What a family of backbones is: plain data, read wherever families differ.

A family has the name of its `model_type` in Hugging Face's config.json. What its parts and settings
are called there is in `convert/names.py`.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

MAX_LAYERS = 1_000  # more would fill the memory before anything else could be found wrong with them


class Vocabulary(NamedTuple):
    """The vocabulary of a family's published models."""

    size: int
    pad_id: int


class Backbone(NamedTuple):
    """The network of a family, its tokenizer, and the vocabulary that it was published with."""

    norm_first: bool  # LayerNorm before attention and MLP, not after their residual sums
    final_norm: bool  # LayerNorm after the last layer
    biases: bool  # in linear maps and LayerNorm
    gated: bool  # the MLP is a GeGLU (arXiv 2002.05202), not a GELU
    token_types: bool  # embeddings of token types
    position_table: bool  # positions are embeddings, added to those of words
    rotary: bool  # positions rotate queries and keys (arXiv 2104.09864)
    local_attention: bool  # all layers but every n-th attend to near tokens only
    relative_bias: int  # buckets of distances, each with a bias for attention's logits; 0 for none
    offset_by_padding: bool  # positions start at `pad_token_id + 1`, not at 0
    fixed_pad_id: int | None  # the only `pad_token_id` with which transformers' class works
    pooler: bool  # transformers' class has one unless it is told to leave it out
    tokenizer: Literal["wordpiece", "byte-level", "unigram"]
    tokenizer_class: str  # transformers' name
    special_tokens: Mapping[str, str]  # role: spelling, in the order that a new vocabulary has
    published_vocabulary: Vocabulary


# Devlin et al., arXiv 1810.04805.
_BERT = Backbone(
    norm_first=False,
    final_norm=False,
    biases=True,
    gated=False,
    token_types=True,
    position_table=True,
    rotary=False,
    local_attention=False,
    relative_bias=0,
    offset_by_padding=False,
    fixed_pad_id=None,
    pooler=True,
    tokenizer="wordpiece",
    tokenizer_class="BertTokenizer",
    special_tokens={
        "pad": "[PAD]",
        "unk": "[UNK]",
        "cls": "[CLS]",
        "sep": "[SEP]",
        "mask": "[MASK]",
    },
    published_vocabulary=Vocabulary(size=30_522, pad_id=0),
)
# Liu et al., arXiv 1907.11692.
_ROBERTA = _BERT._replace(
    offset_by_padding=True,
    tokenizer="byte-level",
    tokenizer_class="RobertaTokenizer",
    special_tokens={
        "cls": "<s>",
        "pad": "<pad>",
        "sep": "</s>",
        "unk": "<unk>",
        "mask": "<mask>",
    },
    published_vocabulary=Vocabulary(size=50_265, pad_id=1),
)
BACKBONES = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    # Conneau et al., arXiv 1911.02116.
    "xlm-roberta": _ROBERTA._replace(
        tokenizer="unigram",
        tokenizer_class="PreTrainedTokenizerFast",
        published_vocabulary=Vocabulary(size=250_002, pad_id=1),
    ),
    # Warner et al., arXiv 2412.13663.
    "modernbert": Backbone(
        norm_first=True,
        final_norm=True,
        biases=False,
        gated=True,
        token_types=False,
        position_table=False,
        rotary=True,
        local_attention=True,
        relative_bias=0,
        offset_by_padding=False,
        fixed_pad_id=None,
        pooler=False,
        tokenizer="byte-level",
        tokenizer_class="PreTrainedTokenizerFast",
        special_tokens=_BERT.special_tokens,
        published_vocabulary=Vocabulary(size=50_368, pad_id=50_283),
    ),
    # Song et al., arXiv 2004.09297.
    "mpnet": _BERT._replace(
        token_types=False,
        relative_bias=32,
        offset_by_padding=True,
        fixed_pad_id=1,
        tokenizer_class="MPNetTokenizer",
        special_tokens={**_ROBERTA.special_tokens, "unk": "[UNK]"},
        published_vocabulary=Vocabulary(size=30_527, pad_id=1),
    ),
}
# Families that only PyTorch computes here, and whose positions start where RoBERTa's do.
_OTHERS_OFFSET_BY_PADDING = (
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "layoutlmv3",
    "lilt",
    "longformer",
    "luke",
    "markuplm",
    "roberta-prelayernorm",
    "xlm-roberta-xl",
    "xmod",
)


def find_backbone(model_type: object) -> Backbone | None:
    """Returns the family that a config.json names; None if it is none of `BACKBONES`."""
    return BACKBONES.get(model_type) if isinstance(model_type, str) else None


def first_position(model_type: str, pad_token_id: int | None) -> int:
    """Returns the position of a text's first token, for every family that transformers loads."""
    backbone = find_backbone(model_type)
    if backbone and backbone.fixed_pad_id is not None:
        pad_token_id = backbone.fixed_pad_id
    is_offset = backbone.offset_by_padding if backbone else model_type in _OTHERS_OFFSET_BY_PADDING
    return pad_token_id + 1 if is_offset and pad_token_id is not None else 0
