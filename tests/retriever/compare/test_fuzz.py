"""Whatever a file holds, it is read or refused with one clear line; and nothing in it is run."""

from cocondenser_jax.retriever.compare.plots import read_curves
from tests.mutations import fuzz_content, fuzz_record, jsonl


def read(path):
    return read_curves(path, "run", "#2b83c6")


def test_broken_metrics_are_read_or_refused(tmp_path):
    valid = jsonl({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2})
    fuzz_content(tmp_path / "metrics.jsonl", valid, read)


def test_json_of_wrong_types_is_read_or_refused(tmp_path):
    fuzz_record(tmp_path / "metrics.jsonl", {"step": 1, "loss": 2.5}, read)
