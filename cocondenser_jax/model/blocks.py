"""Attention of long spans on a GPU by Triton, block by block, without a square array.

A program handles a block of rows of one span and head. It loops over the blocks of tokens that
these rows attend to: all, or in a local layer those within the window, and accumulates the softmax
(Dao et al., arXiv 2205.14135). The gradient recomputes the scores from the logarithm of each row's
sum, once for keys and values and once for queries. Dropout masks are computed in place and equal
those of `dropout.dropout` bit for bit.

Shapes: as in `kernels.py`; R rows of a block, C tokens of a block that they attend to.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, Shaped, UInt32

from cocondenser_jax.model.attention import AttentionSettings
from cocondenser_jax.model.dropout import Input, fold_in, keeps
from cocondenser_jax.model.kernels import LEAST, Dropout, dot, drop

BLOCK = 64  # tokens; with 128, registers spill on an H100
_WARPS = 4


def attend_in_blocks(
    joined_BxLx3D: Float[Array, "B L D3"],
    mask_BxL: Shaped[Input, "B L"],
    seeds_BxN: UInt32[Array, "B N"] | None,
    settings: AttentionSettings,
) -> Float[Array, "B L D"]:
    """Returns `context_BxLxD`: attention of all tokens of each span to its unmasked tokens.

    Args:
      joined_BxLx3D: scaled queries, keys and values of all heads, with biases added, and rotated if
        the layer rotates.
      mask_BxL: true (or 1) at tokens.
      seeds_BxN: of dropout, see `attention.head_seeds`; None for none.
      settings: of the layer.
    """
    n_spans, length, size_3 = joined_BxLx3D.shape
    n_heads, rate = settings.n_heads, settings.rate
    if seeds_BxN is None:
        seeds_BxN, rate = jnp.zeros((n_spans, n_heads), jnp.uint32), 0.0
    joined_BxLx3xNxH = joined_BxLx3D.reshape(n_spans, length, 3, n_heads, -1)
    mask_BxL = jnp.asarray(mask_BxL).astype(jnp.int32)
    arrays = joined_BxLx3xNxH, mask_BxL, seeds_BxN
    context_BxLxNxH = _attend(Dropout.of(rate, joined_BxLx3D.dtype), settings.width, arrays)
    return context_BxLxNxH.reshape(n_spans, length, size_3 // 3)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(dropout: Dropout, width: int | None, arrays: tuple[jax.Array, ...]) -> jax.Array:
    return _attend_forward(dropout, width, arrays)[0]


def _attend_forward(
    dropout: Dropout, width: int | None, arrays: tuple[jax.Array, ...]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    joined_BxLx3xNxH, mask_BxL, seeds_BxN = arrays
    n_spans, length, _, n_heads, size = joined_BxLx3xNxH.shape
    blocks = _Blocks(length, size)
    context_BxLxNxH, logs_BxNxL = pl.pallas_call(
        functools.partial(_forward_program, dropout=dropout, width=width, length=length),
        grid=(n_spans, n_heads, blocks.number),
        in_specs=[blocks.rows(0), blocks.whole(1), blocks.whole(2), *blocks.others()],
        out_specs=[blocks.context_rows(), blocks.row_numbers()],
        out_shape=[
            jax.ShapeDtypeStruct((n_spans, length, n_heads, size), joined_BxLx3xNxH.dtype),
            jax.ShapeDtypeStruct((n_spans, n_heads, length), jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        name="block_attention",
    )(*[joined_BxLx3xNxH] * 3, mask_BxL, seeds_BxN)
    return context_BxLxNxH, (*arrays, context_BxLxNxH, logs_BxNxL)


def _attend_backward(
    dropout: Dropout, width: int | None, stored: tuple[jax.Array, ...], cotangent_BxLxNxH: jax.Array
) -> tuple[tuple[jax.Array | None, ...]]:
    joined_BxLx3xNxH, mask_BxL, seeds_BxN, context_BxLxNxH, logs_BxNxL = stored
    n_spans, length, _, n_heads, size = joined_BxLx3xNxH.shape
    # The mean of a row's gradient, weighted by its attention after dropout: softmax's correction
    # term.
    products_BxLxNxH = cotangent_BxLxNxH.astype(jnp.float32) * context_BxLxNxH.astype(jnp.float32)
    means_BxNxL = jnp.sum(products_BxLxNxH, axis=-1).swapaxes(1, 2)
    blocks = _Blocks(length, size)
    by_joined_BxLx3xNxH = pl.pallas_call(
        functools.partial(_backward_program, dropout=dropout, width=width, length=length),
        grid=(n_spans, n_heads, blocks.number),
        in_specs=[
            *(blocks.whole(i) for i in range(3)),
            *blocks.others(),
            blocks.whole_context(),
            blocks.all_numbers(),
            blocks.all_numbers(),
        ],
        out_specs=pl.BlockSpec((None, BLOCK, 3, None, size), lambda b, n, i: (b, i, 0, n, 0)),
        out_shape=jax.ShapeDtypeStruct(joined_BxLx3xNxH.shape, joined_BxLx3xNxH.dtype),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        name="block_attention_gradient",
    )(*[joined_BxLx3xNxH] * 3, mask_BxL, seeds_BxN, cotangent_BxLxNxH, logs_BxNxL, means_BxNxL)
    return ((by_joined_BxLx3xNxH, None, None),)


_attend.defvjp(_attend_forward, _attend_backward)


class _Blocks:
    """How arrays are cut for the programs of (span, head, block)."""

    def __init__(self, length: int, size: int) -> None:
        self.number = -(-length // BLOCK)
        self.n_rows = self.number * BLOCK
        self.size = size

    def rows(self, part: int) -> pl.BlockSpec:
        """Returns the program's own block of queries, keys or values."""
        return pl.BlockSpec(
            (None, BLOCK, None, None, self.size), lambda b, n, i: (b, i, part, n, 0)
        )

    def whole(self, part: int) -> pl.BlockSpec:
        """Returns all queries, keys or values of the program's head."""
        return pl.BlockSpec(
            (None, self.n_rows, None, None, self.size), lambda b, n, i: (b, 0, part, n, 0)
        )

    def others(self) -> list[pl.BlockSpec]:
        """Returns mask and seed."""
        return [
            pl.BlockSpec((None, self.n_rows), lambda b, n, i: (b, 0)),
            pl.BlockSpec((None, None), lambda b, n, i: (b, n)),
        ]

    def context_rows(self) -> pl.BlockSpec:
        """Returns the program's own block of its head's output."""
        return pl.BlockSpec((None, BLOCK, None, self.size), lambda b, n, i: (b, i, n, 0))

    def whole_context(self) -> pl.BlockSpec:
        """Returns the output of the head for all rows, or its cotangent."""
        return pl.BlockSpec((None, self.n_rows, None, self.size), lambda b, n, i: (b, 0, n, 0))

    def row_numbers(self) -> pl.BlockSpec:
        """Returns a number for each of the program's rows."""
        return pl.BlockSpec((None, None, BLOCK), lambda b, n, i: (b, n, i))

    def all_numbers(self) -> pl.BlockSpec:
        """Returns a number for each row of the head."""
        return pl.BlockSpec((None, None, self.n_rows), lambda b, n, i: (b, n, 0))


def _forward_program(*refs: Any, dropout: Dropout, width: int | None, length: int) -> None:
    query_ref, key_ref, value_ref, mask_ref, seed_ref, context_ref, logs_ref = refs
    block = pl.program_id(2)
    n_rows, size = query_ref.shape
    is_row_R, is_row_RxH = _inside(block, length, (n_rows, size))
    query_RxH = triton.load(query_ref, mask=is_row_RxH, other=0)

    def see(j: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        most_R, sums_R, context_RxH = found
        key_CxH, value_CxH = (_load_rows(ref, j, length) for ref in (key_ref, value_ref))
        visible_RxC = _visible(mask_ref, (block, j), width, length)
        scores_RxC = jnp.where(visible_RxC, dot(query_RxH, key_CxH, 1, 1), LEAST)
        now_R = jnp.maximum(most_R, jnp.max(scores_RxC, axis=1))
        powers_RxC = jnp.exp(scores_RxC - now_R[:, None])
        shrunk_R = jnp.exp(most_R - now_R)
        weights_RxC = drop(powers_RxC, _kept(dropout, seed_ref[...], (block, j)), dropout.share)
        seen_RxH = dot(weights_RxC.astype(value_CxH.dtype), value_CxH, 1, 0)
        sums_R = sums_R * shrunk_R + jnp.sum(powers_RxC, axis=1)
        return now_R, sums_R, context_RxH * shrunk_R[:, None] + seen_RxH

    first = jnp.full(n_rows, LEAST), jnp.zeros(n_rows), jnp.zeros((n_rows, size))
    most_R, sums_R, context_RxH = jax.lax.fori_loop(*_near(block, width, length), see, first)
    context_RxH = (context_RxH / sums_R[:, None]).astype(context_ref.dtype)
    triton.store(context_ref, context_RxH, mask=is_row_RxH)
    triton.store(logs_ref, most_R + jnp.log(sums_R), mask=is_row_R)


def _backward_program(*refs: Any, dropout: Dropout, width: int | None, length: int) -> None:
    """Computes the gradients of a block's keys and values, then that of its queries."""
    *read, by_joined_ref = refs
    own = pl.program_id(2)
    size = read[0].shape[-1]
    gradients = functools.partial(
        _weight_gradients, tuple(read), dropout=dropout, width=width, length=length
    )
    none_CxH = jnp.zeros((BLOCK, size))
    near = _near(own, width, length)

    def from_rows(i: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        by_key_CxH, by_value_CxH = found
        weights_RxC, by_scores_RxC, query_RxH, _, cotangent_RxH = gradients((i, own))
        return (
            by_key_CxH + dot(by_scores_RxC, query_RxH, 0, 0),
            by_value_CxH + dot(weights_RxC, cotangent_RxH, 0, 0),
        )

    def from_tokens(j: jax.Array, by_query_RxH: jax.Array) -> jax.Array:
        _, by_scores_RxC, _, key_CxH, _ = gradients((own, j))
        return by_query_RxH + dot(by_scores_RxC, key_CxH, 1, 0)

    by_key_CxH, by_value_CxH = jax.lax.fori_loop(*near, from_rows, (none_CxH, none_CxH))
    _store_part(by_joined_ref, 1, by_key_CxH, length)
    _store_part(by_joined_ref, 2, by_value_CxH, length)
    _store_part(by_joined_ref, 0, jax.lax.fori_loop(*near, from_tokens, none_CxH), length)


def _weight_gradients(
    refs: tuple[Any, ...],
    at: tuple[jax.Array, jax.Array],
    *,
    dropout: Dropout,
    width: int | None,
    length: int,
) -> tuple[jax.Array, ...]:
    """Returns weights, gradient of scores, queries, keys and cotangent; `at`: blocks of both."""
    query_ref, key_ref, value_ref, mask_ref, seed_ref, cotangent_ref, logs_ref, means_ref = refs
    i, j = at
    dtype = query_ref.dtype
    query_RxH = _load_rows(query_ref, i, length)
    key_CxH, value_CxH = (_load_rows(ref, j, length) for ref in (key_ref, value_ref))
    cotangent_RxH = _load_rows(cotangent_ref, i, length)
    log_R, mean_R = (_load_rows(ref, i, length) for ref in (logs_ref, means_ref))
    visible_RxC = _visible(mask_ref, at, width, length)
    scores_RxC = jnp.where(visible_RxC, dot(query_RxH, key_CxH, 1, 1), LEAST)
    softmax_RxC = jnp.exp(scores_RxC - log_R[:, None])
    kept_RxC = _kept(dropout, seed_ref[...], at)
    weights_RxC = drop(softmax_RxC.astype(dtype), kept_RxC, dropout.share)
    by_weights_RxC = drop(dot(cotangent_RxH, value_CxH, 1, 1), kept_RxC, dropout.share)
    by_scores_RxC = (softmax_RxC * (by_weights_RxC - mean_R[:, None])).astype(dtype)
    return weights_RxC, by_scores_RxC, query_RxH, key_CxH, cotangent_RxH


def _near(block: jax.Array, width: int | None, length: int) -> tuple[jax.Array, jax.Array]:
    """Returns the range of blocks that a block attends to, or that attend to it."""
    number = -(-length // BLOCK)
    if width is None:
        return jnp.int32(0), jnp.int32(number)
    first = jnp.maximum(block * BLOCK - width, 0) // BLOCK
    end = (block * BLOCK + BLOCK - 1 + width) // BLOCK + 1
    return first, jnp.minimum(end, number)


def _tokens(block: jax.Array) -> jax.Array:
    """Returns the numbers of a block's tokens."""
    return block * BLOCK + jnp.arange(BLOCK)


def _inside(block: jax.Array, length: int, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns which rows of a block are within the span, as a vector and as a matrix."""
    is_row_R = _tokens(block) < length
    return is_row_R, jnp.broadcast_to(is_row_R[:, None], shape)


def _load_rows(ref: Any, block: jax.Array, length: int) -> jax.Array:
    """Returns a block of the rows of an array, 0 beyond the length."""
    rows = pl.ds(block * BLOCK, BLOCK)
    if len(ref.shape) == 1:
        return triton.load(ref.at[rows], mask=_tokens(block) < length, other=0)
    _, inside = _inside(block, length, (BLOCK, ref.shape[1]))
    return triton.load(ref.at[rows, :], mask=inside, other=0)


def _store_part(by_joined_ref: Any, part: int, by_part_RxH: jax.Array, length: int) -> None:
    _, inside = _inside(pl.program_id(2), length, by_part_RxH.shape)
    at_part = by_joined_ref.at[:, jnp.int32(part), :]  # the interpreter rejects a plain integer
    triton.store(at_part, by_part_RxH.astype(by_joined_ref.dtype), mask=inside)


def _visible(
    mask_ref: Any, at: tuple[jax.Array, jax.Array], width: int | None, length: int
) -> Bool[Array, "R C"]:
    """Returns which tokens of a block each row of a block attends to."""
    i, j = at
    shape = BLOCK, BLOCK
    visible_RxC = jnp.broadcast_to((_load_rows(mask_ref, j, length) != 0)[None], shape)
    if width is not None:
        rows_RxC = jnp.broadcast_to(_tokens(i)[:, None], shape)
        columns_RxC = jnp.broadcast_to(_tokens(j)[None], shape)
        visible_RxC &= jnp.abs(rows_RxC - columns_RxC) <= width
    return visible_RxC


def _kept(
    dropout: Dropout, seed: jax.Array, at: tuple[jax.Array, jax.Array]
) -> Bool[Array, "R C"] | None:
    """Returns which weights dropout keeps: the same as `dropout.dropout` with a head's seed."""
    if not dropout.rate:
        return None
    i, j = at
    shape = BLOCK, BLOCK
    seeds_R = fold_in(jnp.full(BLOCK, seed), _tokens(i))
    assert seeds_R is not None
    columns_RxC = jnp.broadcast_to(_tokens(j)[None], shape)
    return keeps(jnp.broadcast_to(seeds_R[:, None], shape), columns_RxC, dropout.rate)
