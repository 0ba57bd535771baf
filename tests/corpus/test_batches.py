"""Batches as a function of (data, seed, step), against the plain reading of what they should be."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cocondenser_jax.corpus import batches
from cocondenser_jax.corpus.batches import (
    Batch,
    BatchSpec,
    held_out_batch,
    make_batch,
    read_batches,
    with_specials,
)
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.examples import EXAMPLES
from cocondenser_jax.corpus.order import (
    batch_document_ids,
    batch_examples,
    epoch_examples,
    held_out_documents,
    require_examples,
    steps_per_epoch,
)
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.errors import UserError
from tests.lines import whole

SPEC = BatchSpec(seed=7, batch_size=8, length=16)
N_DOCUMENTS = 24


@pytest.fixture(scope="session")
def store(tmp_path_factory, wordpiece_folder):
    """Documents of a different word each, so that every span tells its document."""
    folder = tmp_path_factory.mktemp("batches")
    rng = np.random.default_rng(0)
    lines = []
    for i in range(N_DOCUMENTS):
        name = f"{'abcdefghijklmnopqrstuvwxyz'[i]} "
        spans = [name * int(n) for n in rng.integers(9, 15, 2 + i % 5)]
        lines.append(json.dumps({"_id": str(i), "spans": spans}) + "\n")
    (folder / "text.jsonl").write_text("".join(lines))
    build_store(str(folder / "text.jsonl"), str(wordpiece_folder), folder / "store", max_length=16)
    return open_store(folder / "store")


def originals(batch):
    """The spans' ids with the masks taken back."""
    ids = batch.input_ids_SxL.copy()
    rows, slots = np.nonzero(batch.weights_SxM)
    ids[rows, batch.masked_positions_SxM[rows, slots]] = batch.labels_SxM[rows, slots]
    return ids


def test_documents_are_told_apart_by_all_of_their_numbers(store, monkeypatch):
    """As those of a collection of 2^31 documents."""
    kind = EXAMPLES["spans"]
    far = 2**31 - N_DOCUMENTS
    unit = kind.unit._replace(document=lambda *given: kind.unit.document(*given) + far)
    expected = make_batch(store, SPEC, 0).origins_Sx2
    monkeypatch.setitem(EXAMPLES, "spans", kind._replace(unit=unit))
    np.testing.assert_array_equal(
        make_batch(store, SPEC, 0).origins_Sx2, expected + np.array([far, 0])
    )


def test_spans_are_cls_tokens_sep_padding(store):
    batch = make_batch(store, SPEC, 0)
    ids = originals(batch)
    assert ids.shape == (16, 16)
    for row, mask in zip(ids, batch.attention_mask_SxL, strict=True):
        n = int(mask.sum())
        assert mask[:n].all()
        assert row[0] == store.cls_id
        assert row[n - 1] == store.sep_id
        assert (row[n:] == store.pad_id).all()
        assert not np.isin(row[1 : n - 1], store.special_ids).any()
        assert len(set(row[1 : n - 1].tolist())) == 1  # tokens of one document only
    positions, is_used = batch.masked_positions_SxM, batch.weights_SxM > 0
    assert positions[is_used].min() >= 1
    assert set(positions[~is_used].tolist()) == {0}  # the bag of words restores what is masked


def test_padding_has_the_id_of_its_tokenizer():
    """Which is 0 in BERT's alone."""
    ids = SimpleNamespace(cls_id=7, sep_id=8, pad_id=9)
    rows = with_specials(np.array([[4, 5, 0], [6, 0, 0]]), np.array([2, 1]), ids)
    assert rows.tolist() == [[7, 4, 5, 8, 9], [7, 6, 8, 9, 9]]


def test_pairs_are_two_spans_of_one_document_and_documents_differ(store):
    words = originals(make_batch(store, SPEC, 3))[:, 1]
    np.testing.assert_array_equal(words[0::2], words[1::2])
    assert len(set(words[0::2].tolist())) == SPEC.batch_size


def test_every_document_once_per_epoch_in_a_new_order(store):
    epochs = [
        np.concatenate(
            [originals(make_batch(store, SPEC, step))[::2, 1] for step in range(first, first + 3)]
        )
        for first in (0, 3)
    ]
    assert len(set(epochs[0].tolist())) == N_DOCUMENTS
    assert set(epochs[0].tolist()) == set(epochs[1].tolist())
    assert epochs[0].tolist() != epochs[1].tolist()


def test_pairs_are_two_different_spans_and_uniform(store):
    reads = []

    class Spy:
        def __getattr__(self, name):
            return getattr(store, name)

        def read_spans(self, spans_N, length):
            reads.append(spans_N)
            return store.read_spans(spans_N, length)

    for step in range(300):
        make_batch(Spy(), SPEC, step)  # type: ignore[arg-type]
    pairs = np.concatenate(reads).reshape(-1, 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    document = np.searchsorted(store.first_span_D, pairs[:, 0], side="right") - 1
    n_spans = np.diff(store.first_span_D)
    chosen = int(np.flatnonzero(n_spans == 4)[0])
    local = pairs[document == chosen] - store.first_span_D[chosen]
    assert (local < 4).all()
    assert (local >= 0).all()
    counts = np.zeros((4, 4))
    np.add.at(counts, tuple(local.T), 1)
    off_diagonal = counts[~np.eye(4, dtype=bool)]
    expected = off_diagonal.sum() / 12
    assert ((off_diagonal - expected) ** 2 / expected).sum() < 31.3  # chi-squared, 11 dof, 0.1 %


@pytest.mark.parametrize("n_hosts", [2, 4])
def test_hosts_hold_parts_of_the_same_batch(store, n_hosts):
    whole = make_batch(store, SPEC, 5)
    parts = [make_batch(store, SPEC, 5, host=host, n_hosts=n_hosts) for host in range(n_hosts)]
    for name, expected in whole._asdict().items():
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, expected)


def test_a_batch_depends_on_seed_and_step_only(store):
    steps = list(read_batches(store, SPEC, first_step=0, n_steps=5))
    later = list(read_batches(store, SPEC, first_step=3, n_steps=5))
    assert len(steps) == 5
    assert len(later) == 2
    for left, right in zip(steps[3:], later, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)
    other = make_batch(store, SPEC._replace(seed=8), 0)
    assert (other.input_ids_SxL != steps[0].input_ids_SxL).any()


def of_documents(store, batch):
    """The tokens of each row, as text, without specials and masks."""
    return [
        " ".join(map(str, row[1 : int(mask.sum()) - 1]))
        for row, mask in zip(originals(batch), batch.attention_mask_SxL, strict=True)
    ]


def every_span(store):
    ids, _, n_tokens = store.read_spans(np.arange(store.n_spans), store.max_length - 2)
    return [" ".join(map(str, row[:n])) for row, n in zip(ids, n_tokens, strict=True)]


def test_every_span_once_per_epoch_in_a_new_order(store):
    n_steps = 2
    assert store.n_spans % n_steps == 0
    spec = SPEC._replace(example="span", batch_size=store.n_spans // n_steps)
    assert epoch_examples(store, spec) == store.n_spans
    numbers = np.concatenate([batch_examples(store, spec, step) for step in range(2 * n_steps)])
    first, second = np.split(numbers, 2)
    assert sorted(first) == sorted(second) == list(range(store.n_spans))
    assert first.tolist() != second.tolist()
    batch = make_batch(store, spec, 1)
    assert len(batch.input_ids_SxL) == spec.n_rows == spec.batch_size
    expected = np.array(every_span(store))[batch_examples(store, spec, 1)]
    assert of_documents(store, batch) == expected.tolist()


@pytest.mark.parametrize("example", ["span", "spans", "cloze"])
@pytest.mark.parametrize("n_hosts", [1, 2])
def test_no_batch_holds_an_example_twice_also_where_an_epoch_ends(store, example, n_hosts):
    spec = SPEC._replace(example=example, batch_size=10)
    n_examples = epoch_examples(store, spec)
    n_steps = n_examples // 10
    assert n_examples % 10
    assert steps_per_epoch(store, spec) == n_steps
    for epoch in range(3):
        drawn = []
        for step in range(epoch * n_steps, (epoch + 1) * n_steps):
            hosts = [
                batch_examples(store, spec, step, host=host, n_hosts=n_hosts).tolist()
                for host in range(n_hosts)
            ]
            assert {len(of_host) for of_host in hosts} == {10 // n_hosts}
            drawn += [number for of_host in hosts for number in of_host]
        # Nor does an epoch: what is left over is less than a batch.
        assert len(set(drawn)) == len(drawn) == 10 * n_steps


def test_pairs_come_from_documents_of_two_spans(mixed):
    store = open_store(mixed["many"])
    spec = BatchSpec(seed=1, batch_size=10, length=30)
    assert (store.n_documents, epoch_examples(store, spec)) == (20, 10)
    documents = batch_document_ids(store, spec, 0)
    assert sorted(documents) == sorted(f"many{i}" for i in range(1, 20, 2))
    assert documents == [f"many{2 * i + 1}" for i in batch_examples(store, spec, 0)]
    spans = spec._replace(example="span", batch_size=40)
    ids = batch_document_ids(store, spans, 0)
    assert [ids.count(f"many{i}") for i in range(20)] == [1, 3] * 10


def test_stores_are_read_together(mixed):
    some, many = (open_store(mixed[name]) for name in ("some", "many"))
    both = open_store(Path(f"{mixed['some']},{mixed['many']}"))
    assert (both.n_documents, both.n_spans) == (30, 60)
    assert both.n_tokens == some.n_tokens + many.n_tokens
    assert every_span(both) == every_span(some) + every_span(many)
    spec = BatchSpec(seed=1, batch_size=20, length=30, example="span")
    assert epoch_examples(both, spec) == 60
    drawn = np.concatenate([batch_examples(both, spec, step) for step in range(3)])
    assert sorted(drawn) == list(range(60))
    assert both.sha256 not in (some.sha256, many.sha256)


def test_stores_that_do_not_fit_are_refused(mixed, store):
    with pytest.raises(UserError, match=whole("TMP/store differs from TMP/some in its max_length")):
        open_store(Path(f"{mixed['some']},{store.path}"))
    with pytest.raises(
        UserError,
        match=whole(
            "0*TMP/some,TMP/many: expected stores and weights above 0 as in wikipedia,2*books"
        ),
    ):
        open_store(Path(f"0*{mixed['some']},{mixed['many']}"))
    with pytest.raises(
        UserError, match=whole("no store none: expected a folder made by `cocondenser corpus`")
    ):
        open_store(Path(f"{mixed['some']},2*none"))


@pytest.mark.parametrize("example", ["cloze", "sentence", "crops"])
def test_parts_of_the_spans_of_a_store(mixed, example):
    store = open_store(mixed["many"])
    spec = BatchSpec(seed=1, batch_size=20, length=30, example=example, masked=False)
    batch = make_batch(store, spec, 0)
    assert batch.weights_SxM.sum() == 0
    assert not (batch.input_ids_SxL == store.mask_id).any()
    rows, spans = of_documents(store, batch), every_span(store)
    for number, sentence, rest in zip(
        batch_examples(store, spec, 0), rows[::2], rows[1::2], strict=True
    ):
        assert spans[number] in (f"{sentence} {rest}", rest)
    documents = np.searchsorted(store.first_span_D, batch_examples(store, spec, 0), "right") - 1
    assert batch.origins_Sx2[:, 0].tolist() == np.repeat(documents, 2).tolist()
    texts = dict(zip(rows, batch.origins_Sx2[:, 1], strict=True))
    assert len(set(texts.values())) == len(texts)  # one hash for each text
    assert [texts[row] for row in rows] == batch.origins_Sx2[:, 1].tolist()
    halves = [make_batch(store, spec, 0, host=host, n_hosts=2) for host in range(2)]
    assert of_documents(store, halves[0]) + of_documents(store, halves[1]) == rows


def test_order_pairs_and_masks_are_drawn_anew_for_every_seed_and_step(store, monkeypatch):
    specs = [SPEC._replace(seed=seed) for seed in range(4)]
    assert len({tuple(batch_examples(store, spec, 0)) for spec in specs}) == 4

    pairs, draws = [], []
    mask, read = batches.mask_whole_words, TokenStore.read_spans

    def read_spans(self, spans_N, length):
        pairs.append(tuple(spans_N))
        return read(self, spans_N, length)

    def mask_whole_words(*arguments, **settings):
        draws.append(arguments[1])
        return mask(*arguments, **settings)

    monkeypatch.setattr(TokenStore, "read_spans", read_spans)
    monkeypatch.setattr(batches, "mask_whole_words", mask_whole_words)
    # The same documents in every step: what differs is what is drawn.
    monkeypatch.setattr(batches, "batch_examples", lambda *arguments, **of_host: np.arange(8))
    for spec in specs[:2]:
        for step in range(40):
            make_batch(store, spec, step)
    assert len(set(pairs)) == len(pairs) == 80
    numbers = np.concatenate(draws)
    assert len(np.unique(numbers)) == numbers.size


@pytest.mark.parametrize(
    ("example", "unit"),
    [("spans", "documents of two spans"), ("title", "documents"), ("crops", "spans")],
)
def test_batches_that_cannot_be_filled_are_refused(store, example, unit):
    n = {"crops": store.n_spans}.get(example, N_DOCUMENTS)
    spec = SPEC._replace(example=example, batch_size=n + 1)
    said = (
        f"config.data.batch_size {n + 1} takes {n + 1} {unit} of TMP/store into each batch;"
        f" expected 1 to {n}, the number that is not held out, because no batch contains one twice"
    )
    with pytest.raises(UserError, match=whole(said)):
        require_examples(store, spec, n_hosts=1)


def test_a_batch_that_can_be_filled_is_not_refused(store):
    require_examples(store, SPEC._replace(batch_size=24), n_hosts=1)
    with pytest.raises(
        UserError, match=whole("config.data.batch_size 8 is not a multiple of 3 hosts")
    ):
        require_examples(store, SPEC, n_hosts=3)


@pytest.mark.parametrize("example", ["span", "spans", "cloze", "sentence", "title"])
@pytest.mark.parametrize(("weights", "batch_size"), [((1, 1), 1), ((2, 0.5), 3)])
def test_what_is_held_out_is_never_drawn_and_all_else_as_often_as_before(
    mixed, example, weights, batch_size
):
    some, many = (f"{weight}*{mixed[name]}" for weight, name in zip(weights, mixed, strict=True))
    both = open_store(Path(f"{some},{many}"))
    spec = BatchSpec(seed=1, batch_size=batch_size, length=30, example=example, held_out=1)
    (held_out,) = held_out_documents(both, 1, example in ("sentence", "title"))
    of_span = np.repeat(np.arange(30), np.diff(both.first_span_D))
    of_unit = {"spans": np.arange(1, 30, 2), "title": np.arange(30)}
    of_document = of_unit.get(example, of_span)
    times = np.where(of_document < 10, weights[0], weights[1]) * (of_document != held_out)
    assert epoch_examples(both, spec) == round(times.sum())
    assert (times * (of_document == held_out)).sum() == 0 < (of_document == held_out).sum()
    # Where batches have one example, none is left over: every pass has each.
    n_steps = (40 if batch_size > 1 else 4) * steps_per_epoch(both, spec)
    counts = sum(
        np.bincount(batch_examples(both, spec, step), minlength=len(times))
        for step in range(n_steps)
    )
    assert (counts[times == 0] == 0).all()
    # Of every pass over a corpus a few are left over, and a batch has whole numbers of each.
    expected = times / times.sum() * batch_size * n_steps
    assert np.abs(counts - expected).max() < 0.15 * expected.max()


@pytest.mark.parametrize("example", ["sentence", "title", "crops"])
def test_parts_of_the_first_span_of_each_held_out_document(mixed, example):
    store = open_store(mixed["many"])
    spec = BatchSpec(1, 4, 30, example, masked=False, held_out=2)
    rows = of_documents(store, held_out_batch(store, spec))
    spans = every_span(store)
    documents = held_out_documents(store, 2, of_one_span=True)
    assert len(rows) == 2 * len(documents) > 0
    for i, document in enumerate(documents):
        whole = spans[store.first_span_D[document]]
        assert whole in (" ".join(rows[2 * i : 2 * i + 2]), rows[2 * i + 1])


def test_two_whole_spans_of_each_held_out_document(store):
    spec = SPEC._replace(held_out=2)
    batch, unmasked = (held_out_batch(store, spec._replace(masked=x)) for x in (True, False))
    rows = of_documents(store, batch)
    spans = np.array(every_span(store))
    for i, document in enumerate(held_out_documents(store, 2, of_one_span=False)):
        first, end = store.first_span_D[document : document + 2]
        pair = rows[2 * i : 2 * i + 2]
        assert set(pair) <= set(spans[first:end])
        assert batch.weights_SxM[2 * i : 2 * i + 2].sum() > 0
    assert of_documents(store, unmasked) == rows
    assert unmasked.weights_SxM.sum() == 0
    # Whatever the seed of the run.
    again = held_out_batch(store, spec._replace(seed=3, batch_size=4))
    for a, b in zip(batch, again, strict=True):
        np.testing.assert_array_equal(a, b)


def shapes(batch):
    return {name: (x.shape, x.dtype) for name, x in batch._asdict().items()}


@pytest.mark.parametrize("example", EXAMPLES)
def test_zeros_have_the_shapes_and_types_of_batches(store, example):
    spec = SPEC._replace(example=example)
    zeros = Batch.zeros(spec.n_rows, spec.length, spec.n_slots)
    assert shapes(zeros) == shapes(make_batch(store, spec, 0))
    assert not any(x.any() for x in zeros)


def test_a_batch_is_cut_by_tokens_and_by_slots(store):
    batch = make_batch(store, SPEC, 0)
    short = batch.cut(9, 2)
    assert shapes(short) == shapes(Batch.zeros(SPEC.n_rows, 9, 2))
    for full, part in zip(batch, short, strict=True):
        np.testing.assert_array_equal(part, full[tuple(map(slice, part.shape))])


def test_a_batch_of_texts_has_nothing_to_predict(store):
    ids, mask, *_ = make_batch(store, SPEC, 0)
    batch = Batch.of_texts(ids, mask)
    assert shapes(batch) == shapes(Batch.zeros(SPEC.n_rows, SPEC.length, 0))
    assert batch.input_ids_SxL is ids
    assert batch.attention_mask_SxL is mask


def test_copies_are_one_span_masked_twice(store):
    spec = BatchSpec(0, 16, 16, "copies", mask_probability=0.3, decoder_mask_probability=0.6)
    shares = np.zeros(2)
    for step in range(20):
        batch = make_batch(store, spec, step)
        ids = originals(batch)
        np.testing.assert_array_equal(ids[::2], ids[1::2])
        plain = make_batch(store, spec._replace(example="span"), step)
        np.testing.assert_array_equal(ids[::2], originals(plain))
        n_tokens_S = batch.attention_mask_SxL.sum(axis=1) - 2
        n_masked_S = batch.weights_SxM.sum(axis=1)
        shares += [n_masked_S[i::2].sum() / n_tokens_S[i::2].sum() / 20 for i in (0, 1)]
    np.testing.assert_allclose(shares, [0.3, 0.6], atol=0.01)
