"""Pre-training as part of a pipeline, with the probe that its settings name."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.pipelines import pretraining
from cocondenser_jax.settings import load_config

PROBE = ["--config.probe.data=d", "--config.probe.split=s", "--config.probe.passages=9"]


def test_a_model_is_trained_with_the_probe_of_its_settings_and_exported(tmp_path, monkeypatch):
    called = []
    (tmp_path / "qrels").write_text("judgments")
    returned = {"open_search": lambda encode: {"found by": encode}}
    returned["split_files"] = {"qrels": tmp_path / "qrels"}
    for name in ("open_search", "split_files", "train", "export_run"):
        note = lambda *given, name=name: called.append((name, *given)) or returned.get(name)  # noqa: E731
        monkeypatch.setattr(pretraining, name, note)
    words = [*PROBE, "--config.probe.every=7"]
    config = load_config("configs/default.py", words, complete=False)
    pretraining.pretrain_model(config, Path("run"), Path("model"))
    opened, read, (_, *trained), exported = called
    assert opened == ("open_search", Path("d"), "s", 9)
    assert read == ("split_files", Path("d"), "s")
    assert exported == ("export_run", Path("run"), Path("model"))
    *given, (probe,) = trained
    assert given == [config, Path("run")]
    record = {"qrels": hashlib.sha256(b"judgments").hexdigest()}
    assert (probe.every, probe.record) == (7, record)
    assert probe.measure(SimpleNamespace(encode="the model")) == {"found by": "the model"}


def test_a_probe_is_of_a_folder_and_at_some_steps(monkeypatch):
    monkeypatch.setattr(pretraining, "open_search", pytest.fail)
    config = load_config("configs/default.py", ["--config.probe.every=7"], complete=False)
    assert pretraining.folder_probes(config) == []
    config = load_config("configs/default.py", [*PROBE, "--config.probe.every=0"], complete=False)
    with pytest.raises(UserError) as refused:
        pretraining.folder_probes(config)
    assert str(refused.value) == (
        "config.probe.data is 'd', but config.probe.every is 0: expected a number of steps between"
        " two probes"
    )
