"""Pre-training as part of a pipeline, with the probe that its settings name."""

from pathlib import Path

from cocondenser_jax.pipelines import pretraining
from cocondenser_jax.settings import load_config

PROBE = ["--config.probe.data=d", "--config.probe.split=s", "--config.probe.passages=9"]


def test_a_model_is_trained_with_the_probe_of_its_settings_and_exported(monkeypatch):
    called = []
    for name in ("open_search", "split_files", "train", "export_run"):
        note = lambda *given, name=name: called.append((name, *given)) or {}  # noqa: E731
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
    assert (probe.every, probe.record) == (7, {})
