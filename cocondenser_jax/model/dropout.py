"""Dropout that depends on a seed and an element's place, and on nothing else.

Whether an element is kept is a hash of its span's seed, the site in the network, its row and its
column. So what a token sees depends neither on the spans it is computed with, nor on the rows that
are asked for, nor on how much padding follows, nor on the device: two passes over differently cut
batches agree. JAX's own generator could do this too, with a key per row, but unrolled at each of
some forty sites it takes most of the time to compile for a TPU.
"""

import jax
import jax.numpy as jnp

_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio, odd: consecutive multiples are spread over all 32 bits


def fold_in(seeds: jax.Array | None, numbers: jax.Array | int) -> jax.Array | None:
    """Returns seeds for numbered parts of what has a seed.

    Args:
      seeds: uint32; None where dropout is off.
      numbers: integers; further axes count the parts of each seed.

    Returns:
      uint32 of the shape of seeds and numbers, broadcast from the left; None for None.
    """
    if seeds is None:
        return None
    numbers = jnp.asarray(numbers).astype(jnp.uint32)
    seeds = seeds.reshape(seeds.shape + (1,) * (numbers.ndim - seeds.ndim))
    return _mix(seeds + numbers * jnp.uint32(_GOLDEN))


def dropout(x: jax.Array, rate: float, seeds: jax.Array | None) -> jax.Array:
    """Zeroes elements with probability `rate`, and scales the others by 1 / (1 - rate).

    Args:
      x: activations.
      rate: of the elements to zero.
      seeds: uint32, one for each row along the last axis of `x`; None turns dropout off.

    Returns:
      An array like `x`.
    """
    if seeds is None or rate == 0.0:
        return x
    bits = fold_in(seeds, jnp.arange(x.shape[-1]).reshape((1,) * seeds.ndim + (-1,)))
    return jnp.where(bits >= jnp.uint32(rate * 2**32), x / (1.0 - rate), jnp.zeros((), x.dtype))


def _mix(x: jax.Array) -> jax.Array:
    """Permutes the 32-bit integers so that every bit that goes in changes half of those coming out.

    The constants are Wellons' `lowbias32`, found by a search for the least bias.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
