"""Attention of whole spans in one kernel: by Triton on a GPU, by Mosaic on a TPU.

A program computes a span's attention in one head (on a TPU in as many heads as fill 128 lanes): all
scores, softmax, dropout and the product with the values. The program of the gradient recomputes
them, so nothing is stored between the two, and no square array is written. Dropout masks are
computed in place and equal those of `dropout.dropout` bit for bit.

Queries, keys and values are read from one array of B x L x 3D, the result of a single product. The
kernels add the biases and return the sums of their gradients, for which XLA would read the array
again. They round in the same places as `attention.attend`.

Shapes: B spans, L tokens, D hidden size, N heads, H size of a head, P heads of a program, R rows of
a block that holds all tokens.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as mosaic
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, Float32, Shaped, UInt32

from cocondenser_jax.model.attention import AttentionSettings
from cocondenser_jax.model.dropout import Input, fold_in, keeps

LEAST = float(np.finfo(np.float32).min)  # the score of a masked token, as in `attend`
_LANES = 128  # of a TPU's registers
_WARPS = 8  # with 4 or 16, registers spill on an H100
GPU_LENGTH = 128  # tokens; beyond, a square of scores fills the registers of a multiprocessor
TPU_LENGTH = 512
GPU_HEADS = (16, 32, 64)  # Triton takes powers of two; a matrix unit at least 16


def fills_lanes(n_heads: int, size: int) -> bool:
    """Whether a TPU's programs have whole registers of heads of a size."""
    if size % _LANES == 0:
        return True
    return _LANES % size == 0 and n_heads % (_LANES // size) == 0


class Dropout(NamedTuple):
    """The dropout of a kernel."""

    rate: float  # 0 for none
    share: float  # what kept elements are divided by: 1 - rate, rounded as XLA does

    @classmethod
    def of(cls, rate: float, dtype: Any) -> Self:
        """Returns the dropout of arrays of a dtype."""
        return cls(rate, rounded(1.0 - rate, dtype))


def attend_whole(
    product_BxLx3D: Float[Array, "B L D3"],
    bias_3D: Float[Array, " D3"],
    mask_BxL: Shaped[Input, "B L"],
    seeds_BxN: UInt32[Array, "B N"] | None,
    settings: AttentionSettings,
    platform: str,
) -> Float[Array, "B L D"]:
    """Returns what `joint.attend_jointly` does, with biases, for spans that fit one program."""
    rate, dtype = settings.rate, product_BxLx3D.dtype
    if seeds_BxN is None:
        seeds_BxN, rate = jnp.zeros((len(product_BxLx3D), settings.n_heads), jnp.uint32), 0.0
    mask_BxL = jnp.asarray(mask_BxL).astype(jnp.int32)
    return _attend(
        Dropout.of(rate, dtype),
        platform,
        (product_BxLx3D, bias_3D.astype(dtype), mask_BxL, seeds_BxN),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(dropout: Dropout, platform: str, arrays: tuple[jax.Array, ...]) -> jax.Array:
    kernels: dict[str, Callable[..., jax.Array]] = {"gpu": _gpu_forward, "tpu": _tpu_forward}
    return kernels[platform](dropout, *arrays)


def _attend_forward(
    dropout: Dropout, platform: str, arrays: tuple[jax.Array, ...]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _attend(dropout, platform, arrays), arrays


def _attend_backward(
    dropout: Dropout, platform: str, arrays: tuple[jax.Array, ...], cotangent_BxLxD: jax.Array
) -> tuple[tuple[jax.Array | None, ...]]:
    kernels: dict[str, Callable[..., tuple[jax.Array, jax.Array]]] = {
        "gpu": _gpu_backward,
        "tpu": _tpu_backward,
    }
    by_product_BxLx3D, by_bias_Bx3D = kernels[platform](dropout, *arrays, cotangent_BxLxD)
    by_bias_3D = jnp.sum(by_bias_Bx3D, axis=0).astype(arrays[1].dtype)
    return ((by_product_BxLx3D, by_bias_3D, None, None),)


_attend.defvjp(_attend_forward, _attend_backward)


def _context(
    dropout: Dropout, parts: list[jax.Array], visible_1xR: jax.Array, kept_RxR: jax.Array | None
) -> Float[Array, "R H"]:
    """Returns one head's attention output for a span; the parts come from `_scaled`."""
    query_RxH, key_RxH, value_RxH = parts
    weights_RxR = _softmax(query_RxH, key_RxH, visible_1xR).astype(value_RxH.dtype)
    weights_RxR = drop(weights_RxR, kept_RxR, dropout.share)
    return dot(weights_RxR, value_RxH, 1, 0).astype(value_RxH.dtype)


def _gradients(
    dropout: Dropout,
    parts: list[jax.Array],
    visible_1xR: jax.Array,
    kept_RxR: jax.Array | None,
    cotangent_RxH: jax.Array,
) -> list[Float32[Array, "R H"]]:
    """Returns the gradients of a span's queries (before they are scaled), keys and values."""
    query_RxH, key_RxH, value_RxH = parts
    dtype = value_RxH.dtype
    softmax_RxR = _softmax(query_RxH, key_RxH, visible_1xR)
    weights_RxR = drop(softmax_RxR.astype(dtype), kept_RxR, dropout.share)
    by_value_RxH = dot(weights_RxR, cotangent_RxH, 0, 0)
    by_weights_RxR = drop(dot(cotangent_RxH, value_RxH, 1, 1), kept_RxR, dropout.share)
    mean_Rx1 = jnp.sum(softmax_RxR * by_weights_RxR, axis=1, keepdims=True)
    by_scores_RxR = (softmax_RxR * (by_weights_RxR - mean_Rx1)).astype(dtype)
    by_query_RxH = dot(by_scores_RxR, key_RxH, 1, 0).astype(dtype).astype(jnp.float32)
    return [by_query_RxH / _scale(query_RxH), dot(by_scores_RxR, query_RxH, 0, 0), by_value_RxH]


def _softmax(query_RxH: jax.Array, key_RxH: jax.Array, visible_1xR: jax.Array) -> jax.Array:
    scores_RxR = jnp.where(visible_1xR, dot(query_RxH, key_RxH, 1, 1), LEAST)
    powers_RxR = jnp.exp(scores_RxR - jnp.max(scores_RxR, axis=1, keepdims=True))
    return powers_RxR / jnp.sum(powers_RxR, axis=1, keepdims=True)


def drop(x_RxC: jax.Array, kept_RxC: jax.Array | None, share: float) -> jax.Array:
    """Applies dropout to numbers or their gradient: divides kept ones by `share`; None: all."""
    if kept_RxC is None:
        return x_RxC
    # In float32, as XLA divides: Triton has no division in bfloat16.
    scaled_RxC = x_RxC.astype(jnp.float32) / share
    return jnp.where(kept_RxC, scaled_RxC, 0.0).astype(x_RxC.dtype)


def rounded(number: float, dtype: Any) -> float:
    """Returns a number as XLA multiplies or divides arrays of a dtype by it."""
    return float(np.asarray(number).astype(dtype))


def _kept(dropout: Dropout, seed: jax.Array, n_rows: int) -> Bool[Array, "R R"] | None:
    """Returns which weights dropout keeps: the same as `dropout.dropout` with a head's seed."""
    if not dropout.rate:
        return None
    rows_Rx1 = jax.lax.broadcasted_iota(jnp.int32, (n_rows, n_rows), 0)
    columns_RxR = jax.lax.broadcasted_iota(jnp.int32, (n_rows, n_rows), 1)
    seeds_RxR = fold_in(jnp.full((n_rows, n_rows), seed), rows_Rx1)
    assert seeds_RxR is not None
    return keeps(seeds_RxR, columns_RxR, dropout.rate)


def dot(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """Returns the product of two matrices over an axis of each, in float32."""
    axes = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


def _scaled(parts: list[jax.Array], biases: list[jax.Array]) -> list[jax.Array]:
    """Returns queries, keys and values with their biases, the queries scaled."""
    dtype = parts[0].dtype
    wide = [
        x_RxH.astype(jnp.float32) + bias_H.astype(jnp.float32)[None]
        for x_RxH, bias_H in zip(parts, biases, strict=True)
    ]
    query_RxH, key_RxH, value_RxH = (x_RxH.astype(dtype) for x_RxH in wide)
    scaled_RxH = query_RxH.astype(jnp.float32) / _scale(query_RxH)
    return [scaled_RxH.astype(dtype), key_RxH, value_RxH]


def _scale(query_RxH: jax.Array) -> float:
    """Returns the divisor of queries, the root of their size."""
    return rounded(math.sqrt(query_RxH.shape[1]), query_RxH.dtype)


# On a GPU: programs for spans and heads. A program's block is padded to the next power of two rows;
# rows beyond the length are not read, and no row attends to them.


def _gpu_parts(
    dropout: Dropout, refs: tuple[Any, ...], length: int
) -> tuple[list[jax.Array], jax.Array, jax.Array | None, jax.Array | None]:
    """Returns queries, keys and values, what is visible, what dropout keeps, and the mask of rows.

    Of rows beyond the length the parts are biases alone.
    """
    query_ref, key_ref, value_ref, bias_ref, mask_ref, seed_ref = refs
    n_rows, size = query_ref.shape
    is_token_R = None if n_rows == length else jnp.arange(n_rows) < length
    is_token_RxH = (
        None if is_token_R is None else jnp.broadcast_to(is_token_R[:, None], (n_rows, size))
    )
    parts = [_load(ref, is_token_RxH) for ref in (query_ref, key_ref, value_ref)]
    visible_1xR = (_load(mask_ref, is_token_R) != 0)[None]
    biases = [bias_ref[i, :] for i in range(3)]
    kept_RxR = _kept(dropout, seed_ref[...], n_rows)
    return _scaled(parts, biases), visible_1xR, kept_RxR, is_token_RxH


def _load(ref: Any, mask: jax.Array | None) -> jax.Array:
    return ref[...] if mask is None else triton.load(ref, mask=mask, other=0)


def _gpu_forward_program(*refs: Any, dropout: Dropout, length: int) -> None:
    *read, context_ref = refs
    parts, visible_1xR, kept_RxR, is_token_RxH = _gpu_parts(dropout, tuple(read), length)
    triton.store(context_ref, _context(dropout, parts, visible_1xR, kept_RxR), mask=is_token_RxH)


def _gpu_backward_program(*refs: Any, dropout: Dropout, length: int) -> None:
    *read, cotangent_ref, by_product_ref, by_bias_ref = refs
    parts, visible_1xR, kept_RxR, is_token_RxH = _gpu_parts(dropout, tuple(read), length)
    cotangent_RxH = _load(cotangent_ref, is_token_RxH)
    gradients = _gradients(dropout, parts, visible_1xR, kept_RxR, cotangent_RxH)
    for i, by_part_RxH in enumerate(gradients):
        rounded_RxH = by_part_RxH.astype(by_product_ref.dtype)
        at_part = by_product_ref.at[:, jnp.int32(i), :]  # the interpreter rejects a plain integer
        triton.store(at_part, rounded_RxH, mask=is_token_RxH)
        by_bias_ref[i, :] = jnp.sum(by_part_RxH, axis=0)


class _GpuBlocks(NamedTuple):
    read: list[pl.BlockSpec]  # of queries, keys, values, biases, mask and seeds
    context: pl.BlockSpec
    product: pl.BlockSpec
    bias: pl.BlockSpec


def _gpu_blocks(n_rows: int, size: int) -> _GpuBlocks:
    def part(i: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, n_rows, None, None, size), lambda b, n: (b, 0, i, n, 0))

    return _GpuBlocks(
        read=[
            *(part(i) for i in range(3)),
            pl.BlockSpec((3, None, size), lambda b, n: (0, n, 0)),
            pl.BlockSpec((None, n_rows), lambda b, n: (b, 0)),
            pl.BlockSpec((None, None), lambda b, n: (b, n)),
        ],
        context=pl.BlockSpec((None, n_rows, None, size), lambda b, n: (b, 0, n, 0)),
        product=pl.BlockSpec((None, n_rows, 3, None, size), lambda b, n: (b, 0, 0, n, 0)),
        bias=pl.BlockSpec((None, 3, None, size), lambda b, n: (b, 0, n, 0)),
    )


def _gpu_rows(length: int) -> int:
    return max(16, 1 << (length - 1).bit_length())


def _gpu_call(program: Callable, dropout: Dropout, arrays: tuple[jax.Array, ...], name: str) -> Any:
    """Runs a program for each span and head; the arrays are those of `attend_whole`'s kernel.

    With a cotangent as the last array, it returns the gradients of product and biases, otherwise
    the context.
    """
    product_BxLx3D, bias_3D, mask_BxL, seeds_BxN, *cotangents = arrays
    n_spans, length, size_3 = product_BxLx3D.shape
    n_heads = seeds_BxN.shape[1]
    size = size_3 // 3 // n_heads
    of_heads = n_spans, length, n_heads, size
    product_BxLx3xNxH = product_BxLx3D.reshape(n_spans, length, 3, n_heads, size)
    blocks = _gpu_blocks(_gpu_rows(length), size)
    if cotangents:
        out_specs = [blocks.product, blocks.bias]
        by_bias = jax.ShapeDtypeStruct((n_spans, 3, n_heads, size), jnp.float32)
        by_product = jax.ShapeDtypeStruct(product_BxLx3xNxH.shape, product_BxLx3D.dtype)
        out_shape = [by_product, by_bias]
    else:
        out_specs = [blocks.context]
        out_shape = [jax.ShapeDtypeStruct(of_heads, product_BxLx3D.dtype)]
    call = pl.pallas_call(
        functools.partial(program, dropout=dropout, length=length),
        grid=(n_spans, n_heads),
        in_specs=[*blocks.read, *[blocks.context] * len(cotangents)],
        out_specs=out_specs,
        out_shape=out_shape,
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        name=name,
    )
    read = *[product_BxLx3xNxH] * 3, bias_3D.reshape(3, n_heads, size), mask_BxL, seeds_BxN
    return call(*read, *(each.reshape(of_heads) for each in cotangents))


def _gpu_forward(dropout: Dropout, *arrays: jax.Array) -> jax.Array:
    (context_BxLxNxH,) = _gpu_call(_gpu_forward_program, dropout, arrays, "attention")
    return context_BxLxNxH.reshape(*context_BxLxNxH.shape[:2], -1)


def _gpu_backward(dropout: Dropout, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
    by_product_BxLx3xNxH, by_bias_Bx3xNxH = _gpu_call(
        _gpu_backward_program, dropout, arrays, "attention_gradient"
    )
    by_bias_Bx3D = by_bias_Bx3xNxH.reshape(len(by_bias_Bx3xNxH), -1)
    return by_product_BxLx3xNxH.reshape(arrays[0].shape), by_bias_Bx3D


# On a TPU: programs for spans and groups of heads, side by side in the lanes.


def _tpu_heads(
    dropout: Dropout, refs: tuple[Any, ...], size: int
) -> list[tuple[slice, list[jax.Array], jax.Array, jax.Array | None]]:
    """Returns for each head of a program its lanes, its parts, and what is visible and kept."""
    seeds_ref, *product_refs = refs[:4]
    bias_refs, mask_ref = refs[4:7], refs[7]
    span, group = pl.program_id(0), pl.program_id(1)
    length, lanes = product_refs[0].shape
    found = []
    for i in range(lanes // size):
        at = slice(i * size, (i + 1) * size)
        parts = [ref[:, at] for ref in product_refs]
        biases = [ref[0, at] for ref in bias_refs]
        seed = seeds_ref[span, group * (lanes // size) + i]
        kept_LxL = _kept(dropout, seed, length)
        found.append((at, _scaled(parts, biases), mask_ref[...] != 0, kept_LxL))
    return found


def _tpu_forward_program(*refs: Any, dropout: Dropout, size: int) -> None:
    *read, context_ref = refs
    for at, parts, visible_1xL, kept_LxL in _tpu_heads(dropout, tuple(read), size):
        context_ref[:, at] = _context(dropout, parts, visible_1xL, kept_LxL)


def _tpu_backward_program(*refs: Any, dropout: Dropout, size: int) -> None:
    read, cotangent_ref, by_parts, by_biases = refs[:8], refs[8], refs[9:12], refs[12:]
    for at, parts, visible_1xL, kept_LxL in _tpu_heads(dropout, read, size):
        gradients = _gradients(dropout, parts, visible_1xL, kept_LxL, cotangent_ref[:, at])
        for by_part_LxH, by_part, by_bias in zip(gradients, by_parts, by_biases, strict=True):
            by_part[:, at] = by_part_LxH.astype(by_part.dtype)
            by_bias[:, at] = jnp.sum(by_part_LxH, axis=0, keepdims=True)


def _tpu_call(
    program: Callable, dropout: Dropout, arrays: tuple[jax.Array, ...], outs: list[Any]
) -> Any:
    """Runs a program for each span and group of heads; the arrays are those of `_gpu_call`."""
    product_BxLx3D, bias_3D, mask_BxL, seeds_BxN, *cotangents = arrays
    n_spans, length, size_3 = product_BxLx3D.shape
    size = size_3 // 3 // seeds_BxN.shape[1]
    lanes = max(_LANES, size)
    n_groups = size_3 // 3 // lanes

    def block(rows: int, first: int = 0, spans: bool = True) -> pl.BlockSpec:
        return pl.BlockSpec(
            (None, rows, lanes), lambda b, g, seeds: (b if spans else 0, 0, first * n_groups + g)
        )

    parts = [block(length, i) for i in range(3)]
    biases = [block(1, i, spans=False) for i in range(3)]
    mask = pl.BlockSpec((None, 1, length), lambda b, g, seeds: (b, 0, 0))
    out_specs = [block(out.shape[1]) for out in outs]
    call = pl.pallas_call(
        functools.partial(program, dropout=dropout, size=size),
        grid_spec=mosaic.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(n_spans, n_groups),
            in_specs=[*parts, *biases, mask, *[block(length)] * len(cotangents)],
            out_specs=out_specs,
        ),
        out_shape=outs,
    )
    read = *[product_BxLx3D] * 3, *[bias_3D[None, None]] * 3, mask_BxL[:, None]
    return call(seeds_BxN, *read, *cotangents)


def _tpu_forward(dropout: Dropout, *arrays: jax.Array) -> jax.Array:
    n_spans, length, size_3 = arrays[0].shape
    out = jax.ShapeDtypeStruct((n_spans, length, size_3 // 3), arrays[0].dtype)
    (context_BxLxD,) = _tpu_call(_tpu_forward_program, dropout, arrays, [out])
    return context_BxLxD


def _tpu_backward(dropout: Dropout, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
    n_spans, length, size_3 = arrays[0].shape
    by_part = jax.ShapeDtypeStruct((n_spans, length, size_3 // 3), arrays[0].dtype)
    by_bias = jax.ShapeDtypeStruct((n_spans, 1, size_3 // 3), jnp.float32)
    outs = _tpu_call(_tpu_backward_program, dropout, arrays, [by_part] * 3 + [by_bias] * 3)
    by_product_BxLx3D = jnp.concatenate(outs[:3], axis=-1)
    return by_product_BxLx3D, jnp.concatenate(outs[3:], axis=-1)[:, 0]
