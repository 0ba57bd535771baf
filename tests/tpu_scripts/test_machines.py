"""Which machine the scripts ask for, of which interface of gcloud, in which zone."""

import shutil
import stat
import subprocess

import pytest

from tests.tpu_scripts.cloud import PROGRAM, SCRIPTS, set_up

IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
OLD = ["compute", "tpus", "tpu-vm", "create", "cocondenser"]
NEW = ["compute", "instances", "create", "cocondenser"]


def created(cloud, **settings):
    """Returns the call that creates a VM, which is deleted again."""
    cloud.run("create", settings=settings)
    (create,) = (call for call in cloud.calls() if "create" in call)
    cloud.run("delete", settings=settings)
    assert list((cloud.folder / "vms").iterdir()) == []
    cloud.calls()
    return create


@pytest.mark.parametrize(
    ("tpu", "size", "version", "zone"),
    [
        ("v3-8", "v3-8", "tpu-ubuntu2204-base", "europe-west4-a"),
        ("v5e-8", "v5litepod-8", "v2-alpha-tpuv5-lite", "us-west4-a"),
        ("v6e-8", "v6e-8", "v2-alpha-tpuv6e", "us-east5-a"),
    ],
)
def test_a_name_is_enough(cloud, tpu, size, version, zone):
    where = [f"--zone={zone}", "--quiet"]
    expected = [*OLD, f"--accelerator-type={size}", f"--version={version}", *where]
    assert created(cloud, TPU=tpu) == expected
    assert created(cloud, ACCELERATOR_TYPE=size) == expected


@pytest.mark.parametrize(
    ("tpu", "machine", "zone"),
    [("v5e-8", "ct5lp-hightpu-8t", "us-west4-a"), ("v6e-8", "ct6e-standard-8t", "us-east5-a")],
)
def test_compute_engine_has_machine_types(cloud, tpu, machine, zone):
    """As on Google's page "Create a TPU VM instance"; a VM may write to buckets by its scope."""
    compute = {"TPU": tpu, "GCLOUD_API": "compute"}
    image = [f"--image-family={IMAGE}", "--image-project=ubuntu-os-accelerator-images"]
    disk = ["--maintenance-policy=TERMINATE", "--boot-disk-size=200GB", "--scopes=cloud-platform"]
    where = [f"--zone={zone}", "--quiet"]
    size = [f"--machine-type={machine}", *image, *disk]
    assert created(cloud, **compute) == [*NEW, *size, *where]
    spot = ["--provisioning-model=SPOT", "--instance-termination-action=DELETE"]
    assert created(cloud, PROVISIONING="spot", **compute) == [*NEW, *size, *spot, *where]
    waits = created(cloud, PROVISIONING="queued", **compute)
    assert "--provisioning-model=FLEX_START" in waits
    assert "--request-valid-for-duration=2h" in waits


def test_what_both_interfaces_do_is_the_same(cloud):
    """Creates, trains, shows, deletes; a stopped VM is started."""
    compute = {"TPU": "v6e-8", "GCLOUD_API": "compute"}
    cloud.run("create", settings=compute)
    (home,) = set_up(cloud, PROGRAM)
    printed = cloud.run("pretrain", "first", "--config=x", settings=compute)
    assert printed.endswith("first: done\n")
    assert (cloud.folder / "buckets/b/runs/first/10.tar").is_file()
    assert "pretrain-first: 0" in cloud.run("status", settings=compute)
    state = home.parent / "state"
    state.write_text("TERMINATED")
    cloud.calls()
    cloud.run("create", settings=compute)
    assert ["instances", "start"] in [call[1:3] for call in cloud.calls()]
    assert state.read_text() == "RUNNING"
    cloud.run("delete", settings=compute)
    assert not home.parent.exists()
    assert not any("tpus" in call for call in cloud.calls())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"TPU": "v9-8"}, "TPU is 'v9-8': expected one of v2-8, v3-8, v3-32, v4-8, v4-32, v5e-8, "),
        ({"ACCELERATOR_TYPE": "v9-8", "ZONE": "us-west4-a"}, "TPU is 'v9-8': expected one of"),
        ({"TPU": "v3-8", "GCLOUD_API": "compute"}, "Compute Engine has no v3-8: expected GCLOUD_"),
        ({"TPU": "v4-32", "GCLOUD_API": "compute"}, "Compute Engine has no v4-32: expected GCLOU"),
        ({"GCLOUD_API": "gke"}, "GCLOUD_API is 'gke': expected tpu or compute"),
        (
            {"TPU": "v6e-8", "GCLOUD_API": "compute", "PROVISIONING": "queued-spot"},
            "Compute Engine has no queue for spot VMs: expected PROVISIONING=queued or spot",
        ),
        ({"DEVICES": "eight"}, "DEVICES is 'eight', HOSTS '1': expected numbers"),
        ({"BUCKET": "my-bucket"}, "BUCKET is 'my-bucket': expected gs://NAME"),
    ],
)
def test_a_wrong_machine_is_refused_before_gcloud_is_called(cloud, settings, says):
    printed = cloud.run("create", status=2, settings=settings)
    assert printed.startswith(f"create.sh: {says}")
    assert printed.count("\n") == 1
    assert cloud.calls() == []


@pytest.mark.parametrize("script", ["setup", "status", "delete"])
def test_every_script_refuses_a_wrong_machine(cloud, script):
    printed = cloud.run(script, status=2, settings={"TPU": "v9-8"})
    assert printed.startswith(f"{script}.sh: TPU is 'v9-8': expected one of")
    assert cloud.calls() == []


def test_a_machine_that_no_row_has_is_given_whole(cloud):
    settings = {
        "ACCELERATOR_TYPE": "v4-32",
        "RUNTIME_VERSION": "an-image",
        "DEVICES": "16",
        "HOSTS": "4",
        "ZONE": "us-central2-b",
    }
    expected = [*OLD, "--accelerator-type=v4-32", "--version=an-image"]
    assert created(cloud, TPU="mine", **settings)[: len(expected)] == expected
    assert "TPU is 'mine'" in cloud.run("create", status=2, settings={"TPU": "mine"})


def test_a_zone_without_this_type_costs_nothing(cloud):
    printed = cloud.run("create", status=2, settings={"TPU": "v5e-8", "ZONE": "europe-west4-a"})
    assert "Google's list has v5e-8 in us-west4-a" in printed
    assert "INVALID_ARGUMENT" in printed
    assert printed.endswith("create.sh: cocondenser cannot be created: gcloud says why\n")


def test_flags_of_gcloud_can_be_added(cloud):
    """Google's alpha track alone has --tunnel-through-iap for a VM of the Cloud TPU API."""
    flags = ["--network=mine", "--service-account=a@b", "--labels=x=1", "--internal-ips"]
    settings = {"CREATE_FLAGS": " ".join(flags), "SSH_FLAGS": "--tunnel-through-iap"}
    assert created(cloud, **settings)[-6:-2] == flags
    queued = created(cloud, PROVISIONING="queued", **settings)
    assert queued[2] == "queued-resources"
    assert queued[-6:-2] == flags
    set_up(cloud, PROGRAM)
    cloud.calls()
    cloud.run("pretrain", "first", "--config=x", settings=settings)
    connected = [call for call in cloud.calls() if "ssh" in call]
    assert connected
    assert all(call[0] == "alpha" and "--tunnel-through-iap" in call for call in connected)
    printed = cloud.run(
        "create", status=2, settings={"TPU": "v4-32", "CREATE_FLAGS": "--netwrok=x"}
    )
    assert "unrecognized arguments: --netwrok=x" in printed


@pytest.mark.parametrize(("made", "now"), [("spot", "queued"), ("queued-spot", "on-demand")])
def test_a_vm_and_a_request_are_found_whatever_is_set_now(cloud, made, now):
    cloud.run("create", settings={"PROVISIONING": made})
    printed = cloud.run("status", settings={"PROVISIONING": now})
    assert "VM cocondenser: READY" in printed
    assert ("request cocondenser: ACTIVE" in printed) == (made == "queued-spot")
    cloud.run("delete", settings={"PROVISIONING": now})
    assert list((cloud.folder / "vms").iterdir()) == []
    assert not list((cloud.folder / "requests").glob("*"))
    printed = cloud.run("delete", status=2, settings={"PROVISIONING": now})
    assert printed == "delete.sh: no VM and no request is called cocondenser in europe-west4-a\n"


@pytest.mark.parametrize("provisioning", ["on-demand", "queued"])
def test_a_vm_in_another_zone_is_named_and_not_made_twice(cloud, provisioning):
    other = {"ZONE": "us-central1-a", "PROVISIONING": provisioning}
    cloud.run("create", settings=other)
    assert "cocondenser is in us-central1-a, not in europe-west4-a" in cloud.run("status")
    printed = cloud.run("delete", status=2)
    says = "cocondenser is in us-central1-a, not in europe-west4-a: ZONE=us-central1-a delete.sh"
    assert printed == f"delete.sh: {says}\n"
    cloud.calls()
    printed = cloud.run("create", status=2)
    assert printed.startswith("create.sh: cocondenser is in us-central1-a already")
    assert not any("create" in call for call in cloud.calls())
    cloud.run("delete", settings=other)


def test_settings_may_stay_in_a_file(cloud):
    """The environment is stronger; the file goes to no VM, for it may hold secrets."""
    cloud.scripts = cloud.home / "project" / "tpu_scripts"
    shutil.copytree(SCRIPTS, cloud.scripts)
    settings = cloud.scripts / "env.local.sh"
    settings.write_text("TPU=v6e-8 PROVISIONING=spot\nBUCKET=gs://other\nHF_TOKEN='a secret'\n")
    create = cloud.run("create", "--dry-run").splitlines()[-1]
    assert "--accelerator-type=v6e-8 --spot" in create
    assert "--spot" not in cloud.run("create", "--dry-run", settings={"PROVISIONING": "on-demand"})
    assert "gs://b/" in cloud.run("fetch", "first", "--dry-run")
    del cloud.environment["BUCKET"]
    assert "gs://other/" in cloud.run("fetch", "first", "--dry-run")

    for name in ("cocondenser_jax", "configs", "benchmarks", "checks"):
        (cloud.scripts.parent / name).mkdir()
    for name in ("Makefile", "setup.py", "constraints.txt", "README.md", "LICENSE"):
        (cloud.scripts.parent / name).touch()
    cloud.run("create")
    cloud.run("setup", status=1)
    (home,) = (cloud.folder / "vms" / "cocondenser").glob("worker-*")
    there = {path.name for path in (home / "cocondenser_jax" / "tpu_scripts").iterdir()}
    assert "env.sh" in there
    assert "env.local.sh" not in there


def test_secrets_reach_the_jobs_and_nothing_else(cloud):
    (home,) = set_up(cloud, 'echo "$WANDB_API_KEY and $HF_TOKEN" >seen; exit 2')
    # What runs is noted: no line of a process list has a secret.
    for name in ("tar", "bash", "tmux"):
        wrapped = cloud.bin / f"{name}-itself"
        shutil.copy(shutil.which(name, path=cloud.environment["PATH"]), wrapped)
        (cloud.bin / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >>"$CLOUD/lines"\nexec "{wrapped}" "$@"\n'
        )
        (cloud.bin / name).chmod(0o755)
    secrets = {"WANDB_API_KEY": "wand'b $hidden", "HF_TOKEN": "hugging-hidden"}
    printed = cloud.run("setup", "--dry-run", settings=secrets)
    printed += cloud.run("setup", settings=secrets)
    file = home / "cocondenser_jax" / "secrets.sh"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    printed += cloud.run("pretrain", "first", "--config=x", status=2)
    printed += cloud.run("status")
    assert (home / "cocondenser_jax" / "seen").read_text() == "wand'b $hidden and hugging-hidden\n"
    noted = [path for path in (cloud.folder / "lines", *cloud.folder.rglob("log")) if path.exists()]
    noted += [cloud.folder / "calls", *(cloud.folder / "buckets").rglob("*.log")]
    assert len(noted) >= 4
    for text in (printed, *(path.read_text() for path in noted)):
        assert "hidden" not in text
    cloud.run("setup")
    assert file.read_text() == ""


def test_what_is_installed_is_what_trains(cloud):
    """No PyTorch and no faiss; a tracker's package where its key is given."""
    set_up(cloud, PROGRAM)
    uv = (cloud.bin / "uv").read_text()
    (cloud.bin / "uv").write_text(uv.replace("#!/bin/sh", '#!/bin/sh\necho "$@" >>"$CLOUD/uv"'))
    cloud.run("setup")
    cloud.run("setup", settings={"WANDB_API_KEY": "k", "EXTRAS": "pretrain,tpu"})
    installed = [line.split()[-1] for line in (cloud.folder / "uv").read_text().splitlines()]
    assert [word for word in installed if word.startswith(".[")] == [
        ".[pretrain,tfds,tpu,tensorboard]",
        ".[pretrain,tpu,wandb]",
    ]


def test_the_extras_are_those_of_the_project():
    text = (SCRIPTS.parent / "setup.py").read_text()
    line = next(line for line in (SCRIPTS / "env.sh").read_text().splitlines() if "EXTRAS=" in line)
    for extra in line.partition(":-")[2].partition("}")[0].split(","):
        assert f'"{extra}": ' in text


def test_the_settings_are_a_table_of_eight_machines():
    """Every row has all columns, and its zones are of Google's form."""
    command = f'. "{SCRIPTS}/env.sh"; printf %s "$MACHINES"'
    table = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    rows = [line.split() for line in table.stdout.splitlines() if line.strip()]
    assert len(rows) == 8
    for name, size, runtime, machine, devices, hosts, *zones in rows:
        assert runtime.startswith(("tpu-ubuntu2204-base", "v2-alpha-tpu"))
        assert machine == "-" or int(machine.rstrip("t").rpartition("-")[2]) * int(hosts) >= 4
        # A size counts cores of v2 to v5p, of which v4 and v5p have two in a device; else chips.
        cores = 2 if name.startswith(("v4", "v5p")) else 1
        assert int(devices) == int(size.rpartition("-")[2]) / cores, name
        if machine != "-":  # ct5p-hightpu-4t has four chips
            assert int(devices) == int(machine.rstrip("t").rpartition("-")[2]) * int(hosts)
        assert all(zone.count("-") == 2 for zone in zones)
