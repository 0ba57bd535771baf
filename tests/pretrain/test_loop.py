"""Runs: what they leave behind, how they resume, what they refuse."""

import contextlib
import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
import torch
from ml_collections import ConfigDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from checks.reference import (
    contrastive_loss,
    full_labels,
    mlm_sum,
    open_reference,
)
from cocondenser_jax.cli import main
from cocondenser_jax.configs import default
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import BatchSpec, make_batch
from cocondenser_jax.corpus.masking import mask_capacity
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import flatten
from cocondenser_jax.model import attention, encoder
from cocondenser_jax.model.flops import forward_flops
from cocondenser_jax.pretrain import loop
from cocondenser_jax.pretrain import step as step_module
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.devices import mapped_step
from cocondenser_jax.pretrain.experiment import resolve
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.warm_start import new_model
from tests.lines import whole
from tests.world import read_metrics, write_experiment

pytestmark = pytest.mark.usefixtures("one_length")

RATES = ("spans_per_second", "tokens_per_second", "input_wait_share", "model_tflops_per_second")
# No value is the default. What is True or False, or "bfloat16", there is the other here.
UNUSUAL = {
    "seed": 5,
    "data": {"batch_size": 16, "length": 14},
    "model": {
        "model_type": "roberta",
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 20,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "n_head_layers": 1,
        "skip_from": 1,
        "late_mlm": False,
    },
    "train": {
        "steps": 9,
        "mlm_weight": 0.5,
        "mlm_reduction": "span_sum",
        "chunk_size": 2,
        "dtype": "float32",
    },
    "optimizer": {
        "learning_rate": 1e-2,
        "warmup_ratio": 0.4,
        "weight_decay": 0.3,
        "clip_norm": 0.3,
        "b1": 0.7,
        "b2": 0.9,
        "eps": 1e-2,
    },
    "checkpoint": {"every": 2, "keep": 3},
    "probe": {"every": 0},
    "log_every": 4,
    "tracker": "tensorboard",
}


class Run(NamedTuple):
    """A run, and what its step was computed of."""

    workdir: Path
    config: ConfigDict
    dropped: set[tuple[int, float]]  # the axes of what went through dropout, and the rate
    chunks: set[tuple[int, int]]  # chunks of a device, spans of a chunk
    compared: dict  # what hosts are found to have alike


@pytest.fixture(scope="module")
def unusual(store_folder, tmp_path_factory):
    """A run of `UNUSUAL`. Nothing is dropped in it, so that PyTorch can compute the same."""
    config = default.get_config()
    config.update(UNUSUAL)
    config.data.store = str(store_folder)
    run = Run(tmp_path_factory.mktemp("loop") / "run", config, set(), set(), {})

    def dropout(x, rate, seeds):
        run.dropped.add((x.ndim, rate))
        return x

    def loss_gradient(params, chunks, **functions):
        run.chunks.add(jax.tree.leaves(chunks)[0].shape[:2])
        return gradient(params, chunks, **functions)

    def compare(facts):
        run.compared.update(facts)
        return broadcast_and_compare(facts)

    gradient = step_module.loss_gradient
    broadcast_and_compare = loop.hosts.broadcast_and_compare
    with pytest.MonkeyPatch.context() as patch:
        for module in (encoder, attention):
            patch.setattr(module, "dropout", dropout)
        patch.setattr(step_module, "loss_gradient", loss_gradient)
        patch.setattr(loop.hosts, "broadcast_and_compare", compare)
        train(config, run.workdir)
    return run


def logged(workdir):
    lines = read_metrics(workdir)
    return [{key: value for key, value in line.items() if key not in RATES} for line in lines]


def test_an_interrupted_run_resumes_bit_for_bit(config, tmp_path, monkeypatch):
    config = config.copy_and_resolve_references().unlock()
    config.model.hidden_dropout_prob = 0.1
    config.probe.every = 3
    train(config, tmp_path / "whole")

    read = loop.read_batches

    def breaks_down(*args, **kwargs):
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
    assert [line["step"] for line in logged(tmp_path / "whole")] == [1, 2, 3, 3, 4, 5, 6, 6]
    left, right = (load_run(tmp_path / name)[1] for name in ("broken", "whole"))
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


def torch_run(model, store):
    """The steps of `UNUSUAL` in PyTorch: what each would log, and the tensors at the end."""
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": 0.3},
            {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.7, 0.9),
        eps=1e-2,
    )
    lines = []
    for number in range(9):
        batch = make_batch(store, BatchSpec(seed=5, batch_size=16, length=14), number)
        labels = full_labels(batch)
        ids, mask = map(torch.from_numpy, (batch.input_ids_SxL, batch.attention_mask_SxL))
        output = model(ids, mask, late_mlm=False)
        mlm = mlm_sum(output.head_logits_BxLxV, labels)
        contrast = contrastive_loss(output.late_BxLxD[:, 0])
        loss = 0.5 * mlm / 32 + contrast
        optimizer.zero_grad()
        loss.backward()
        rate = 1e-2 * min((number + 1) / 4, (9 - number) / 5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        assert norm > 0.3
        optimizer.step()
        lines.append(
            {
                "step": number + 1,
                "loss": loss.item(),
                "head_mlm_loss": mlm.item() / batch.weights_SxM.sum(),
                "contrastive_loss": contrast.item(),
                "learning_rate": rate,
                "gradient_norm": norm.item(),
            }
        )
    named = model.named_parameters()
    return lines, {name.removeprefix("lm."): p.detach().numpy() for name, p in named}


@pytest.mark.effect("pretrain seed", "pretrain data.store", "pretrain data.batch_size")
@pytest.mark.effect("pretrain data.length", "pretrain model.model_type")
@pytest.mark.effect("pretrain model.hidden_size", "pretrain model.num_hidden_layers")
@pytest.mark.effect("pretrain model.num_attention_heads", "pretrain model.intermediate_size")
@pytest.mark.effect("pretrain model.max_position_embeddings", "pretrain model.hidden_dropout_prob")
@pytest.mark.effect("pretrain model.attention_probs_dropout_prob", "pretrain model.n_head_layers")
@pytest.mark.effect("pretrain model.skip_from", "pretrain model.late_mlm", "pretrain train.steps")
@pytest.mark.effect("pretrain train.mlm_weight", "pretrain train.mlm_reduction")
@pytest.mark.effect("pretrain train.chunk_size", "pretrain train.dtype")
@pytest.mark.effect("pretrain optimizer.learning_rate", "pretrain optimizer.warmup_ratio")
@pytest.mark.effect("pretrain optimizer.weight_decay", "pretrain optimizer.clip_norm")
@pytest.mark.effect("pretrain optimizer.b1", "pretrain optimizer.b2", "pretrain optimizer.eps")
@pytest.mark.effect("pretrain checkpoint.every", "pretrain checkpoint.keep", "pretrain log_every")
@pytest.mark.effect("pretrain tracker")
def test_a_run_does_what_its_settings_say(unusual, tmp_path):
    """PyTorch makes the same steps; the network, the batches and the chunks have their sizes."""
    defaults = flatten(default.get_config().to_dict())
    changed = [name for name, x in flatten(unusual.config.to_dict()).items() if x != defaults[name]]
    assert set(defaults) - set(changed) == {
        *("warm_start", "init_head", "train.objective", "train.epochs", "train.skip_nonfinite"),
        *("model.representation", "data.pairs"),  # tests/pretrain/test_step.py
        "train.least_steps",  # tests/pretrain/test_experiment.py
        "model.scale",  # tests/pretrain/test_scale.py
        "model.sizes",  # tests/pretrain/test_sizes.py
        *("train.attention", "train.kept_chunks"),  # tests/pretrain/test_layout.py
        # tests/pretrain/test_weak_decoder.py:
        *("data.mask_probability", "data.decoder_mask_probability"),
        *(f"probe.{name}" for name in ("documents", "data", "split", "passages")),
    }
    store = open_store(Path(unusual.config.data.store))
    model_config, params = new_model(resolve(unusual.config, store), store)
    export_folder(params, model_config, store.tokenizer_folder, tmp_path / "model", {})
    before = to_tensors(params, model_config)
    lines, expected = torch_run(open_reference(tmp_path / "model"), store)

    assert [line["step"] for line in logged(unusual.workdir)] == [4, 8, 9]
    for line in logged(unusual.workdir):
        assert line == pytest.approx(lines[int(line["step"]) - 1], rel=1e-3)
    events = EventAccumulator(str(unusual.workdir / "tensorboard")).Reload()
    for name in logged(unusual.workdir)[0].keys() - {"step"}:
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert shown == [(line["step"], line[name]) for line in logged(unusual.workdir)]
    trained = to_tensors(load_run(unusual.workdir)[1], model_config)
    assert trained.keys() == expected.keys()
    moved = {name: tensor - before[name] for name, tensor in expected.items()}
    whole = np.linalg.norm([np.linalg.norm(x) for x in moved.values()])
    for name, tensor in expected.items():
        # Of the whole: some biases hardly move, and what moves them is rounding.
        assert np.linalg.norm(trained[name] - tensor) <= 1e-3 * whole, name

    shapes = {name: value.shape for name, value in trained.items()}
    assert shapes["roberta.embeddings.position_embeddings.weight"] == (20, 16)
    assert shapes["roberta.encoder.layer.1.intermediate.dense.weight"] == (24, 16)
    assert not any("layer.2" in name or "c_head.1" in name for name in shapes)
    assert unusual.dropped == {(3, 0.2), (4, 0.3)}  # hidden states; heads' weights
    assert unusual.chunks == {(2, 2)}
    steps = sorted(path.name for path in (unusual.workdir / "checkpoints").iterdir())
    assert steps == ["6", "8", "9"]


def test_a_finished_run_holds_everything_it_decided(unusual, tmp_path, caplog):
    shutil.copytree(unusual.workdir, tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["config"]["seed"] == 5
    assert run["config"]["data"]["batch_size"] == 16
    assert len(run["data"]["sha256"]) == 64
    assert run["versions"]["jax"] == jax.__version__
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").is_file()
    line = read_metrics(tmp_path / "run")[-1]
    for name in RATES:
        assert np.isfinite(line[name])
    model_config, _, _ = load_run(tmp_path / "run")
    flops = 3 * forward_flops(model_config, 14, mask_capacity(14))
    assert line["model_tflops_per_second"] == pytest.approx(line["spans_per_second"] * flops / 1e12)
    assert "mfu" not in line  # the peak of these devices is not known

    # Running the same command again changes nothing.
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with caplog.at_level(logging.INFO):
        train(unusual.config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    store = open_store(Path(unusual.config.data.store))
    n_tokens = 9 * 32 * min(store.n_tokens / store.n_spans + 2, 14)
    assert round(n_tokens, -1) == 4030  # three digits
    said = "9 steps of 16 documents of two spans, 3 epochs, about 4,030 tokens"
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    assert caplog.messages[:3] == [
        f"{tmp_path}/run: {said}, on {devices}",
        f"{tmp_path}/run: spans of the store have up to 16 tokens, and config.data.length reads 14"
        " of them: the rest of a longer one is never read",
        f"{tmp_path}/run: resuming after step 9",
    ]
    assert f"{tmp_path}/run: finished all 9 steps" in caplog.messages  # nothing to time
    assert (run["computed"]["devices"], run["computed"]["device"]) == (
        jax.device_count(),
        jax.devices()[0].device_kind,
    )

    # Another experiment may not resume in its folder ...
    other = unusual.config.copy_and_resolve_references().unlock()
    other.seed = 1
    with pytest.raises(UserError, match=r"config\.seed=5, now it is 1"):
        train(other, tmp_path / "run")
    # ... but how a step is cut, or how often it is saved, may change.
    other.seed = 5
    other.train.chunk_size = 4
    other.checkpoint.every = 3
    train(other, tmp_path / "run")


def test_hosts_compare_all_in_which_they_could_differ(unusual):
    run = json.loads((unusual.workdir / "run.json").read_text())
    assert json.loads(json.dumps(unusual.compared)) == {
        "config": run["config"],
        "data": run["data"]["sha256"],
        "probe.data": {},
        "model": run["model"],
        "what their kernel of attention gives": "xla",
        "train.chunk_size": 2,
        "train.kept_chunks": 0,
    }


def test_rates_are_those_of_all_hosts(unusual, monkeypatch):
    store = open_store(Path(unusual.config.data.store))
    experiment = resolve(unusual.config, store)
    model_config = load_run(unusual.workdir)[0]
    # Begun at 1; waits from 2 to 4 and from 5 to 6; ends at 11.
    seconds = iter([1, 2, 4, 5, 6, 7, 11, 20])
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    monkeypatch.setattr(loop.hosts, "count", lambda: 3)
    monkeypatch.setattr(loop, "peak_flops", lambda devices, dtype: {"float32": 1e9}[dtype])
    rates = loop._Rates(model_config, experiment)
    batches = [make_batch(store, experiment.batches, step) for step in (0, 1)]
    assert [*rates.counted(iter(batches))] == batches
    n_tokens = sum(int(batch.attention_mask_SxL.sum()) for batch in batches)
    flops = 3 * forward_flops(model_config, 14, mask_capacity(14)) * 19.2
    assert rates.since_last() == pytest.approx(
        {
            "spans_per_second": 3 * 2 * 32 / 10,
            "tokens_per_second": 3 * n_tokens / 10,
            "input_wait_share": 0.3,
            "model_tflops_per_second": flops / 1e12,
            "mfu": flops / 1e9,
        }
    )
    assert rates.logged == [pytest.approx(3 * n_tokens / 10)]
    assert (rates.since, rates.n_spans, rates.n_tokens, rates.waited) == (20, 0, 0, 0)


def test_titles_are_counted_by_documents(config, tmp_path, caplog, monkeypatch):
    config = config.copy_and_resolve_references().unlock()
    config.data.pairs = "title"
    config.train.objective = "contrastive"
    config.train.steps = 1
    with caplog.at_level(logging.INFO):
        train(config, tmp_path / "run")
    assert f"{tmp_path}/run: 1 steps of 16 documents, 0.333 epochs" in caplog.text
    (line,) = (each for each in read_metrics(tmp_path / "run") if "tokens_per_second" in each)
    speed = f"{line['tokens_per_second']:,.0f} tokens a second"
    assert f"{tmp_path}/run: finished all 1 steps, {speed}" in caplog.messages
    assert "the store is small" not in caplog.text
    assert loop._MANY_EPOCHS == 40
    monkeypatch.setattr(loop, "_MANY_EPOCHS", 0.3)
    train(config, tmp_path / "run")
    small = "the store is small for this run; add text, or give fewer config.train.steps"
    assert f"{tmp_path}/run: each text is seen 0 times: {small}" in caplog.messages


def test_spans_that_are_not_read_to_their_end_are_warned_of(config, tmp_path, caplog):
    config = config.copy_and_resolve_references().unlock()
    config.train.steps = 1
    assert open_store(Path(config.data.store)).max_length == config.data.length == 16
    train(config, tmp_path / "run")
    assert "never read" not in caplog.text
    config.data.length = 15
    train(config, tmp_path / "shorter")
    said = "spans of the store have up to 16 tokens, and config.data.length reads 15 of them"
    assert f"{tmp_path}/shorter: {said}: the rest of a longer one is never read" in caplog.text


def test_a_new_model_starts_with_the_frequencies_of_the_words(config, tmp_path):
    config = config.copy_and_resolve_references().unlock()
    config.train.objective = "condenser"
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


@pytest.mark.effect("pretrain --profile_dir")
def test_some_steps_after_the_first_are_traced(config, tmp_path, monkeypatch):
    trace = jax.profiler.trace
    happened = []

    @contextlib.contextmanager
    def recorded(folder):
        happened.append("begins")
        with trace(folder):
            yield
        happened.append("ends")

    def stepping(*arguments):
        step = mapped_step(*arguments)
        return lambda state, batch: happened.append("step") or step(state, batch)

    monkeypatch.setattr(jax.profiler, "trace", recorded)
    monkeypatch.setattr(loop, "mapped_step", stepping)
    experiment = write_experiment(tmp_path, config)
    command = ["pretrain", f"--config={experiment}", f"--workdir={tmp_path}/run"]
    assert main([*command, f"--profile_dir={tmp_path}/profile"]) == 0
    assert happened == ["step", "begins", *["step"] * 4, "ends", "step"]
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_only_the_batch_goes_to_the_devices_between_steps(config, tmp_path, monkeypatch):
    read = loop.read_batches

    def guarded(*args, **kwargs):
        batches = read(*args, **kwargs)
        yield next(batches)
        with jax.transfer_guard("disallow"):
            yield from batches

    monkeypatch.setattr(loop, "read_batches", guarded)
    config = config.copy_and_resolve_references().unlock()
    config.probe.every = 3
    train(config, tmp_path / "run")
    assert logged(tmp_path / "run")[-1]["step"] == 6


@pytest.mark.effect("pretrain train.objective")
def test_stage_two_starts_with_stage_one(config, tmp_path):
    config = config.copy_and_resolve_references().unlock()
    config.train.objective = "condenser"
    train(config, tmp_path / "one")
    _, params, facts = load_run(tmp_path / "one")
    assert facts["step"] == 6
    assert all("contrastive_loss" not in line for line in logged(tmp_path / "one"))
    config.train.objective = "cocondenser"
    config.train.steps = 1
    config.optimizer.learning_rate = 0.0
    config.warm_start = str(tmp_path / "one")
    train(config, tmp_path / "two")
    for a, b in zip(
        jax.tree.leaves(load_run(tmp_path / "two")[1]), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_a_folder_with_something_else_is_left_alone(config, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(
        UserError, match=whole("TMP already exists: choose a new folder, or remove it first")
    ):
        train(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_is_no_run_cannot_be_loaded(tmp_path):
    with pytest.raises(
        UserError, match=whole("TMP/nothing is not a run folder: it has no run.json")
    ):
        load_run(tmp_path / "nothing")
