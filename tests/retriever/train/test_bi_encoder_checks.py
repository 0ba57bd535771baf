"""What fine-tuning checks before it reads the corpus."""

import sys

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.train.tasks import finetune
from tests.lines import whole
from tests.world import change_settings


@pytest.mark.usefixtures("unread_corpus")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data.negatives_run": "none", "data.negatives_per_query": 1},
            whole("config.data.negatives_run is 'none': there is no such file"),
        ),
        (
            {"loss.teacher_run": "none", "loss.name": "soft_labels"},
            whole("config.loss.teacher_run is 'none': there is no such file"),
        ),
        (
            {"eval.run": "none", "eval.every": 1},
            whole("config.eval.run is 'none': there is no such file"),
        ),
        ({"eval.every": 1}, whole("TMP has no judgments of split 'dev': it has qrels/train.tsv")),
        (
            {"eval.run": __file__},
            whole(
                "config.eval.run is '…', but config.eval.every is 0: expected a number "
                "of steps between two evaluations"
            ),
        ),
        (
            {"model.folder": "/nowhere"},
            whole("/nowhere: no such folder, and not the name of a model on the hub"),
        ),
        (
            {"model.query_length": 65},
            whole("config.model.query_length=65: expected 3 to 64 tokens for TMP"),
        ),
    ],
)
def test_what_is_missing_is_found_before_the_corpus_is_read(config, tmp_path, change, message):
    change_settings(config, change)
    with pytest.raises(UserError, match=message):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("unread_corpus")
def test_a_run_is_not_written_into_the_folder_of_its_model(config, model_folder):
    with pytest.raises(
        UserError, match=whole("TMP/run lies in the folder of the model, TMP: choose another place")
    ):
        finetune(config, model_folder / "run")
    assert not (model_folder / "run").exists()


@pytest.mark.usefixtures("unread_corpus")
def test_a_folder_with_something_else_is_refused(config, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(
        UserError, match=whole("… already exists: choose a new folder, or remove it first")
    ):
        finetune(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.usefixtures("unread_corpus")
def test_a_tracker_that_is_missing_is_named_before_the_corpus_is_read(
    config, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config.tracker = "wandb"
    with pytest.raises(ImportError, match="wandb"):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
