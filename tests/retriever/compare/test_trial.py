"""What a comparison was started on, when it is called again."""

import json

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.compare.trial import STARTED, Trial, check_trial, start_comparison
from tests.world import write_qrels


def start(workdir, trial):
    return start_comparison(workdir, check_trial(trial))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"language": "german"}, "language='english', now it is 'german'"),
        ({"ignore_identical_ids": True}, "ignore_identical_ids=False, now it is True"),
    ],
)
def test_what_changes_rankings_is_refused(beir, tmp_path, changes, said):
    trial = Trial(beir, "train")
    begun = start(tmp_path / "new", trial)
    assert start(tmp_path / "new", trial) == begun
    recorded = (tmp_path / "new" / STARTED).read_text()
    with pytest.raises(UserError, match=f"was started with {said}"):
        start(tmp_path / "new", trial._replace(**changes))
    assert (tmp_path / "new" / STARTED).read_text() == recorded
    assert start(tmp_path / "new", trial._replace(metrics=("MRR@10",))).metrics == ("MRR@10",)


def test_other_judgments_remove_every_ranking_and_no_vectors(beir, tmp_path):
    start(tmp_path / "new", Trial(beir, "train"))
    names = ["bm25.trec", "models/a/dense.trec", "models/b/c/fused.trec", "models/a/started.json"]
    for name in names:
        (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "new" / name).touch()
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (data / name).symlink_to(beir / name)
    write_qrels(data / "qrels" / "dev.tsv", {"q0": {"d0": 1}, "q1": {"d1": 1}})
    start(tmp_path / "new", Trial(data, "dev"))
    left = [name for name in names if (tmp_path / "new" / name).exists()]
    assert left == ["models/a/started.json"]
    assert json.loads((tmp_path / "new" / STARTED).read_text())["split"] == "dev"
