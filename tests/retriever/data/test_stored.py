"""Passages and pools that are stored on disk, compared with dicts of the same."""

import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import passage_text
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.stored import (
    PooledRows,
    StoredPassages,
    StoredPool,
    write_passages,
    write_pool,
)

PASSAGES = [Passage(f"d{7 * i}", "title" if i % 3 else "", f"text é🙂 {i}") for i in range(50)]
NONE = np.arange(0)
TEXTS = {passage.id: passage_text(passage) for passage in PASSAGES}


@pytest.fixture
def passages(tmp_path):
    write_passages(tmp_path / "passages", iter(PASSAGES), passage_text)
    return StoredPassages(tmp_path / "passages")


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
    write_pool(tmp_path / "pool", (PooledRows(q, own, NONE) for q, own in rows.items()))
    pool = StoredPool(tmp_path / "pool", passages)
    assert list(pool) == list(rows)
    assert list(pool["q3"]) == ["d0", "d7", "d14"]
    assert list(pool["q0"]) == list(TEXTS)
    assert len(pool["q19"]) == 19
    with pytest.raises(KeyError, match="q20"):
        pool["q20"]


@pytest.mark.parametrize("left_out", [[], [0], [49], [3, 4, 4, 0], [48, 2, 49], [*range(49)]])
def test_a_query_without_a_pool_draws_from_all_but_some(passages, tmp_path, left_out):
    pools = [
        PooledRows("q", np.arange(0), np.array(left_out, int)),
        PooledRows("r", *[np.arange(2)] * 2),
    ]
    write_pool(tmp_path / "pool", iter(pools))
    pool = StoredPool(tmp_path / "pool", passages)
    expected = [name for row, name in enumerate(TEXTS) if row not in left_out]
    assert [*pool["q"]] == expected
    assert len(pool["q"]) == len(expected)
    assert [*pool["r"]] == ["d0", "d7"]


def test_rows_of_large_collections_are_those_that_were_written(tmp_path):
    rows = [0, 2**16 - 1, 2**16, 8_841_822, 2**32 - 1]
    write_pool(tmp_path / "pool", [PooledRows("q", np.array(rows, np.int64), np.arange(0))])
    by_row = SimpleNamespace(names=lambda rows: [f"d{row}" for row in rows])
    assert StoredPool(tmp_path / "pool", by_row)["q"] == [f"d{row}" for row in rows]


def read_all(passages, pool):
    """What a worker reads of them."""
    return dict(passages), {query: list(pool[query]) for query in pool}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_opens_the_files_for_itself(passages, tmp_path, method):
    write_pool(
        tmp_path / "pool",
        iter([PooledRows("q", np.array([2]), NONE), PooledRows("r", np.arange(9), NONE)]),
    )
    pool = StoredPool(tmp_path / "pool", passages)
    here = read_all(passages, pool)
    assert here == (TEXTS, {"q": ["d14"], "r": [f"d{7 * i}" for i in range(9)]})
    assert len(pickle.dumps((passages, pool))) < 1000
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as workers:
        found = [workers.submit(read_all, passages, pool) for _ in range(4)]
        assert [each.result() for each in found] == [here] * 4
    assert read_all(passages, pool) == here


def test_a_forked_process_has_a_connection_of_its_own(passages):
    """One that two processes share may give each the other's place in the file."""
    passages["d7"]
    opened = passages._table._opened
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        passages["d7"]
        os.write(writer, str(passages._table._opened[1] is opened[1]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 9) == b"False"
    assert passages._table._opened is opened


def test_what_makes_the_passages_may_raise(tmp_path):
    def passages():
        yield PASSAGES[0]
        raise UserError("no more")

    with pytest.raises(UserError, match="no more"):
        write_passages(tmp_path / "passages", passages(), passage_text)


def test_a_full_disk_is_one_line(tmp_path, small_disk):
    small_disk(3_000)
    with pytest.raises(UserError, match=r"cannot write .*/passages: "):
        write_passages(tmp_path / "passages", PASSAGES * 100, passage_text)
