"""Machines that are not here: their names, their devices, and what a process does to find them."""

import json
import os
import subprocess
import sys

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.plan import machines as module
from cocondenser_jax.plan.machines import describe_to_xla, find_machine
from cocondenser_jax.plan.names import require_machine
from cocondenser_jax.pretrain.limits import CARDS


@pytest.fixture
def prepared(monkeypatch):
    """Sets what `prepare_to_plan` sets, for one test."""
    pytest.importorskip("libtpu")
    for name, value in module.LIBTPU_ALONE.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("topology", "n_cores", "n_hosts"),
    [
        ("v2-8", 8, 1),
        ("v3-8", 8, 1),
        ("v4-8", 4, 1),
        ("v5e-8", 8, 1),
        ("v5p-8", 4, 1),
        ("v6e-8", 8, 1),
        ("v3:4x4", 32, 4),
        ("v5e:2x4", 8, 2),
    ],
)
@pytest.mark.usefixtures("prepared")
def test_a_core_is_what_jax_calls_a_device(topology, n_cores, n_hosts):
    """A machine has one host, as it is rented; a slice has those that libtpu gives it."""
    devices = find_machine(topology).devices
    assert len(devices) == n_cores
    assert len({device.process_index for device in devices}) == n_hosts


@pytest.mark.parametrize(
    "topology", ["v9-8", "v3:7x9", "v3", "tpu", "h100", "h100-0", "h100-9", "h100-x", "rtx3090-1"]
)
@pytest.mark.usefixtures("prepared")
def test_unknown_machines_are_refused(topology):
    reason = r' \(Topology layout "v3:7x9" is .*\)' if topology == "v3:7x9" else ""  # libtpu's
    said = f"^unknown topology '{topology}'{reason}: expected one of v2-8"
    with pytest.raises(UserError, match=said):
        find_machine(topology)


@pytest.mark.parametrize("name", ["h100-1", "h100-8", "v3-8", "v5e:2x4"])
def test_the_names_of_machines_are_known_without_their_libraries(name):
    require_machine(name)


def test_without_libtpu_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install .*\[tpu\]"):
        find_machine("v3-8")


# Of a multiprocessor in a cycle: bfloat16 operations of its tensor cores with sums in float32, from
# the white papers on the architectures. The H100's reach theirs at 1.83 GHz, and so the H200's.
OPERATIONS = {"h100": 4096, "h200": 4096, "a100-80gb": 2048, "a100-40gb": 2048, "l4": 1024}
OPERATIONS["rtx4090"] = 512
TENSOR_CLOCKS = {"h100": 1.83, "h200": 1.83}


@pytest.mark.parametrize("name", CARDS)
def test_the_rate_of_a_card_is_that_of_its_tensor_cores(name):
    card = CARDS[name]
    clock = TENSOR_CLOCKS.get(name, card.clock)
    tflops = card.multiprocessors * clock * OPERATIONS[name] / 1e3
    assert card.limits.compute == pytest.approx(tflops, rel=2e-3)


def test_a_card_is_described_in_the_units_of_xla():
    lines = describe_to_xla(CARDS["a100-40gb"]).splitlines()
    of_device = lines[: lines.index("}")]
    assert [line for line in of_device if "version" not in line] == [
        "gpu_device_info {",
        "  threads_per_block_limit: 1024",
        "  threads_per_warp: 32",
        "  threads_per_core_limit: 2048",
        "  thread_dim_limit_x: 1024",
        "  thread_dim_limit_y: 1024",
        "  thread_dim_limit_z: 64",
        "  block_dim_limit_x: 2147483647",
        "  block_dim_limit_y: 65535",
        "  block_dim_limit_z: 65535",
        "  shared_memory_per_block: 49152",
        "  shared_memory_per_block_optin: 166912",
        "  shared_memory_per_core: 167936",
        "  registers_per_block_limit: 65536",
        "  registers_per_core_limit: 65536",
        "  core_count: 108",
        "  fpus_per_core: 64",
        "  clock_rate_ghz: 1.41",
        "  memory_bandwidth: 1555000000000",
        f"  device_memory_size: {int(39.3 * 2**30)}",
        "  l2_cache_size: 41943040",
        "  cuda_compute_capability { major: 8 minor: 0 }",
    ]
    assert lines[-2:] == [
        'platform_name: "CUDA"',
        'device_description_str: "NVIDIA A100-SXM4-40GB"',
    ]


def test_without_the_plugin_for_cuda_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install .*\[plan-gpu\]"):
        find_machine("l4-2")


@pytest.mark.parametrize(("name", "n_devices"), [("h100-8", 8), ("a100-40gb-2", 2), ("l4-1", 1)])
def test_a_card_that_is_not_here_has_devices(name, n_devices):
    pytest.importorskip("jax_plugins.xla_cuda13")
    program = f"""
from cocondenser_jax.plan.machines import find_machine, prepare_to_plan
prepare_to_plan()
machine = find_machine("{name}")
kinds = [device.device_kind for device in machine.devices]
print(json.dumps([kinds, len({{device.process_index for device in machine.devices}}),
                  machine.gpu_memory]))
"""
    kinds, n_hosts, memory = in_a_process(program)
    card = CARDS[name.rpartition("-")[0]]
    assert (kinds, n_hosts) == ([card.kind] * n_devices, 1)
    assert memory == 0.75 * card.limits.memory
    memory = in_a_process(program, XLA_CLIENT_MEM_FRACTION="0.9")[2]
    assert memory == 0.9 * card.limits.memory


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_a_fraction_of_memory_that_is_none_is_refused(name, monkeypatch):
    for given, expected in (("0.9", 0.9), ("1", 1.0), ("", 0.75)):
        monkeypatch.setenv(name, given)
        assert module._memory_fraction() == expected
    for given in ("90%", "0", "1.5", "-0.5", "nan"):
        monkeypatch.setenv(name, given)
        with pytest.raises(UserError, match=f"{name} is '{given}': expected a number above 0"):
            module._memory_fraction()


def in_a_process(program, **environment):
    """Returns what a program prints as JSON in a process where JAX and libtpu have no settings."""
    names = ("JAX_", "XLA_", "TPU_", "LIBTPU_", "ALLOW_")
    others = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    command = [sys.executable, "-c", f"import json, os, jax\n{program}"]
    return json.loads(subprocess.check_output(command, env=others | environment, text=True))


def test_a_process_that_plans_leaves_tpus_and_the_network_alone():
    program = """
from cocondenser_jax.plan.machines import LIBTPU_ALONE, prepare_to_plan
prepare_to_plan()
values = {name: os.environ[name] for name in (*LIBTPU_ALONE, "LIBTPU_INIT_ARGS")}
print(json.dumps(values | {"platforms": jax.config.jax_platforms}))
"""
    values = in_a_process(program, TPU_ACCELERATOR_TYPE="v2-8")
    assert "stack_size" in values.pop("LIBTPU_INIT_ARGS")
    assert values == {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v2-8",  # the user's
        "TPU_WORKER_HOSTNAMES": "localhost",
        "platforms": "cpu",
    }


def test_finding_a_machine_changes_nothing_of_the_process():
    pytest.importorskip("libtpu")
    program = """
from cocondenser_jax.plan.machines import find_machine
before = dict(os.environ)
find_machine("v3-8")
print(json.dumps([dict(os.environ) == before, jax.config.jax_platforms]))
"""
    assert in_a_process(program, **module.LIBTPU_ALONE) == [True, None]
