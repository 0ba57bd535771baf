"""What all fine-tuning shares: which data and which checkpoint a run resumes from, a full disk."""

import copy
import json
import logging
import resource
import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer, trainer_callback, trainer_utils

from cocondenser_jax.configs import finetune as finetune_config
from cocondenser_jax.declare import to_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import runs
from cocondenser_jax.files.runs import LOCK
from cocondenser_jax.retriever.data.trec import write_run
from cocondenser_jax.retriever.train import trainer
from cocondenser_jax.retriever.train.tasks import finetune, resolve
from cocondenser_jax.settings import FINE_TUNING, declared_settings
from tests import lines
from tests.world import change_settings, read_metrics


@pytest.fixture(scope="module")
def originals(model_folder, beir, tmp_path_factory):
    """A folder of everything that fine-tuning reads."""
    folder = tmp_path_factory.mktemp("trainer") / "inputs"
    shutil.copytree(beir, folder / "data")
    shutil.copytree(model_folder, folder / "model")
    run = {f"q{i}": {f"d{(i + j) % 60}": 10.0 - j for j in range(10)} for i in range(24)}
    for name in ("negatives", "teacher"):
        write_run(folder / f"{name}.trec", run)
    return folder


@pytest.fixture
def inputs(originals, tmp_path):
    """The same, to be changed."""
    return shutil.copytree(originals, tmp_path / "inputs")


def make_config(inputs):
    config = finetune_config.get_config()
    change_settings(
        config,
        {
            "model.folder": str(inputs / "model"),
            "data.folder": str(inputs / "data"),
            "loss.name": "soft_labels",
            "data.negatives_per_query": 1,
            "data.negatives_run": str(inputs / "negatives.trec"),
            "loss.teacher_run": str(inputs / "teacher.trec"),
            "data.batch_size": 4,
            "model.query_length": 8,
            "model.passage_length": 16,
            "train.epochs": 2,
            "optimizer.learning_rate": 1e-3,
            "log_every": 2,
            "checkpoint.every": 3,
        },
    )
    return config


def test_the_librarys_faults_that_are_worked_around_are_still_there(tmp_path):
    """Says when a workaround may go: see the table in CONTRIBUTING.md."""
    (tmp_path / "checkpoint-4").mkdir()  # nothing was written before the kill
    assert trainer_utils.get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    before = torch.get_rng_state()
    list(torch.utils.data.DataLoader([]))
    assert not torch.equal(torch.get_rng_state(), before)


class Killed(BaseException):
    """Stands for the end of the process."""


def kill(*args, **kwargs):
    raise Killed


def test_a_second_process_is_refused(inputs, tmp_path, hold):
    run = tmp_path / "run"
    first = hold(run)
    with pytest.raises(UserError, match=f"run is in use by process {first.pid} on "):
        finetune(make_config(inputs), run)
    assert [path.name for path in run.iterdir()] == [LOCK]


def test_a_kill_before_the_settings_are_there_leaves_no_trace(inputs, monkeypatch, tmp_path):
    config = make_config(inputs)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "write_json", lambda path, value: kill())
        with pytest.raises(Killed):
            finetune(config, tmp_path / "run")
    (tmp_path / "run").mkdir(exist_ok=True)
    for left in ("finetune.json.partial", "finetune.json.partial.lock"):
        (tmp_path / "run" / left).touch()
    (tmp_path / "run" / "finetune.stored").mkdir(exist_ok=True)
    monkeypatch.setattr(trainer, "run", kill)
    with pytest.raises(Killed):
        finetune(config, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "finetune.json",
        "checkpoints",
        "finetune.stored",
    }


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
        with pytest.raises(UserError, match=rf"was started with sha256\.{what}=.*: choose a new"):
            finetune(config, tmp_path / "run")
        assert (tmp_path / "run" / "finetune.stored").is_dir()  # the run may still go on
        (inputs / path).write_text(before)

    moved = inputs.rename(tmp_path / "moved")
    with pytest.raises(Killed):
        finetune(make_config(moved), tmp_path / "run")


# What four of these name is compared by its content; the fifth only receives metrics.
MAY_DIFFER = {
    "model.folder",
    "data.folder",
    "data.negatives_run",
    "loss.teacher_run",
    "tracker",
}


@pytest.mark.parametrize("task", FINE_TUNING)
def test_every_setting_but_these_is_the_same_when_a_run_resumes(task, inputs, tmp_path):
    settings = resolve(make_config(inputs), tmp_path / "run").trainer
    record = to_config(declared_settings(task)).to_dict()
    record["model"]["folder"] = str(inputs / "model")
    shutil.copytree(inputs / "model", inputs / "moved")
    trainer.start_or_resume(settings._replace(record=record), 9, {})
    for name in declared_settings(task):
        section, _, last = name.rpartition(".")
        other = copy.deepcopy(record)
        value = str(inputs / "moved") if name == "model.folder" else "another value"
        (other[section] if section else other)[last] = value
        changed = settings._replace(record=other)
        if name in MAY_DIFFER:
            trainer.start_or_resume(changed, 9, {})
            continue
        with pytest.raises(UserError, match=f"with {name}=.*, now it is 'another value'"):
            trainer.start_or_resume(changed, 9, {})


@pytest.mark.parametrize("first_has_them", [False, True])
def test_a_run_resumes_with_the_same_kinds_of_files_only(inputs, tmp_path, first_has_them):
    config = make_config(inputs)
    fewer = {"corpus": "1f"}
    every = {**fewer, "negatives_run": "2e"}
    first, second = (every, fewer) if first_has_them else (fewer, every)
    settings = resolve(config, tmp_path / "run").trainer
    trainer.start_or_resume(settings, 9, first)
    trainer.start_or_resume(settings, 9, first)
    with pytest.raises(UserError, match=r"was started with(out)? sha256\.negatives_run"):
        trainer.start_or_resume(settings, 9, second)


def end_at(monkeypatch, step):
    """Ends the process at the end of a step, before its checkpoint."""
    step_end = trainer._MetricsCallback.on_step_end

    def end(self, args, state, control, **kwargs):
        step_end(self, args, state, control, **kwargs)
        if state.global_step == step:
            raise Killed

    monkeypatch.setattr(trainer._MetricsCallback, "on_step_end", end)


def finetune_until_killed(config, workdir):
    with pytest.raises(Killed):
        finetune(config, workdir)


@pytest.fixture(scope="module")
def whole(originals, tmp_path_factory):
    """A run that was never killed: what it logs, and the weights."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finetune(make_config(originals), folder)
    return outcome(folder)


def outcome(workdir):
    losses = {line["step"]: (line["loss"], line["grad_norm"]) for line in read_metrics(workdir)}
    return losses, (workdir / "retriever" / "model.safetensors").read_bytes()


def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(
    inputs, whole, monkeypatch, tmp_path
):
    for step in (1, 3, 4, 8, 12):  # before and at the first checkpoint, after it, later, at the end
        with monkeypatch.context() as patch:
            end_at(patch, step)
            finetune_until_killed(make_config(inputs), tmp_path / "run")
        if step % 3 == 0:
            with monkeypatch.context() as patch:  # its checkpoint lacks the checksums only
                patch.setattr(trainer, "write_checksums", kill)
                finetune_until_killed(make_config(inputs), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "new_folder", kill)
        finetune_until_killed(make_config(inputs), tmp_path / "run")
    finetune(make_config(inputs), tmp_path / "run")
    assert sorted(whole[0]) == [2, 3, 4, 6, 8, 9, 10, 12]  # every 2, and where it is saved
    assert outcome(tmp_path / "run") == whole


def test_what_is_stored_is_made_once_and_goes_at_the_end(inputs, monkeypatch, tmp_path):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        end_at(patch, 4)
        finetune_until_killed(make_config(inputs), run)
    made = {path: path.stat().st_mtime_ns for path in run.glob("finetune.stored/*/*")}
    assert [path.name for path in made] == ["rows.sqlite"] * 2
    with monkeypatch.context() as patch:
        end_at(patch, 5)
        finetune_until_killed(make_config(inputs), run)
    assert {path: path.stat().st_mtime_ns for path in run.glob("finetune.stored/*/*")} == made
    finetune(make_config(inputs), run)
    assert {path.name for path in run.iterdir()} == {"finetune.json", "metrics.jsonl", "retriever"}


def test_a_folder_of_another_is_not_taken_for_what_is_stored(inputs, tmp_path):
    kept = tmp_path / "run" / "stored" / "map.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(
        UserError,
        match=lines.whole("TMP/run already exists: choose a new folder, or remove it first"),
    ):
        finetune(make_config(inputs), tmp_path / "run")
    assert kept.read_text() == "mine"


def test_a_mistake_in_the_data_leaves_nothing(inputs, tmp_path):
    negatives = inputs / "negatives.trec"
    negatives.write_text(negatives.read_text() + "q0 Q0 unknown 11 -99 x\n")
    with pytest.raises(
        UserError,
        match=lines.whole(
            "TMP/inputs/negatives.trec names 1 passages that the data does not have: unknown"
        ),
    ):
        finetune(make_config(inputs), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(120)  # a process that waits for another's threads waits forever
def test_loader_workers_tokenize_where_tokenizers_is_told_to_use_threads(
    inputs, monkeypatch, tmp_path
):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    config = make_config(inputs)
    tokenizer = AutoTokenizer.from_pretrained(inputs / "model")
    tokenizer(["threads exist", "before the fork"] * 50)
    change_settings(config, {"data.loader_workers": 1, "train.max_steps": 2})
    assert finetune(config, tmp_path / "run")["steps"] == 2


def test_a_damaged_checkpoint_is_passed_over(inputs, whole, monkeypatch, tmp_path, caplog):
    with monkeypatch.context() as patch:
        end_at(patch, 11)
        finetune_until_killed(make_config(inputs), tmp_path / "killed")
    checkpoint = tmp_path / "killed" / "checkpoints" / "checkpoint-9"
    damaged = "optimizer.pt", "sha256.json"  # that one names the others, as the first
    others = {"scheduler.pt", "rng_state.pth", "trainer_state.json", "model.safetensors"}
    assert others <= json.loads((checkpoint / "sha256.json").read_text()).keys()
    for name in damaged:
        run = tmp_path / f"{name} [é🙂]"
        shutil.copytree(tmp_path / "killed", run)
        path = run / "checkpoints" / "checkpoint-9" / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        caplog.clear()
        with caplog.at_level(logging.INFO, "cocondenser_jax"):
            finetune(make_config(inputs), run)
        said = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert (
            len([line for line in said if f"checkpoint-9 is damaged ({name} is not" in line]) == 1
        )
        assert caplog.messages.count("resuming from step 6") == 1
        assert outcome(run) == whole, name

    run = tmp_path / "killed"
    for step in (6, 9):
        (run / "checkpoints" / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"")
    files = sorted(run.rglob("*"))
    with pytest.raises(UserError, match=f"{run}: none of its checkpoints .6, 9. is intact"):
        finetune(make_config(inputs), run)
    assert sorted(run.rglob("*")) == files


@pytest.mark.parametrize(
    ("share", "every", "what"),
    # Too small for the weights; for the optimizer's two moments of each; for the trained model.
    [(0.5, 3, "checkpoints"), (1.5, 3, "checkpoints"), (0.5, 0, "retriever")],
)
def test_a_full_disk_ends_in_one_line(inputs, small_disk, tmp_path, share, every, what):
    config = make_config(inputs)
    change_settings(config, {"train.max_steps": 3, "checkpoint.every": every})
    small_disk(int((inputs / "model" / "model.safetensors").stat().st_size * share))
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/run/{what}: [^\n]+$"):
        finetune(config, tmp_path / "run")
    small_disk(resource.RLIM_INFINITY)
    assert not (tmp_path / "run" / "retriever").exists()
    assert finetune(config, tmp_path / "run")["steps"] == 3


def test_what_is_logged_of_steps_and_evaluations(monkeypatch):
    """The speed is that since the line before, or since the run was resumed."""
    clock = iter([10.0, 12.0, 28.0])
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: next(clock))
    logged = []
    callback = trainer._MetricsCallback(lambda *line: logged.append(line))
    args = SimpleNamespace(per_device_train_batch_size=8, metric_for_best_model="eval_MRR@10")
    state = trainer_callback.TrainerState(global_step=4, max_steps=9)
    callback.on_train_begin(args, state, None)
    values = {"loss": 0.5, "learning_rate": 0.25, "grad_norm": 2.0}
    for step in (5, 9):
        state.global_step, state.epoch = step, step / 8
        callback.on_log(args, state, None, values | {"total_flos": 1.0})
    measured = {"eval_loss": 3.0, "eval_MRR@10": 0.125}
    callback.on_log(args, state, None, measured | {"eval_runtime": 7.0})
    callback.on_train_end(args, state, None)
    assert logged == [
        (5, {"epoch": 0.625, **values, "pairs_per_second": 8 / 2}),
        (9, {"epoch": 1.125, **values, "pairs_per_second": 4 * 8 / 16}),
        (9, measured),
    ]


def test_a_training_that_diverges_saves_no_model(inputs, tmp_path):
    config = make_config(inputs)
    config.optimizer.learning_rate = 1e38
    with pytest.raises(
        UserError,
        match=lines.whole(
            "the loss or gradient of step 3 is not finite: training has diverged; try a lower"
            " config.optimizer.learning_rate, or config.train.precision=float32"
        ),
    ):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run" / "retriever").exists()


def test_a_line_is_logged_wherever_a_model_may_be_saved():
    """Also at an evaluation, whose model may be the best until then."""
    state = trainer_callback.TrainerState(global_step=4, max_steps=9)
    for due in ({}, {"should_save": True}, {"should_evaluate": True}):
        control = trainer_callback.TrainerControl(**due)
        trainer._CheckpointCallback().on_step_end(None, state, control)
        assert control.should_log == bool(due), due
