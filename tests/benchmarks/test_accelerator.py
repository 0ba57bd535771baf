"""The benchmark for a GPU or a TPU, run here at a tiny size: its first minute there is no first."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import timeit
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import jax
import pytest
from packaging.requirements import Requirement

from benchmarks import accelerator, step
from benchmarks.accelerator import Machine
from benchmarks.step import Measured, Size

ROOT = Path(__file__).parents[2]
# What a machine with a GPU is expected to have, with all that it requires.
THERE = "jax flax optax torch transformers sentence-transformers tokenizers safetensors".split()
# Everything in one process: starting one for each side would take longer than the sides.
HERE = """
import importlib.util, sys
absent = "datasets", "faiss", "bm25s", "accelerate", "pandas", "cocondenser_jax.missing"
assert not any(map(importlib.util.find_spec, absent))
from benchmarks import accelerator
accelerator.alone = lambda side, *arguments: side(*arguments)
sys.exit(accelerator.main(sys.argv[1:]))
"""


def bare_python(folder):
    """Makes an environment of what such a machine has and what `make gpu-wheels` downloads."""
    names = {}

    def link(name, whole=True):
        if name not in names:
            names[name] = found = distribution(name)
            for line in (found.requires or []) if whole else []:
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    link(requirement.name)

    for name in THERE:
        link(name)
    listed = re.search(r"^GPU_WHEELS := ((.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.M)
    for name in listed[1].replace("\\", "").split():
        with contextlib.suppress(PackageNotFoundError):  # not needed by this version of Python
            link(name, whole=False)
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for found in names.values():
        for top in {path.parts[0] for path in found.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(found.locate_file(top))
    return folder / "bin" / "python"


@pytest.mark.skipif(os.environ.get("WHEEL") != "fresh", reason="make wheel: all parts")
@pytest.mark.timeout(900)
def test_every_part_measures_something_on_a_bare_machine(tmp_path):
    python, site, out = bare_python(tmp_path / "env"), tmp_path / "site", tmp_path / "gpu.json"
    make = ["make", "gpu-site", f"SITE={site}", f"WHEELS={tmp_path}", f"PYTHON={python}"]
    subprocess.run(make, cwd=ROOT, check=True)
    command = [python, "-c", HERE, "gpu", "--tiny", "--dtype=float32", f"--json_out={out}"]
    paths = {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{site}:{ROOT}"}
    subprocess.run(command, cwd=ROOT, env=os.environ | paths, check=True)
    rows = json.loads(out.read_text())
    found, devices = {}, {}
    for row in rows:
        found.setdefault(row["part"], {})[row["measure"]] = row["value"]
        devices.setdefault(row["part"], []).append(row["devices"])
    assert [*found] == [*accelerator.GPU.parts]
    for part in ("step", "PyTorch"):
        assert found[part]["spans/s"] > 0
        assert found[part]["peak MiB"] >= 0
    assert found["step"]["loss"] == pytest.approx(found["PyTorch"]["loss"], rel=1e-5)
    assert found["step"]["of the matmul peak"] > 0
    assert found["peak"]["FLOP/s"] > 0
    assert found["exactness"]["relative error"] < 1e-5
    assert found["encode"]["passages/s"] > 0
    assert found["pretraining"]["step"] == accelerator.TINY["pretraining_steps"]
    assert 0 < found["pretraining"]["probe/positive_mrr"] <= 1
    for part in ("peak", "step", "pretraining"):
        assert set(devices[part]) == {jax.local_device_count()}
    assert devices["PyTorch"][0] == devices["exactness"][0] == 1


@pytest.mark.usefixtures("one_length")
def test_a_step_is_measured_beside_the_peak(monkeypatch, tmp_path):
    monkeypatch.setattr(accelerator, "alone", lambda side, *arguments: side(*arguments))
    out = tmp_path / "gpu.json"
    words = ["gpu", "--tiny", "--parts=peak,step", "--dtype=float32"]
    assert accelerator.main([*words, f"--json_out={out}"]) == 0
    found = {(row["part"], row["measure"]): row["value"] for row in json.loads(out.read_text())}
    assert found["peak", "FLOP/s"] > 0
    assert found["step", "spans/s"] > 0
    assert found["step", "of the matmul peak"] > 0


class Device:
    """Eight cores of a TPU that is not there: answers what a process of its own would measure."""

    def __init__(self, monkeypatch, memory=10**6):
        self.memory, self.calls = memory, []
        monkeypatch.setattr(accelerator, "alone", self.alone)
        for name in ("write_model", "_write_encoder"):
            monkeypatch.setattr(accelerator, name, lambda *arguments: None)

    def alone(self, side, *arguments):
        side, options = getattr(side, "func", side), getattr(side, "keywords", {})
        self.calls.append((side.__name__, arguments, options))
        match side.__name__:
            case "machine":
                return Machine("tpu", 8, "TPU v3")
            case "matmul_flops":
                return 4e14
            case "encode_seconds":
                return 5.0
            case "flax_side":
                if arguments[1].chunk_size > self.memory:
                    raise MemoryError("too much")
                return Measured(1.0, 2.0, 2**20, "TPU v3", 4e14)


def test_on_a_tpu_all_devices_work_and_are_counted(monkeypatch, tmp_path):
    device = Device(monkeypatch)
    out = tmp_path / "tpu.json"
    assert accelerator.main(["tpu", "--parts=peak,step,encode", f"--json_out={out}"]) == 0
    rows = [tuple(row.values()) for row in json.loads(out.read_text())]
    assert ("peak", "8192 x 8192, bfloat16", 8, "FLOP/s", 4e14) in rows
    assert ("peak", "", 8, "device", "TPU v3") in rows
    for chunk_size in accelerator.TPU.chunk_sizes:
        setting = f"chunks of {chunk_size}, bfloat16"
        assert ("step", setting, 8, "spans/s", 4096 / 2.0) in rows
    flops = 4096 * 78.29e9 / 2.0  # two passes of BERT-base: plan prints it
    shares = [row[4] for row in rows if row[3] == "of the matmul peak"]
    assert shares == pytest.approx([flops / 4e14] * 3, rel=1e-3)
    encoded = [row for row in rows if row[3] == "passages/s"]
    assert encoded == [("encode", "jax, bfloat16", 8, "passages/s", accelerator.TPU.passages / 5.0)]
    for name, arguments, options in device.calls:
        if name == "flax_side":
            assert options == {"n_devices": 8, "width": 8192}
        if name == "encode_seconds":
            assert arguments[3] == 8 * 128


def test_a_chunk_too_large_for_the_memory_does_not_stop_the_others(monkeypatch, tmp_path):
    Device(monkeypatch, memory=64)
    out = tmp_path / "tpu.json"
    assert accelerator.main(["tpu", "--parts=step", f"--json_out={out}"]) == 1
    rows = json.loads(out.read_text())
    (failed,) = [row for row in rows if row["measure"] == "failed"]
    assert (failed["setting"], failed["value"]) == (
        "chunks of 128, bfloat16",
        "MemoryError: too much",
    )
    assert len([row for row in rows if row["measure"] == "spans/s"]) == 2


def test_the_step_runs_over_the_devices_asked_for(monkeypatch, tmp_path):
    from cocondenser_jax.pretrain import devices

    class Seen(Exception):
        pass

    def mapped_step(config, settings, used):
        raise Seen(len(used), settings.loss.chunk_size)

    monkeypatch.setattr(devices, "mapped_step", mapped_step)
    step.write_model(tmp_path, Size(2, 64, 8, 2))
    with pytest.raises(Seen, match=r"\(4, 2\)"):
        step.flax_side(tmp_path, Size(2, 64, 8, 2), "float32", 1, n_devices=4)


@pytest.mark.parametrize("n_devices", [1, 8])
def test_each_device_multiplies_its_own_matrix(monkeypatch, n_devices):
    def repeat(call, number, repeat):
        call()
        return [9.0] + [2.0] * (repeat - 1)  # the first compiles

    monkeypatch.setattr(timeit, "repeat", repeat)
    assert step.matmul_flops(16, "float32", n_devices) == n_devices * 2 * 16**3 / 2.0


def test_a_machine_without_the_accelerator_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(accelerator, "alone", lambda side, *arguments: side(*arguments))
    with pytest.raises(SystemExit, match="2"):
        accelerator.main(["gpu"])
    assert "JAX computes on a cpu: expected a gpu (or --tiny)" in capsys.readouterr().err


def test_what_was_measured_is_kept_when_a_part_fails(monkeypatch, tmp_path):
    def fail(scale, dtype):
        yield {"part": "step", "setting": dtype, "measure": "spans/s", "value": 1.0}
        raise MemoryError("too much")

    def work(scale, dtype):
        yield {"part": "peak", "setting": dtype, "measure": "FLOP/s", "value": 2.0}

    monkeypatch.setattr(accelerator, "PARTS", {"step": fail, "peak": work})
    out = tmp_path / "new" / "gpu.json"
    monkeypatch.setattr(accelerator, "alone", lambda side, *arguments: side(*arguments))
    assert accelerator.main(["gpu", "--parts=step,peak", "--tiny", f"--json_out={out}"]) == 1
    rows = [(row["part"], row["measure"]) for row in json.loads(out.read_text())]
    assert rows == [
        ("step", "spans/s"),
        ("step", "failed"),
        ("step", "seconds in all"),
        ("peak", "FLOP/s"),
        ("peak", "seconds in all"),
    ]


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        accelerator.main(["tpu", "--parts=peak,PyTorch"])
    assert "no part 'PyTorch': expected some of peak, step, exactness" in capsys.readouterr().err


def test_a_command_is_ended_by_sigterm_when_its_time_is_over(tmp_path):
    script = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('{tmp_path}/saved').touch(),"
        " sys.exit(0)))\n"
        f"pathlib.Path('{tmp_path}/ready').touch()\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    accelerator.run_for([sys.executable, "-c", script], 2.0)
    assert time.monotonic() - start < 30
    assert (tmp_path / "saved").exists()
    with pytest.raises(subprocess.CalledProcessError):
        accelerator.run_for([sys.executable, "-c", "raise SystemExit(3)"], 30.0)
