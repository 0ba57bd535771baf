"""The log of a run: its lines, a run that resumes, a full disk."""

import json
import resource

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.metrics import forget_steps_after, logged_lines, metrics_log


def test_lines_are_those_of_a_run_that_never_stopped(tmp_path):
    with metrics_log(tmp_path, 0, "none", {}) as log:
        for step in (1, 2, 3):
            log(step, {"loss": step / 2, "rate": 0.25})
    with metrics_log(tmp_path, 1, "none", {}) as log:
        log(2, {"loss": 7.0})
        # A kill may come at any time: what was logged is already in the file.
        lines = list(map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()))
    assert lines == [{"step": 1, "loss": 0.5, "rate": 0.25}, {"step": 2, "loss": 7.0}]


def test_a_full_disk_is_reported_in_one_line(tmp_path, small_disk):
    def log_until_full():
        with metrics_log(tmp_path, 0, "none", {}) as log:
            log(1, {"loss": 0.5})
            small_disk(100)
            for step in range(2, 100):
                log(step, {"loss": 0.5})

    with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl: .*File too large"):
        log_until_full()
    small_disk(resource.RLIM_INFINITY)
    with metrics_log(tmp_path, 1, "none", {}) as log:
        log(2, {"loss": 0.25})
    lines = list(map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()))
    assert lines == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]


def test_errors_of_the_run_are_not_blamed_on_the_log(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="other"),
        metrics_log(tmp_path / "run", 0, "none", {}),
    ):
        raise FileNotFoundError("other")


def test_metrics_are_cut_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"st')
    forget_steps_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert logged_lines(path) == [('{"step": 1}', {"step": 1}), ('{"step": 2}', {"step": 2})]
    forget_steps_after(tmp_path / "new.jsonl", 2)
    assert (tmp_path / "new.jsonl").read_text() == ""


def test_a_line_that_is_no_metrics_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for line in ("{", "[1]", '{"loss": 1}', '{"step": 1, "loss": "high"}', '{"step": null}'):
        path.write_text(f'{{"step": 1, "loss": "2"}}\n{line}\n{{"step": 2, "loss": 2}}\n')
        with pytest.raises(UserError) as refused:
            logged_lines(path)
        said = 'line 2: expected a JSON object of numbers with a "step"'
        assert str(refused.value) == f"{path}, {said}"


def test_zeros_that_a_crash_left_at_the_end_are_dropped(tmp_path):
    """A file system may have made room for a line that was never written."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + bytes(512))
    forget_steps_after(path, 1)
    assert path.read_text() == '{"step": 1}\n'
