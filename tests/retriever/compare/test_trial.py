"""What a comparison was started on, when it is called again."""

import hashlib
import json

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import file_sha256
from cocondenser_jax.retriever.compare.trial import (
    DRAWN,
    STARTED,
    Trial,
    check_trial,
    queries_note,
    start_comparison,
    survey_trial,
)
from cocondenser_jax.retriever.data.folder import read_queries, survey_passages
from tests.world import write_qrels, write_records


def start(workdir, trial):
    return start_comparison(workdir, survey_trial(check_trial(trial)))


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
    end = ": choose a new folder, or remove it first"
    with pytest.raises(UserError, match=f"^{tmp_path}/new was started with {said}{end}$"):
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


@pytest.mark.parametrize("n_queries", [300, 301])
def test_of_more_than_300_queries_some_are_drawn_which_is_said(tmp_path, n_queries):
    write_records(tmp_path / "corpus.jsonl", [{"_id": "p", "text": "t"}])
    (tmp_path / "log.txt").write_text("".join(f"query {i}\n" for i in range(n_queries)))
    trial = Trial(tmp_path / "log.txt", corpus=tmp_path / "corpus.jsonl")
    begun = start(tmp_path / "new", trial)
    said = [] if n_queries == 300 else ["for 300 of 301 queries, drawn at random"]
    assert queries_note(begun) == said
    assert queries_note(trial) == []
    assert begun.data == tmp_path / "new" / DRAWN
    assert begun.passages == tmp_path / "corpus.jsonl"
    assert (begun.is_judged, begun.ranked_split) == (False, None)
    drawn = read_queries(begun.data)
    assert len(drawn) == 300
    assert all(text == f"query {int(name) - 1}" for name, text in drawn.items())
    started = json.loads((tmp_path / "new" / STARTED).read_text())
    queries = {str(i + 1): f"query {i}" for i in range(n_queries)}
    assert started == {
        "data": {
            "corpus": begun.passages_sha256,
            "judgments": None,
            "queries": hashlib.sha256(json.dumps(queries).encode()).hexdigest(),
        },
        "split": None,
        "language": "english",
        "ignore_identical_ids": False,
    }


def test_what_a_comparison_of_judged_queries_is_started_on(beir, tmp_path):
    trial = Trial(beir, "train", language="german", ignore_identical_ids=True)
    trial = survey_trial(check_trial(trial))
    assert start_comparison(tmp_path / "new", trial) == trial
    files = {"judgments": "qrels/train.tsv", "queries": "queries.jsonl"}
    asked = {name: file_sha256(beir / file) for name, file in files.items()}
    assert json.loads((tmp_path / "new" / STARTED).read_text()) == {
        "data": {"corpus": survey_passages(beir).sha256, **asked},
        "split": "train",
        "language": "german",
        "ignore_identical_ids": True,
    }
    assert queries_note(trial) == []
