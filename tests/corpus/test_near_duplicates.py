"""Which documents are found to be nearly the same as an earlier one."""

import itertools
import json

import numpy as np
import pytest

from cocondenser_jax.corpus import near_duplicates, records
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.repeats import list_stages, repeats_of_task
from cocondenser_jax.corpus.store import open_store, verify_store
from cocondenser_jax.errors import UserError
from tests.corpus.test_minhash import altered, jaccard, shingles
from tests.world import make_texts, write_in_tasks, write_records


def find(folder, texts, n_tasks=1):
    """Runs all stages on texts, and returns why each is dropped, and the lines of all lists."""
    source = write_records(folder / "texts.jsonl", [{"text": text} for text in texts])
    work = folder / f"work-{n_tasks}"
    for stage in list_stages(str(source), len(texts), work, n_tasks, near=True):
        for index in range(stage.n_tasks):
            stage.function(task=(index, stage.n_tasks))
    reasons, lines = [], []
    for index in range(n_tasks):
        reason = repeats_of_task(work, (index, n_tasks), folder, near=True)
        borders = [k * len(texts) // n_tasks for k in (index, index + 1)]
        reasons += [reason(number, "") for number in range(borders[1] - borders[0])]
        header, *rows = (folder / "near_duplicates.tsv").read_text().splitlines()
        assert header == "document\tresembles\tsimilarity"
        lines += [tuple(row.split("\t")) for row in rows]
    return reasons, lines


@pytest.fixture(scope="module")
def families():
    """Texts with their altered copies anywhere behind them, exact copies and some without words."""
    rng = np.random.default_rng(1)
    texts = []
    for text in make_texts(40, n_sentences=30, seed=3):
        texts += [text, altered(text, 1, rng), altered(text, 2, rng), altered(text, 30, rng)]
    texts += [texts[0], texts[5], " ", "...", "a b", "...", "A, b"]
    return [texts[number] for number in rng.permutation(len(texts))]


def test_similar_documents_are_found_and_others_are_not(families, tmp_path):
    reasons, lines = find(tmp_path, families)
    dropped = {int(document) - 1: int(kept) - 1 for document, kept, _ in lines}
    assert {number for number, why in enumerate(reasons) if why == "near_duplicate"} == {*dropped}
    assert [reasons.count("duplicate"), len(dropped)] == [3, 2 * 40 + 1]
    long = [number for number, text in enumerate(families) if len(text) > 100]
    sets = {number: shingles(families[number]) for number in long if reasons[number] is None}
    for first, second in itertools.combinations(sets.values(), 2):
        assert len(first & second) <= 0.9 * len(first | second)  # both were kept
    for document, kept, similarity in lines:
        numbers = int(kept) - 1, int(document) - 1
        assert numbers[0] < numbers[1]
        assert [reasons[number] for number in numbers] == [None, "near_duplicate"]
        if numbers[1] in long:
            exact = jaccard(families[numbers[0]], families[numbers[1]])
            assert exact > 0.7
            assert float(similarity) == pytest.approx(exact, abs=0.13)


@pytest.mark.parametrize("n_tasks", [3, 7])
def test_tasks_and_batches_find_what_one_finds(families, tmp_path, n_tasks, monkeypatch):
    expected = find(tmp_path, families)
    monkeypatch.setattr(records, "BATCH_CHARACTERS", 3000)
    assert find(tmp_path, families, n_tasks) == expected


def test_a_documents_fate_depends_on_none_behind_it(families, tmp_path):
    reasons, lines = find(tmp_path, families)
    few, few_lines = find(tmp_path, families[:70])
    assert few == reasons[:70]
    assert few_lines == lines[: len(few_lines)]


def test_of_a_chain_what_resembles_no_document_that_stays_is_kept(tmp_path):
    """B is close to A, C to B; C is not close to A, D is to C."""
    words = [f"w{k}" for k in range(200)]
    chain = [" ".join(words[k : k + 100]) for k in (0, 8, 16, 18)]
    assert jaccard(chain[0], chain[1]) > 0.84
    assert jaccard(chain[0], chain[2]) < 0.72
    reasons, lines = find(tmp_path, chain)
    assert reasons == [None, "near_duplicate", None, "near_duplicate"]
    assert [line[:2] for line in lines] == [("2", "1"), ("4", "3")]


def test_the_most_similar_document_is_named(tmp_path):
    rng = np.random.default_rng(0)
    (text,) = make_texts(1, n_sentences=40, seed=1)
    first, second = altered(text, 7, rng), altered(text, 7, rng)
    assert jaccard(first, second) < 0.75
    reasons, lines = find(tmp_path, [first, second, altered(second, 1, rng), first + " more"])
    assert reasons == [None, None, "near_duplicate", "near_duplicate"]
    assert [line[:2] for line in lines] == [("3", "2"), ("4", "1")]


def test_chinese_documents(tmp_path):
    rng = np.random.default_rng(0)
    text = "".join(chr(0x4E00 + k) for k in rng.integers(0, 3000, 300))
    other = text[:40] + "新" + text[41:]
    assert find(tmp_path, [text, text[100:] + text[:50], f"{other}。"])[0] == [
        None,
        None,
        "near_duplicate",
    ]


def test_documents_of_a_bucket_beyond_the_limit_are_not_compared_with(tmp_path, monkeypatch):
    """Later ones still are with those within it."""

    def one_in_common(minima):
        keys = np.arange(len(minima) * 14, dtype=np.uint64).reshape(-1, 14)
        keys[:, 0] = 0
        return keys

    monkeypatch.setattr(near_duplicates, "MOST_KEPT", 2)
    monkeypatch.setattr(near_duplicates, "bucket_keys", one_in_common)
    a, b, c = make_texts(3, n_sentences=9, seed=0)
    reasons, _ = find(tmp_path, [a, b, c, f"{c}!", f"{b}!", f"{a}!"])
    assert reasons == [None, None, None, None, "near_duplicate", "near_duplicate"]


def test_names_do_not_break_the_list(tmp_path):
    text = make_texts(1, n_sentences=9, seed=0)[0]
    rows = [{"id": "ä\t\n", "text": text}, {"id": "b", "text": f"{text}!"}]
    source = write_records(tmp_path / "texts.jsonl", rows)
    for stage in list_stages(str(source), None, tmp_path / "work", 1, near=True):
        stage.function(task=(0, 1))
    near_duplicates.write_list(tmp_path / "work", (0, 1), tmp_path / "list.tsv")
    assert (tmp_path / "list.tsv").read_text().splitlines()[1:] == ["b\tä\\t\\x0a\t1.000"]


def test_a_store_lists_and_counts_them(families, wordpiece_folder, tmp_path):
    records = [{"id": f"d{k}", "text": text} for k, text in enumerate(families)]
    source = str(write_records(tmp_path / "texts.jsonl", records))
    tokenizer = str(wordpiece_folder)
    all_documents = build_store(source, tokenizer, tmp_path / "all", max_tokens=24)
    manifest = build_store(source, tokenizer, tmp_path / "one", max_tokens=24, near_duplicates=True)
    assert "near_duplicate" not in all_documents["dropped"]
    assert manifest["dropped"]["near_duplicate"] == 2 * 40 + 1
    assert manifest["dropped"]["duplicate"] == all_documents["dropped"]["duplicate"] == 3
    assert manifest["near_duplicates"] is True
    verify_store(tmp_path / "one")
    added = {*manifest["files"]} - {*all_documents["files"]}
    assert added == {"near_duplicates.tsv"}  # and nothing of the stages
    write_in_tasks(source, tokenizer, tmp_path / "many", 3, max_tokens=24, near_duplicates=True)
    one, many = open_store(tmp_path / "one"), open_store(tmp_path / "many")
    names = [[store.document_id(k) for k in range(store.n_documents)] for store in (one, many)]
    assert names[0] == names[1]
    folders = [tmp_path / "one", *sorted((tmp_path / "many").iterdir())]
    lists = [(each / "near_duplicates.tsv").read_text().splitlines()[1:] for each in folders]
    assert lists[0] == [*itertools.chain(*lists[1:])]
    dropped = [line.split("\t")[0] for line in lists[0]]
    assert dropped[0].startswith("d")
    assert not {*dropped} & {*names[0]}


def test_a_source_that_changes_while_it_is_read_is_an_error(
    wordpiece_folder, tmp_path, monkeypatch
):
    source = write_records(tmp_path / "texts.jsonl", [{"text": "A text of a few words."}])
    find_all = near_duplicates.find_near_duplicates

    def change(*arguments, **keywords):
        source.write_text(json.dumps({"text": "Another text of a few words."}))
        return find_all(*arguments, **keywords)

    monkeypatch.setattr("cocondenser_jax.corpus.repeats.find_near_duplicates", change)
    with pytest.raises(UserError, match=r"texts\.jsonl has changed while it was read"):
        build_store(str(source), str(wordpiece_folder), tmp_path / "out", near_duplicates=True)
    assert not (tmp_path / "out").exists()
