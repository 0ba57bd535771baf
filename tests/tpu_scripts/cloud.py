"""The cloud of a test: stand_in_gcloud.py, and stand-ins for what runs on its VMs."""

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "tpu_scripts"
GCLOUD = Path(__file__).with_name("stand_in_gcloud.py")
# Code generation of before jaxlib 0.11 compiles faster, as in tests/conftest.py.
IS_OLD = importlib.metadata.version("jaxlib").startswith("0.10.")
FAST = "--xla_cpu_use_fusion_emitters=false" if IS_OLD else ""
# On the VM: the interpreter that runs the tests, with the copy of the project that was sent there.
UV = """#!/bin/sh
set -eu
case "$1" in
  venv)
    mkdir -p .venv/bin
    cat >.venv/bin/python <<PYTHON
#!/bin/sh
export PYTHONPATH="$PWD" JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 JAX_DISABLE_MOST_OPTIMIZATIONS=1
export XLA_FLAGS="--xla_force_host_platform_device_count=2 {flags}"
# What one VM has compiled, the next one loads.
export JAX_COMPILATION_CACHE_DIR="$CLOUD/compiled" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
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

    def __init__(self, folder, workers=1):
        self.scripts = SCRIPTS
        self.folder, self.bin, self.home = folder / "cloud", folder / "bin", folder / "at home"
        for each in (self.folder / "vms", self.folder / "buckets" / "b", self.bin, self.home):
            each.mkdir(parents=True)
        # It needs no package, and is called a thousand times.
        gcloud = f'#!/bin/sh\nexec "{sys.executable}" -IS "{GCLOUD}" "$@"\n'
        cocondenser = f'#!/bin/sh\nexec "{sys.executable}" -m cocondenser_jax.cli "$@"\n'
        uv = UV.replace("{python}", sys.executable).replace("{flags}", FAST)
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
            "POLL_SECONDS": "0.1",
            "SAVE_SECONDS": "0.1",
        }

    def run(self, script, *arguments, status=0, settings=None):
        """Runs a script in the working folder; returns all that it printed."""
        done = subprocess.run(
            [str(self.scripts / f"{script}.sh"), *arguments],
            cwd=self.home,
            env=self.environment | (settings or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def calls(self):
        """Returns the arguments of all calls of gcloud since the last time."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [ast.literal_eval(line) for line in lines]

    def make_vm(self):
        """Makes the VM that create.sh makes by default, unless there is one; returns its homes."""
        vm = self.folder / "vms" / "cocondenser"
        if not vm.exists():
            for worker in range(int(self.environment["CLOUD_WORKERS"])):
                (vm / f"worker-{worker}").mkdir(parents=True)
            (vm / "zone").write_text("europe-west4-a")
            (vm / "state").write_text("READY")
        return sorted(vm.glob("worker-*"))


# Trains until it is stopped.
ENDLESS = "trap 'exit 143' TERM; while true; do sleep 0.1; done"


def save_stores(cloud, *names):
    """Puts stores into the bucket that PROGRAM takes for whole ones."""
    for name in names:
        store = cloud.folder / "buckets" / "b" / "stores" / name
        store.mkdir(parents=True)
        (store / "manifest.json").write_text("a whole store")


# A stand-in for `cocondenser`: `verify` compares one file, and a run makes step 9, where a SIGTERM
# stops it, then 10.
PROGRAM = """
case "$1" in
  verify) test "$(cat "${2#--store=}/manifest.json")" = "a whole store"; exit ;;
esac
test ! -d runs/first/checkpoints/10 || exit 0
mkdir -p runs/first/checkpoints/partial && cd runs/first
echo '{"config": {"train": {"steps": 10}}}' >run.json
step=9
test ! -d checkpoints/9 || step=10
echo $step >checkpoints/partial/params.safetensors
sum=$(sha256sum <checkpoints/partial/params.safetensors)
echo "{\\"params.safetensors\\": \\"${sum%% *}\\"}" >checkpoints/partial/sha256.json
mv checkpoints/partial checkpoints/$step
test $step -eq 10 || exit 143
"""


def set_up(cloud, command):
    """Makes a VM where `cocondenser` is a shell command; returns the homes of its workers.

    Every VM after it is made the same by setup.sh. Its Python counts no devices.
    """
    python = f'PYTHONPATH="{SCRIPTS.parent}" exec "{sys.executable}" "$@"'
    programs = {"cocondenser": command, "python": f"[ $1$# != -3 ] || exit 0\n{python}"}
    install = ["mkdir -p .venv/bin"]
    for name, text in programs.items():
        (cloud.bin / f"{name}-there").write_text(f"#!/bin/sh\n{text}\n")
        install.append(f'install "{cloud.bin}/{name}-there" .venv/bin/{name}')
    (cloud.bin / "uv").write_text("\n".join(["#!/bin/sh", *install]) + "\n")
    homes = cloud.make_vm()
    for home in homes:
        folder = home / "cocondenser_jax"
        shutil.copytree(SCRIPTS, folder / "tpu_scripts")
        subprocess.run([cloud.bin / "uv"], cwd=folder, check=True)
        (folder / ".venv" / "ready").touch()
    return homes
