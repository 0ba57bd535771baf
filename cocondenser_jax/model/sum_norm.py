"""A residual sum, its dropout and its LayerNorm in one Triton kernel for GPUs.

XLA reads the sum again for the statistics, the normalized rows, and the gradients of scale and
bias. A program here reads each row once and keeps it in registers; for the gradient it also
accumulates the columns of its rows. Dropout masks are computed in place and equal those of
`dropout.dropout` bit for bit.

Shapes: N rows of all spans, D hidden size, R rows of a group, P columns: D, as a power of two; G
programs of the gradient.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, UInt32

from cocondenser_jax.model.dropout import keeps
from cocondenser_jax.model.kernels import Dropout, drop

_GROUP = 2  # rows
_GROUPS = 16  # of a program of the gradient
_WARPS = 4


class NormSettings(NamedTuple):
    """The settings of a kernel."""

    epsilon: float
    rate: float  # of dropout


def add_and_normalize(
    hidden_BxLxD: Float[Array, "B L D"],
    branch_BxLxD: Float[Array, "B L D"],
    weights: tuple[Float[Array, " D"], Float[Array, " D"] | None],
    seeds_BxL: UInt32[Array, "B L"] | None,
    settings: NormSettings,
) -> Float[Array, "B L D"]:
    """Returns LayerNorm(hidden + dropout(branch)), with float32 statistics.

    Args:
      hidden_BxLxD: the residual.
      branch_BxLxD: the output of a layer's attention or feed-forward, of the same dtype.
      weights: scale and bias of LayerNorm; None for no bias.
      seeds_BxL: of the rows' dropout; None for none.
      settings: of LayerNorm and dropout.
    """
    n_rows, size = hidden_BxLxD.shape[0] * hidden_BxLxD.shape[1], hidden_BxLxD.shape[2]
    scale_D, bias_D = weights
    if bias_D is None:
        bias_D = jnp.zeros_like(scale_D)
    if seeds_BxL is None:
        seeds_N, rate = jnp.zeros(n_rows, jnp.uint32), 0.0
    else:
        seeds_N, rate = seeds_BxL.reshape(n_rows), settings.rate
    flat = (x.reshape(n_rows, size) for x in (hidden_BxLxD, branch_BxLxD))
    arrays = *flat, scale_D, bias_D, seeds_N
    out_NxD = _normalize(settings.epsilon, Dropout.of(rate, hidden_BxLxD.dtype), arrays)
    return out_NxD.reshape(hidden_BxLxD.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _normalize(epsilon: float, dropout: Dropout, arrays: tuple[jax.Array, ...]) -> jax.Array:
    hidden_NxD = arrays[0]
    blocks = _Blocks(hidden_NxD.shape[1], _GROUP)
    return pl.pallas_call(
        functools.partial(
            _forward_program, epsilon=epsilon, dropout=dropout, shape=hidden_NxD.shape
        ),
        grid=(pl.cdiv(len(hidden_NxD), _GROUP),),
        in_specs=blocks.read(),
        out_specs=blocks.rows(),
        out_shape=jax.ShapeDtypeStruct(hidden_NxD.shape, hidden_NxD.dtype),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        name="norm",
    )(*arrays)


def _normalize_forward(
    epsilon: float, dropout: Dropout, arrays: tuple[jax.Array, ...]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _normalize(epsilon, dropout, arrays), arrays


def _normalize_backward(
    epsilon: float, dropout: Dropout, arrays: tuple[jax.Array, ...], cotangent_NxD: jax.Array
) -> tuple[tuple[jax.Array | None, ...]]:
    hidden_NxD, _, scale_D, bias_D, _ = arrays
    n_rows, size = hidden_NxD.shape
    blocks = _Blocks(size, _GROUP * _GROUPS)
    n_programs = pl.cdiv(n_rows, _GROUP * _GROUPS)
    by_rows = jax.ShapeDtypeStruct(hidden_NxD.shape, hidden_NxD.dtype)
    sums = jax.ShapeDtypeStruct((n_programs, size), jnp.float32)
    n_by_rows = 2 if dropout.rate else 1
    *gradients, by_scale_GxD, by_bias_GxD = pl.pallas_call(
        functools.partial(
            _backward_program, epsilon=epsilon, dropout=dropout, shape=hidden_NxD.shape
        ),
        grid=(n_programs,),
        in_specs=[*blocks.read(), blocks.rows()],
        out_specs=[*[blocks.rows()] * n_by_rows, blocks.columns(), blocks.columns()],
        out_shape=[*[by_rows] * n_by_rows, sums, sums],
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        name="norm_gradient",
    )(*arrays, cotangent_NxD)
    by_scale_D = jnp.sum(by_scale_GxD, axis=0).astype(scale_D.dtype)
    by_bias_D = jnp.sum(by_bias_GxD, axis=0).astype(bias_D.dtype)
    return ((gradients[0], gradients[-1], by_scale_D, by_bias_D, None),)


_normalize.defvjp(_normalize_forward, _normalize_backward)


class _Blocks:
    """How arrays are cut for programs of some rows each."""

    def __init__(self, size: int, n_rows: int) -> None:
        self.n_columns = pl.next_power_of_2(size)
        self.n_rows = n_rows

    def rows(self) -> pl.BlockSpec:
        """Returns a program's rows."""
        return pl.BlockSpec((self.n_rows, self.n_columns), lambda i: (i, 0))

    def columns(self) -> pl.BlockSpec:
        """Returns the sums of a program's rows."""
        return pl.BlockSpec((None, self.n_columns), lambda i: (i, 0))

    def read(self) -> list[pl.BlockSpec]:
        """Returns the rows of both terms, scale, bias and seeds."""
        weights = pl.BlockSpec((self.n_columns,), lambda i: (0,))
        seeds = pl.BlockSpec((self.n_rows,), lambda i: (i,))
        return [self.rows(), self.rows(), weights, weights, seeds]


class _Group(NamedTuple):
    """A program's values for a group of rows."""

    at: Any  # where they are in its blocks
    is_inside_RxP: jax.Array
    standard_RxP: jax.Array  # mean 0, variance 1; 0 beyond the columns
    inverse_Rx1: jax.Array  # one over the standard deviation
    kept_RxP: jax.Array | None  # by dropout


def _read_group(
    refs: tuple[Any, ...],
    place: tuple[jax.Array, Any],
    epsilon: float,
    dropout: Dropout,
    shape: tuple[int, ...],
) -> _Group:
    """Reads a group of rows; `place` is the number of its program, and its number within that."""
    hidden_ref, branch_ref, _, _, seeds_ref = refs
    n_rows, n_columns = hidden_ref.shape
    program, group = place
    at = pl.ds(group * _GROUP, _GROUP)
    rows_R = program * n_rows + group * _GROUP + jnp.arange(_GROUP)
    columns_RxP = jax.lax.broadcasted_iota(jnp.int32, (_GROUP, n_columns), 1)
    is_row_R = rows_R < shape[0]
    is_inside_RxP = is_row_R[:, None] & (columns_RxP < shape[1])
    hidden_RxP, branch_RxP = (
        triton.load(ref.at[at, :], mask=is_inside_RxP, other=0) for ref in (hidden_ref, branch_ref)
    )
    kept_RxP = None
    if dropout.rate:
        seeds_R = triton.load(seeds_ref.at[at], mask=is_row_R, other=0)
        seeds_RxP = jnp.broadcast_to(seeds_R[:, None], columns_RxP.shape)
        kept_RxP = keeps(seeds_RxP, columns_RxP, dropout.rate)
    sums_RxP = hidden_RxP + drop(branch_RxP, kept_RxP, dropout.share)
    sums_RxP = sums_RxP.astype(jnp.float32)
    means_Rx1 = jnp.sum(sums_RxP, axis=1, keepdims=True) / shape[1]
    centered_RxP = jnp.where(is_inside_RxP, sums_RxP - means_Rx1, 0.0)
    variances_Rx1 = jnp.sum(centered_RxP * centered_RxP, axis=1, keepdims=True) / shape[1]
    inverse_Rx1 = jax.lax.rsqrt(variances_Rx1 + epsilon)
    return _Group(at, is_inside_RxP, centered_RxP * inverse_Rx1, inverse_Rx1, kept_RxP)


def _read_columns(ref: Any, shape: tuple[int, ...]) -> Float[Array, "1 P"]:
    is_column_P = jnp.arange(ref.shape[0]) < shape[1]
    return triton.load(ref, mask=is_column_P, other=0).astype(jnp.float32)[None]


def _forward_program(*refs: Any, epsilon: float, dropout: Dropout, shape: tuple[int, ...]) -> None:
    *read, out_ref = refs
    group = _read_group(tuple(read), (pl.program_id(0), 0), epsilon, dropout, shape)
    scale_1xP, bias_1xP = (_read_columns(ref, shape) for ref in read[2:4])
    out_RxP = (group.standard_RxP * scale_1xP + bias_1xP).astype(out_ref.dtype)
    triton.store(out_ref, out_RxP, mask=group.is_inside_RxP)


def _backward_program(*refs: Any, epsilon: float, dropout: Dropout, shape: tuple[int, ...]) -> None:
    read, cotangent_ref, by_rows = refs[:5], refs[5], refs[6:-2]
    program, n_columns = pl.program_id(0), cotangent_ref.shape[1]
    scale_1xP = _read_columns(read[2], shape)

    def add_group(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        group = _read_group(read, (program, i), epsilon, dropout, shape)
        cotangent_RxP = triton.load(
            cotangent_ref.at[group.at, :], mask=group.is_inside_RxP, other=0
        ).astype(jnp.float32)
        by_standard_RxP = cotangent_RxP * scale_1xP
        mean_Rx1 = jnp.sum(by_standard_RxP, axis=1, keepdims=True) / shape[1]
        along_RxP = by_standard_RxP * group.standard_RxP
        along_Rx1 = jnp.sum(along_RxP, axis=1, keepdims=True) / shape[1]
        by_sum_RxP = by_standard_RxP - mean_Rx1 - group.standard_RxP * along_Rx1
        by_sum_RxP = (by_sum_RxP * group.inverse_Rx1).astype(by_rows[0].dtype)
        by_branch_RxP = drop(by_sum_RxP, group.kept_RxP, dropout.share)
        for ref, by_term_RxP in zip(by_rows, (by_sum_RxP, by_branch_RxP), strict=False):
            triton.store(ref.at[group.at, :], by_term_RxP, mask=group.is_inside_RxP)
        by_scale_P, by_bias_P = sums
        return (
            by_scale_P + jnp.sum(cotangent_RxP * group.standard_RxP, axis=0),
            by_bias_P + jnp.sum(cotangent_RxP, axis=0),
        )

    none_P = jnp.zeros(n_columns)
    sums = jax.lax.fori_loop(0, _GROUPS, add_group, (none_P, none_P))
    is_column_P = jnp.arange(n_columns) < shape[1]
    for ref, by_weight_P in zip(refs[-2:], sums, strict=True):
        triton.store(ref, by_weight_P, mask=is_column_P)
