"""Stands in for gcloud: VMs with TPUs, the homes of their workers and buckets are folders.

It is started a thousand times, so it imports what few calls need where they need it.

The folder $CLOUD holds all of it:

calls                   the arguments of every call, as Python writes a list
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

import os
import sys

CLOUD = os.environ["CLOUD"]
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
    with open(at("calls"), "a") as file:
        file.write(f"{words!r}\n")
    only_alpha = words[:1] == ["alpha"]
    words = words[1:] if only_alpha else words
    words = words[1:] if words[0] == "compute" else words
    words = words[1:] if words[0] == "tpus" else words
    n_words = 1 if words[0] in ("ssh", "scp") else 2
    command = " ".join(words[:n_words])
    if command not in FLAGS:
        sys.exit(usage(f"Invalid choice: {command!r}"))
    flags = FLAGS[command] | ({"tunnel-through-iap"} if only_alpha else set())
    names, given = read_arguments(words[n_words:], flags)
    fault = next_fault(" ".join(words))
    if fault in MESSAGES:
        fail(MESSAGES[fault])
    if fault == "preempt":
        preempt()
    globals()[command.replace(" ", "_").replace("-", "_")](given, *names)
    if fault in ("half", "damage"):
        halve(local(names[-1]))
    if fault == "half":
        fail("the connection was reset")


def read_arguments(words, flags):
    """Returns the words that are no flags, and the values of the flags."""
    names, given = [], {}
    for word in words:
        flag, has_value, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            names.append(word)
        elif flag not in flags or bool(has_value) == (flag in SWITCHES):
            sys.exit(usage(f"unrecognized arguments: {word}"))
        else:
            given[flag] = value
    return names, given


def at(*names):
    """Returns a path in the cloud."""
    return os.path.join(CLOUD, *names)


def read(*names):
    with open(at(*names)) as file:
        return file.read()


def write(text, *names):
    with open(at(*names), "w") as file:
        file.write(text)


def next_fault(call):
    """Counts a call in `faults`; returns the fault that meets it, if any."""
    met = None
    faults = os.environ.get("CLOUD_FAULTS", "").splitlines()
    if faults:
        import fnmatch

        os.makedirs(at("faults"), exist_ok=True)
    for number, line in enumerate(faults):
        kind, first, last, pattern = line.split(maxsplit=3)
        if fnmatch.fnmatch(call, pattern):
            with open(at("faults", str(number)), "a+") as file:
                file.write(".")
            if int(first) <= os.path.getsize(at("faults", str(number))) <= int(last):
                met = kind
    return met


def preempt():
    """Takes all VMs away, with what runs on them: this call too, where a VM makes it."""
    for name in os.listdir(at("vms")):
        write("PREEMPTED", "vms", name, "state")
        for home in workers_in(name):
            os.rename(home, os.path.join(os.path.dirname(home), f"gone-{os.path.basename(home)}"))
        end_processes(name)


def halve(place):
    """Cuts a file, or all of a folder, to half of its size."""
    for path in files_in(place) if os.path.isdir(place) else [place]:
        os.truncate(path, os.path.getsize(path) // 2)


def fail(message):
    """Ends as gcloud does."""
    sys.exit(f"ERROR: (gcloud) {message}")


def usage(message):
    """Says what is wrong with the words of a command; returns the status."""
    print(f"ERROR: (gcloud) {message}", file=sys.stderr)
    return 2


def fail_unless(exists, name):
    """Fails as gcloud does where there is nothing."""
    if not exists:
        fail(f"NOT_FOUND: Resource '{name}' was not found")


def find_vm(given, name):
    """Fails where there is no VM of this name in this zone."""
    fail_unless(
        os.path.exists(at("vms", name)) and read("vms", name, "zone") == given["zone"], name
    )


def find_request(given, name):
    """Returns the state of a queued request, or fails in the same way."""
    there = os.path.exists(at("requests", name))
    state, zone = read("requests", name).split() if there else ("", "")
    fail_unless(there and zone == given["zone"], name)
    return state


def create(given, name, size, state):
    if given["zone"] not in ZONES.get(size, ()):
        fail(f"INVALID_ARGUMENT: {size} is not offered in {given['zone']}")
    if os.path.exists(at("vms", name)):
        fail(f"ALREADY_EXISTS: Resource '{name}' already exists")
    for worker in range(WORKERS):
        os.makedirs(at("vms", name, f"worker-{worker}"))
    write(given["zone"], "vms", name, "zone")
    write(state, "vms", name, "state")


def tpu_vm_create(given, name):
    create(given, name, given["accelerator-type"], "READY")


def tpu_vm_describe(given, name):
    """Prints the state; the first look at a VM that is being created preempts it."""
    find_vm(given, name)
    state = read("vms", name, "state")
    print({"value(state)": state}[given["format"]])
    if state == "CREATING":
        write("PREEMPTED", "vms", name, "state")


def tpu_vm_start(given, name):
    find_vm(given, name)
    write("READY", "vms", name, "state")


def tpu_vm_delete(given, name):
    import shutil

    find_vm(given, name)
    end_processes(name)
    shutil.rmtree(at("vms", name))


def queued_resources_create(given, name):
    os.makedirs(at("requests"), exist_ok=True)
    if os.path.exists(at("requests", name)):
        fail(f"ALREADY_EXISTS: Resource '{name}' already exists")
    write(f"WAITING_FOR_RESOURCES {given['zone']}", "requests", name)
    write(given["accelerator-type"], "sizes")


def queued_resources_describe(given, name):
    """Prints the state; the first look at a request grants it, or fails one that is begun."""
    state = find_request(given, name)
    print({"value(state.state)": state}[given["format"]])
    if state == "WAITING_FOR_RESOURCES":
        create(given, name, read("sizes"), "READY")
        write(f"ACTIVE {given['zone']}", "requests", name)
    if state == "PROVISIONING":
        write(f"FAILED {given['zone']}", "requests", name)


def queued_resources_delete(given, name):
    find_request(given, name)
    os.unlink(at("requests", name))
    if "force" in given and os.path.exists(at("vms", name)):
        tpu_vm_delete(given, name)


def instances_create(given, name):
    create(given, name, given["machine-type"], "RUNNING")


def instances_describe(given, name):
    find_vm(given, name)
    print({"value(status)": read("vms", name, "state")}[given["format"]])


def instances_start(given, name):
    find_vm(given, name)
    write("RUNNING", "vms", name, "state")


instances_delete = tpu_vm_delete


def workers_in(name):
    """Returns the homes of a VM's workers."""
    folder = at("vms", name)
    return [os.path.join(folder, x) for x in sorted(os.listdir(folder)) if x.startswith("worker-")]


def workers_of(given, name):
    """Returns the homes of the workers that a flag names."""
    find_vm(given, name)
    if read("vms", name, "state") not in ("READY", "RUNNING"):
        fail(f"the TPU {name} is not ready")
    worker = given.get("worker", "0")
    return workers_in(name) if worker == "all" else [at("vms", name, f"worker-{worker}")]


def tpu_vm_ssh(given, name):
    # gcloud splits the command at spaces, and ssh joins it again.
    command = " ".join(given["command"].split(" "))
    os.closerange(3, 64)  # what the scripts opened: who reads it would wait for the VM's jobs
    statuses = []
    for home in workers_of(given, name):
        os.chdir(home)
        words = ["bash", "-c", command]
        statuses.append(os.spawnvpe(os.P_WAIT, words[0], words, environment(home)))
    sys.exit(max(statuses))


ssh = tpu_vm_ssh


def tpu_vm_scp(given, *names):
    *sources, target = names
    if ":" in sources[0]:
        name, _, path = sources[0].partition(":")
        (home,) = workers_of(given, name)
        return copy(os.path.join(home, path), target, "recurse" in given)
    name, _, folder = target.partition(":")
    for home in workers_of(given, name):
        place = os.path.join(home, folder)
        fail_unless(os.path.exists(place), os.path.basename(place))
        for source in sources:
            copy(source, os.path.join(place, os.path.basename(source)), "recurse" in given)


scp = tpu_vm_scp


def environment(home):
    """Returns what a shell on the VM sees: of this machine, only the stand-ins."""
    return {
        "HOME": home,
        "PATH": f"{os.environ['CLOUD_BIN']}:/usr/local/bin:/usr/bin:/bin",
        **{name: value for name, value in os.environ.items() if name.startswith("CLOUD")},
    }


def end_processes(name):
    """Kills what runs on a VM."""
    for path in files_in(at("vms", name)):
        if not path.endswith(".pid"):
            continue
        try:
            with open(path) as file:
                os.killpg(int(file.read()), 9)
        except ProcessLookupError:
            continue


def files_in(folder):
    """Returns all files in a folder, in their order."""
    found = os.walk(folder)
    return sorted(os.path.join(parent, name) for parent, _, names in found for name in names)


def local(name):
    """Returns the place of an object or file."""
    return at("buckets", name[5:]) if name.startswith("gs://") else name


def copy(source, target, recursive):
    import shutil

    fail_unless(os.path.exists(source), os.path.basename(source))
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    if os.path.isdir(source):
        if not recursive:
            fail(f"{source} is a folder")
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        # As an object: complete or absent.
        shutil.copy(source, f"{target}.partial")
        os.rename(f"{target}.partial", target)


def storage_cp(given, source, target):
    place = local(target)
    if target.endswith("/") or os.path.isdir(place):
        place = os.path.join(place, os.path.basename(local(source)))
    copy(local(source), place, "recursive" in given)


def auth_list(given):
    print({"value(account)": ACCOUNT}[given["format"]])


def storage_du(given, name):
    files = files_in(local(name))
    if not files:
        fail("One or more URLs matched no objects.")
    print(f"{sum(map(os.path.getsize, files))}  {name}")


def storage_ls(given, name):
    found = files_in(local(name.removesuffix("**")))
    if not found:
        fail("One or more URLs matched no objects.")
    for path in found:
        print(f"gs://{os.path.relpath(path, at('buckets'))}")


def storage_rsync(given, source, target):
    copy(local(source), local(target), "recursive" in given)


def storage_rm(given, name):
    fail_unless(os.path.exists(local(name)), os.path.basename(name))
    os.unlink(local(name))


if __name__ == "__main__":
    main(sys.argv[1:])
