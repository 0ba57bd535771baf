"""The count of floating-point operations against the matrix products that JAX traces."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.flops import encode_flops, forward_flops
from cocondenser_jax.representation import Dense, Representation

LENGTH, MASKED = 12, 3


def traced_flops(jaxpr):
    """Two for each multiply-add of every matrix product, also in inner functions."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = math.prod(left[axis] for axis in contracted)
            total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
        for inner_jaxpr in jaxprs_in_params(equation.params):
            total += traced_flops(inner_jaxpr)
    return total


@pytest.mark.parametrize(
    ("model_type", "pooling", "skip_from", "late_mlm", "n_head_layers"),
    [
        ("bert", "cls", 1, True, 2),
        ("bert", "mean", 1, False, 1),
        ("modernbert", "cls", 3, False, 1),
        ("mpnet", "mean", 3, True, 2),
    ],
)
def test_counts_the_products_that_are_computed(
    model_type, pooling, skip_from, late_mlm, n_head_layers
):
    config = ModelConfig(
        model_type=model_type,
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=20,
        local_attention=4,  # of ModernBERT: half of the span, as blocks compute it
        max_position_embeddings=LENGTH,
        pad_token_id=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        representation=Representation(pooling, dense=(Dense(8, 24), Dense(24, 5, bias=False))),
        n_head_layers=n_head_layers,
        skip_from=skip_from,
        late_mlm=late_mlm,
    )
    model = Condenser(config)
    ids, mask = jnp.ones((1, LENGTH), jnp.int32), jnp.ones((1, LENGTH), bool)
    positions = jnp.zeros((1, MASKED), jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), ids, mask, positions)

    whole = jax.make_jaxpr(model.apply)(variables, ids, mask, positions)
    assert traced_flops(whole.jaxpr) == forward_flops(config, LENGTH, MASKED)

    def loss(variables):
        out = model.apply(variables, ids, mask, positions)
        return sum(jnp.sum(x) for x in jax.tree.leaves(out))

    trained = jax.make_jaxpr(jax.grad(loss))(variables)
    assert traced_flops(trained.jaxpr) == 3 * forward_flops(config, LENGTH, MASKED)
    alone = jax.make_jaxpr(lambda v: model.apply(v, ids, mask, method="encode"))(variables)
    assert traced_flops(alone.jaxpr) == encode_flops(config, LENGTH)
