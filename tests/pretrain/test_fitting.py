"""Which chunks are chosen for a machine's memory."""

import pytest

from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.pretrain.fitting import Needed, fit_chunks
from cocondenser_jax.pretrain.step import LossSettings

GIB = 2**30
SPEC = BatchSpec(seed=0, batch_size=256, length=128)  # 512 spans
AUTO = LossSettings(chunk_size="auto", kept_chunks="auto")


def fit(available, settings=AUTO, spec=SPEC, n_spans=512):
    """Of a step whose spans take 1/64 GiB each, beside 2 GiB."""
    measured = []

    def measure(loss):
        measured.append(loss)
        return Needed(activations=loss.chunk_size / 64 * GIB, others=2.0 * GIB)

    available = available and available * GIB / 0.95
    found = fit_chunks(settings, spec, n_spans, available, measure)
    return found.chunk_size, found.kept_chunks, len(measured)


@pytest.mark.parametrize(
    ("available", "chunk_size", "kept"),
    [
        (10.01, 512, 1),  # one chunk, and one pass
        (9.9, 256, 0),  # a second one would need 8 GiB beside the 2
        (4.01, 128, 0),
        (1.0, 64, 0),  # nothing fits: what was measured
        (None, 64, 0),  # a CPU
    ],
)
def test_chunks_are_as_large_as_memory_allows(available, chunk_size, kept):
    assert fit(available) == (chunk_size, kept, int(available is not None))


def test_chunks_that_are_computed_twice_have_256_spans_at_most():
    assert fit(14.01, n_spans=1024)[:2] == (256, 2)  # 768 fit


@pytest.mark.parametrize(
    ("available", "kept"), [(10.01, 8), (9.01, 6), (5.01, 2), (4.01, 1), (3.01, 0), (None, 0)]
)
def test_as_many_chunks_are_kept_as_fit_beside_one(available, kept):
    settings = AUTO._replace(chunk_size=64)
    assert fit(available, settings) == (64, kept, int(available is not None))


def test_what_is_given_is_not_measured():
    assert fit(9.01, AUTO._replace(chunk_size=32, kept_chunks=3)) == (32, 3, 0)
    assert fit(9.01, AUTO._replace(chunk_size=0, kept_chunks=0)) == (0, 0, 0)


def test_without_a_contrastive_loss_nothing_is_kept():
    settings = AUTO._replace(objective="condenser")
    assert fit(9.01, settings)[:2] == (256, 0)


def test_copies_of_a_span_stay_in_a_chunk():
    spec = SPEC._replace(example="copies", decoder_mask_probability=0.5, batch_size=33)
    settings = AUTO._replace(objective="retromae")
    assert fit(None, settings, spec, n_spans=66)[0] == 22


def test_a_whole_batch_may_be_kept():
    """Of 512 spans that take 8 GiB beside 2 GiB."""
    settings = AUTO._replace(chunk_size=0)
    needed = Needed(activations=8.0 * GIB, others=2.0 * GIB)
    for available, kept in ((11, 1), (9, 0)):
        found = fit_chunks(settings, SPEC, 512, available * GIB, lambda loss: needed)
        assert (found.chunk_size, found.kept_chunks) == (512, kept)
