"""Chooses chunk sizes that fit a device, if the settings say `auto`."""

from collections.abc import Callable
from typing import NamedTuple

from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.declare import AUTO
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.step import LossSettings

_FIRST = 64  # spans of a chunk, before the memory is known
_ENOUGH = 256  # spans of a chunk that is computed twice; larger chunks are no faster
_MARGIN = 0.95  # of a device's memory: a program is measured for other chunks than it then has


class Needed(NamedTuple):
    """Device memory of a compiled step, in bytes."""

    activations: float  # with all temporaries that grow with the chunk
    others: float


def chunk_sizes(spec: BatchSpec, n_spans: int) -> list[int]:
    """Returns the possible chunk sizes for a device's spans, in ascending order."""
    step = spec.kind.n_copies  # the copies of a span stay together
    return [size for size in range(step, n_spans + 1, step) if n_spans % size == 0]


def with_numbers(settings: LossSettings, spec: BatchSpec, n_spans: int) -> LossSettings:
    """Replaces `auto` by values that fit any device: small chunks, none of them kept."""
    size = settings.chunk_size
    if size == AUTO:
        size = max((x for x in chunk_sizes(spec, n_spans) if x <= _FIRST), default=n_spans)
    kept = 0 if settings.kept_chunks == AUTO else settings.kept_chunks
    return settings._replace(chunk_size=size, kept_chunks=kept)


def fit_chunks(
    settings: LossSettings,
    spec: BatchSpec,
    n_spans: int,
    available: float | None,
    measure: Callable[[LossSettings], Needed],
) -> LossSettings:
    """Replaces `auto` by the largest values that fit a device's memory.

    Assumes that activations grow in proportion to the spans (in fact slightly less), and that a
    kept chunk needs as much memory as one being computed. If all spans fit, there is one pass.

    Args:
      settings: of the loss.
      spec: of the batch.
      n_spans: of a device.
      available: bytes of a device; None if unknown.
      measure: compiles a step and returns the memory that it needs.
    """
    numbers = with_numbers(settings, spec, n_spans)
    if available is None or AUTO not in (settings.chunk_size, settings.kept_chunks):
        return numbers
    size = numbers.chunk_size or n_spans
    needed = measure(numbers)
    n_fitting = (_MARGIN * available - needed.others) / (needed.activations / size)  # spans
    if settings.chunk_size == AUTO:
        most = n_spans if n_fitting >= n_spans else min(n_fitting, _ENOUGH)
        size = max((x for x in chunk_sizes(spec, n_spans) if x <= most), default=size)
    kept = numbers.kept_chunks
    if settings.kept_chunks == AUTO and OBJECTIVES[settings.objective].contrast:
        n_chunks = n_spans // size
        fitting = int(n_fitting // size)
        kept = n_chunks if fitting >= n_chunks else max(fitting - 1, 0)  # one is computed beside
    return settings._replace(chunk_size=size, kept_chunks=kept)
