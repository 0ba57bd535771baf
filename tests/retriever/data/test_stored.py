"""Texts that are stored on disk, compared with a dict of the same."""

import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import passage_text
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.stored import (
    StoredTexts,
    write_texts,
)
from tests.lines import whole

PASSAGES = [Passage(f"d{7 * i}", "title" if i % 3 else "", f"text é🙂 {i}") for i in range(50)]
TEXTS = {passage.id: passage_text(passage) for passage in PASSAGES}


@pytest.fixture
def passages(tmp_path):
    write_texts(tmp_path / "passages", iter(TEXTS.items()))
    return StoredTexts(tmp_path / "passages")


def test_passages_are_those_of_a_dict(passages):
    assert dict(passages) == TEXTS
    assert list(passages) == list(TEXTS)
    assert len(passages) == 50
    assert [passages[name] for name in TEXTS] == list(TEXTS.values())
    assert list(passages.texts()) == list(TEXTS.items())
    assert passages.missing(["d7", "d8", "d343", ""]) == ["d8", ""]
    assert "d7" in passages
    assert all(other not in passages for other in ("d8", "", "D7", 7))
    with pytest.raises(KeyError, match="d8"):
        passages["d8"]


def test_ids_are_read_by_place(passages):
    assert passages.ids([49, 0, 3]) == ["d0", "d21", "d343"]
    assert passages.ids([]) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_opens_the_files_for_itself(passages, method):
    assert dict(passages) == TEXTS
    assert len(pickle.dumps(passages)) < 1000
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as workers:
        found = [workers.submit(dict, passages) for _ in range(4)]
        assert [each.result() for each in found] == [TEXTS] * 4
    assert dict(passages) == TEXTS


def test_another_thread_reads_them_too(passages):
    assert dict(passages) == TEXTS
    with ThreadPoolExecutor(1) as workers:
        assert workers.submit(dict, passages).result() == TEXTS


def test_a_forked_process_has_a_connection_of_its_own(passages):
    """One that two processes share may give each the other's place in the file."""
    passages["d7"]
    opened = passages._opened
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        passages["d7"]
        os.write(writer, str(passages._opened[1] is opened[1]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 9) == b"False"
    assert passages._opened is opened


def test_what_makes_the_passages_may_raise(tmp_path):
    def passages():
        yield "d0", "text"
        raise UserError("no more")

    with pytest.raises(UserError, match=whole("no more")):
        write_texts(tmp_path / "passages", passages())


def test_a_full_disk_is_one_line(tmp_path, small_disk):
    small_disk(3_000)
    with pytest.raises(UserError, match=whole("cannot write TMP/passages: …")):
        write_texts(tmp_path / "passages", [*TEXTS.items()] * 100)
