"""What all fine-tuning shares: which data a run resumes on."""

import shutil

import pytest

from cocondenser_jax.collection.trec import write_run
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import trainer
from cocondenser_jax.finetune.tasks import finetune
from configs import finetune as finetune_config
from configs import sentences as sentences_config


@pytest.fixture
def inputs(model_folder, beir, tmp_path):
    """A folder of everything that fine-tuning reads."""
    shutil.copytree(beir, tmp_path / "inputs" / "data")
    shutil.copytree(model_folder, tmp_path / "inputs" / "model")
    run = {f"q{i}": {f"d{(i + j) % 60}": 10.0 - j for j in range(10)} for i in range(24)}
    for name in ("negatives", "teacher"):
        write_run(tmp_path / "inputs" / f"{name}.trec", run)
    return tmp_path / "inputs"


def make_config(inputs):
    config = finetune_config.get_config()
    config.update(
        model=str(inputs / "model"),
        data=str(inputs / "data"),
        loss="soft_labels",
        negatives_per_query=1,
        negatives_run=str(inputs / "negatives.trec"),
        teacher_run=str(inputs / "teacher.trec"),
        batch_size=4,
        query_length=8,
        passage_length=16,
        epochs=3,
        learning_rate=1e-3,
        log_every=2,
        checkpoint_every=3,
    )
    return config


class Killed(BaseException):
    """Stands for the end of the process."""


def kill(*args, **kwargs):
    raise Killed


def test_a_run_resumes_on_the_same_data_only(inputs, monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "run", kill)
    config = make_config(inputs)
    with pytest.raises(Killed):
        finetune(config, tmp_path / "run")

    # Changes that every reader accepts, and that train something else.
    for what, path, old, new in (
        ("corpus", "data/corpus.jsonl", '"text": "', '"text": "again '),
        ("judgments", "data/qrels/train.tsv", "q1\td1\t1", "q1\td2\t1"),
        ("queries", "data/queries.jsonl", '"text": "', '"text": "again '),
        ("negatives_run", "negatives.trec", "q0 Q0 d3 ", "q0 Q0 d33 "),
        ("teacher_run", "teacher.trec", " 9.0 ", " 9.5 "),
        ("model", "model/config.json", '"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.2'),
    ):
        before = (inputs / path).read_text()
        assert old in before, path
        (inputs / path).write_text(before.replace(old, new, 1))
        with pytest.raises(UserError, match=f"another content of {what}: choose a new folder"):
            finetune(config, tmp_path / "run")
        (inputs / path).write_text(before)

    moved = inputs.rename(tmp_path / "moved")
    with pytest.raises(Killed):
        finetune(make_config(moved), tmp_path / "run")


def test_a_sentence_encoder_resumes_on_the_same_data_only(inputs, monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "run", kill)
    data = tmp_path / "sts.csv"
    data.write_text("".join(f"g\tf\t2012\t{i}\t{i % 6}\ta word\tanother {i}\n" for i in range(8)))
    config = sentences_config.get_config("stsb")
    config.update(model=str(inputs / "model"), data=str(data), batch_size=4, length=8)
    with pytest.raises(Killed):
        finetune(config, tmp_path / "run")
    data.write_text(data.read_text().replace("another 7", "another 8"))
    with pytest.raises(UserError, match="another content of data: choose a new folder"):
        finetune(config, tmp_path / "run")
