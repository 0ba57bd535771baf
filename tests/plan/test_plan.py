"""Plans: the real step, compiled for a TPU v3-8 that is not here."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.batches import BatchSpec
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.declare import AUTO
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.flops import encode_flops, forward_flops
from cocondenser_jax.plan import machines
from cocondenser_jax.plan import plan as module
from cocondenser_jax.plan.machines import Machine
from cocondenser_jax.plan.plan import (
    StepWork,
    count_launches,
    fit_gpu,
    plan_step,
    roofline,
    step_work,
)
from cocondenser_jax.pretrain.experiment import resolve_without_store
from cocondenser_jax.pretrain.limits import TPUS, DeviceLimits
from cocondenser_jax.pretrain.step import LossSettings, state_shapes
from cocondenser_jax.representation import Dense, Representation
from tests.plan.test_compiled import STEP
from tests.world import step_of

GIB = 2**30
SPEC = BatchSpec(seed=0, batch_size=256, length=128)


def small_plan(
    tmp_path, *overrides, config="configs/quickstart.py", topology="v3-8", compiler="libtpu"
):
    """Plans through the command line, in a process where XLA's optimizations are not turned off."""
    pytest.importorskip(compiler)
    out = tmp_path / "plan.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, "-m", "cocondenser_jax.cli", "plan", f"--topology={topology}"]
    command += [f"--config={config}", f"--json_out={out}", *overrides]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return dict(json.loads(out.read_text()))


BACKBONES = [("modernbert", 50_368)]
if os.environ.get("PLAN_GPU") == "all":
    BACKBONES += [("roberta", 50_265), ("xlm-roberta", 250_002), ("mpnet", 30_527)]


@pytest.mark.parametrize(("model_type", "vocabulary"), BACKBONES)
def test_other_backbones_have_their_vocabulary_and_compile(tmp_path, model_type, vocabulary):
    network = f"--config.model.model_type={model_type}"
    planned = small_plan(tmp_path, network)
    assert planned["fits"] == "yes"
    assert (planned["devices"], planned["spans per device"], planned["chunk size"]) == (8, 16, 16)
    assert 0 < planned["memory, in all (GiB)"] < planned["memory of a device (GiB)"] == 16
    words = 4 * vocabulary * 128 / GIB  # and the rest
    assert words < planned["memory, parameters (GiB)"] < words + 0.01


def test_a_batch_that_does_not_fit_is_named(tmp_path):
    # 8,192 spans a core, each with 26 rows of logits over 30,522 tokens: 26 GB.
    overrides = ("data.batch_size=32768", "train.chunk_size=8192", "data.length=64")
    planned = small_plan(tmp_path, *(f"--config.{x}" for x in overrides))
    assert planned["fits"].startswith("no: ")
    assert "Ran out of memory" in planned["fits"]
    assert "memory, in all (GiB)" not in planned


def test_a_batch_is_as_long_as_the_network_reads(monkeypatch):
    def check_batch(spec, chunk_size, longest, *others):
        raise UserError(f"{longest}")

    monkeypatch.setattr(module, "find_machine", lambda name: SimpleNamespace(devices=[None]))
    monkeypatch.setattr(module, "check_batch", check_batch)
    config = ModelConfig(model_type="roberta", max_position_embeddings=514, pad_token_id=1)
    shorter = dataclasses.replace(config, representation=Representation(max_length=256))
    for network, longest in ((config, 512), (shorter, 256)):
        with pytest.raises(UserError, match=f"^{longest}$"):
            plan_step(network, SimpleNamespace(loss=LossSettings()), SPEC, "v3-8")


def test_the_work_of_a_step_counts_what_the_gradient_cache_repeats():
    settings = LossSettings(dtype="bfloat16", chunk_size=64)
    model = ModelConfig()
    per_span = 3 * forward_flops(model, 128, 26) + encode_flops(model, 128)
    assert step_work(model, settings, SPEC, 512, 0).computed_flops == per_span
    # Without MLM the head is not computed.
    contrastive = settings._replace(objective="contrastive")
    computed = step_work(model, contrastive, SPEC, 512, 0).computed_flops
    assert computed == 4 * encode_flops(model, 128)


def test_the_vectors_that_are_gathered_are_those_of_all_sizes():
    settings = LossSettings(objective="contrastive")
    dense = (Dense(768, 1024),)
    for representation, n_numbers in (
        (Representation(), 768),
        (Representation(dense=dense), 1024),
        (Representation(sizes=(256,)), 256),
        (Representation(dense=dense, sizes=(1024, 512)), 1536),
    ):
        work = step_work(ModelConfig(representation=representation), settings, SPEC, 512, 0)
        assert work.vectors == 4 * 512 * n_numbers


def test_a_step_is_compiled_for_gpus_that_are_not_here(tmp_path):
    compiler = "jax_plugins.xla_cuda13"
    planned = small_plan(
        tmp_path, "--config.train.chunk_size=8", topology="h100-2", compiler=compiler
    )
    assert planned["fits"] == "yes"
    assert (planned["devices"], planned["hosts"], planned["spans per device"]) == (2, 1, 64)
    assert 0 < planned["memory, in all (GiB)"] < planned["memory that JAX takes of it (GiB)"]
    assert planned["memory that JAX takes of it (GiB)"] == 0.75 * 79.1
    assert planned["largest chunk size, by proportion"] == 64
    chunks = [planned[f"launches per chunk, pass {i}"] for i in (1, 2)]
    assert 2 * chunks[0] < chunks[1]  # the second goes there and back
    assert 8 * sum(chunks) < planned["launches per step"] < 12 * sum(chunks)
    # The gradients, and 128 vectors of 128 numbers with two whole numbers each, there and back.
    exchanged = 1e6 * planned["collectives (MB)"]
    expected = planned["memory, parameters (GiB)"] * GIB + 4 * 128 * (128 + 2 + 128)
    assert exchanged == pytest.approx(expected, rel=1e-3)


@pytest.mark.skipif(os.environ.get("PLAN_GPU") != "all", reason="make plan-gpu: BERT-base")
@pytest.mark.parametrize("topology", ["h100-1", "h100-8", "l4-1", "rtx4090-1"])
@pytest.mark.parametrize("stage", ["condenser", "cocondenser"])
def test_the_papers_steps_are_compiled_for_gpus(tmp_path, stage, topology):
    config = f"configs/{stage}.py"
    compiler = "jax_plugins.xla_cuda13"
    planned = small_plan(tmp_path, config=config, topology=topology, compiler=compiler)
    assert planned["fits"] == "yes"
    assert planned["memory, in all (GiB)"] < 9


@pytest.mark.skipif(os.environ.get("PLAN_GPU") != "all", reason="make plan-gpu: ModernBERT-base")
@pytest.mark.parametrize("topology", ["l4-1", "rtx4090-1"])
def test_modernbert_trains_on_8192_tokens_with_24_gb(tmp_path, topology):
    """By XLA, attention alone would keep 33 GiB of weights."""
    network = {
        "model_type": "modernbert",
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "skip_from": 11,
        "max_position_embeddings": 8192,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    planned = small_plan(
        tmp_path,
        *(f"--config.model.{name}={value}" for name, value in network.items()),
        "--config.data.length=8192",
        "--config.data.batch_size=16",
        "--config.train.chunk_size=1",
        config="configs/cocondenser.py",
        topology=topology,
        compiler="jax_plugins.xla_cuda13",
    )
    assert planned["attention"] == "gpu"
    assert planned["fits"] == "yes"


@pytest.mark.parametrize(
    ("available", "fits", "largest"),
    [
        (10.0, "yes", 64),
        (3.0, "yes", 16),
        (2.9, "no: 3.00 GiB, and JAX takes 2.90", 8),
        (1, "no", 0),
    ],
)
def test_a_gpus_memory_decides_what_fits(available, fits, largest):
    """A chunk of 16 takes 2 GiB of activations beside 1 GiB: 64 of the 64 spans take 8."""
    memory = {"activations and temporaries": 2 * GIB, "in all": 3 * GIB}
    found = fit_gpu(available, memory, SPEC, 64, 16)
    assert found[0].startswith(fits)
    assert found[1] == largest


def test_chunks_of_copies_have_no_odd_size():
    memory = {"activations and temporaries": 2 * GIB, "in all": 3 * GIB}
    copies = SPEC._replace(example="copies", decoder_mask_probability=0.5)
    assert fit_gpu(1.2, memory, SPEC, 64, 16)[1] == 1
    assert fit_gpu(1.2, memory, copies, 64, 16)[1] == 0


def test_launches_and_exchanges_are_counted():
    assert count_launches(STEP) == {
        "launches per step": 13,
        "launches per chunk": 4,
        "collectives per step": 1,
        "collectives (MB)": 16 / 1e6,
    }


def test_each_pass_over_the_chunks_is_counted():
    (loop,) = (line for line in STEP.splitlines() if "%loop = " in line)
    found = count_launches(STEP.replace(loop, f"{loop.replace('%loop', '%first')}\n{loop}"))
    launches = {name: number for name, number in found.items() if "launches" in name}
    assert launches == {
        "launches per step": 25,
        "launches per chunk, pass 1": 4,
        "launches per chunk, pass 2": 4,
    }


@pytest.mark.effect("plan --config", "plan --topology", "plan --json_out")
def test_what_each_flag_of_plan_does(tmp_path, monkeypatch):
    def pretend(model_config, settings, spec, topology):
        return {"on": topology, "layers": model_config.num_hidden_layers}

    monkeypatch.setattr(module, "plan_step", pretend)
    monkeypatch.setattr(machines, "prepare_to_plan", lambda: None)  # this process goes on
    command = ["plan", "--config=configs/small.py", "--topology=v5e-8"]
    assert main([*command, f"--json_out={tmp_path}/plan.json"]) == 0
    assert json.loads((tmp_path / "plan.json").read_text()) == {"on": "v5e-8", "layers": 4}


SIZES = {"argument": 5, "output": 4, "alias": 3, "temp": 2, "generated_code": 0.5}  # GiB


@pytest.fixture
def asked(monkeypatch):
    """What is compiled, on two hosts of four devices, in place of what a compiler would."""
    analysis = SimpleNamespace(**{f"{k}_size_in_bytes": int(x * GIB) for k, x in SIZES.items()})
    devices = [
        SimpleNamespace(process_index=i // 4, device_kind="TPU", platform="tpu") for i in range(8)
    ]
    machine = Machine(devices, TPUS["v3"], gpu_memory=None, options={"an": "option"})
    steps = []

    def compile_step(*arguments):
        steps.append(arguments)
        return SimpleNamespace(memory_analysis=lambda: analysis, as_text=lambda: STEP)

    monkeypatch.setattr(module, "find_machine", lambda name: machine)
    monkeypatch.setattr(module, "compile_step", compile_step)
    return steps


@pytest.mark.parametrize(("kept_chunks", "passes"), [(0, 2), (1, 2), (2, 1)])
def test_what_is_planned_is_compiled(config, asked, monkeypatch, kept_chunks, passes):
    laid_out = []
    choose = module.choose_layout
    monkeypatch.setattr(module, "choose_layout", lambda *of: (laid_out.append(of), choose(*of))[1])
    model = ModelConfig(**resolve_without_store(config, 1, 50, 0).network)
    settings = step_of(config, 6)
    loss = settings.loss._replace(chunk_size=2, kept_chunks=kept_chunks)
    spec = BatchSpec(seed=0, batch_size=16, length=14)
    planned = plan_step(model, settings._replace(loss=loss), spec, "v3-8")
    assert (planned["kept chunks"], planned["passes"]) == (kept_chunks, passes)
    ((*given, devices, options),) = asked
    assert given == [model, settings._replace(loss=loss), spec]
    assert (len(devices), options) == (8, {"an": "option"})
    ((*layout, _),) = laid_out
    assert layout == [model, loss, 14]
    work = step_work(model, loss, spec, 4, 0)
    flops = (planned["model GFLOP per span"], planned["computed GFLOP per span, with repetitions"])
    assert flops == (work.model_flops / 1e9, work.computed_flops / 1e9)
    size = f"bert, {model.num_hidden_layers} layers of {model.hidden_size}"
    assert (planned["topology"], planned["network"]) == ("v3-8", f"{size}, and 1 of a head")
    assert module._network(dataclasses.replace(model, n_head_layers=0)) == size


@pytest.mark.parametrize(("gpu_memory", "available"), [(8.0, 8.0), (None, 16)])
def test_a_plan_for_gpus_also_says_what_jax_takes_and_launches(
    config, asked, monkeypatch, gpu_memory, available
):
    machine = module.find_machine("")._replace(gpu_memory=gpu_memory)
    monkeypatch.setattr(module, "find_machine", lambda name: machine)
    fitted = []
    monkeypatch.setattr(module, "fit_chunks", lambda *given: fitted.append(given) or given[0])
    model = ModelConfig(**resolve_without_store(config, 1, 50, 0).network)
    spec = BatchSpec(seed=0, batch_size=16, length=16)
    planned = plan_step(model, step_of(config, 6), spec, "h100-8")
    assert [given[1:4] for given in fitted] == [(spec, 4, available * GIB)]
    expected = {
        "fits": "no: 8.50 GiB, and JAX takes 8.00 (XLA_CLIENT_MEM_FRACTION)",
        "memory that JAX takes of it (GiB)": 8.0,
        "largest chunk size, by proportion": 1,  # of 2, which take 2 GiB beside 6.5
        **count_launches(STEP),
    }
    others = dict.fromkeys(expected) | {"fits": "yes"}
    assert {each: planned.get(each) for each in expected} == (expected if gpu_memory else others)


def test_what_does_not_fit_is_planned_with_small_chunks(config, asked, monkeypatch):
    def compile_step(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory.\nMore of it.")

    monkeypatch.setattr(module, "compile_step", compile_step)
    model = ModelConfig(**resolve_without_store(config, 1, 50, 0).network)
    settings = step_of(config, 6)
    loss = settings.loss._replace(chunk_size=AUTO, kept_chunks=AUTO)
    spec = BatchSpec(seed=0, batch_size=512, length=14)
    planned = plan_step(model, settings._replace(loss=loss), spec, "v3-8")
    assert planned["fits"] == "no: Ran out of memory."
    assert [planned[each] for each in ("chunk size", "kept chunks", "passes")] == [64, 0, 2]


def test_memory_is_told_by_kind_and_adds_up(config, asked):
    model = ModelConfig(**resolve_without_store(config, 1, 50, 0).network)
    settings = step_of(config, 6)
    spec = BatchSpec(seed=0, batch_size=16, length=16)
    planned = plan_step(model, settings, spec, "v3-8")

    n_params = sum(x.size for x in jax.tree.leaves(state_shapes(model, settings).params))
    params, optimizer = 4 * n_params / GIB, planned["memory, optimizer (GiB)"]
    # 32 vectors are gathered; their cotangents and the gradients go around twice.
    moved = 4 * (3 * 32 * model.hidden_size + 2 * n_params)
    assert optimizer == pytest.approx(2 * params, rel=1e-3)  # and a counter
    expected = {
        "devices": 8,
        "hosts": 2,
        "spans per device": 4,
        "model TFLOP per step": planned["model GFLOP per span"] * 32 / 1e3,
        "memory, parameters (GiB)": params,
        "memory, batch and padding of the above (GiB)": 5 - params - optimizer,
        "memory, gradient sum (GiB)": params,
        "memory, activations and temporaries (GiB)": 2 - params,
        "memory, program (GiB)": 0.5,
        "memory, in all (GiB)": 5 + (4 - 3) + 2 + 0.5,
        "memory of a device (GiB)": 16,
        "roofline, network (ms)": 1e3 * moved * 7 / 8 / 164e9,
        module.WHOLE_RUN: planned["roofline, step (ms)"] / 1e3 * 6 / 3600,
    }
    assert {name: planned[name] for name in expected} == pytest.approx(expected)

    def n_passes(objective, chunk_size, kept_chunks):
        changes = {"chunk_size": chunk_size, "kept_chunks": kept_chunks}
        loss = settings.loss._replace(objective=objective, **changes)
        return plan_step(model, settings._replace(loss=loss), spec, "v3-8")["passes"]

    assert [n_passes("cocondenser", *of) for of in ((0, 0), (2, 0), (2, 1), (2, 2))] == [1, 2, 2, 1]
    assert n_passes("condenser", 2, 0) == 1


def test_a_step_takes_what_its_slowest_parts_take():
    """Of 10 spans of 3 TFLOP at 60 TFLOP/s, 1.2 TB at 0.9 TB/s, and rings of 4 cores at 70 GB/s."""
    limits = DeviceLimits(memory=16, compute=60.0, bandwidth=900.0, network=70.0)
    work = StepWork(
        model_flops=2 * 10**12,
        computed_flops=3 * 10**12,
        traffic=12 * 10**11,
        gradients=14 * 10**9,
        vectors=7 * 10**9,
    )
    bounds = roofline(limits, work, 10, 4)
    network = 0.75 * 28 / 70 + 2 * 0.75 * (28 + 14) / 70
    expected = {"arithmetic": 30 / 60, "memory": 1200 / 900, "network": network}
    assert bounds == pytest.approx(expected | {"step": 1200 / 900 + network})


def test_the_work_of_a_step_grows_with_its_chunks():
    model, n = ModelConfig(), 1000  # parameters
    settings = LossSettings(dtype="bfloat16", chunk_size=8)
    direct = step_work(model, settings._replace(chunk_size=0), SPEC, 32, n)
    cached = step_work(model, settings, SPEC, 32, n)
    assert cached.model_flops == direct.model_flops == direct.computed_flops
    assert cached.computed_flops == direct.model_flops + encode_flops(model, 128)
    # Two bytes a number read forwards and backwards, thrice with the cache; a sum read and written.
    assert direct.traffic == n * (2 * 2 + 8 + 28)
    assert cached.traffic == n * (4 * (3 * 2 + 8) + 28)
    for n_kept in (1, 3, 4, 9):  # of four chunks; those that are kept are read as one
        kept = step_work(model, settings._replace(kept_chunks=n_kept), SPEC, 32, n)
        n_twice = max(4 - n_kept, 0)
        assert kept.computed_flops == direct.model_flops + encode_flops(model, 128) * n_twice // 4
        assert kept.traffic == n * (n_twice * (3 * 2 + 8) + (2 * 2 + 8) + 28)
    alone = step_work(model, settings._replace(objective="condenser"), SPEC, 32, n)
    assert (alone.computed_flops, alone.traffic) == (direct.model_flops, n * (4 * (2 * 2 + 8) + 28))


@pytest.mark.parametrize("steps", [0, 6])
def test_a_plan_with_a_store_has_its_vocabulary_and_length(config, steps):
    config = config.copy_and_resolve_references().unlock()
    config.train.update({"steps": steps, "epochs": 4.0, "least_steps": 0})
    store = open_store(Path(config.data.store))
    experiment = module.resolve_to_plan(config)
    assert experiment.network["vocab_size"] == store.vocab_size
    assert experiment.n_steps == (steps or 12)  # of 48 documents, 16 a step


def test_another_fault_of_the_compiler_is_no_lack_of_memory(config, asked, monkeypatch):
    def compile_step(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: the compiler has a fault")

    monkeypatch.setattr(module, "compile_step", compile_step)
    model = ModelConfig(**resolve_without_store(config, 1, 50, 0).network)
    spec = BatchSpec(seed=0, batch_size=16, length=14)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the compiler has a fault"):
        plan_step(model, step_of(config, 6), spec, "v3-8")


def test_without_nvidias_assembler_it_says_how_to_get_it(config, asked, monkeypatch):
    def compile_step(*_):
        said = "NOT_FOUND: Couldn't find a suitable version of ptxas."
        raise jax.errors.JaxRuntimeError(said)

    monkeypatch.setattr(module, "compile_step", compile_step)
    model = ModelConfig(**resolve_without_store(config, 1, 50, 0).network)
    spec = BatchSpec(seed=0, batch_size=16, length=14)
    with pytest.raises(UserError, match=r"a GPU needs ptxas, .*pip install .*\[plan-gpu\]"):
        plan_step(model, step_of(config, 6), spec, "h100-8")


def test_the_vectors_that_are_gathered_are_those_that_are_compared():
    """Of the inverse cloze task the texts alone; without a contrastive loss none."""
    for objective, n_gathered in (("cocondenser", 512), ("ict", 256), ("condenser", 0)):
        settings = LossSettings(objective=objective)
        work = step_work(ModelConfig(), settings, SPEC, 512, 0)
        assert work.vectors == 4 * n_gathered * 768
