"""Planned tests: means over seeds, question by question, all corrected together."""

import itertools
import json

import numpy as np
import pytest

from experiments.planned import main


def write(path, values):
    per_query = {f"q{i}": {"M": float(value), "N": 0.0} for i, value in enumerate(values)}
    path.write_text(json.dumps({"per_query": per_query}))
    return path


def exact_p(differences):
    """Two-sided, over all signs."""
    sums = [np.dot(signs, differences) for signs in itertools.product((1, -1), repeat=8)]
    return np.mean(np.abs(sums) >= abs(np.sum(differences)) - 1e-12)


def test_six_become_two(tmp_path):
    rng = np.random.default_rng(0)
    arm_SxQ, other_SxQ = rng.random((3, 8)) + 0.3, rng.random((3, 8))
    arm = [write(tmp_path / f"a{s}.json", row) for s, row in enumerate(arm_SxQ)]
    other = [write(tmp_path / f"b{s}.json", row) for s, row in enumerate(other_SxQ)]
    files = [",".join(map(str, names)) for names in (arm, other, arm[:1])]
    out = tmp_path / "out"
    main(["--metric=M", "--test=up", f"--arm={files[0]}", f"--other={files[1]}",
          "--test=one", f"--arm={files[2]}", f"--other={files[1]}", f"--out={out}"])  # fmt: skip
    found = {name: json.loads((out / f"{name}.json").read_text()) for name in ("up", "one")}
    means_Q = {
        "up": arm_SxQ.mean(axis=0) - other_SxQ.mean(axis=0),
        "one": arm_SxQ[0] - other_SxQ.mean(axis=0),
    }
    p = {name: exact_p(differences_Q) for name, differences_Q in means_Q.items()}
    for name, differences_Q in means_Q.items():
        assert found[name]["difference"] == pytest.approx(differences_Q.mean())
        assert found[name]["p"] == pytest.approx(p[name])
        assert found[name]["from"] < differences_Q.mean() < found[name]["to"]
    # Holm by hand: twice the smaller, and the larger as it is, but no less.
    small, large = sorted(p, key=p.get)
    assert found[small]["corrected_p"] == pytest.approx(min(1, 2 * p[small]))
    assert found[large]["corrected_p"] == pytest.approx(max(2 * p[small], p[large]))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--test=x --test=y", "2 --test: expected as many --arm and --other"),
        ("--test=x --test=y --arm=more", "2 --test: expected as many --arm and --other"),
        ("--test=x", "evaluated on different queries"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, flags, said):
    file, other = write(tmp_path / "a", [0, 1, 1]), write(tmp_path / "b", [0, 1])
    with pytest.raises(SystemExit, match="2"):
        main(["--metric=M", *flags.split(), f"--arm={file}", f"--other={other}",
              f"--out={tmp_path}/out"])  # fmt: skip
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
