"""What one reading of passages tells."""

from itertools import pairwise

import pytest

from cocondenser_jax.retriever.compare.survey import survey_passages
from cocondenser_jax.retriever.data.folder import read_corpus
from cocondenser_jax.retriever.search.encode import count_and_hash
from tests.world import write_records


@pytest.mark.parametrize("n", [1, 127, 128, 129, 1000])
def test_passages_are_counted_and_some_are_read_at_equal_distances(tmp_path, n):
    records = [{"_id": f"p{i}", "title": "a title", "text": f"text {i}"} for i in range(n)]
    source = write_records(tmp_path / "corpus.jsonl", records)
    survey = survey_passages(source, {"p0", f"p{n - 1}", "other"})
    assert (survey.n_passages, survey.sha256) == count_and_hash(source)
    assert survey.n_wanted == min(n, 2)
    assert min(n, 64) <= len(survey.texts) < 128
    numbers = [int(text.removeprefix("a title text ")) for text in survey.texts]
    (step,) = {b - a for a, b in pairwise(numbers)} or {1}
    assert numbers == [*range(0, n, step)]


def test_the_checksum_is_of_the_passages_in_whatever_files(tmp_path):
    records = [{"_id": f"p{i}", "text": f"text {i}"} for i in range(3)]
    first = survey_passages(write_records(tmp_path / "a.jsonl", records)).sha256
    (tmp_path / "b.tsv").write_text("id\ttext\n" + "".join(f"p{i}\ttext {i}\n" for i in range(3)))
    assert [*read_corpus(tmp_path / "a.jsonl")] == [*read_corpus(tmp_path / "b.tsv")]
    assert survey_passages(tmp_path / "b.tsv").sha256 == first
    for change in ({"text": "other"}, {"_id": "other"}, {"title": "other"}):
        changed = [records[0] | change, *records[1:]]
        assert survey_passages(write_records(tmp_path / "c.jsonl", changed)).sha256 != first
