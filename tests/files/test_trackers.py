"""What trackers get of a run, also of one that resumes: the lines of its metrics.jsonl."""

import contextlib
import json
import os
import resource
import sqlite3
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.metrics import metrics_log
from cocondenser_jax.files.trackers import TRACKERS, require_tracker
from tests.world import read_metrics

SETTINGS = {"seed": 7}
PACKAGES = ("wandb", "trackio")
# What a run logs, that is killed after its checkpoint of step 2 and resumes there.
BEFORE = ((1, {"loss": 3.0}), (2, {"loss": 2.5}), (2, {"probe/mrr": 0.5}), (3, {"loss": 2.25}))
AFTER = ((3, {"loss": 2.25}), (4, {"loss": 2.0}))
EXPECTED = [
    {"step": 1, "loss": 3.0},
    {"step": 2, "loss": 2.5},
    {"step": 2, "probe/mrr": 0.5},
    {"step": 3, "loss": 2.25},
    {"step": 4, "loss": 2.0},
]
MERGED = [EXPECTED[0], EXPECTED[1] | EXPECTED[2], *EXPECTED[3:]]  # a row for each step


def log_in_two_parts(workdir, tracker):
    for first_step, lines in ((0, BEFORE), (2, AFTER)):
        with metrics_log(workdir, first_step, tracker, SETTINGS) as log:
            for step, values in lines:
                log(step, values)
    assert read_metrics(workdir) == EXPECTED


def scalars(folder):
    """Returns (step, value) of each name, as TensorBoard shows them."""
    events = EventAccumulator(str(folder)).Reload()
    names = events.Tags()["scalars"]
    return {name: [(x.step, x.value) for x in events.Scalars(name)] for name in names}


def test_tensorboard_shows_the_lines_of_a_run_that_resumed(tmp_path):
    log_in_two_parts(tmp_path, "tensorboard")
    assert scalars(tmp_path / "tensorboard") == {
        "loss": [(1, 3.0), (2, 2.5), (3, 2.25), (4, 2.0)],
        "probe/mrr": [(2, 0.5)],
    }


def test_a_tracker_that_is_chosen_later_gets_the_earlier_lines(tmp_path):
    with metrics_log(tmp_path, 0, "none", SETTINGS) as log:
        log(1, {"loss": 3.0})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    with metrics_log(tmp_path, 1, "tensorboard", SETTINGS) as log:
        log(2, {"loss": 2.5})
        # A kill may come at any time: what was logged is already in the file.
        assert scalars(tmp_path / "tensorboard") == {"loss": [(1, 3.0), (2, 2.5)]}


def test_a_full_disk_ends_in_one_line(tmp_path, small_disk):
    def log_until_full():
        with metrics_log(tmp_path, 0, "tensorboard", SETTINGS) as log:
            small_disk(200)
            log(1, {f"a{i}": 0.5 for i in range(12)})

    with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl: .*File too large"):
        log_until_full()
    small_disk(resource.RLIM_INFINITY)
    assert len(read_metrics(tmp_path)) == 1  # the events are longer


class Server:
    """What wandb and trackio keep of a run, by its name or id."""

    def __init__(self):
        self.runs = {}
        self.starts = []
        self.ends = []

    def init(self, **fields):
        print("started")
        self.starts.append(fields)
        rows = self.runs.setdefault(fields.get("id", fields["name"]), [])
        n_rows = rows[-1][0] + 1 if rows else 0
        return SimpleNamespace(
            step=n_rows,
            _next_step=n_rows,
            log=lambda values, step: rows.append((step, values)),
            finish=lambda exit_code=0: self.ends.append(exit_code) or print("finished"),
        )


@pytest.fixture
def server(monkeypatch):
    made = Server()
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, made)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return made


@pytest.mark.parametrize("package", PACKAGES)
def test_a_run_that_resumes_continues_its_run(server, package, tmp_path, capsys):
    for name in ("run", "other"):
        (tmp_path / name).mkdir()
        log_in_two_parts(tmp_path / name, package)
    expected = [(line.pop("step"), line) for line in map(dict, EXPECTED)]
    assert list(server.runs.values()) == [expected, expected]
    first, second, *_ = server.starts
    assert first == second
    id_ = json.loads((tmp_path / "run" / "tracker.json").read_text())["id"]
    own = {"id": id_, "dir": tmp_path / "run", "allow_val_change": True}
    assert first == {
        "project": "cocondenser_jax",
        "name": f"run-{id_[:8]}",
        "resume": "allow",
        "config": SETTINGS,
        **(own if package == "wandb" else {}),
    }
    assert server.ends == [0, 0, 0, 0]
    assert capsys.readouterr() == ("", "started\nfinished\n" * 4)


@pytest.mark.parametrize(("package", "ends"), [("wandb", [1]), ("trackio", [0])])
def test_a_run_that_fails_is_closed(server, package, ends, tmp_path):
    def train():
        with metrics_log(tmp_path, 0, package, SETTINGS) as log:
            log(1, {"loss": 3.0})
            raise UserError("broken")

    with pytest.raises(UserError, match="broken"):
        train()
    assert server.ends == ends
    assert [*server.runs.values()] == [[(1, {"loss": 3.0})]]


def test_the_project_is_taken_from_the_environment(server, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_PROJECT", "other")
    for package in PACKAGES:
        with metrics_log(tmp_path, 0, package, SETTINGS):
            assert server.starts[-1]["project"] == "other"
    assert [start.get("dir") for start in server.starts] == [tmp_path, None]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_tracker_that_does_not_start_says_so_in_one_line(server, package, monkeypatch, tmp_path):
    def fail(**_):
        raise RuntimeError("no API key\nconfigured")

    monkeypatch.setattr(server, "init", fail)
    with (
        pytest.raises(UserError, match=f"^{package} does not start: no API key configured$"),
        metrics_log(tmp_path, 0, package, SETTINGS),
    ):
        pass


def test_a_tracker_whose_package_is_missing_is_named_before_any_work(monkeypatch):
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
    require_tracker("none")
    for name in ("tensorboard", "wandb", "trackio"):
        with pytest.raises(ImportError, match=name):
            require_tracker(name)
    assert TRACKERS == ("none", "tensorboard", "wandb", "trackio")


IN_TWO_PARTS = """
import pathlib, sys
from tests.files.test_trackers import log_in_two_parts
log_in_two_parts(pathlib.Path(sys.argv[1]), sys.argv[2])
"""


def run_with(package, folder, **environment):
    """Logs to the package itself, in a process of its own: it may be started once."""
    pytest.importorskip(package, reason=f"needs {package}: make trackers")
    (folder / "run").mkdir()
    subprocess.run(
        [sys.executable, "-c", IN_TWO_PARTS, str(folder / "run"), package],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )


def test_trackio_itself_continues_a_run(tmp_path):
    run_with("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "cocondenser_jax.db")) as base:
        rows = base.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert [{"step": step, **json.loads(metrics)} for _, step, metrics in rows] == EXPECTED
    assert len({name for name, _, _ in rows}) == 1


def offline_rows(file):
    """Reads the rows and the run's id from a file of wandb: records as LevelDB's log has them."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = file.read_bytes()
    rows, ids = [], set()
    place = 7  # after the head of the file
    while place < len(content):
        _, length, kind = struct.unpack_from("<IHB", content, place)
        assert kind == 1  # whole
        record = Record.FromString(content[place + 7 : place + 7 + length])
        place += 7 + length
        if record.WhichOneof("record_type") == "run":
            ids.add(record.run.run_id)
        elif record.WhichOneof("record_type") == "history":
            items = {"/".join(x.nested_key) or x.key: x.value_json for x in record.history.item}
            row = {key: json.loads(x) for key, x in items.items() if not key.startswith("_")}
            rows.append({"step": record.history.step.num, **row})
    return rows, ids


def test_wandb_itself_has_every_line_also_without_a_network(tmp_path):
    run_with("wandb", tmp_path, WANDB_MODE="offline")
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    id_ = json.loads((tmp_path / "run" / "tracker.json").read_text())["id"]
    # A run without a network cannot ask what the earlier one sent: it has all lines.
    assert offline_rows(files[-1]) == (MERGED, {id_})
