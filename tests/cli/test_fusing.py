"""`fuse` by the command line: what each flag changes."""

import json
import re
from pathlib import Path

import pytest

from cocondenser_jax.cli import main
from tests.lines import whole

# Ranks and shares of the range agree on nothing but the last: a is far ahead, c twice second.
FIRST = {"a": 10.0, "c": 2.0, "b": 1.0}
SECOND = {"b": 3.0, "c": 2.9, "d": 1.0}


@pytest.fixture
def runs(tmp_path):
    for name, scores in (("first", FIRST), ("second", SECOND)):
        lines = "".join(f"q Q0 {p} {i} {s} x\n" for i, (p, s) in enumerate(scores.items(), 1))
        (tmp_path / name).write_text(lines)
    return [f"--run={tmp_path}/first", f"--run={tmp_path}/second"]


def fuse(*flags):
    out = Path(flags[0].removeprefix("--run=")).with_name("fused")
    assert main(["fuse", *flags, f"--run_out={out}"]) == 0
    return [line.split()[2] for line in out.read_text().splitlines()]


@pytest.mark.effect("fuse --run", "fuse --run_out", "fuse --method", "fuse --weights")
@pytest.mark.effect("fuse --run...")
def test_methods_and_weights_order_the_passages(runs):
    assert fuse(*runs) == ["c", "a", "b", "d"]  # 1/9 + 0.95, 1, 1, 0
    assert fuse(*runs, "--weights=1,0.01") == ["a", "c", "b", "d"]
    by_rank = [*runs, "--method=rrf"]
    assert fuse(*by_rank) == ["b", "c", "a", "d"]  # 1/63 + 1/61, 2/62, 1/61, 1/63
    assert fuse(*by_rank, runs[0]) == ["c", "b", "a", "d"]  # 3/62, 2/63 + 1/61, 2/61, 1/63
    assert fuse(*by_rank, "--weights=9,1") == ["c", "b", "a", "d"]


@pytest.mark.effect("fuse --depth", "fuse --json_out")
def test_depth_and_counts(runs, tmp_path, capsys):
    (tmp_path / "second").open("a").write("only_here Q0 a 1 1.0 x\n")
    json_out = tmp_path / "counts.json"
    assert fuse(*runs, "--depth=3", f"--json_out={json_out}") == ["c", "a", "b", "a"]
    expected = {"queries": 2, "queries in every run": 1}
    assert json.loads(json_out.read_text()) == expected
    assert capsys.readouterr().out == ("queries               2\nqueries in every run  1\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--weights=1"],
            (
                "runs=2, weights=[1.0], depth=100: expected two runs or more, a weight above "
                "0 for each, and a depth of at least 1"
            ),
        ),
        (
            ["--weights=1,x"],
            "Invalid value for '--weights': could not convert string to float: 'x'…",
        ),
        (["--method=sum"], "Invalid value for '--method': 'sum' is not one of…"),
        (["--depth=0"], "Invalid value for '--depth': 0 is not in…"),
    ],
)
def test_mistakes_get_one_line(
    runs,
    tmp_path,
    capsys,
    flags,
    message,
):
    assert main(["fuse", *runs, f"--run_out={tmp_path}/fused", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(whole(f"cocondenser: {message}"), line)
    assert not (tmp_path / "fused").exists()
