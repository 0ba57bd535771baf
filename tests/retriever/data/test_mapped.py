"""Passages and pools that are mapped from disk, compared with dicts of the same."""

import pickle

import numpy as np
import pytest

from cocondenser_jax.retriever.data import mapped
from cocondenser_jax.retriever.data.folder import passage_text
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.mapped import (
    MappedPassages,
    MappedPool,
    write_passages,
    write_pool,
)

PASSAGES = [Passage(f"d{7 * i}", "title" if i % 3 else "", f"text é🙂 {i}") for i in range(50)]
TEXTS = {passage.id: passage_text(passage) for passage in PASSAGES}


@pytest.fixture(params=[64, 2])  # of two bits, a digest is that of many ids
def passages(tmp_path, monkeypatch, request):
    digest = mapped._digest
    monkeypatch.setattr(mapped, "_digest", lambda name: digest(name) >> (64 - request.param))
    monkeypatch.setattr(mapped, "_ROWS_AT_ONCE", 7)
    write_passages(tmp_path, iter(PASSAGES), passage_text)
    return MappedPassages(tmp_path)


def test_passages_are_those_of_a_dict(passages):
    assert dict(passages) == TEXTS
    assert list(passages) == list(TEXTS)
    assert len(passages) == 50
    assert [passages[name] for name in TEXTS] == list(TEXTS.values())
    assert passages.rows(["d7", "d8", "d343", ""]).tolist() == [1, -1, 49, -1]
    assert "d7" in passages
    assert all(other not in passages for other in ("d8", "", "D7", 7))
    with pytest.raises(KeyError, match="d8"):
        passages["d8"]


def test_names_are_read_by_row(passages):
    names = passages.names([3, 0])
    assert list(names) == ["d21", "d0"]
    assert (len(names), names[1]) == (2, "d0")


def test_a_query_draws_from_its_pool_or_from_all_passages(passages, tmp_path):
    rows = {f"q{i}": np.arange(i) for i in range(20)}
    write_pool(tmp_path, iter(rows.items()))
    pool = MappedPool(tmp_path, passages)
    assert list(pool) == list(rows)
    assert list(pool["q3"]) == ["d0", "d7", "d14"]
    assert list(pool["q0"]) == list(TEXTS)
    assert len(pool["q19"]) == 19
    with pytest.raises(KeyError, match="q20"):
        pool["q20"]


def test_another_process_gets_the_folder_and_not_the_texts(passages, tmp_path):
    write_pool(tmp_path, iter({"q": np.array([2])}.items()))
    sent = pickle.dumps((passages, MappedPool(tmp_path, passages)))
    assert len(sent) < 500
    again, pool = pickle.loads(sent)
    assert dict(again) == TEXTS
    assert list(pool["q"]) == ["d14"]
