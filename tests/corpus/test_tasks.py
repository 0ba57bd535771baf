"""What each task reads of a corpus, and which duplicates are found across all of them."""

import numpy as np
import pytest

from cocondenser_jax.corpus import tasks
from cocondenser_jax.corpus.build import StoreSettings, build_in_tasks, build_store, build_task
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.store import open_store, verify_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.workers import Engine
from tests.lines import whole
from tests.world import cut_file, write_in_tasks, write_records


def test_a_task_is_a_range_of_the_source_and_reads_nothing_else(tmp_path):
    for k in range(5):
        write_records(tmp_path / f"{k}.jsonl", [{"id": f"{k}{i}", "text": "a"} for i in range(k)])
    everything = [f"{k}{i}" for k in range(5) for i in range(k)]

    def read(task):
        return [document.id for document in tasks.read_task(str(tmp_path), task)]

    for n in (2, 3, 5):
        assert [name for i in range(n) for name in read((i, n))] == everything
    (tmp_path / "4.jsonl").write_text("{")
    assert read((0, 2)) == ["10"]  # of files 0 and 1


def test_duplicates_are_found_across_tasks_as_by_a_table(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    texts = [["", "a", "b", " "][k] if k < 4 else f"{k}" for k in rng.integers(0, 300, 1000)]
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    ends = (0, 400, 400, 401, 1000)  # a task may have no document, or one
    monkeypatch.setattr(tasks, "read_task", lambda *_: documents[ends[_[1][0]] : ends[_[1][0] + 1]])
    for stage in (
        lambda task: tasks.hash_task("", tmp_path, task),
        lambda task: tasks.find_duplicates(tmp_path, task),
    ):
        for index in range(4):
            stage((index, 4))
    seen = {}
    expected = [bool(t.strip()) and seen.setdefault(t, i) != i for i, t in enumerate(texts)]
    found = []
    for index in range(4):
        duplicates = tasks.duplicates_of_task(tmp_path, (index, 4))
        found += [number in duplicates for number in range(ends[index + 1] - ends[index])]
    assert found == expected
    assert 600 < sum(expected) < 800


def test_digests_at_the_ends_of_ranges_belong_to_one(tmp_path):
    highs = [0, 2**62, 2**62, 2**63, 2**62, 2**63, 3 * 2**62 - 1, 2**64 - 1, 2**64 - 1]
    rows = np.array([[high, 5, number] for number, high in enumerate(highs)], np.uint64)
    rows[[1, 4], 1] = 4  # one text's first half is another's
    for index, of_task in enumerate(np.split(rows, [2, 4, 7])):
        tasks.save_rows(tasks.stage_file(tmp_path, "digests", index), of_task)
    for index in range(4):
        tasks.find_duplicates(tmp_path, (index, 4))
    paths = [tasks.stage_file(tmp_path, "duplicates", index) for index in range(4)]
    assert [np.load(path).tolist() for path in paths] == [[], [[2, 4]], [[2, 5]], [[3, 8]]]


def test_a_corpus_that_changes_while_it_is_read_is_an_error(wordpiece_folder, tmp_path):
    """Its duplicates are those of what it was."""
    text = "A text of a few words, one of which changes."
    source = write_records(tmp_path / "texts.jsonl", [{"text": text}])
    work = tmp_path / "work"
    tasks.hash_task(str(source), work, (0, 1))
    tasks.find_duplicates(work, (0, 1))
    write_records(source, [{"text": text.replace("few", "new")}])
    settings = StoreSettings(corpus=str(source), max_length=24, short_span_prob=0.0, pieces=1)
    with pytest.raises(
        UserError,
        match=whole("TMP/texts.jsonl has changed while it was read: run the command again"),
    ):
        build_task(settings, str(wordpiece_folder), tmp_path / "out", work, (0, 1))
    assert not (tmp_path / "out").exists()


def test_a_store_in_tasks_is_that_of_one_machine_to_the_bit(paragraphs, wordpiece_folder, tmp_path):
    unique = [*dict.fromkeys(paragraphs)][:30]
    texts = [*unique[:20], *unique[:20], " ", *unique[10:], unique[3]]
    records = write_records(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    source = cut_file(records, tmp_path / "source", 9)
    build_store(str(source), str(wordpiece_folder), tmp_path / "one", max_length=24)
    write_in_tasks(str(source), str(wordpiece_folder), tmp_path / "many", 7, max_length=24)
    verify_store(tmp_path / "many")
    one, many = open_store(tmp_path / "one"), open_store(tmp_path / "many")
    settings = StoreSettings(str(source), max_length=24, short_span_prob=0.0, pieces=9)
    for manifest in (*one.manifests, *many.manifests):
        assert settings._asdict().items() <= manifest.items()
    assert 0 in [manifest["counts"]["documents"] for manifest in many.manifests]
    dropped = [sum(m["dropped"]["duplicate"] for m in s.manifests) for s in (one, many)]
    assert dropped == [31, 31]  # of 61 texts, 30 different ones
    assert np.array_equal(one.first_span_D, many.first_span_D)
    spans = np.arange(one.n_spans)
    for a, b in zip(one.read_spans(spans, 24), many.read_spans(spans, 24), strict=True):
        assert np.array_equal(a, b)
    names = [[s.document_id(i) for i in range(s.n_documents)] for s in (one, many)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("max_length", "short_span_prob", "said"),
    [
        (9, 0.0, "max_length is 9: expected at least 10"),
        (10, 1.1, "short_span_prob is 1.1: expected 0 to 1"),
    ],
)
def test_settings_without_a_store_are_refused_before_anything_is_read(
    tmp_path, max_length, short_span_prob, said
):
    settings = StoreSettings("nope", max_length, short_span_prob)
    with pytest.raises(UserError, match=whole(said)):
        build_in_tasks(settings, "nope", tmp_path / "out", Engine(tasks=2))
    assert not any(tmp_path.iterdir())
