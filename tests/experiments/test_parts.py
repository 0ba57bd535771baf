"""Parts: each takes what the last one left, on a machine that has nothing else."""

import json
import os
import subprocess
import tarfile

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from experiments import parts
from experiments.parts import main, pack, run_part, unpack
from papers.steps import Folders, Step
from tests.experiments.test_design import make_small
from tests.papers.rows import steps
from tests.papers.tiny_data import execute, write_data

pytestmark = pytest.mark.usefixtures("one_length")

ROW = "A2 Condenser, 100 questions"


def test_parameters_travel_in_half_the_bytes(tmp_path):
    """The state has float16, what is unpacked float32 again; nothing else travels."""
    work = tmp_path / "work"
    (work / "model").mkdir(parents=True)
    tensors = {"w": np.float32([1.0, 1 / 3, -70.5]), "ids": np.arange(3)}
    save_file(tensors, work / "model" / "model.safetensors")
    (work / "model" / "config.json").write_text("{}")
    (work / "store").mkdir()
    store = Step("$WORK/store", [["c", "corpus"]])
    model = Step("$WORK/model", [["c", "pretrain"]], [store])
    result = Step("$WORK/of-other.json", [["c", "evaluate"]])
    vectors = Step("$WORK/model.vectors", [["c", "encode"]], done="encoded.json")
    vectors = vectors._replace(is_temporary=True)
    wanted = [Step("$WORK/run", [["c", "retrieve"]], [model, store, vectors]), result]
    (work / "of-other.json").write_text("1")
    (work / "model.vectors").mkdir()
    (work / "model.vectors" / "encoded.json").write_text("{}")
    (work / "unrelated.json").write_text("2")
    pack(wanted, Folders(work, tmp_path), tmp_path / "state.tar")
    unpack(tmp_path / "state.tar", tmp_path / "next")
    files = {path.relative_to(tmp_path / "next").as_posix()
             for path in (tmp_path / "next").rglob("*") if path.is_file()}  # fmt: skip
    assert files == {"model/model.safetensors", "model/config.json", "of-other.json"}
    found = load_file(tmp_path / "next" / "model" / "model.safetensors")
    assert found["w"].dtype == np.float32
    assert found["w"].tolist() == tensors["w"].astype(np.float16).tolist()
    assert found["ids"].tolist() == [0, 1, 2]
    # What lies there already is not replaced: a part may be run twice on one machine.
    (tmp_path / "next" / "of-other.json").write_text("newer")
    unpack(tmp_path / "state.tar", tmp_path / "next")
    assert (tmp_path / "next" / "of-other.json").read_text() == "newer"
    # Once nothing needs the model, it stays behind.
    (work / "run").touch()
    pack(wanted, Folders(work, tmp_path), tmp_path / "later.tar")
    unpack(tmp_path / "later.tar", tmp_path / "last")
    assert [path.name for path in (tmp_path / "last").iterdir()] == ["of-other.json"]


def test_a_part_ends_in_time(tmp_path):
    steps = [Step(f"$WORK/{n}", [["c", f"{tmp_path}/work/{n}"]]) for n in range(3)]
    given = []

    def run(command, seconds):
        given.append(seconds)
        if len(given) == 2:
            raise subprocess.TimeoutExpired(command, seconds)
        (tmp_path / "work").mkdir(exist_ok=True)
        open(command[1], "w").close()
        return 0

    assert run_part(steps, Folders(tmp_path / "work", tmp_path), 60, run) == 2
    assert 50 < given[1] < given[0] < 60
    assert run_part(steps, Folders(tmp_path / "work", tmp_path), 0, run) == 2
    assert len(given) == 2


def test_a_command_is_stopped_when_the_time_is_over(tmp_path, capfd):
    late = Step("$WORK/late", [["python", "-c", "import time; time.sleep(99)"]])
    assert run_part([late], Folders(tmp_path, tmp_path), 2, parts.execute) == 1
    assert "no time is left for: " in capfd.readouterr().out


def test_what_is_no_state_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "state.tar").write_text("no tar")
    with pytest.raises(SystemExit, match="2"):
        main(["design_gpu/arms", f"--state={tmp_path}/state.tar", "--minutes=1",
              f"--workdir={tmp_path}/w", f"--data={tmp_path}"])  # fmt: skip
    error = capsys.readouterr().err
    assert "state.tar is no state that a part left" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "w").exists()


# `make reproduce` runs it, in about two minutes on an idle core.
@pytest.mark.skipif(os.environ.get("REPRODUCE") != "all", reason="REPRODUCE is not all")
@pytest.mark.timeout(1800)
def test_an_empty_machine_after_each_command_of_training_ends_in_the_same_row(
    tmp_path, monkeypatch, capsys
):
    """With two layers: the parts begin with what was trained before, and train nothing twice."""
    make_small(monkeypatch, "design_gpu")
    tables = parts.load_tables(parts.EXPERIMENTS.folder)
    table = tables["design_gpu/arms"]
    only = {"design_gpu/arms": table | {"rows": {ROW: table["rows"][ROW]}}}
    monkeypatch.setattr(parts, "load_tables", lambda _: only)
    folders = write_data(tmp_path)
    trained = []

    def run_until_trained(command, seconds):
        """The part ends with the second training that it begins."""
        if command[1] in ("pretrain", "finetune"):
            if n_trained == 1:
                raise subprocess.TimeoutExpired(command, seconds)
            trained.append(command[1:3] + [w for w in command if w.startswith("--workdir")])
            return_value = execute(command)
            note()
            return return_value
        return execute(command)

    def note():
        nonlocal n_trained
        n_trained += 1

    left = []
    for number in range(12):
        n_trained = 0
        work = tmp_path / f"machine{number}"
        main(["design_gpu/arms", f"--state={tmp_path}/state.tar", "--minutes=60",
              f"--workdir={work}", f"--data={folders.data}"], run_until_trained)  # fmt: skip
        left.append(capsys.readouterr().out.splitlines()[-1])
        if left[-1].startswith("0 steps"):
            break
    # First and base, A2's pilot and A2 itself; the base tuned four times, the pilot and A2 once.
    names = [one[-1].partition("design_gpu/")[2] for one in trained]
    assert len(names) == len(set(names)) == 4 + 4 + 2
    assert number == len(names) - 1
    result = work / "design_gpu" / "A2-0.100" / "test.trec.json"
    assert 0 <= json.loads(result.read_text())["mean"]["MRR@10"] <= 1


def test_the_protocol_travels_with_the_state(tmp_path):
    """The next machine refuses another one."""
    folders = Folders(tmp_path / "w", tmp_path / "d")
    for path, step in steps(parts.EXPERIMENTS, "design_gpu/arms", folders=folders).items():
        if step.get:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def late(command, seconds):
        raise subprocess.TimeoutExpired(command, seconds)

    main(["design_gpu/arms", f"--state={tmp_path}/state.tar", "--minutes=1",
          f"--workdir={folders.work}", f"--data={folders.data}"], late)  # fmt: skip
    with tarfile.open(tmp_path / "state.tar") as archive:
        assert archive.getnames() == ["design_gpu/protocol.json"]
