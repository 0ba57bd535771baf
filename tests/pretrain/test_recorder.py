"""What a run records on the first host, and that other hosts record nothing."""

import jax.numpy as jnp
import pytest

from cocondenser_jax.pretrain import hosts
from cocondenser_jax.pretrain.checkpoint import saved_probes
from cocondenser_jax.pretrain.experiment import resolve_without_store
from cocondenser_jax.pretrain.recorder import open_recorder
from cocondenser_jax.pretrain.step import initial_state
from tests.world import read_metrics


@pytest.fixture
def experiment(config):
    return resolve_without_store(config, 9, 80, 0)


def state_after(step, experiment):
    state = initial_state({"kernel": jnp.ones((2, 2))}, experiment.step.optimizer, ())
    return state._replace(step=jnp.int32(step))


def test_a_step_is_logged_and_its_loss_shown(experiment, tmp_path):
    with open_recorder(tmp_path, experiment, 3) as recorder:
        recorder.log_step(4, {"loss": 2.34567})
        assert (recorder.bar.n, recorder.bar.total) == (3, 9)
        assert (recorder.bar.desc, recorder.bar.unit) == (tmp_path.name, "step")
        assert recorder.bar.postfix == "loss=2.346"
    assert read_metrics(tmp_path) == [{"step": 4, "loss": 2.34567}]


def test_a_probe_is_the_best_where_no_earlier_one_was_better(experiment, tmp_path):
    name = "probe/mlm_loss"  # less is better
    with open_recorder(tmp_path, experiment, 0) as recorder:
        assert recorder.log_probe(1, {name: 2.0})
        recorder.save(state_after(1, experiment), recorder.probes[1])
        assert not recorder.log_probe(2, {name: 3.0})
        assert not recorder.log_probe(3, {})  # none was due
    assert read_metrics(tmp_path) == [{"step": 1, name: 2.0}, {"step": 2, name: 3.0}]
    assert saved_probes(tmp_path) == {1: {name: 2.0}}
    # A run that resumes knows what was measured of its checkpoints.
    with open_recorder(tmp_path, experiment, 1) as recorder:
        assert not recorder.log_probe(2, {name: 2.5})
        assert recorder.log_probe(3, {name: 1.5})


def test_another_host_records_nothing(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "number", lambda: 1)
    experiment = experiment._replace(tracker="tensorboard")
    with open_recorder(tmp_path, experiment, 0) as recorder:
        assert recorder.is_silent
        assert recorder.bar.disable
        recorder.log_step(1, {"loss": 2.0})
        assert not recorder.log_probe(1, {"probe/mlm_loss": 2.0})
        recorder.save(state_after(1, experiment), {})
    assert recorder.probes == {}
    assert list(tmp_path.iterdir()) == []
