"""What one reading of passages tells."""

from cocondenser_jax.retriever.compare.survey import survey_passages
from cocondenser_jax.retriever.data.folder import read_corpus
from cocondenser_jax.retriever.search.encode import count_and_hash
from tests.world import write_records


def test_passages_that_are_wanted_are_counted(tmp_path):
    records = [{"_id": f"p{i}", "title": "a title", "text": f"text {i}"} for i in range(9)]
    source = write_records(tmp_path / "corpus.jsonl", records)
    survey = survey_passages(source, {"p0", "p8", "other"})
    assert survey.n_wanted == 2
    assert survey.sha256 == count_and_hash(source)[1]


def test_the_checksum_is_of_the_passages_in_whatever_files(tmp_path):
    records = [{"_id": f"p{i}", "text": f"text {i}"} for i in range(3)]
    first = survey_passages(write_records(tmp_path / "a.jsonl", records)).sha256
    (tmp_path / "b.tsv").write_text("id\ttext\n" + "".join(f"p{i}\ttext {i}\n" for i in range(3)))
    assert [*read_corpus(tmp_path / "a.jsonl")] == [*read_corpus(tmp_path / "b.tsv")]
    assert survey_passages(tmp_path / "b.tsv").sha256 == first
    for change in ({"text": "other"}, {"_id": "other"}, {"title": "other"}):
        changed = [records[0] | change, *records[1:]]
        assert survey_passages(write_records(tmp_path / "c.jsonl", changed)).sha256 != first
