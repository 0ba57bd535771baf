"""Steps: which are run, in which order, with which number of epochs, and for how long."""

import json
from pathlib import Path

import pytest

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.steps import SECONDS
from papers.reproduce import PAPERS
from papers.steps import Best, Folders, Step, best, removable, run_steps, unfinished, within
from tests.papers import rows

DATA = Step("$DATA/data", get="a library")
STORE = Step("$WORK/store", [["c", "make", DATA.out, "$WORK/store"]], [DATA])
MODEL = Step("$WORK/model", [["c", "make", f"{STORE.out}/a b", "$WORK/model"]], [STORE])
ONE, TWO = (
    Step(f"{MODEL.out}-{n}", [["c", "make", MODEL.out, f"{MODEL.out}-{n}"]], [MODEL])
    for n in ("one", "two")
)


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "w $DATA", tmp_path)


def make(command):
    Path(command[-1]).parent.mkdir(parents=True, exist_ok=True)
    Path(command[-1]).touch()
    return 0


def test_commands_name_the_folders():
    steps = unfinished([ONE], Folders(Path("w w"), Path("d")))
    assert {path: step.commands for path, step in steps.items()} == {
        Path("d/data"): [],
        Path("w w/store"): [["c", "make", "d/data", "w w/store"]],
        Path("w w/model"): [["c", "make", "w w/store/a b", "w w/model"]],
        Path("w w/model-one"): [["c", "make", "w w/model", "w w/model-one"]],
    }
    assert steps[Path("d/data")].get == "a library"


def test_steps_run_once_in_order_and_go_on_where_they_stopped(folders):
    def left():
        return unfinished([ONE, TWO, ONE], folders)

    def names():
        return [path.name for path in left()]

    assert names() == ["data", "store", "model", "model-one", "model-two"]
    with pytest.raises(UserError, match=r"data is missing: a library"):
        run_steps(left(), folders, make)
    assert not folders.work.exists()
    (folders.data / "data").touch()
    ran = []

    def stop_at_model(command):
        ran.append(Path(command[-1]).name)
        return make(command) if ran[-1] != "model" else 7

    with pytest.raises(UserError, match=r"exit status 7: c make .*store/a b' .*model"):
        run_steps(left(), folders, stop_at_model)
    assert ran == ["store", "model"]
    assert names() == ["model", "model-one", "model-two"]
    assert [*json.loads((folders.work / SECONDS).read_text())] == ["store", "model"]
    run_steps(left(), folders, make)
    assert names() == []
    # What only led to finished steps may go.
    (folders.data / "data").unlink()
    (folders.work / "store").unlink()
    (folders.work / "model-two").unlink()
    assert names() == ["model-two"]


def test_a_folder_that_grows_is_a_step_until_it_is_done(folders):
    growing = STORE._replace(done="last")
    file = within(growing, "first")
    wanted = Step("$WORK/model", [["c", "make", file.out, "$WORK/model"]], [file])

    def first():
        return next(iter(unfinished([wanted], folders)), None)

    (folders.data / "data").touch()
    (folders.work / "store").mkdir(parents=True)
    assert first() == folders.work / "store" / "last"
    (folders.work / "store" / "last").touch()
    assert first() == folders.work / "model"


def test_settings_are_chosen_when_the_step_runs(folders):
    def tried(epochs):
        out = f"$WORK/of-bert-{epochs}.json"
        return Step(out, [["c", "try", f"{epochs}", out]])

    epochs = best(tried, of=(5, 10, 40), metric="M")
    rate = Best({0.1: tried(5), 0.001: tried(40)}, "M", "$RATE")
    out = "$WORK/of-other-best"
    command = ["c", "train", f"--epochs={epochs}", f"--rate={rate}", out]
    train = Step(out, [command], choices=[epochs, rate])
    ran = []

    def execute(command):
        ran.append(command[1:-1])
        scores = {"5": 0.1, "10": 0.3, "40": 0.2}
        score = {"M": scores[command[2]]} if command[1] == "try" else {}
        # As `evaluate` writes it, or `papers.sentences`.
        result = {"mean": score, "per_query": {}} if command[2] == "10" else score
        Path(command[-1]).parent.mkdir(exist_ok=True)
        Path(command[-1]).write_text(json.dumps(result))
        return 0

    run_steps(unfinished([train], folders), folders, execute)
    tries = [["try", n] for n in ("5", "10", "40")]
    assert ran == [*tries, ["train", "--epochs=10", "--rate=0.001"]]


def test_temporary_results_go_when_nothing_needs_them(folders):
    vectors = Step("$WORK/vectors", [["c", "make", MODEL.out, "$WORK/vectors/x"]], [MODEL])
    vectors = vectors._replace(done="x", is_temporary=True)
    wanted = [
        Step(f"$WORK/run-{n}", [["c", "make", vectors.out, f"$WORK/run-{n}"]], [vectors])
        for n in ("one", "two")
    ]
    (folders.data / "data").touch()
    kept = []

    def look():
        kept.append([path.name for path in removable(wanted, folders)])

    run_steps(unfinished(wanted, folders), folders, make, look)
    # After the store, the model, the vectors and the first run, the second still needs them.
    assert kept == [[], [], [], [], ["vectors"]]
    (folders.work / "run-two").unlink()
    assert removable(wanted, folders) == []
    (folders.work / "vectors" / "x").unlink()  # not finished
    assert removable(wanted, folders) == []
    (folders.work / "run-two").touch()
    assert [path.name for path in removable(wanted, folders)] == ["vectors"]
    assert removable([ONE], folders) == []


def test_embeddings_are_finished_when_the_last_shard_is(tmp_path):
    """A killed `encode` leaves its manifest: the step runs again, and resumes."""
    found = rows.steps(PAPERS, "co/table5", "cocondenser", folders=Folders(tmp_path, tmp_path))
    (path, step) = next((path, step) for path, step in found.items() if step.is_temporary)
    (command,) = step.commands
    given = dict(rows.flags(command))
    assert path == Path(given["--json_out"])
    assert path.parent == Path(given["--out"])
    path.parent.mkdir(parents=True)
    (path.parent / "manifest.json").touch()
    again = rows.steps(PAPERS, "co/table5", "cocondenser", folders=Folders(tmp_path, tmp_path))
    assert path in again
