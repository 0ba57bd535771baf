"""Which chunks of a batch fit a device, where the settings leave it to the machine."""

from collections.abc import Callable
from typing import NamedTuple

from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.declare import AUTO
from cocondenser_jax.pretrain.objectives import OBJECTIVES
from cocondenser_jax.pretrain.step import LossSettings

_FIRST = 64  # spans of a chunk, before anything is known of the memory
_ENOUGH = 256  # spans of a chunk that is computed twice: larger ones are no faster
_MARGIN = 0.95  # of a device's memory: a program is measured for other chunks than it then has


class Needed(NamedTuple):
    """Bytes that a compiled step takes of a device."""

    activations: float  # with all temporaries that grow as the chunk does
    others: float


def chunk_sizes(spec: BatchSpec, n_spans: int) -> list[int]:
    """Returns the sizes, rising, of which chunks a device's spans can have."""
    step = spec.kind.n_copies  # the copies of a span stay together
    return [size for size in range(step, n_spans + 1, step) if n_spans % size == 0]


def with_numbers(settings: LossSettings, spec: BatchSpec, n_spans: int) -> LossSettings:
    """Returns settings whose `auto` is what fits any device: small chunks, none of them kept."""
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
    """Returns settings whose `auto` is what a device's memory holds.

    Activations are taken to grow with the spans, of which a kept chunk needs as much as one that
    is computed. They grow a little less. If all spans fit, there is one pass.

    Args:
      settings: of the loss.
      spec: of the batch.
      n_spans: of a device.
      available: bytes of a device; None where they are not known.
      measure: compiles a step, and says what it needs.
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
