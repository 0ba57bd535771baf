"""Judgments of another version of the collection: some relevant passages cannot be found."""

import shutil

import pytest

from cocondenser_jax.cli import main
from tests.world import write_qrels


@pytest.fixture(scope="module")
def searched(model_folder, beir, tmp_path_factory):
    """Flags of the commands that search a collection of which two of three are judged relevant."""
    place = tmp_path_factory.mktemp("missing")
    data = shutil.copytree(beir, place / "data")
    write_qrels(data / "qrels" / "old.tsv", {"q3": {"d3": 1, "d03": 1, "gone": 0}, "q5": {"d5": 2}})
    write_qrels(data / "qrels" / "all.tsv", {"q3": {"d3": 1, "gone": 0}})
    model = f"--model={model_folder}"
    assert main(["encode", model, f"--corpus={data}", f"--out={place}/embeddings"]) == 0
    flags = [f"--data={data}", f"--run_out={place}/run"]
    return {
        "bm25": ["bm25", *flags],
        "retrieve": ["retrieve", model, f"--embeddings={place}/embeddings", *flags],
    }


@pytest.mark.parametrize("command", ["bm25", "retrieve"])
@pytest.mark.parametrize(("split", "n_missing"), [("old", 1), ("all", 0), (None, 0)])
def test_relevant_passages_that_cannot_be_found_are_counted(
    command, split, n_missing, searched, caplog
):
    assert main([*searched[command], *([f"--split={split}"] if split else [])]) == 0
    found = [record.getMessage() for record in caplog.records if "relevant" in record.getMessage()]
    expected = (
        f"{n_missing} of the 3 relevant passages in the judgments of {split} are not in the corpus"
    )
    assert found == [expected] * n_missing
