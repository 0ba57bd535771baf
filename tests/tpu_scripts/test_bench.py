"""bench.sh: what it starts on a VM, and what it fetches."""

import ast
import json
import re
import sys
from pathlib import Path

from tests.tpu_scripts.cloud import set_up

# Stands in for the project's: it is called as often as there are lines in `calls`.
MAKEFILE = """bench-tpu:
\techo $(PYTHON) $(ARGUMENTS) >>calls
\tmkdir -p benchmarks/results
\techo '[{}]' >benchmarks/results/tpu.json
\t%s
"""


ROOT = Path(__file__).parents[2]


def vm_with(cloud, recipe):
    (home,) = set_up(cloud, "exit 1")
    folder = home / "cocondenser_jax"
    (folder / "Makefile").write_text(MAKEFILE % recipe)
    return folder


def test_a_tpu_is_measured_and_the_rows_are_fetched(cloud):
    cloud.run("create")
    cloud.run("setup", settings={"DEVICES": "2"})
    arguments = ["--tiny", "--parts=peak", "--dtype=float32", "--out=my tpu.json"]
    printed = cloud.run("bench", *arguments)
    rows = json.loads((cloud.home / "my tpu.json").read_text())
    assert [row["measure"] for row in rows] == ["FLOP/s", "device", "seconds in all"]
    assert {(row["part"], row["devices"]) for row in rows} == {("peak", 2)}
    assert '"FLOP/s"' in printed  # the end of the log


def test_what_was_measured_is_fetched_though_a_part_failed(cloud):
    folder = vm_with(cloud, "exit 1")
    (folder / "benchmarks" / "results").mkdir(parents=True)
    (folder / "benchmarks" / "results" / "tpu.json").write_text("of another machine")
    printed = cloud.run("bench", "--parts=step", "--out=tpu.json", status=2)
    assert printed.endswith("bench.sh: bench failed (2); tpu.json holds what was measured\n")
    assert json.loads((cloud.home / "tpu.json").read_text()) == [{}]
    assert (folder / "calls").read_text() == ".venv/bin/python --parts=step\n"


def test_rows_of_another_machine_are_not_fetched(cloud):
    folder = vm_with(cloud, "")
    (folder / "Makefile").write_text("bench-tpu:\n\texit 1\n")
    (folder / "benchmarks" / "results").mkdir(parents=True)
    (folder / "benchmarks" / "results" / "tpu.json").write_text("of another machine")
    printed = cloud.run("bench", "--out=tpu.json", status=2)
    assert printed.endswith("bench.sh: nothing was fetched; bench ended with status 2\n")
    assert list(cloud.home.iterdir()) == []


def test_called_again_it_waits_for_what_runs(cloud):
    folder = vm_with(cloud, "sleep 3")
    outage = {"CLOUD_FAULTS": "outage 2 9 tpu-vm describe *", "MAX_OUTAGES": "2"}
    assert "no answer" in cloud.run("bench", "--out=tpu.json", status=2, settings=outage)
    cloud.run("bench", "--out=tpu.json")
    assert json.loads((cloud.home / "tpu.json").read_text()) == [{}]
    assert (folder / "calls").read_text() == ".venv/bin/python\n"


def test_half_of_the_rows_are_not_taken_for_all(cloud):
    vm_with(cloud, "")
    fault = {"CLOUD_FAULTS": "half 1 1 tpu-vm scp *"}
    printed = cloud.run("bench", "--out=tpu.json", status=2, settings=fault)
    assert printed.endswith("bench.sh: nothing was fetched; bench ended with status 0\n")
    assert not (cloud.home / "tpu.json").exists()
    cloud.run("bench", "--out=tpu.json")
    assert json.loads((cloud.home / "tpu.json").read_text()) == [{}]


def test_a_vm_gets_all_that_the_measurements_import():
    lib = (ROOT / "tpu_scripts" / "lib.sh").read_text()
    (files,) = re.findall(r"^PROJECT_FILES=\(([^)]*)\)", lib, re.MULTILINE)
    imported = {
        node.module.partition(".")[0]
        for name in ("accelerator", "step")
        for node in ast.walk(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    own = {name for name in imported if (ROOT / name).is_dir()}
    assert {"benchmarks", "checks", "cocondenser_jax"} <= own <= {*files.split()}


def test_a_vm_gets_the_libraries_that_encode():
    script = (ROOT / "tpu_scripts" / "on_vm" / "bench.sh").read_text()
    (installed,) = re.findall(r"uv pip install [^#]*?constraints\.txt (?:\\\n)?([^\n]*)", script)
    imported = set()
    for node in ast.parse((ROOT / "cocondenser_jax" / "flax_encoder.py").read_text()).body:
        if isinstance(node, ast.Import):
            imported |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    from_pretrain = {"jax", "numpy", "cocondenser_jax", *sys.stdlib_module_names}
    names = {name.replace("-", "_") for name in installed.split()}
    assert imported - from_pretrain == names == {"torch", "sentence_transformers"}


def test_it_needs_a_single_host_that_is_there(cloud):
    printed = cloud.run("bench", status=2, settings={"HOSTS": "4"})
    assert printed == "bench.sh: HOSTS is 4: expected a TPU of a single host\n"
    printed = cloud.run("bench", status=2)
    assert printed == "bench.sh: cocondenser is GONE: see create.sh\n"
