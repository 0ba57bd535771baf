"""A tiny fine-tuning of a bi-encoder, which a test changes."""

import pytest

from cocondenser_jax.configs import finetune as finetune_config
from cocondenser_jax.retriever.data.trec import write_run
from cocondenser_jax.retriever.train import trainer
from cocondenser_jax.retriever.train.tasks import finetune
from tests.world import change_settings, read_metrics


@pytest.fixture
def config(model_folder, beir):
    config = finetune_config.get_config()
    change_settings(
        config,
        {
            "model.folder": str(model_folder),
            "data.folder": str(beir),
            "data.negatives_per_query": 0,
            "data.batch_size": 4,
            "model.query_length": 8,
            "model.passage_length": 16,
            "log_every": 1,
        },
    )
    return config


@pytest.fixture(scope="module")
def run_file(beir, tmp_path_factory):
    """Ten passages for each query, its positive first."""
    path = tmp_path_factory.mktemp("runs") / "bm25.trec"
    run = {f"q{i}": {f"d{(i + j) % 60}": 10.0 - j for j in range(10)} for i in range(24)}
    write_run(path, run)
    return path


@pytest.fixture
def resume(config, monkeypatch, tmp_path):
    """f(step, model): fine-tunes at once, and again with an interruption at the step.

    Compares both, and returns the logged steps and how many were made after the interruption.
    """
    step_end = trainer._MetricsCallback.on_step_end

    def compare(step, model):
        def interrupt(self, args, state, control, **kwargs):
            step_end(self, args, state, control, **kwargs)
            if state.global_step == step:
                raise RuntimeError("killed")

        finetune(config, tmp_path / "whole")
        monkeypatch.setattr(trainer._MetricsCallback, "on_step_end", interrupt)
        with pytest.raises(RuntimeError, match="killed"):
            finetune(config, tmp_path / "halves")
        assert not (tmp_path / "halves" / model).exists()
        monkeypatch.undo()
        made = []
        monkeypatch.setattr(
            trainer._MetricsCallback,
            "on_step_begin",
            lambda *args, **kwargs: made.append(1),
            raising=False,
        )
        finetune(config, tmp_path / "halves")

        whole, halves = read_metrics(tmp_path / "whole"), read_metrics(tmp_path / "halves")
        assert [m["loss"] for m in halves] == [m["loss"] for m in whole]
        weights = [tmp_path / run / model / "model.safetensors" for run in ("whole", "halves")]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        return [m["step"] for m in halves], len(made)

    return compare
