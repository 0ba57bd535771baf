"""Whatever a file holds, it is read or refused with one clear line; and nothing in it is run."""

import pytest

from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.trec import read_qrels
from tests.mutations import fuzz_content


def _judgments(path):
    evaluate_run(read_qrels(path), {"q1": {"d1": 1.0}, "q2": {"d1": 2.0}})


READERS = {
    "test.tsv": (b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td1\t2\n", _judgments),
    "qrels.trec": (b"q1 0 d1 1\nq2 0 d2 0\n", _judgments),
}


@pytest.mark.parametrize("name", READERS)
def test_a_broken_file_is_read_or_refused(name, tmp_path):
    fuzz_content(tmp_path / name, *READERS[name])
