"""What SkyPilot and xpk are given, run on a worker of the simulated cloud."""

import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from cocondenser_jax.cli import main
from tests.tpu_scripts.cloud import PROGRAM, SCRIPTS, save_stores, set_up

PRETRAIN = ["--config=configs/condenser.py", "--config.data.store=stores/wiki"]
# As stage 1 of the papers has them; of the second, a weight.
TWO_STORES = [PRETRAIN[0], "--config.data.store=stores/wiki,2*stores/books"]
MACHINE = {"CLUSTER": "c", "TPU": "v5e-8", "HOSTS": "2", "PROJECT": "p"}
# Writes its arguments, and what lies in the folder that goes into the image.
XPK = """#!/bin/sh
printf '%s\\n' "$@" >"$CLOUD/xpk"
for word; do
  case $word in --script-dir=*) ls "${word#*=}" >"$CLOUD/copied" ;; esac
done
"""


@pytest.fixture
def worker(cloud):
    """Gives a function that runs bash in the project's folder on a new worker.

    There, `cocondenser` stops after its first call and ends after its second.
    """
    (home,) = set_up(cloud, f'echo "$@" >>arguments\n{PROGRAM}')
    folder = home / "cocondenser_jax"
    shutil.rmtree(folder / ".venv")
    save_stores(cloud, "wiki", "books")
    # As root in a container.
    (cloud.bin / "apt-get").write_text('#!/bin/sh\necho "apt-get $*"\n')
    (cloud.bin / "apt-get").chmod(0o755)

    def run(command, **settings):
        return subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=cloud.environment | {"HOME": str(home)} | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )

    run.folder = folder
    return run


def record_installed(cloud):
    """From now on the workers' uv notes its calls; returns a function that reads them."""
    uv = (cloud.bin / "uv").read_text()
    (cloud.bin / "uv").write_text(uv.replace("#!/bin/sh", '#!/bin/sh\necho "$@" >>"$CLOUD/uv"'))
    return lambda: [x for x in (cloud.folder / "uv").read_text().splitlines() if " .[" in x]


def require_trained(cloud, worker, command, stores=("wiki",), **settings):
    """Runs what is started again after a failure, and looks at what it leaves in the bucket."""
    stopped = worker(command, **settings)
    assert stopped.returncode == 143, stopped.stdout
    done = worker(command, **settings)
    assert done.returncode == 0, done.stdout
    saved = cloud.folder / "buckets" / "b" / "runs" / "first"
    assert {path.name for path in saved.iterdir()} == {"9.tar", "10.tar", "command.txt", "logs"}
    assert any((saved / "logs").iterdir())
    *verified, first, second = (worker.folder / "arguments").read_text().splitlines()
    assert verified == [f"verify --store=stores/{name}.partial" for name in stores]
    assert {path.name for path in (worker.folder / "stores").iterdir()} == {*stores}
    assert first == second
    return shlex.split(first)


def require_ours(arguments, folder, monkeypatch, capfd):
    """The command line reads these arguments, and lacks nothing but the store."""
    monkeypatch.chdir(folder)
    assert main(arguments) == 2
    assert "stores/wiki" in capfd.readouterr().err
    assert list(folder.iterdir()) == []


def test_what_skypilot_is_given(cloud, worker, tmp_path, monkeypatch, capfd):
    task = yaml.safe_load((SCRIPTS / "skypilot.yaml").read_text())
    assert set(task) == {"name", "workdir", "resources", "envs", "run"}
    assert task["envs"]["BUCKET"] is None  # SkyPilot asks for it
    settings = {name: str(value) for name, value in task["envs"].items()}
    settings |= {"BUCKET": "gs://b", "RUN": "first", "EXTRAS": "pretrain,tpu"}
    quick = task["run"].replace(" 60 ", " 0.2 ")
    installed = record_installed(cloud)
    arguments = require_trained(cloud, worker, quick, **settings)
    assert {line.split()[-1] for line in installed()} == {".[pretrain,tpu]"}
    assert arguments == ["pretrain", "--workdir=runs/first", *PRETRAIN]
    empty = tmp_path / "empty"
    empty.mkdir()
    require_ours(arguments, empty, monkeypatch, capfd)


def test_skypilot_fetches_every_store(cloud, worker):
    task = yaml.safe_load((SCRIPTS / "skypilot.yaml").read_text())
    settings = {name: str(value) for name, value in task["envs"].items()}
    settings |= {"BUCKET": "gs://b", "RUN": "first", "ARGUMENTS": " ".join(TWO_STORES)}
    quick = task["run"].replace(" 60 ", " 0.2 ")
    arguments = require_trained(cloud, worker, quick, ("wiki", "books"), **settings)
    assert arguments == ["pretrain", "--workdir=runs/first", *TWO_STORES]


def give_xpk(cloud, *arguments, **settings):
    """Calls xpk.sh; returns what xpk is given, and the command in it apart."""
    (cloud.bin / "xpk").write_text(XPK)
    (cloud.bin / "xpk").chmod(0o755)
    cloud.run("xpk", "first", *arguments, settings=MACHINE | settings)
    *words, command = (cloud.folder / "xpk").read_text().splitlines()
    return words, command.removeprefix("--command=")


def test_xpk_fetches_every_store(cloud, worker):
    _, command = give_xpk(cloud, *TWO_STORES)
    arguments = require_trained(cloud, worker, command, ("wiki", "books"))
    assert arguments[3:] == TWO_STORES


def test_what_xpk_is_given(cloud, worker):
    words, command = give_xpk(cloud, *PRETRAIN, "--config.seed=7", EXTRAS="pretrain,retrieval")
    assert words[:7] == [
        "workload", "create", "--cluster=c", "--workload=first", "--tpu-type=v5litepod-8",
        "--zone=us-west4-a", "--project=p",
    ]  # fmt: skip
    copied = (cloud.folder / "copied").read_text().split()
    assert {"cocondenser_jax", "configs", "constraints.txt", "setup.py", "tpu_scripts"} <= {*copied}
    assert not {"tests", "docs", ".venv", ".git"} & {*copied}
    installed = record_installed(cloud)
    arguments = require_trained(cloud, worker, command)
    assert {line.split()[-1] for line in installed()} == {".[pretrain,retrieval]"}
    assert arguments == [
        "pretrain", "--workdir=runs/first", "--coordinator=auto", *PRETRAIN, "--config.seed=7"
    ]  # fmt: skip


def test_xpk_is_given_a_cluster(cloud):
    printed = cloud.run("xpk", "first", *PRETRAIN, status=2)
    assert printed == "xpk.sh: expected CLUSTER (see --help)\n"
    printed = cloud.run("xpk", "--config=x", status=2)
    assert "expected the run's name first" in printed


def test_xpk_is_explained_and_shown_without_being_run(cloud):
    printed = cloud.run("xpk", "--help")
    assert " xpk.sh condenser " in printed
    assert "set -euo" not in printed
    printed = cloud.run("xpk", "first", *PRETRAIN, "--dry-run", settings=MACHINE)
    assert printed.startswith("xpk workload create --cluster=c --workload=first ")
    assert cloud.calls() == []


def test_the_commands_for_someone_logged_in_are_ours(cloud, worker, tmp_path, monkeypatch, capfd):
    """docs/plan.md: install, the store, pretrain, on a VM without a bucket; and for a GPU."""
    page = (SCRIPTS.parent / "docs" / "plan.md").read_text("utf-8")
    section = page.split("## Logged in on a TPU VM")[1].partition("\n## Will it fit?")[0]
    on_tpu, on_gpu = re.findall(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    install, *words = (shlex.split(line) for line in on_tpu.replace("\\\n", " ").splitlines())
    cloud.calls()
    done = worker(shlex.join(install))
    assert done.returncode == 0, done.stdout
    assert (worker.folder / ".venv" / "ready").exists()
    assert cloud.calls() == []  # no bucket is asked for
    assert [program for program, *_ in words] == [".venv/bin/cocondenser"] * 3
    empty = tmp_path / "empty"
    empty.mkdir()
    for pretrain in words[1:]:
        require_ours(pretrain[1:], empty, monkeypatch, capfd)
    assert main(words[0][1:]) == 2
    assert "no folder bert-base-uncased" in capfd.readouterr().err  # there is no network here
    extras = re.findall(r"\.\[(\w+)\]", on_gpu)
    assert extras == ["cuda"]
    assert '"cuda": ' in (SCRIPTS.parent / "setup.py").read_text()
