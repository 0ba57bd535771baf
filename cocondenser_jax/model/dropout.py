"""Dropout that depends only on a seed and an element's position.

A hash of the span's seed, the site in the network, the row and the column decides whether an
element is kept. A mask therefore does not depend on the other spans of a batch, the requested rows,
the padding or the device, and two passes with different chunks agree. JAX's own generator could do
this with a key per row, but unrolled at some forty sites it takes most of the compile time for a
TPU.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped, UInt32

Input = Array | np.ndarray  # NumPy's where nothing is compiled
_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio, odd: consecutive multiples are spread over all 32 bits


def fold_in(
    seeds: UInt32[Input, "..."] | None,
    numbers: Shaped[Input, "..."] | int,
) -> UInt32[Array, "..."] | None:
    """Returns seeds (uint32) for numbered parts; None (no dropout) for None.

    Shapes broadcast from the left: further axes of the numbers are the parts of each seed.
    """
    if seeds is None:
        return None
    numbers = jnp.asarray(numbers).astype(jnp.uint32)
    seeds = seeds.reshape(seeds.shape + (1,) * (numbers.ndim - seeds.ndim))
    return _mix(seeds + (numbers + 1) * jnp.uint32(_GOLDEN))  # + 1, because _mix(0) is 0


def dropout(
    x: Float[Array, "*rows D"],
    rate: float,
    seeds: UInt32[Input, "*rows"] | None,
    columns: Shaped[Input, "..."] | None = None,
) -> Float[Array, "*rows D"]:
    """Zeroes elements of `x` with probability `rate`, and scales the others by 1 / (1 - rate).

    There is one seed (uint32) for each row along the last axis of `x`; None means no dropout.
    `columns` numbers the elements and has as many axes as `x`; None: 0, 1, ... in each row.
    """
    if seeds is None or rate == 0.0:
        return x
    if columns is None:
        columns = jnp.arange(x.shape[-1]).reshape((1,) * seeds.ndim + (-1,))
    return jnp.where(keeps(seeds, columns, rate), x / (1.0 - rate), jnp.zeros((), x.dtype))


def keeps(
    seeds: UInt32[Input, "..."], numbers: Shaped[Input, "..."], rate: float
) -> Bool[Array, "..."]:
    """Returns which of the numbered elements are kept, with the shapes of `fold_in`."""
    bits = fold_in(seeds, numbers)
    assert bits is not None
    return bits >= jnp.uint32(int(rate * 2**32))


def _mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Permutes the 32-bit integers so that each input bit flips half of the output bits.

    The constants are those of Wellons' `lowbias32`, found by a search for the least bias.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
