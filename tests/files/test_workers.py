"""The engine, with tasks that take no time: nothing lost, nothing twice, nobody left behind."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest

from cocondenser_jax import __version__
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import workers
from cocondenser_jax.files.workers import Engine, run_tasks
from tests.waiting import wait_for
from tests.worker_tasks import calls, make, note_gpu

ROOT = Path(__file__).parents[2]


def run(folder, engine, **arguments):
    def is_done(index):
        return (folder / f"task-{index}" / "text").exists()

    function = partial(make, folder, **arguments)
    run_tasks("tasks", function, is_done, engine, folder / "work")


def made(folder):
    return sorted(path.read_text() for path in folder.glob("task-*/text"))


def all_of(n):
    return [f"{index} of {n}" for index in range(n)]


def session(pid):
    """Returns the processes of a session that are alive."""
    alive = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and state != "Z":
            alive.append(int(status.parent.name))
    return alive


def test_three_workers_run_seven_tasks_and_no_task_twice(tmp_path, capsys):
    engine = Engine(tasks=7, workers=3)
    run(tmp_path, engine)
    assert made(tmp_path) == all_of(7)
    assert sorted(index for index, _ in calls(tmp_path)) == list(range(7))
    assert len({pid for _, pid in calls(tmp_path)} - {os.getpid()}) in (2, 3)
    assert "tasks: 100%" in capsys.readouterr().err
    run(tmp_path, engine)
    assert len(calls(tmp_path)) == 7
    (tmp_path / "task-5" / "text").unlink()
    (tmp_path / "task-5").rmdir()
    capsys.readouterr()
    run(tmp_path, engine)
    assert [index for index, _ in calls(tmp_path)][7:] == [5]
    assert " 6/7 " in (shown := capsys.readouterr().err)
    assert " 7/7 " in shown


@pytest.mark.parametrize("workers", [1, 3])
def test_a_task_that_fails_twice_ends_all_and_the_others_stay(tmp_path, workers):
    with pytest.raises(UserError, match=r"^task 6 of 7 failed twice: no luck with 6$"):
        run(tmp_path, Engine(tasks=7, workers=workers), failing=[6])
    assert [index for index, _ in calls(tmp_path)].count(6) == 2
    before = made(tmp_path)
    assert set(before) <= set(all_of(7)[:6])
    assert len(before) >= 7 - workers  # the others were in progress
    assert "ValueError" in (tmp_path / "work/logs/tasks/task-00006.log").read_text()
    first = len(calls(tmp_path))
    run(tmp_path, Engine(tasks=7, workers=2))
    assert made(tmp_path) == all_of(7)
    assert len(calls(tmp_path)) - first == 7 - len(before)


def kill_one_worker(tmp_path, executor):
    """Runs seven tasks, and kills the worker of task 3 while it works on it."""
    killed = []

    def kill():
        wait_for(lambda: 3 in dict(calls(tmp_path)), "nobody works on task 3")
        wait_for(lambda: (tmp_path / "task-3.partial").is_dir(), "task 3 is not begun")
        killed.append(dict(calls(tmp_path))[3])
        os.kill(killed[0], signal.SIGKILL)
        wait_for(lambda: len(made(tmp_path)) == 6, "the others do not go on")
        (tmp_path / "go on").touch()

    thread = threading.Thread(target=kill)
    thread.start()
    run(tmp_path, Engine(tasks=7, workers=3, executor=executor), slow=[3])
    thread.join()
    assert made(tmp_path) == all_of(7)
    numbers = [index for index, _ in calls(tmp_path)]
    assert sorted(numbers) == [0, 1, 2, 3, 3, 4, 5, 6]
    assert dict(calls(tmp_path))[3] != killed[0]
    assert numbers[-1] == 3  # after all others


def test_a_killed_worker_costs_its_task_alone(tmp_path):
    kill_one_worker(tmp_path, "local")


def test_a_worker_that_is_ended_costs_its_task_alone(tmp_path):
    thread = threading.Thread(target=end_worker, args=(tmp_path,))
    thread.start()
    run(tmp_path, Engine(tasks=3, workers=2), slow=[0])
    thread.join()
    assert sorted(index for index, _ in calls(tmp_path)) == [0, 0, 1, 2]


def end_worker(folder):
    wait_for(lambda: (folder / "task-0.partial").is_dir(), "task 0 is not begun")
    os.kill(dict(calls(folder))[0], signal.SIGTERM)
    (folder / "go on").touch()


@pytest.mark.parametrize(
    ("engine", "n_workers", "n_threads", "gpus"),
    [
        (Engine(5, workers=3), 3, 2, [None] * 3),
        (Engine(2, workers=3), 2, 2, [None] * 2),
        (Engine(20, workers=16), 16, 1, [None] * 16),
        (Engine(20), 8, 1, [None] * 8),
        (Engine(5, gpus=("3", "7")), 2, 4, ["3", "7"]),
        (Engine(1, gpus=("3", "7")), 1, 4, ["3"]),
    ],
)
def test_workers_share_cores_and_gpus(tmp_path, monkeypatch, engine, n_workers, n_threads, gpus):
    pools, given = [], []

    class Pool:
        def __init__(self, n, context, start, settings):
            pools.append((n, context.get_start_method(), start, *settings[1:]))

        def submit(self, function, work, index):
            given.append((function, index))
            (done := Future()).set_result(None)
            return done

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(workers.os, "cpu_count", lambda: 8)
    work = workers.Work(make, engine.tasks, tmp_path, tmp_path, __version__)
    bar = SimpleNamespace(update=lambda: None)
    workers._run_here(work, range(engine.tasks), engine, bar)
    assert pools == [(1, "spawn", workers._start_worker, n_threads, gpu) for gpu in gpus]
    assert len(pools) == n_workers
    assert sorted(index for _, index in given) == [*range(engine.tasks)]
    assert {function for function, _ in given} == {workers._run_task_here}


def test_a_worker_has_its_threads_and_gpu_and_ends_with_its_parent(monkeypatch):
    watches, killed = [], []

    class Thread:
        def __init__(self, target, daemon):
            assert daemon
            watches.append(target)

        def start(self):
            watches.append("started")

    monkeypatch.setattr(workers.threading, "Thread", Thread)
    monkeypatch.setattr(workers.os, "kill", lambda *given: killed.append(given))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("RAYON_NUM_THREADS", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
    workers_end, parents_end = Pipe(duplex=False)
    workers._start_worker(workers_end, 3, None)
    names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    assert [os.environ[name] for name in names] == ["3", "7", "all"]
    monkeypatch.delenv("RAYON_NUM_THREADS")
    workers._start_worker(workers_end, 4, "GPU-5")
    assert [os.environ[name] for name in names] == ["3", "4", "GPU-5"]
    watch, started, *_ = watches
    assert started == "started"
    parents_end.close()
    watch()
    assert killed == [(os.getpid(), signal.SIGTERM)]


class FakeRay:
    """Stands for Ray's module: it runs a task at once, and notes what it was asked for."""

    class RayError(Exception):
        pass

    class RayTaskError(RayError):
        cause = UserError("no luck")

    def __init__(self, ends):
        self.exceptions = SimpleNamespace(RayError=self.RayError, RayTaskError=self.RayTaskError)
        self.ends = ends  # exceptions with which tasks end
        self.inits, self.begun, self.running, self.cancelled = [], [], [], []

    def init(self, **settings):
        self.inits.append(settings)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def remote(self, function):
        self.function = function
        return self

    def options(self, **options):
        if options.get("wrong"):
            raise ValueError("no option 'wrong'")
        self.given_options = options

        def begin(work, index):
            self.begun.append((work, index))
            return index

        return SimpleNamespace(remote=begin)

    def wait(self, running):
        self.running.append([*running])
        return running[:1], running[1:]

    def get(self, done):
        if error := self.ends.get(done[0]):
            raise error

    def cancel(self, reference, force):
        assert force
        self.cancelled.append(reference)


@pytest.fixture
def run_on_ray(monkeypatch):
    """Gives a function that runs four tasks; what it returns notes how."""

    def run(engine, ends=None, said=None):
        ray = FakeRay(ends or {})
        monkeypatch.setitem(sys.modules, "ray", ray)
        handler, updates = signal.getsignal(signal.SIGTERM), []
        bar = SimpleNamespace(update=lambda: updates.append(1))
        refused = pytest.raises(UserError, match=f"^{said}$") if said else nullcontext()
        with refused:
            workers._run_on_ray("work", [1, 2, 4, 5], engine, bar)
        assert signal.getsignal(signal.SIGTERM) == handler
        ray.n_updates = len(updates)
        return ray

    return run


def test_ray_runs_as_many_tasks_as_it_has_workers(run_on_ray):
    ray = run_on_ray(Engine(6, 2, "ray", {"num_cpus": 2}))
    assert ray.inits == [{"ignore_reinit_error": True, "log_to_driver": False}]
    assert ray.function is workers._run_task
    assert ray.given_options == {"max_retries": 0, "num_cpus": 2}
    assert ray.begun == [("work", index) for index in (1, 2, 4, 5)]
    assert ray.running == [[1, 2], [2, 4], [4, 5], [5]]
    assert (ray.n_updates, ray.cancelled) == (4, [])
    assert run_on_ray(Engine(6, None, "ray")).running[0] == [1, 2, 4, 5]


def test_on_ray_a_killed_worker_costs_its_task_and_a_failed_one_ends_all(run_on_ray):
    ray = run_on_ray(Engine(6, 2, "ray"), {2: FakeRay.RayError()})
    assert (len(ray.begun), ray.n_updates, ray.cancelled) == (4, 3, [])
    ray = run_on_ray(Engine(6, 3, "ray"), {1: FakeRay.RayTaskError()}, "no luck")
    assert (ray.n_updates, ray.cancelled) == (0, [2, 4])
    said = "--executor_options of ray: no option 'wrong'"
    assert run_on_ray(Engine(6, 3, "ray", {"wrong": 1}), said=said).begun == []


def test_slurm_runs_what_is_missing_until_its_queue_is_empty(tmp_path, monkeypatch):
    executors = pytest.importorskip("datatrove.executor")
    made, updates = [], []
    queue = [(0, b"7_3\n", b""), (1, b"", b"Socket timed out"), (1, b"", b"Invalid job id")]

    def complete(index):
        (tmp_path / "completions").mkdir(exist_ok=True)
        (tmp_path / "completions" / f"{index}").touch()

    def make_executor(**settings):
        made.append(settings)
        return SimpleNamespace(mark_rank_as_completed=complete, run=lambda: None, job_id=7)

    def ask(command, **options):
        assert command == ["squeue", "--noheader", "--jobs=7"]
        complete({3: 1, 2: 3}.get(len(queue), 1))
        returncode, stdout, stderr = queue.pop(0)
        return SimpleNamespace(returncode=returncode, stdout=stdout, stderr=stderr)

    def update(n):
        updates.append(n)
        bar.n += n

    bar = SimpleNamespace(n=2, update=update)
    monkeypatch.setattr(executors, "SlurmPipelineExecutor", make_executor)
    monkeypatch.setattr(workers.subprocess, "run", ask)
    monkeypatch.setattr(workers, "_POLL", 0)
    work = workers.Work(make, 4, tmp_path, tmp_path, __version__)
    workers._run_on_slurm(work, [1, 3], Engine(4, None, "slurm", {"time": "1:00:00"}), bar)
    assert sorted(path.name for path in (tmp_path / "completions").iterdir()) == [*"0123"]
    assert updates == [1, 1, 0]
    ((settings, pipeline),) = [(each, each.pop("pipeline")) for each in made]
    assert [(step.func, step.args) for step in pipeline] == [(workers._run_task_on_slurm, (work,))]
    assert settings == {
        "tasks": 4,
        "workers": -1,  # all at once
        "logging_dir": str(tmp_path),
        "venv_path": f"{sys.prefix}/bin/activate",
        "time": "1:00:00",
    }


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: make cluster")
def test_ray(tmp_path):
    import ray

    try:
        ray.init(num_cpus=3, log_to_driver=False)
        kill_one_worker(tmp_path, "ray")
        folder = tmp_path / "failing"
        folder.mkdir()
        with pytest.raises(UserError, match=r"^task 2 of 3 failed twice: no luck with 2$"):
            run(folder, Engine(tasks=3, workers=2, executor="ray"), failing=[2])
        run(folder, Engine(tasks=3, workers=2, executor="ray"))
        assert made(folder) == all_of(3)
    finally:
        ray.shutdown()


def test_a_task_whose_worker_is_killed_twice_is_named(tmp_path):
    def kill():
        for n_calls in (1, 2):
            wait_for(
                lambda n=n_calls: [index for index, _ in calls(tmp_path)].count(1) == n, "no call"
            )
            os.kill(dict(calls(tmp_path))[1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(UserError) as refused:
        run(tmp_path, Engine(tasks=3, workers=2), slow=[1])
    thread.join()
    assert str(refused.value) == (
        "tasks: the worker of task 1 of 3 ended twice without a message (killed, or out of memory);"
        f" the others are kept (logs: {tmp_path}/work/logs/tasks)"
    )
    assert made(tmp_path) == ["0 of 3", "2 of 3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_command(tmp_path, number):
    program = f"""
import signal, sys
from pathlib import Path
from cocondenser_jax import cli
from tests.files.test_workers import Engine, run
signal.signal(signal.SIGTERM, cli._end)
cli._run = lambda words: run(Path({str(tmp_path)!r}), Engine(tasks=4, workers=2), slow=[1, 2])
sys.exit(cli.main([]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stderr=(tmp_path / "errors").open("w"),
        start_new_session=True,
    )
    wait_for(lambda: {1, 2} <= set(dict(calls(tmp_path))), "no worker at work")
    wait_for(lambda: len(list(tmp_path.glob("*.partial"))) == 2, "no task begun")
    assert len(session(process.pid)) >= 4
    if number == signal.SIGINT:  # Ctrl-C reaches all of them
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.wait()
    errors = (tmp_path / "errors").read_text()
    wait_for(lambda: not session(process.pid), "a process is left behind", 15)
    assert not list(tmp_path.glob("*.partial"))
    assert "Traceback" not in errors
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    assert process.returncode == expected[number]


def test_a_worker_with_another_version_of_the_package_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "__version__", "0.0")
    message = f"a worker has version {__version__} of cocondenser-jax, expected 0.0"
    with pytest.raises(UserError) as refused:
        run(tmp_path, Engine(tasks=2, workers=1))
    assert str(refused.value) == message
    assert not calls(tmp_path)


def test_a_worker_sees_one_gpu_and_so_does_the_one_that_replaces_it(tmp_path):
    def is_done(index):
        return (tmp_path / f"task-{index}").exists()

    engine = Engine(tasks=6, gpus=("3", "GPU-5"))  # a worker for each
    function = partial(note_gpu, tmp_path, killed=(1, 4))
    run_tasks("tasks", function, is_done, engine, tmp_path / "work")
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert sorted(int(index) for index, _, _ in seen) == [0, 1, 1, 2, 3, 4, 4, 5]
    gpu_of = {pid: {gpu for _, other, gpu in seen if other == pid} for _, pid, _ in seen}
    assert len(gpu_of) >= 4  # two were killed
    assert all(len(gpus) == 1 for gpus in gpu_of.values())
    assert set.union(*gpu_of.values()) == {"3", "GPU-5"}


def test_a_task_runs_in_the_folder_of_the_command(tmp_path):
    """A worker of a cluster begins in another one; relative paths are of the command."""
    folder, seen = tmp_path / "of the command", []
    folder.mkdir()

    def function(task):
        seen.append((task, Path.cwd()))

    before = Path.cwd()
    work = workers.Work(function, 3, tmp_path, folder, __version__)
    workers._run_task(work, 2)
    assert seen == [((2, 3), folder.resolve())]
    assert Path.cwd() == before


def test_a_job_that_slurm_refuses_is_one_line(tmp_path, monkeypatch):
    """As for a partition that it does not have."""
    executors = pytest.importorskip("datatrove.executor")

    def refuse():
        raise subprocess.CalledProcessError(1, ["sbatch", "script"])

    made = SimpleNamespace(mark_rank_as_completed=lambda index: None, run=refuse)
    monkeypatch.setattr(executors, "SlurmPipelineExecutor", lambda **_: made)
    work = workers.Work(make, 2, tmp_path, tmp_path, __version__)
    with pytest.raises(UserError, match=r"^--executor=slurm: .*sbatch.* exit status 1"):
        workers._run_on_slurm(work, [0, 1], Engine(2, None, "slurm"), SimpleNamespace(n=0))
