import json
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from cocondenser_jax.corpus import build, records
from cocondenser_jax.corpus import store as store_module
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.spans import Span, cut_documents
from cocondenser_jax.corpus.store import open_store, verify_store
from cocondenser_jax.corpus.token_files import (
    TokenWriter,
    map_files,
    read_windows,
    token_dtype,
)
from cocondenser_jax.corpus.tokenizer import load_tokenizer, save_tokenizer
from cocondenser_jax.errors import UserError
from tests.lines import whole
from tests.world import cut_file, write_in_tasks, write_records

MAX_TOKENS = 24


@pytest.fixture(scope="module")
def corpus(paragraphs, tmp_path_factory):
    """Real text in nine files, with duplicates, an empty document, and two that are too short."""
    folder = tmp_path_factory.mktemp("corpus")
    unique = list(dict.fromkeys(paragraphs))
    texts = [*unique, unique[0], unique[3], unique[0], "  ", "Short.", "the parser " * 6]
    records = [{"_id": f"näme {i}", "text": text} for i, text in enumerate(texts)]
    return str(cut_file(write_records(folder / "texts.jsonl", records), folder / "corpus", 9))


@pytest.fixture(scope="module")
def tokenizer_folders(tokenizers, tmp_path_factory):
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in tokenizers}
    for kind, folder in folders.items():
        save_tokenizer(tokenizers[kind], folder)
    return {kind: str(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def stores(corpus, tokenizer_folders, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for kind, tokenizer in tokenizer_folders.items():
        build_store(corpus, tokenizer, folder / kind, max_length=MAX_TOKENS)
    return {kind: folder / kind for kind in tokenizer_folders}


@pytest.fixture(scope="module")
def in_tasks(corpus, tokenizer_folders, tmp_path_factory):
    folder = tmp_path_factory.mktemp("in-tasks") / "store"
    write_in_tasks(corpus, tokenizer_folders["bert"], folder, 3, max_length=MAX_TOKENS)
    return folder


def expected_documents(corpus, tokenizer):
    """Name -> spans of the first copy of each document that has any."""
    first = {document.text: document for document in reversed(list(read_documents(corpus)))}
    documents = [d for d in read_documents(corpus) if first[d.text].id == d.id]
    spans_D = cut_documents(documents, tokenizer, MAX_TOKENS)
    assert {0, 1, 2} <= {len(spans) for spans in spans_D}
    return {d.id: spans for d, spans in zip(documents, spans_D, strict=True) if spans}


def stored_documents(store):
    documents = {}
    for index in range(store.n_documents):
        numbers = np.arange(store.first_span_D[index], store.first_span_D[index + 1])
        ids, starts, n_tokens = store.read_spans(numbers, MAX_TOKENS)
        documents[store.document_id(index)] = [
            (i[:n].tolist(), s[:n].tolist()) for i, s, n in zip(ids, starts, n_tokens, strict=True)
        ]
    return documents


def as_lists(documents):
    return {
        name: [(span.tokens.tolist(), span.starts.tolist()) for span in spans]
        for name, spans in documents.items()
    }


def test_a_store_gives_back_the_spans_that_were_cut(stores, corpus, tokenizer, model_type):
    store = open_store(stores[model_type])
    expected = as_lists(expected_documents(corpus, tokenizer))
    found = stored_documents(store)
    assert found == expected
    assert list(found) == list(expected)  # in the order of the source
    assert store.n_documents > 30
    assert store.n_tokens == sum(len(ids) for spans in found.values() for ids, _ in spans)


def test_the_manifest_counts_what_is_there_and_what_is_not(stores, corpus, tokenizer, model_type):
    manifest = json.loads((stores[model_type] / "manifest.json").read_text())
    documents = expected_documents(corpus, tokenizer)
    n_all = len(list(read_documents(corpus)))
    dropped = manifest["dropped"]
    assert manifest["counts"]["documents"] == len(documents)
    assert (dropped["empty"], dropped["duplicate"]) == (1, 3)
    assert dropped["too_short"] == n_all - 4 - len(documents) >= 1
    n_single = sum(len(spans) == 1 for spans in documents.values())
    assert manifest["counts"]["documents_of_one_span"] == n_single >= 1
    assert manifest["corpus"] == corpus
    assert manifest["tokenizer"]["sha256"] == tokenizer.sha256
    assert load_tokenizer(str(stores[model_type] / "tokenizer")).sha256 == tokenizer.sha256
    on_disk = {
        p.relative_to(stores[model_type]).as_posix()
        for p in stores[model_type].rglob("*")
        if p.is_file()
    }
    assert set(manifest["files"]) == on_disk - {"manifest.json"}
    verify_store(stores[model_type])


def test_the_store_knows_its_tokenizer(stores, tokenizer, model_type):
    store = open_store(stores[model_type])
    ids = ("cls_id", "sep_id", "pad_id", "mask_id", "special_ids")
    for field in ("vocab_size", *ids):
        assert getattr(store, field) == getattr(tokenizer, field)


def test_tasks_hold_what_one_store_holds(in_tasks, stores, corpus):
    whole, parts = open_store(stores["bert"]), open_store(in_tasks)
    assert stored_documents(parts) == stored_documents(whole)
    assert list(stored_documents(parts)) == list(stored_documents(whole))
    assert np.array_equal(parts.first_span_D, whole.first_span_D)
    assert (parts.n_spans, parts.n_tokens) == (whole.n_spans, whole.n_tokens)
    totals = dict.fromkeys(whole.manifests[0]["dropped"], 0)
    for manifest in parts.manifests:
        assert manifest["counts"]["documents"] > 0
        for reason, count in manifest["dropped"].items():
            totals[reason] += count
    assert totals == whole.manifests[0]["dropped"]
    # Spans of all parts in one call, mixed, with repeats.
    numbers = np.random.default_rng(0).integers(0, parts.n_spans, 500)
    one_by_one = [parts.read_spans(np.array([n]), 30) for n in numbers]
    for together, apart in zip(
        parts.read_spans(numbers, 30), zip(*one_by_one, strict=True), strict=True
    ):
        assert np.array_equal(together, np.concatenate(apart))


def test_the_folder_of_one_task_opens_by_itself(in_tasks):
    store = open_store(in_tasks / "task-00001-of-00003")
    assert store.n_documents == store.manifests[0]["counts"]["documents"]


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    length=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([500, 70_000]),
)
def test_reading_agrees_with_a_loop_over_spans(
    tmp_path_factory,
    lengths,
    length,
    seed,
    vocab_size,
):
    rng = np.random.default_rng(seed)
    spans = [
        Span(
            rng.integers(0, vocab_size, n).astype(np.uint32),
            rng.choice(3, n, p=[0.6, 0.25, 0.15]).astype(np.uint8),
        )
        for n in lengths
    ]
    for span in spans:
        span.starts[0] = 2
    folder = tmp_path_factory.mktemp("files")
    with TokenWriter(folder, vocab_size, max_length=22) as writer:
        for span in spans:
            writer.write([("name", [span])])
    width = min(length, 20)
    numbers = rng.integers(0, len(spans), 40)
    ids, starts, n_tokens = read_windows(map_files(folder, vocab_size), numbers, width)
    assert (ids.dtype, starts.dtype, n_tokens.dtype) == (np.int32, np.uint8, np.int32)
    for row, number in enumerate(numbers):
        tokens, expected = spans[number]
        n = len(tokens)
        if n > width:
            n = max((i for i in range(1, width + 1) if expected[i]), default=width)
        assert n_tokens[row] == n
        assert ids[row].tolist() == [*tokens[:n].tolist(), *[0] * (width - n)]
        assert starts[row].tolist() == [*expected[:n].tolist(), *[0] * (width - n)]


def test_numbers_are_as_large_as_those_of_a_large_store(tmp_path):
    assert [token_dtype(n).itemsize for n in (1 << 16, (1 << 16) + 1)] == [2, 4]
    with TokenWriter(tmp_path, (1 << 16) + 1, 4) as writer:
        writer.counts |= {"spans": 1 << 33, "tokens": 1 << 34}
        writer.write([("a", [Span(np.array([1 << 16], np.uint32), np.array([2], np.uint8))])])
    files = map_files(tmp_path, (1 << 16) + 1)
    ends = files.first_span[1], files.span_offsets[1]
    assert (files.tokens[0], *ends) == (1 << 16, (1 << 33) + 1, (1 << 34) + 1)


def test_a_longer_row_than_any_span_is_padded(stores):
    store = open_store(stores["bert"])
    numbers = np.arange(store.n_spans)
    ids, starts, n_tokens = store.read_spans(numbers, 40)
    assert ids.shape == starts.shape == (store.n_spans, 40)
    assert not ids[:, MAX_TOKENS - 2 :].any()
    assert n_tokens.max() <= MAX_TOKENS - 2
    empty = store.read_spans(np.zeros(0, np.int64), 8)
    assert [a.shape for a in empty] == [(0, 8), (0, 8), (0,)]


def test_numbers_outside_the_store_are_refused(stores):
    store = open_store(stores["bert"])
    for number in (-1, store.n_spans):
        said = f"span numbers must be in [0, {store.n_spans})"
        with pytest.raises(IndexError, match=whole(said)):
            store.read_spans(np.array([number]), 8)
    for number in (-1, store.n_documents):
        said = f"document {number} of {store.n_documents}"
        with pytest.raises(IndexError, match=whole(said)):
            store.document_id(number)


def test_a_folder_may_have_a_name_like_several_stores(stores, tmp_path):
    shutil.copytree(stores["bert"], tmp_path / "2*one,two")
    store = open_store(tmp_path / "2*one,two")
    assert [(each.path, each.weight) for each in store.corpora] == [(store.path, 1.0)]


def test_a_store_pickles_as_its_path(in_tasks):
    store = open_store(in_tasks)
    copy = pickle.dumps(store)
    assert len(copy) < 1000
    assert stored_documents(pickle.loads(copy)) == stored_documents(store)
    assert pickle.loads(copy).sha256 == store.sha256


def test_the_same_corpus_gives_the_same_store(corpus, tokenizer_folders, stores, tmp_path):
    build_store(corpus, tokenizer_folders["bert"], tmp_path / "again", max_length=MAX_TOKENS)
    build_store(corpus, tokenizer_folders["bert"], tmp_path / "other", max_length=MAX_TOKENS + 1)
    again, other = open_store(tmp_path / "again"), open_store(tmp_path / "other")
    assert again.sha256 == open_store(stores["bert"]).sha256 != other.sha256


def test_batches_of_documents_do_not_matter(
    corpus, tokenizer_folders, stores, tmp_path, monkeypatch
):
    sizes = []
    cut = build.cut_documents

    def counting(documents, *arguments):
        sizes.append(len(documents))
        return cut(documents, *arguments)

    monkeypatch.setattr(records, "BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(build, "cut_documents", counting)
    found = build_store(corpus, tokenizer_folders["bert"], tmp_path / "s", max_length=MAX_TOKENS)
    assert len(sizes) > 5
    assert json.loads(json.dumps(found)) == json.loads(
        (stores["bert"] / "manifest.json").read_text()
    )


def test_tokens_are_counted_in_all_spans_or_in_evenly_spaced_ones(in_tasks, monkeypatch):
    store = open_store(in_tasks)
    monkeypatch.setattr(store_module, "_SPANS_AT_ONCE", 7)
    documents = stored_documents(store).values()
    ids = [ids for spans in documents for ids, _ in spans]
    assert len(ids) > 3 * 7
    for chosen, n_spans in ((ids, 100_000), ([ids[0], ids[(len(ids) - 1) // 2], ids[-1]], 3)):
        expected = np.bincount(np.concatenate(chosen), minlength=store.vocab_size)
        np.testing.assert_array_equal(store.token_counts(n_spans), expected)


def test_documents_that_spell_special_tokens_are_counted(
    paragraphs, wordpiece_folder, tmp_path, caplog
):
    """Training reads "[", "SEP", "]"; what serves the model reads the token of that name."""
    texts = [
        paragraphs[0],
        f"{paragraphs[1]} [SEP] {paragraphs[2]} [SEP]",
        f"[SEP] {paragraphs[3]}",
    ]
    write_records(tmp_path / "texts.jsonl", ({"text": text} for text in texts))
    build_store(str(tmp_path / "texts.jsonl"), str(wordpiece_folder), tmp_path / "store")
    (line,) = [line for line in caplog.messages if "training reads it as ordinary text" in line]
    assert line.startswith("2 documents contain [SEP]: ")
    library = AutoTokenizer.from_pretrained(wordpiece_folder)
    assert library("[SEP]", add_special_tokens=False)["input_ids"] == [library.sep_token_id]


def test_a_damaged_store_does_not_open(stores, tmp_path):
    def damaged(name):
        shutil.copytree(stores["bert"], tmp_path / name)
        return tmp_path / name

    with pytest.raises(
        UserError,
        match=whole("no store TMP/missing: expected a folder made by `cocondenser corpus`"),
    ):
        open_store(tmp_path / "missing")
    folder = damaged("unfinished")
    (folder / "manifest.json").unlink()
    with pytest.raises(
        UserError,
        match=whole("TMP/unfinished is not a store, or is unfinished: it has no manifest.json"),
    ):
        open_store(folder)
    folder = damaged("short")
    with (folder / "tokens.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(
        UserError, match=whole("TMP/short/tokens.bin has 100 bytes: expected … bytes")
    ):
        open_store(folder)
    folder = damaged("lacking")
    size = (folder / "ids.txt").stat().st_size
    (folder / "ids.txt").unlink()
    with pytest.raises(
        UserError, match=whole(f"TMP/lacking/ids.txt is missing: expected {size} bytes")
    ):
        open_store(folder)
    folder = damaged("old")
    (folder / "manifest.json").write_text('{"format_version": 0}')
    with pytest.raises(
        UserError,
        match=whole("TMP/old/manifest.json has format version 0, expected 8: make the store again"),
    ):
        open_store(folder)
    folder = damaged("miscounted")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["counts"]["spans"] += 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/miscounted/manifest.json is damaged: its checksum is not that of its content"
        ),
    ):
        open_store(folder)


def test_verifying_finds_a_changed_byte(stores, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(stores["bert"], folder)
    data = bytearray((folder / "tokens.bin").read_bytes())
    data[17] ^= 1
    (folder / "tokens.bin").write_bytes(data)
    open_store(folder)
    with pytest.raises(
        UserError,
        match=whole("TMP/store/tokens.bin has changed: its checksum is not the manifest's"),
    ):
        verify_store(folder)


def test_tasks_that_do_not_belong_together_do_not_open(
    in_tasks, corpus, tokenizer_folders, tmp_path
):
    folder = tmp_path / "copy"
    shutil.copytree(in_tasks, folder)
    second = folder / "task-00001-of-00003"
    shutil.rmtree(second)
    with pytest.raises(UserError, match=whole("TMP/copy lacks task-00001-of-00003")):
        open_store(folder)
    for tokenizer, options, difference in (
        ("bert", {"max_length": MAX_TOKENS + 1}, "of-00003 in its max_length"),
        ("roberta", {"max_length": MAX_TOKENS}, "in its tokenizer"),
        ("bert", {"max_length": MAX_TOKENS, "short_span_prob": 0.5}, "in its short_span_prob"),
    ):
        other = tmp_path / difference
        write_in_tasks(corpus, tokenizer_folders[tokenizer], other, 3, **options)
        shutil.copytree(other / second.name, second)
        with pytest.raises(UserError, match=f"differs from .*{difference}"):
            open_store(folder)
        shutil.rmtree(second)
    shutil.copytree(in_tasks / second.name, second)
    manifest = json.loads((second / "manifest.json").read_text()) | {"pieces": 10}
    manifest["checksum"] = store_module.manifest_checksum(manifest)
    (second / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"of-00003 in its pieces$"):
        open_store(folder)


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        ('{"text": "a"}\n{', {}, "corpus.jsonl:2 is not valid JSON"),
        (
            '{"text": "Short."}',
            {},
            whole(
                "TMP/corpus.jsonl: no document with a span of 8 tokens remains (0 empty, 0 "
                "duplicate, 1 too_short)"
            ),
        ),
        ('{"text": "a"}', {"max_length": 9}, whole("max_length is 9: expected at least 10")),
        (
            '{"text": "a"}',
            {"short_span_prob": 1.1},
            whole("short_span_prob is 1.1: expected 0 to 1"),
        ),
        (
            '{"text": "a"}',
            {"tokenizer": "nobody/nothing"},
            whole(
                "no folder nobody/nothing, and no tokenizer of that name from the Hugging "
                "Face hub: …"
            ),
        ),
    ],
)
def test_what_fails_leaves_nothing_behind(
    tmp_path,
    wordpiece_folder,
    lines,
    arguments,
    message,
):
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "made" / "store"
    corpus.write_text(lines)
    tokenizer = arguments.pop("tokenizer", str(wordpiece_folder))
    with pytest.raises(UserError, match=message):
        build_store(str(corpus), tokenizer, out, **arguments)
    assert not list(tmp_path.rglob("*store*"))


def test_a_folder_in_use_is_refused(corpus, wordpiece_folder, tmp_path):
    (tmp_path / "precious").write_text("keep")
    with pytest.raises(
        UserError, match=whole("TMP already exists: choose a new folder, or remove it first")
    ):
        build_store(corpus, str(wordpiece_folder), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_names_may_hold_anything(tmp_path, wordpiece_folder, paragraphs):
    names = ["line\nbreak", "", "名前", " spaces "]
    corpus = tmp_path / "corpus.jsonl"
    records = [{"id": n, "text": t} for n, t in zip(names, dict.fromkeys(paragraphs), strict=False)]
    write_records(corpus, records)
    build_store(str(corpus), str(wordpiece_folder), tmp_path / "store", max_length=MAX_TOKENS)
    store = open_store(tmp_path / "store")
    assert [store.document_id(i) for i in range(store.n_documents)] == names
