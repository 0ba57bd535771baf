"""Stands in for gcloud: VMs with TPUs, the homes of their workers and buckets are folders.

The folder $CLOUD holds all of it:

calls.jsonl             the arguments of every call
vms/NAME/state          READY, PREEMPTED, ... (Compute Engine: RUNNING, ...)
vms/NAME/zone           where it is; in another zone it is not found
vms/NAME/worker-<i>/    the home of a worker; its processes are those in *.pid
requests/NAME           the state of a queued request, and its zone
buckets/                gs://a/b is buckets/a/b

The variable CLOUD_FAULTS holds a fault on each line: its kind, the first and last of the calls that
it meets, and a pattern of these calls, as in `outage 2 3 tpu-vm describe *`.

outage                  the call fails and does nothing
preempt                 the VM is preempted just before the call
half                    only half of every file arrives, and the call fails
damage                  the same, but the call succeeds
denied                  the account lacks the role for the call
quota                   the project may not have as many TPUs
stockout                the zone has none left
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
NETWORK = {"network", "subnetwork", "labels", "service-account", "tags"}
TPU = COMMON | NETWORK | {"accelerator-type", "spot", "internal-ips", "reserved", "data-disk"}
CONNECTION = {"internal-ip"}
FLAGS = {
    "tpu-vm create": TPU | {"version"},
    "tpu-vm describe": COMMON | {"format"},
    "tpu-vm start": COMMON,
    "tpu-vm delete": COMMON,
    "tpu-vm ssh": COMMON | CONNECTION | {"worker", "command", "ssh-flag"},
    "tpu-vm scp": COMMON | CONNECTION | {"worker", "recurse"},
    "queued-resources create": TPU | {"runtime-version", "node-id"},
    "queued-resources describe": COMMON | {"format"},
    "queued-resources delete": COMMON | {"force"},
    "instances create": COMMON | NETWORK | {
        "machine-type", "image-family", "image-project", "maintenance-policy", "boot-disk-size",
        "scopes", "provisioning-model", "instance-termination-action", "max-run-duration",
        "request-valid-for-duration", "no-address", "reservation",
    },
    "instances describe": COMMON | {"format"},
    "instances start": COMMON,
    "instances delete": COMMON,
    "ssh": COMMON | CONNECTION | {"command", "ssh-flag", "tunnel-through-iap"},
    "scp": COMMON | CONNECTION | {"recurse", "tunnel-through-iap"},
    "auth list": {"filter", "format"},
    "storage cp": {"recursive"},
    "storage du": {"summarize"},
    "storage ls": {"recursive", "long"},
    "storage rsync": {"recursive"},
    "storage rm": set[str](),
}  # fmt: skip
SWITCHES = {"quiet", "spot", "recurse", "recursive", "force", "long", "internal-ips", "internal-ip",
            "reserved", "tunnel-through-iap", "no-address", "summarize"}  # fmt: skip
# Where Google has them, by its page on regions and zones.
ZONES = {
    "v3-8": {"us-central1-a", "us-central1-b", "europe-west4-a"},
    "v4-32": {"us-central2-b"},
    "v5litepod-8": {"us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b"},
    "v6e-8": {"us-central1-b", "us-east1-d", "us-east5-a", "us-east5-b", "europe-west4-a"},
    "ct5lp-hightpu-8t": {"us-central1-a", "us-west4-a"},
    "ct6e-standard-8t": {"us-east5-a", "us-east5-b", "europe-west4-a"},
}
ACCOUNT = "123-compute@developer.gserviceaccount.com"
MESSAGES = {
    "outage": "UNAVAILABLE: The service is currently unavailable.",
    "denied": f"HTTPError 403: {ACCOUNT} does not have storage.objects.create access to the Google"
    " Cloud Storage object. Permission 'storage.objects.create' denied on resource.",
    "quota": "RESOURCE_EXHAUSTED: Quota limit 'TPUV3sPerProjectPerZoneForTPUAPI' has been exceeded."
    " Limit: 0 in zone europe-west4-a.",
    "stockout": '{"code": 8, "message": "There is no more capacity in the zone"}',
}


def main(words):
    """Carries out one command."""
    with (CLOUD / "calls.jsonl").open("a") as file:
        file.write(json.dumps(words) + "\n")
    only_alpha = words[:1] == ["alpha"]
    words = words[1:] if only_alpha else words
    words = words[1:] if words[0] == "compute" else words
    words = words[1:] if words[0] == "tpus" else words
    n_words = 1 if words[0] in ("ssh", "scp") else 2
    command = " ".join(words[:n_words])
    if command not in FLAGS:
        sys.exit(usage(f"Invalid choice: {command!r}"))
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("names", nargs="*")
    for flag in FLAGS[command] | ({"tunnel-through-iap"} if only_alpha else set()):
        action = "store_true" if flag in SWITCHES else "store"
        parser.add_argument(f"--{flag}", action=action)
    arguments = parser.parse_args(words[n_words:])
    fault = next_fault(" ".join(words))
    if fault in MESSAGES:
        fail(MESSAGES[fault])
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


def usage(message):
    """Says what is wrong with the words of a command; returns the status."""
    print(f"ERROR: (gcloud) {message}", file=sys.stderr)
    return 2


def existing(place, name=""):
    """Returns the path, or fails as gcloud does where there is nothing."""
    if not place.exists():
        fail(f"NOT_FOUND: Resource '{name or place.name}' was not found")
    return place


def existing_vm(arguments, name):
    """Returns the folder of a VM, or fails where there is none in this zone."""
    vm = CLOUD / "vms" / name
    here = vm.exists() and (vm / "zone").read_text() == arguments.zone
    return existing(vm if here else CLOUD / "nothing", name)


def existing_request(arguments, name):
    """Returns the state of a queued request and its file, or fails in the same way."""
    file = CLOUD / "requests" / name
    state, zone = file.read_text().split() if file.exists() else ("", "")
    return state, existing(file if zone == arguments.zone else CLOUD / "nothing", name)


def create(arguments, name, size, state):
    if arguments.zone not in ZONES.get(size, ()):
        fail(f"INVALID_ARGUMENT: {size} is not offered in {arguments.zone}")
    vm = CLOUD / "vms" / name
    if vm.exists():
        fail(f"ALREADY_EXISTS: Resource '{name}' already exists")
    for worker in range(WORKERS):
        (vm / f"worker-{worker}").mkdir(parents=True)
    (vm / "zone").write_text(arguments.zone)
    (vm / "state").write_text(state)


def tpu_vm_create(arguments, name):
    create(arguments, name, arguments.accelerator_type, "READY")


def tpu_vm_describe(arguments, name):
    """Prints the state; the first look at a VM that is being created preempts it."""
    file = existing_vm(arguments, name) / "state"
    state = file.read_text()
    print({"value(state)": state}[arguments.format])
    if state == "CREATING":
        file.write_text("PREEMPTED")


def tpu_vm_start(arguments, name):
    (existing_vm(arguments, name) / "state").write_text("READY")


def tpu_vm_delete(arguments, name):
    vm = existing_vm(arguments, name)
    end_processes(vm)
    shutil.rmtree(vm)


def queued_resources_create(arguments, name):
    (CLOUD / "requests").mkdir(exist_ok=True)
    if (CLOUD / "requests" / name).exists():
        fail(f"ALREADY_EXISTS: Resource '{name}' already exists")
    size = arguments.accelerator_type
    (CLOUD / "requests" / name).write_text(f"WAITING_FOR_RESOURCES {arguments.zone}")
    (CLOUD / "sizes").write_text(size)


def queued_resources_describe(arguments, name):
    """Prints the state; the first look at a request grants it, or fails one that is begun."""
    state, request = existing_request(arguments, name)
    print({"value(state.state)": state}[arguments.format])
    if state == "WAITING_FOR_RESOURCES":
        create(arguments, name, (CLOUD / "sizes").read_text(), "READY")
        request.write_text(f"ACTIVE {arguments.zone}")
    if state == "PROVISIONING":
        request.write_text(f"FAILED {arguments.zone}")


def queued_resources_delete(arguments, name):
    existing_request(arguments, name)[1].unlink()
    if arguments.force and (CLOUD / "vms" / name).exists():
        tpu_vm_delete(arguments, name)


def instances_create(arguments, name):
    create(arguments, name, arguments.machine_type, "RUNNING")


def instances_describe(arguments, name):
    print({"value(status)": (existing_vm(arguments, name) / "state").read_text()}[arguments.format])


def instances_start(arguments, name):
    (existing_vm(arguments, name) / "state").write_text("RUNNING")


instances_delete = tpu_vm_delete


def workers_of(arguments, name, which):
    """Returns the homes of the workers that a flag names."""
    vm = existing_vm(arguments, name)
    if (vm / "state").read_text() not in ("READY", "RUNNING"):
        fail(f"the TPU {name} is not ready")
    return sorted(vm.glob("worker-*")) if which == "all" else [vm / f"worker-{which or 0}"]


def tpu_vm_ssh(arguments, name):
    # gcloud splits the command at spaces, and ssh joins it again.
    command = " ".join(arguments.command.split(" "))
    statuses = [
        subprocess.run(["bash", "-c", command], cwd=home, env=environment(home)).returncode
        for home in workers_of(arguments, name, getattr(arguments, "worker", ""))
    ]
    sys.exit(max(statuses))


ssh = tpu_vm_ssh


def tpu_vm_scp(arguments, *names):
    *sources, target = names
    worker = getattr(arguments, "worker", "")
    if ":" in sources[0]:
        name, _, path = sources[0].partition(":")
        (home,) = workers_of(arguments, name, worker)
        return copy(home / path, Path(target), arguments.recurse)
    name, _, folder = target.partition(":")
    for home in workers_of(arguments, name, worker):
        for source in sources:
            copy(Path(source), existing(home / folder) / Path(source).name, arguments.recurse)


scp = tpu_vm_scp


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
        shutil.copy(source, partial)
        partial.rename(target)


def storage_cp(arguments, source, target):
    place = local(target)
    if target.endswith("/") or place.is_dir():
        place = place / local(source).name
    copy(local(source), place, arguments.recursive)


def auth_list(arguments):
    print({"value(account)": ACCOUNT}[arguments.format])


def storage_du(arguments, name):
    files = [path for path in local(name).rglob("*") if path.is_file()]
    if not files:
        fail("One or more URLs matched no objects.")
    print(f"{sum(path.stat().st_size for path in files)}  {name}")


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
