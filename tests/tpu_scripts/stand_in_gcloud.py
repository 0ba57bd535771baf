"""Stands in for gcloud: TPU VMs, the homes of their workers and buckets are folders.

The folder $CLOUD holds all of it:

calls.jsonl             the arguments of every call
vms/NAME/state          READY, PREEMPTED, ...
vms/NAME/worker-<i>/    the home of a worker; its processes are those in *.pid
requests/NAME           the state of a queued request
buckets/                gs://a/b is buckets/a/b

The variable CLOUD_FAULTS holds a fault on each line: its kind, the first and last of the calls that
it meets, and a pattern of these calls, as in `outage 2 3 tpu-vm describe *`.

outage                  the call fails and does nothing
preempt                 the VM is preempted just before the call
half                    only half of every file arrives, and the call fails
damage                  the same, but the call succeeds
"""

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

CLOUD = Path(os.environ["CLOUD"])
WORKERS = int(os.environ.get("CLOUD_WORKERS", "1"))
# The flags that gcloud 528 knows, of those that are used. An unknown flag is an error there too.
COMMON = {"zone", "project", "quiet"}
SIZE = {"accelerator-type", "spot"}
FLAGS = {
    "tpu-vm create": COMMON | SIZE | {"version"},
    "tpu-vm describe": COMMON | {"format"},
    "tpu-vm start": COMMON,
    "tpu-vm delete": COMMON,
    "tpu-vm ssh": COMMON | {"worker", "command", "ssh-flag"},
    "tpu-vm scp": COMMON | {"worker", "recurse"},
    "queued-resources create": COMMON | SIZE | {"runtime-version", "node-id"},
    "queued-resources describe": COMMON | {"format"},
    "queued-resources delete": COMMON | {"force"},
    "storage cp": {"recursive"},
    "storage ls": {"recursive", "long"},
    "storage rsync": {"recursive"},
    "storage rm": set[str](),
}
SWITCHES = {"quiet", "spot", "recurse", "recursive", "force", "long"}


def main(words):
    """Carries out one command."""
    with (CLOUD / "calls.jsonl").open("a") as file:
        file.write(json.dumps(words) + "\n")
    words = words[2:] if words[:2] == ["compute", "tpus"] else words
    command = " ".join(words[:2])
    if command not in FLAGS:
        fail(f"Invalid choice: {command!r}")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("names", nargs="*")
    for flag in FLAGS[command]:
        parser.add_argument(f"--{flag}", action="store_true" if flag in SWITCHES else "store")
    arguments = parser.parse_args(words[2:])
    fault = next_fault(" ".join(words))
    if fault == "outage":
        fail("UNAVAILABLE: The service is currently unavailable.")
    if fault == "preempt":
        preempt()
    globals()[command.replace(" ", "_").replace("-", "_")](arguments, *arguments.names)
    if fault in ("half", "damage"):
        target = local(arguments.names[-1])
        for path in (target, *target.rglob("*")):
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)
    if fault == "half":
        fail("the connection was reset")


def next_fault(call):
    """Counts a call in `faults`; returns the fault that meets it, if any."""
    met = None
    counts = CLOUD / "faults"
    counts.mkdir(exist_ok=True)
    for number, line in enumerate(os.environ.get("CLOUD_FAULTS", "").splitlines()):
        kind, first, last, pattern = line.split(maxsplit=3)
        if fnmatch.fnmatch(call, pattern):
            with (counts / str(number)).open("a+") as file:
                file.write(".")
            if int(first) <= (counts / str(number)).stat().st_size <= int(last):
                met = kind
    return met


def preempt():
    """Takes all VMs away, with what runs on them: this call too, where a VM makes it."""
    for vm in (CLOUD / "vms").iterdir():
        (vm / "state").write_text("PREEMPTED")
        for home in vm.glob("worker-*"):
            home.rename(vm / f"gone-{home.name}")
        end_processes(vm)


def fail(message):
    """Ends as gcloud does."""
    sys.exit(f"ERROR: (gcloud) {message}")


def existing(place):
    """Returns the path, or fails as gcloud does where there is nothing."""
    if not place.exists():
        fail(f"NOT_FOUND: Resource '{place.name}' was not found")
    return place


def tpu_vm_create(arguments, name):
    vm = CLOUD / "vms" / name
    if vm.exists():
        fail(f"ALREADY_EXISTS: Resource '{name}' already exists")
    for worker in range(WORKERS):
        (vm / f"worker-{worker}").mkdir(parents=True)
    (vm / "state").write_text("READY")


def tpu_vm_describe(arguments, name):
    """Prints the state; the first look at a VM that is being created preempts it."""
    file = existing(CLOUD / "vms" / name) / "state"
    state = file.read_text()
    print({"value(state)": state}[arguments.format])
    if state == "CREATING":
        file.write_text("PREEMPTED")


def tpu_vm_start(arguments, name):
    (existing(CLOUD / "vms" / name) / "state").write_text("READY")


def tpu_vm_delete(arguments, name):
    end_processes(existing(CLOUD / "vms" / name))
    shutil.rmtree(CLOUD / "vms" / name)


def queued_resources_create(arguments, name):
    (CLOUD / "requests").mkdir(exist_ok=True)
    if (CLOUD / "requests" / name).exists():
        fail(f"ALREADY_EXISTS: Resource '{name}' already exists")
    (CLOUD / "requests" / name).write_text("WAITING_FOR_RESOURCES")


def queued_resources_describe(arguments, name):
    """Prints the state; the first look at a request grants it."""
    request = existing(CLOUD / "requests" / name)
    state = request.read_text()
    print({"value(state.state)": state}[arguments.format])
    if state == "WAITING_FOR_RESOURCES":
        tpu_vm_create(arguments, name)
        request.write_text("ACTIVE")


def queued_resources_delete(arguments, name):
    existing(CLOUD / "requests" / name).unlink()
    if arguments.force and (CLOUD / "vms" / name).exists():
        tpu_vm_delete(arguments, name)


def workers_of(name, which):
    """Returns the homes of the workers that a flag names."""
    vm = existing(CLOUD / "vms" / name)
    if (vm / "state").read_text() != "READY":
        fail(f"the TPU {name} is not ready")
    return sorted(vm.glob("worker-*")) if which == "all" else [vm / f"worker-{which or 0}"]


def tpu_vm_ssh(arguments, name):
    # gcloud splits the command at spaces, and ssh joins it again.
    command = " ".join(arguments.command.split(" "))
    statuses = [
        subprocess.run(["bash", "-c", command], cwd=home, env=environment(home)).returncode
        for home in workers_of(name, arguments.worker)
    ]
    sys.exit(max(statuses))


def tpu_vm_scp(arguments, *names):
    *sources, target = names
    if ":" in sources[0]:
        name, _, path = sources[0].partition(":")
        (home,) = workers_of(name, arguments.worker)
        return copy(home / path, Path(target), arguments.recurse)
    name, _, folder = target.partition(":")
    for home in workers_of(name, arguments.worker):
        for source in sources:
            copy(Path(source), existing(home / folder) / Path(source).name, arguments.recurse)


def environment(home):
    """Returns what a shell on the VM sees: of this machine, only the stand-ins."""
    return {
        "HOME": str(home),
        "PATH": f"{os.environ['CLOUD_BIN']}:/usr/local/bin:/usr/bin:/bin",
        **{name: value for name, value in os.environ.items() if name.startswith("CLOUD")},
    }


def end_processes(vm):
    """Kills what runs on a VM."""
    for file in vm.rglob("*.pid"):
        try:
            os.killpg(int(file.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            continue


def local(name):
    """Returns the place of an object or file."""
    return CLOUD / "buckets" / name[5:] if name.startswith("gs://") else Path(name)


def copy(source, target, recursive):
    existing(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        if not recursive:
            fail(f"{source} is a folder")
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        # As an object: complete or absent.
        partial = target.with_name(f"{target.name}.partial")
        shutil.copyfile(source, partial)
        partial.rename(target)


def storage_cp(arguments, source, target):
    place = local(target)
    if target.endswith("/") or place.is_dir():
        place = place / local(source).name
    copy(local(source), place, arguments.recursive)


def storage_ls(arguments, name):
    folder = local(name.removesuffix("**"))
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if not found:
        fail("One or more URLs matched no objects.")
    for path in found:
        print(f"gs://{path.relative_to(CLOUD / 'buckets')}")


def storage_rsync(arguments, source, target):
    copy(local(source), local(target), arguments.recursive)


def storage_rm(arguments, name):
    existing(local(name)).unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
