"""Runs: what they leave behind, how they resume, what they refuse."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.pretrain import loop
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.loop import train

RATES = ("spans_per_second", "tokens_per_second", "input_wait_share")


def logged(workdir: Path) -> list[dict[str, float]]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key not in RATES}
        for line in lines
    ]


def test_an_interrupted_run_resumes_bit_for_bit(
    config: ConfigDict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config.copy_and_resolve_references().unlock()
    config.model.hidden_dropout_prob = 0.1
    train(config, tmp_path / "whole")

    read = loop.read_batches

    def breaks_down(*args: Any, **kwargs: Any) -> Any:
        for step, batch in enumerate(read(*args, **kwargs)):
            if step == 3:
                raise RuntimeError("power failure")
            yield batch

    monkeypatch.setattr(loop, "read_batches", breaks_down)
    with pytest.raises(RuntimeError, match="power failure"):
        train(config, tmp_path / "broken")
    monkeypatch.undo()
    # A line that a kill cut short, and steps after the last checkpoint, are forgotten.
    with (tmp_path / "broken" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    train(config, tmp_path / "broken")

    assert logged(tmp_path / "broken") == logged(tmp_path / "whole")
    assert [line["step"] for line in logged(tmp_path / "whole")] == [1, 2, 3, 4, 5, 6]
    left, right = (load_run(tmp_path / name)[1] for name in ("broken", "whole"))
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_finished_run_holds_everything_it_decided(config: ConfigDict, tmp_path: Path) -> None:
    train(config, tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["config"]["seed"] == 0
    assert run["config"]["data"]["documents_per_step"] == 16
    assert len(run["data"]["sha256"]) == 64
    assert run["versions"]["jax"] == jax.__version__
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").is_file()
    assert any((tmp_path / "run" / "tensorboard").iterdir())
    steps = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert steps == ["4", "6"]  # the last two of every second step
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    for name in ("loss", "contrastive_loss", "head_mlm_loss", "learning_rate", *RATES):
        assert np.isfinite(line[name])

    # Running the same command again changes nothing.
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before

    # Another experiment may not resume in its folder ...
    other = config.copy_and_resolve_references().unlock()
    other.seed = 1
    with pytest.raises(UserError, match=r"config\.seed was 0, is 1"):
        train(other, tmp_path / "run")
    # ... but how a step is cut, or how often it is saved, may change.
    other.seed = 0
    other.train.chunk_size = 4
    other.checkpoint.every = 3
    train(other, tmp_path / "run")


def test_a_new_model_starts_with_the_frequencies_of_the_words(
    config: ConfigDict, tmp_path: Path
) -> None:
    config = config.copy_and_resolve_references().unlock()
    config.train.contrastive = False
    config.train.steps = 1
    config.optimizer.learning_rate = 0.0
    train(config, tmp_path / "run")
    _, params, _ = load_run(tmp_path / "run")
    store = open_store(Path(config.data.store))
    tokens = [
        token
        for span in range(store.n_spans)
        for token in store.read_spans(np.array([span]), 14)[0][0].tolist()
        if token != store.pad_id
    ]
    for token in (store.mask_id, tokens[0], tokens[7]):
        share = (tokens.count(token) + 1) / (len(tokens) + store.vocab_size)
        assert params["mlm"]["bias"][token] == pytest.approx(np.log(share), rel=1e-5)
    # Every token is as hard to guess as by its frequency alone, and no harder.
    counts = np.bincount(tokens) / len(tokens)
    entropy = -sum(share * np.log(share) for share in counts if share > 0)
    assert logged(tmp_path / "run")[0]["head_mlm_loss"] == pytest.approx(entropy, rel=0.15)


def test_stage_two_starts_with_stage_one(config: ConfigDict, tmp_path: Path) -> None:
    config = config.copy_and_resolve_references().unlock()
    config.train.contrastive = False
    train(config, tmp_path / "one")
    model_config, params, facts = load_run(tmp_path / "one")
    assert facts["step"] == 6
    assert all("contrastive_loss" not in line for line in logged(tmp_path / "one"))
    config.train.contrastive = True
    config.train.steps = 1
    config.optimizer.learning_rate = 0.0
    train(config, tmp_path / "two", warm_start=lambda: (model_config, params))
    for a, b in zip(
        jax.tree.leaves(load_run(tmp_path / "two")[1]), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_a_model_of_another_vocabulary_is_refused(config: ConfigDict, tmp_path: Path) -> None:
    train(config, tmp_path / "run")
    model_config, params, _ = load_run(tmp_path / "run")
    larger = type(model_config)(**model_config.to_dict() | {"vocab_size": 1000})
    with pytest.raises(UserError, match="build the store with the model's own tokenizer"):
        train(config, tmp_path / "other", warm_start=lambda: (larger, params))
    assert not (tmp_path / "other").exists()


def test_a_folder_with_something_else_is_left_alone(config: ConfigDict, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="already holds something"):
        train(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_is_no_run_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        load_run(tmp_path / "nothing")
