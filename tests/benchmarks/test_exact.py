"""The benchmark of exact search, on the CPU on both sides."""

import json

from benchmarks import exact


def test_both_sides_find_the_same(tmp_path, monkeypatch):
    out = tmp_path / "exact.json"
    sizes = ["--passages=1100", "--queries=20", "--cpu_queries=10", "--dimension=16"]
    arguments = ["exact", *sizes, "--device=cpu", f"--json_out={out}"]
    monkeypatch.setattr("sys.argv", arguments)
    exact.main()
    cpu, other = json.loads(out.read_text())
    assert (cpu["queries"], other["queries"]) == (10, 20)
    assert cpu["ranks as on the CPU"] == other["ranks as on the CPU"] == 1.0
    assert other["GFLOP/s"] == 2 * 20 * 1100 * 16 / other["seconds"] / 1e9
