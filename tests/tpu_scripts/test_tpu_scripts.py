"""The scripts for TPU VMs, against a cloud of folders: see stand_in_gcloud.py."""

import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from transformers import AutoModel

from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_wordpiece

SCRIPTS = Path(__file__).parents[2] / "tpu_scripts"
GCLOUD = Path(__file__).with_name("stand_in_gcloud.py")
WORDS = "red green blue stone river cloud tree house bird fish salt iron wind snow fire".split()
# What each script needs to be given.
ARGUMENTS = {
    "create": [],
    "setup": [],
    "corpus": ["wiki", "--source=gs://b/text.jsonl", "--tokenizer=bert-base-uncased"],
    "pretrain": ["first", "--config=configs/condenser.py", "--config.data.store=stores/wiki"],
    "status": [],
    "fetch": ["first"],
    "delete": [],
}
# On the VM: the interpreter that runs the tests, with the copy of the project that was sent there.
UV = """#!/bin/sh
set -eu
case "$1" in
  venv)
    mkdir -p .venv/bin
    cat >.venv/bin/python <<PYTHON
#!/bin/sh
export PYTHONPATH="$PWD" JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 JAX_DISABLE_MOST_OPTIMIZATIONS=1
export XLA_FLAGS=--xla_force_host_platform_device_count=8
exec "{python}" "\\$@"
PYTHON
    ;;
  pip)
    grep --quiet '^jax==' constraints.txt && test -f setup.py
    printf '#!/bin/sh\\nexec .venv/bin/python -m cocondenser_jax.cli "$@"\\n' >.venv/bin/cocondenser
    ;;
esac
chmod +x .venv/bin/*
"""
TMUX = """#!/bin/bash
set -eu
case "$1" in  # new-session -d -s NAME COMMAND..., has-session -t =NAME
  new-session) setsid "${@:5}" </dev/null >/dev/null 2>&1 & echo $! >"$HOME/$4.pid" ;;
  has-session) kill -0 "$(cat "$HOME/${3#=}.pid")" ;;
esac
"""


class Cloud:
    """The cloud of one test, and a folder to work in."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.folder, self.bin, self.home = folder / "cloud", folder / "bin", folder / "at home"
        for each in (self.folder / "vms", self.folder / "buckets" / "b", self.bin, self.home):
            each.mkdir(parents=True)
        gcloud = f'#!/bin/sh\nexec "{sys.executable}" "{GCLOUD}" "$@"\n'
        cocondenser = f'#!/bin/sh\nexec "{sys.executable}" -m cocondenser_jax.cli "$@"\n'
        uv = UV.replace("{python}", sys.executable)
        programs = {"gcloud": gcloud, "cocondenser": cocondenser, "uv": uv, "tmux": TMUX}
        for name, text in programs.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.environment = os.environ | {
            "CLOUD": str(self.folder),
            "CLOUD_BIN": str(self.bin),
            "CLOUD_WORKERS": str(workers),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(SCRIPTS.parent),
            "BUCKET": "gs://b",
            "POLL_SECONDS": "0.2",
            "SAVE_SECONDS": "0.2",
        }

    def run(
        self, script: str, *arguments: str, status: int = 0, settings: Mapping[str, str] = {}
    ) -> str:
        """Runs a script in the working folder; returns all that it printed."""
        done = subprocess.run(
            [str(SCRIPTS / f"{script}.sh"), *arguments],
            cwd=self.home,
            env=self.environment | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def calls(self) -> list[list[str]]:
        """Returns the arguments of all calls of gcloud since the last time."""
        file = self.folder / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


@pytest.mark.parametrize("script", ARGUMENTS)
def test_help_says_how_to_call_a_script(cloud: Cloud, script: str) -> None:
    printed = cloud.run(script, "--help")
    assert f"  {script}.sh" in printed or f" {script}.sh" in printed
    assert "--dry-run" in printed
    assert "set -euo" not in printed
    assert cloud.calls() == []


@pytest.mark.parametrize("provisioning", ["on-demand", "queued-spot"])
@pytest.mark.parametrize("script", ARGUMENTS)
def test_a_dry_run_shows_commands_and_runs_none(
    cloud: Cloud, script: str, provisioning: str
) -> None:
    settings = {"PROVISIONING": provisioning, "PROJECT": "my-project"}
    printed = cloud.run(script, *ARGUMENTS[script], "--dry-run", settings=settings)
    commands = [line for line in printed.splitlines() if line.startswith("gcloud ")]
    assert commands
    for command in commands:
        assert command.startswith(("gcloud compute tpus ", "gcloud storage "))
        assert ("--project=my-project" in command) == ("compute" in command)
    assert cloud.calls() == []
    assert list(cloud.home.iterdir()) == []


def test_a_vm_is_created_as_the_settings_say(cloud: Cloud) -> None:
    def created(provisioning: str) -> list[str]:
        cloud.run("create", settings={"PROVISIONING": provisioning})
        (create,) = (call for call in cloud.calls() if call[3] == "create")
        cloud.run("delete", settings={"PROVISIONING": provisioning})
        assert list((cloud.folder / "vms").iterdir()) == []
        return create

    size = "--accelerator-type=v3-8"
    image = "tpu-ubuntu2204-base"
    direct = ["compute", "tpus", "tpu-vm", "create", "cocondenser", size]
    queued = ["compute", "tpus", "queued-resources", "create", "cocondenser"]
    queued += ["--node-id=cocondenser", size]
    where = ["--zone=europe-west4-a", "--quiet"]
    assert created("on-demand") == [*direct, f"--version={image}", *where]
    assert created("spot") == [*direct, "--spot", f"--version={image}", *where]
    assert created("queued") == [*queued, f"--runtime-version={image}", *where]
    assert created("queued-spot") == [*queued, "--spot", f"--runtime-version={image}", *where]
    assert "expected on-demand" in cloud.run("create", status=2, settings={"PROVISIONING": "cheap"})


@pytest.mark.parametrize("provisioning", ["spot", "queued-spot"])
def test_a_vm_is_created_once_and_again_after_a_preemption(cloud: Cloud, provisioning: str) -> None:
    def created() -> list[str]:
        cloud.run("create", settings={"PROVISIONING": provisioning})
        return [call[3] for call in cloud.calls() if call[3] != "describe"]

    assert created() == ["create"]
    assert created() == []
    state = cloud.folder / "vms" / "cocondenser" / "state"
    state.write_text("PREEMPTED")
    assert created() == ["delete", "create"]
    assert state.read_text() == "READY"
    state.write_text("STOPPED")
    assert created() == ["start"]
    if provisioning == "queued-spot":  # the VM is deleted first, its request then suspended
        shutil.rmtree(state.parent)
        (cloud.folder / "requests" / "cocondenser").write_text("SUSPENDED")
        assert created() == ["delete", "create"]


def test_a_vm_that_is_preempted_before_it_is_ready_is_not_waited_for(cloud: Cloud) -> None:
    cloud.run("create")
    (cloud.folder / "vms" / "cocondenser" / "state").write_text("CREATING")
    printed = cloud.run("create", status=2)
    assert printed.endswith("create.sh: cocondenser is PREEMPTED\n")


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(8, 11))) + "."


def write_text(folder: Path) -> None:
    """Writes `my articles.jsonl` and `a tokenizer`: users have names with spaces."""
    rng = random.Random(1)
    texts = [" ".join(sentence(rng) for _ in range(5)) for _ in range(40)]
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "my articles.jsonl").write_text("".join(lines))
    (folder / "a tokenizer").mkdir()
    save_tokenizer(train_wordpiece(texts, 80), folder / "a tokenizer")


def set_up(cloud: Cloud, command: str) -> list[Path]:
    """Creates a VM where `cocondenser` is a shell command; returns the homes of its workers."""
    cloud.run("create")
    homes = sorted((cloud.folder / "vms" / "cocondenser").glob("worker-*"))
    for home in homes:
        folder = home / "cocondenser_jax"
        shutil.copytree(SCRIPTS, folder / "tpu_scripts")
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "ready").touch()
        program = folder / ".venv" / "bin" / "cocondenser"
        program.write_text(f"#!/bin/sh\n{command}\n")
        program.chmod(0o755)
    return homes


TINY = (
    "--config=configs/quickstart.py:condenser --config.train.steps=300 --config.data.length=16"
    " --config.data.documents_per_step=16 --config.model.hidden_size=16"
    " --config.model.intermediate_size=16 --config.model.num_hidden_layers=2"
    " --config.checkpoint.every=20 --config.checkpoint.keep=2 --config.log_every=20"
).split()


@pytest.mark.timeout(900)
def test_the_whole_pipeline_with_a_preemption(cloud: Cloud) -> None:
    write_text(cloud.home)
    bucket = cloud.folder / "buckets" / "b"
    cloud.run("create")
    assert "sees 8 devices" in cloud.run("setup")
    source = ["--source=my articles.jsonl", "--tokenizer=a tokenizer", "--max_tokens=16"]
    assert "documents" in cloud.run("corpus", "my wiki", *source)
    assert (bucket / "stores" / "my wiki" / "manifest.json").is_file()

    (cloud.folder / "preempt_at").write_text("*.tar")  # the first checkpoint to be saved
    printed = cloud.run("pretrain", "first run", *TINY, "--config.data.store=stores/my wiki")
    assert "first run: gone" in printed
    saved = bucket / "runs" / "first run"
    logs = "\n".join(path.read_text() for path in sorted((saved / "logs").iterdir()))
    at = int(logs.split("resuming after step ")[1].split()[0])
    assert 0 < at < 300
    assert {path.name for path in saved.iterdir()} >= {"300.tar", "command.txt"}
    # pretrain keeps two checkpoints, and the bucket no more of what this VM saved.
    kept = sorted(int(path.stem) for path in saved.glob("*.tar"))
    assert len(kept) <= 2
    with tarfile.open(saved / "300.tar") as archive:
        names = {name for name in archive.getnames() if name.startswith("./checkpoints/")}
    assert {name.split("/")[2] for name in names} == {"300"}

    assert "pretrain-first run: 0" in cloud.run("status")
    cloud.run("delete")
    cloud.run("fetch", "first run", "--out=a model")
    steps = [
        json.loads(line)["step"]
        for line in (cloud.home / "runs" / "first run" / "metrics.jsonl").open()
    ]
    assert steps == list(range(20, 301, 20))
    assert AutoModel.from_pretrained(cloud.home / "a model").config.hidden_size == 16


def test_a_store_is_not_waited_for_on_a_vm_that_was_preempted(cloud: Cloud) -> None:
    set_up(cloud, 'printf PREEMPTED >"$CLOUD/vms/cocondenser/state"; sleep 3')
    printed = cloud.run("corpus", "wiki", "--source=hf:x", status=2)
    assert printed.endswith("corpus.sh: cocondenser is PREEMPTED\n")


def test_wrong_settings_end_the_run(cloud: Cloud) -> None:
    set_up(cloud, f'PYTHONPATH="{SCRIPTS.parent}" "{sys.executable}" -m cocondenser_jax.cli "$@"')
    printed = cloud.run("pretrain", "first", "--config=configs/none.py", status=2)
    assert "no config file configs/none.py" in printed
    assert "first: refused" in printed


def test_a_run_that_keeps_failing_is_abandoned(cloud: Cloud) -> None:
    set_up(cloud, "echo no memory; exit 1")
    printed = cloud.run("pretrain", "first", "--config=x", status=2, settings={"MAX_FAILURES": "3"})
    assert "the run failed 3 times" in printed
    assert printed.count("first: failed") == 3
    assert "no memory" in printed


def test_a_run_that_was_stopped_is_not_done(cloud: Cloud) -> None:
    steps = 'echo \'{"config": {"train": {"steps": 4}}}\' >runs/first/run.json'
    program = f"mkdir -p runs/first/checkpoints && {steps} && cd runs/first/checkpoints"
    (home,) = set_up(cloud, f"{program} && if [ -d 2 ]; then mkdir 4; else mkdir 2; fi")
    (home / "cocondenser_jax" / ".venv" / "bin" / "python").symlink_to(sys.executable)
    printed = cloud.run("pretrain", "first", "--config=x")
    assert printed.count("first: stopped") == 1
    assert printed.endswith("first: done\n")
    assert (cloud.folder / "buckets" / "b" / "runs" / "first" / "4.tar").is_file()


def test_every_worker_trains(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, workers=2)
    homes = set_up(cloud, 'echo "$@" >arguments')
    cloud.run("pretrain", "first", "--config=x", settings={"HOSTS": "2"})
    assert len(homes) == 2
    for home in homes:
        arguments = (home / "cocondenser_jax" / "arguments").read_text()
        assert arguments == "pretrain --workdir=runs/first --coordinator=auto --config=x\n"


def test_what_is_missing_is_named(cloud: Cloud) -> None:
    no_bucket = {"BUCKET": ""}
    for script in ("pretrain", "fetch"):
        printed = cloud.run(script, *ARGUMENTS[script], status=2, settings=no_bucket)
        assert "expected gs://NAME" in printed
        assert "expected the run's name first" in cloud.run(script, "--config=x", status=2)
    assert "unknown argument now" in cloud.run("delete", "now", status=2)
    assert cloud.calls() == []
