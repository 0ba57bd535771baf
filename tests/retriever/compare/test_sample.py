"""A sample of a collection: what is judged is in it, with as many others as are asked for."""

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.compare.sample import (
    Sampled,
    read_sampled,
    require_room,
    write_sample,
)
from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from tests.world import write_beir, write_qrels

N = 100


@pytest.fixture
def data(tmp_path):
    texts = [f"text {i}" for i in range(N)]
    folder = write_beir(tmp_path / "data", texts, texts, {"test": [3, 50, 99]})
    write_qrels(folder / "qrels" / "test.tsv", {"q3": {"p3": 1, "p4": 0}, "q50": {"p50": 2}})
    return folder


def test_the_judged_passages_are_kept_and_others_at_random(data, tmp_path):
    write_sample(data, "test", data, 40, tmp_path / "a")
    assert read_sampled(tmp_path / "a") == Sampled(passages=N, judged=3, kept=40)
    kept = [*read_corpus(tmp_path / "a")]
    assert len(kept) == 40
    assert {"p3", "p4", "p50"} <= {passage.id for passage in kept}
    original = [*read_corpus(data)]
    assert [passage for passage in original if passage in kept] == kept
    numbers = [int(passage.id[1:]) for passage in kept]
    assert min(numbers) < 20
    assert max(numbers) > 80
    assert read_split(tmp_path / "a", "test") == read_split(data, "test")
    write_sample(data, "test", data, 40, tmp_path / "b")
    assert [*read_corpus(tmp_path / "b")] == kept


def test_all_are_kept_where_there_are_fewer(data, tmp_path):
    write_sample(data, "test", data, 1000, tmp_path / "a")
    assert read_sampled(tmp_path / "a") == Sampled(passages=N, judged=3, kept=N)
    assert [*read_corpus(tmp_path / "a")] == [*read_corpus(data)]


def test_a_sample_has_room_for_what_is_judged(data):
    _, qrels = read_split(data, "test")
    require_room(qrels, 3)
    with pytest.raises(UserError, match="--test_passages=2: expected at least 3"):
        require_room(qrels, 2)
