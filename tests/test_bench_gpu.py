"""The benchmark for a GPU, run here at a tiny size: its first minute there is not its first run."""

import json
import subprocess
import sys
import time

import pytest

from benchmarks import gpu


@pytest.fixture
def here(monkeypatch):
    """Everything in this process: starting one for each side would take longer than the sides."""
    monkeypatch.setattr(gpu, "alone", lambda side, *arguments: side(*arguments))


def test_every_part_measures_something(here, tmp_path):
    out = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--dtype=float32", f"--json_out={out}"]) == 0
    rows = json.loads(out.read_text())
    found = {}
    for row in rows:
        found.setdefault(row["part"], {})[row["measure"]] = row["value"]
    assert [*found] == [*gpu.PARTS]
    for part in ("step", "PyTorch"):
        assert found[part]["spans/s"] > 0
        assert found[part]["peak MiB"] >= 0
    assert found["step"]["loss"] == pytest.approx(found["PyTorch"]["loss"], rel=1e-5)
    assert found["peak"]["FLOP/s"] > 0
    assert found["exactness"]["relative error"] < 1e-5
    assert found["encode"]["passages/s"] > 0
    assert found["pretraining"]["step"] == gpu.TINY.pretraining_steps
    assert 0 < found["pretraining"]["probe/partner_mrr"] <= 1


def test_what_was_measured_is_kept_when_a_part_fails(monkeypatch, tmp_path):
    def fail(scale, dtype):
        yield {"part": "step", "setting": dtype, "measure": "spans/s", "value": 1.0}
        raise MemoryError("too much")

    def work(scale, dtype):
        yield {"part": "peak", "setting": dtype, "measure": "FLOP/s", "value": 2.0}

    monkeypatch.setattr(gpu, "PARTS", {"step": fail, "peak": work})
    out = tmp_path / "new" / "gpu.json"
    assert gpu.main(["--parts=step,peak", "--tiny", f"--json_out={out}"]) == 1
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
        gpu.main(["--parts=peek"])
    assert "no part 'peek': expected some of peak, step" in capsys.readouterr().err


def test_a_command_is_ended_by_sigterm_when_its_time_is_over(tmp_path):
    script = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('{tmp_path}/saved').touch(),"
        " sys.exit(0)))\n"
        f"pathlib.Path('{tmp_path}/ready').touch()\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    gpu.run_for([sys.executable, "-c", script], 2.0)
    assert time.monotonic() - start < 30
    assert (tmp_path / "saved").exists()
    with pytest.raises(subprocess.CalledProcessError):
        gpu.run_for([sys.executable, "-c", "raise SystemExit(3)"], 30.0)
