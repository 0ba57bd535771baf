"""Shapes of models: which sizes are refused."""

import pytest

from cocondenser_jax.backbones import BACKBONES
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig


@pytest.mark.parametrize(
    ("name", "most"), [("num_hidden_layers", 1_000), ("intermediate_size", 10_000_000)]
)
def test_a_size_that_would_fill_the_memory_is_refused(name, most):
    assert getattr(ModelConfig(**{name: most}), name) == most
    with pytest.raises(UserError, match=f"{name} is {most + 1}"):
        ModelConfig(**{name: most + 1})
    with pytest.raises(UserError, match=f"{name} is 0"):
        ModelConfig(**{name: 0})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *dict.fromkeys(("layer_norm_eps", "initializer_range", "type_vocab_size"), 0).items(),
        *dict.fromkeys(("local_attention", "global_attn_every_n_layers"), 0).items(),
        *dict.fromkeys(("global_rope_theta", "local_rope_theta"), 0.5).items(),
        *dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 1.0).items(),
        ("max_position_embeddings", 2),
        ("n_head_layers", 1_001),
        ("skip_from", 13),
        ("pad_token_id", 30_522),
    ],
)
def test_every_number_has_bounds(name, value):
    with pytest.raises(UserError, match=f"^{name} is {value}; expected a "):
        ModelConfig(**{name: value})


def test_a_whole_number_stands_for_a_number():
    config = ModelConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, layer_norm_eps=1)
    assert config == ModelConfig(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1.0
    )
    assert type(config.hidden_dropout_prob) is float
    assert type(config.attention_probs_dropout_prob) is float
    assert type(config.layer_norm_eps) is float
    assert type(config.hidden_size) is int


def test_a_table_may_have_more_rows_than_the_tokenizer_has_ids():
    ModelConfig(vocab_size=250_037, pad_token_id=0).require_tokenizer("MiniLM", 250_002, 1)
    with pytest.raises(UserError, match="of MiniLM has token ids up to 250001, but the model has"):
        ModelConfig(vocab_size=250_001).require_tokenizer("MiniLM", 250_002, 0)


@pytest.mark.parametrize("model_type", BACKBONES)
def test_the_padding_is_the_tokenizers_unless_positions_follow_it(model_type):
    config = ModelConfig(model_type=model_type, pad_token_id=1)
    config.require_tokenizer("folder", 100, 1)
    if config.position_offset == 0:
        config.require_tokenizer("folder", 100, 3)
    else:
        with pytest.raises(UserError, match="of folder pads with 3, but pad_token_id of the"):
            config.require_tokenizer("folder", 100, 3)


@pytest.mark.parametrize(
    "changes", [{"of_a_later_version": 1}, {"representation": {}}, {"representation": None}]
)
def test_what_describes_no_shape_is_refused_in_one_line(changes):
    values = ModelConfig().to_dict()
    assert ModelConfig.from_dict(values) == ModelConfig()
    with pytest.raises(UserError, match=r"^no shape of a model: "):
        ModelConfig.from_dict(values | changes)
    del values["representation"]
    with pytest.raises(UserError, match=r"^no shape of a model: 'representation'"):
        ModelConfig.from_dict(values)
