"""The scripts for TPU VMs when gcloud, a VM or the bucket fails: see stand_in_gcloud.py."""

import subprocess
import tarfile

import pytest

from cocondenser_jax.files.runs import write_checksums
from tests.tpu_scripts.cloud import ENDLESS, PROGRAM, Cloud, save_stores, set_up
from tests.waiting import wait_for

FIRST = ["first", "--config=x"]
ALWAYS = "1 99"


def faults(*lines, **settings):
    return {"CLOUD_FAULTS": "\n".join(lines), **settings}


def created(cloud):
    """Returns how many VMs were created or deleted since the last look at the calls."""
    return sum(call[3] in ("create", "delete") for call in cloud.calls() if call[0] == "compute")


def save_run(cloud, step, lacks=""):
    """Puts a checkpoint of `first` into the bucket."""
    folder = cloud.folder / f"run-{step}"
    checkpoint = folder / "checkpoints" / str(step)
    checkpoint.mkdir(parents=True)
    for name in ("params.safetensors", "state.safetensors"):
        (checkpoint / name).write_text("weights")
    write_checksums(checkpoint)
    if lacks:
        (checkpoint / lacks).unlink()
    (folder / "run.json").write_text('{"config": {"train": {"steps": 10}}}')
    bucket = cloud.folder / "buckets" / "b" / "runs" / "first"
    bucket.mkdir(parents=True, exist_ok=True)
    with tarfile.open(bucket / f"{step}.tar", "w") as archive:
        archive.add(folder, ".")


def test_an_outage_is_not_a_lost_vm(cloud):
    set_up(cloud, PROGRAM)
    outages = [f"outage 2 3 tpu-vm {call} *" for call in ("describe", "ssh")]
    printed = cloud.run("pretrain", *FIRST, settings=faults(*outages))
    assert "trying again" in printed
    assert "gone" not in printed
    assert created(cloud) == 0
    assert (cloud.folder / "buckets" / "b" / "runs" / "first" / "10.tar").is_file()


@pytest.mark.parametrize("script", ["create", "corpus", "pretrain"])
def test_an_outage_is_not_waited_for_without_end(cloud, script):
    cloud.make_vm()
    arguments = {"create": [], "corpus": ["wiki", "--corpus=hf:x"], "pretrain": FIRST}[script]
    outage = faults(f"outage {ALWAYS} tpu-vm *", MAX_OUTAGES="2")
    printed = cloud.run(script, *arguments, status=2, settings=outage)
    assert printed.endswith(f"{script}.sh: no answer from gcloud or the VM, 2 times\n")
    assert printed.count("trying again") == 1
    assert created(cloud) == 0


def test_a_vm_is_not_asked_for_without_end(cloud):
    fault = faults(f"outage {ALWAYS} tpu-vm create *", MAX_OUTAGES="2")
    printed = cloud.run("pretrain", *FIRST, status=2, settings=fault)
    assert printed.endswith("pretrain.sh: cocondenser was not created, 2 times\n")
    assert created(cloud) == 2


def test_attempts_to_create_a_vm_count_in_a_row(cloud):
    set_up(cloud, PROGRAM)
    lost = [f"preempt {n} {n} tpu-vm ssh *setup.sh *" for n in (1, 2, 3)]
    not_created = [f"outage {n} {n} tpu-vm create *" for n in (1, 3, 5)]
    (cloud.folder / "vms" / "cocondenser" / "state").write_text("PREEMPTED")
    settings = faults(*lost, *not_created, MAX_OUTAGES="2")
    assert cloud.run("pretrain", *FIRST, settings=settings).endswith("first: done\n")


@pytest.mark.parametrize(
    ("fault", "says", "status"),
    [
        ("outage 9 9 *", "status.sh: no runs in gs://b\n", 0),
        (f"outage {ALWAYS} storage ls *", "status.sh: cannot list gs://b/runs\n", 2),
        (f"outage {ALWAYS} tpu-vm ssh *", "status.sh: no answer from cocondenser\n", 0),
    ],
)
def test_no_answer_is_not_an_empty_one(cloud, fault, says, status):
    set_up(cloud, PROGRAM)
    assert says in cloud.run("status", status=status, settings=faults(fault))


def test_the_status_of_a_new_vm(cloud):
    cloud.make_vm()
    assert "not set up yet" in cloud.run("status")


def test_a_notice_of_gcloud_is_not_a_state(cloud):
    gcloud = cloud.bin / "gcloud"
    gcloud.write_text(gcloud.read_text().replace("exec ", "echo Update me! >&2\nexec "))
    cloud.make_vm()
    assert cloud.run("create").endswith("create.sh: cocondenser is ready\n")


def test_a_run_survives_preemptions_at_every_command(cloud):
    set_up(cloud, PROGRAM)
    lost = faults(
        "preempt 1 1 tpu-vm ssh *job.sh start *",
        "preempt 1 1 tpu-vm scp *",
        "preempt 1 1 tpu-vm ssh *setup.sh *",
        "preempt 2 2 storage cp jobs/*/log *",
        "preempt 2 2 storage cp jobs/*/saved.tar *",
        "preempt 1 1 storage cp gs://b/runs/*",
        "preempt 1 1 storage ls *",
        "preempt 20 20 tpu-vm describe *",
    )
    printed = cloud.run("pretrain", *FIRST, settings=lost)
    assert printed.endswith("first: done\n")
    assert printed.count("first: gone") >= 6
    assert (cloud.folder / "buckets" / "b" / "runs" / "first" / "10.tar").is_file()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("preempt 1 1 tpu-vm ssh *job.sh start *", "corpus-wiki was not started"),
        ("preempt 2 2 tpu-vm describe *", "cocondenser is PREEMPTED"),
    ],
)
def test_a_store_is_not_waited_for_on_a_lost_vm(cloud, fault, says):
    set_up(cloud, "sleep 5")
    printed = cloud.run("corpus", "wiki", "--corpus=hf:x", status=2, settings=faults(fault))
    assert printed.endswith(f"corpus.sh: {says}\n")


@pytest.mark.parametrize(
    ("fault", "fetched"),
    [("damage 1 1", 2), ("half 1 1", 2), (f"damage {ALWAYS}", None)],
)
def test_a_store_is_used_when_it_is_whole(cloud, fault, fetched):
    save_stores(cloud, "wiki")
    (home,) = set_up(cloud, PROGRAM)
    arguments = [*FIRST, "--config.data.store=stores/wiki"]
    settings = faults(f"{fault} storage rsync *")
    printed = cloud.run("pretrain", *arguments, status=0 if fetched else 2, settings=settings)
    there = home / "cocondenser_jax" / "stores"
    if fetched:
        assert sum(call[:2] == ["storage", "rsync"] for call in cloud.calls()) == fetched
        assert (there / "wiki" / "manifest.json").read_text() == "a whole store"
    else:
        assert "gs://b/stores/wiki is not whole" in printed
        assert list(there.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "fetched"),
    [
        ("0.5*stores/books,stores/my wiki", {"books", "my wiki"}),
        ("elsewhere/wiki,gs://b/stores/wiki,2*stores/books", {"books"}),
    ],
)
def test_every_store_is_fetched(cloud, value, fetched):
    save_stores(cloud, "wiki", "my wiki", "books")
    (home,) = set_up(cloud, PROGRAM)
    cloud.run("pretrain", *FIRST, f"--config.data.store={value}")
    assert {path.name for path in (home / "cocondenser_jax" / "stores").iterdir()} == fetched


def test_a_store_that_the_bucket_lacks_is_named(cloud):
    save_stores(cloud, "wiki")
    set_up(cloud, PROGRAM)
    store = "--config.data.store=stores/wiki,stores/books"
    printed = cloud.run("pretrain", *FIRST, store, status=2, settings={"MAX_FAILURES": "1"})
    assert "pretrain.sh: gs://b/stores/books is not there" in printed


@pytest.mark.parametrize(
    ("fault", "resumed"),
    [
        # The newest by number, not by letters.
        ("outage 1 1 storage ls *\nhalf 1 1 storage cp gs://b/runs/*", 10),
        ("damage 1 1 storage cp gs://b/runs/*", 10),
        (f"damage {ALWAYS} storage cp gs://b/runs/first/10.tar *", 9),
        (f"damage {ALWAYS} storage cp gs://b/runs/*", None),
    ],
)
def test_a_run_resumes_from_the_newest_whole_checkpoint(cloud, fault, resumed):
    (home,) = set_up(cloud, "ls runs/first/checkpoints >found; exit 2")
    save_run(cloud, 9)
    save_run(cloud, 10)
    printed = cloud.run("pretrain", *FIRST, status=2, settings=faults(fault))
    found = home / "cocondenser_jax" / "found"
    if resumed:
        assert found.read_text() == f"{resumed}\n"
    else:
        assert "no checkpoint in gs://b/runs/first is whole" in printed
        assert not found.exists()


@pytest.mark.parametrize("lacks", ["state.safetensors", "sha256.json"])
def test_a_checkpoint_that_lacks_a_file_is_not_whole(cloud, lacks):
    (home,) = set_up(cloud, "ls runs/first/checkpoints >found; exit 2")
    save_run(cloud, 9)
    save_run(cloud, 10, lacks=lacks)
    cloud.run("pretrain", *FIRST, status=2)
    assert (home / "cocondenser_jax" / "found").read_text() == "9\n"


def test_a_checkpoint_is_copied_again_after_a_failure(cloud):
    set_up(cloud, PROGRAM)
    printed = cloud.run(
        "pretrain", *FIRST, settings=faults("outage 1 2 storage cp jobs/*/saved.tar *")
    )
    assert "the newest checkpoint was not copied to gs://b" in printed
    assert (cloud.folder / "buckets" / "b" / "runs" / "first" / "10.tar").is_file()


def test_a_checkpoint_that_cannot_be_converted_leaves_no_run(cloud):
    set_up(cloud, "test $1 != convert || exit 2")
    save_run(cloud, 10)
    printed = cloud.run("fetch", "first", status=2)
    assert printed.endswith("fetch.sh: gs://b/runs/first/10.tar was not converted\n")
    assert not list((cloud.home / "runs").glob("first*"))


@pytest.mark.parametrize(
    ("script", "fault", "says"),
    [
        ("pretrain", "outage 1 1 storage cp *", "cannot write to gs://b/runs/first"),
        ("pretrain", f"outage {ALWAYS} storage cp jobs/*", "the run failed 2 times"),
        ("corpus", "outage 1 1 tpu-vm scp *", "my text was not copied to cocondenser"),
        ("corpus", "outage 1 1 storage rsync *", "corpus-first failed (1)"),
        ("fetch", "outage 1 1 storage ls *", "cannot list gs://b/runs/first"),
        ("fetch", "outage 1 1 storage cp *", "gs://b/runs/first/10.tar was not copied"),
        ("fetch", "damage 1 1 storage cp *", "gs://b/runs/first/10.tar is damaged"),
    ],
)
def test_a_failing_bucket_is_named(cloud, script, fault, says):
    set_up(cloud, "test $1 != pretrain || exit 3")
    save_run(cloud, 9)
    save_run(cloud, 10)
    (cloud.home / "my text").write_text("text")
    arguments = ["--corpus=my text"] if script == "corpus" else FIRST[1:]
    printed = cloud.run(
        script,
        "first",
        *(arguments if script != "fetch" else ()),
        status=2,
        settings=faults(fault, MAX_FAILURES="2"),
    )
    assert printed.endswith(f"{script}.sh: {says}\n")
    assert [path.name for path in cloud.home.rglob("*") if path.is_file()] == ["my text"]
    if "scp" in fault:  # nothing is built from half of a source
        assert not any("job.sh start" in word for call in cloud.calls() for word in call)


def test_a_job_is_not_started_twice(cloud):
    (home,) = set_up(cloud, "echo called >>calls; sleep 600")
    calls = home / "cocondenser_jax" / "calls"
    job = ["bash", str(home / "cocondenser_jax/tpu_scripts/on_vm/job.sh"), "start", "corpus-wiki"]
    work = [*job, "bash", "tpu_scripts/on_vm/corpus.sh", "wiki", "", "--corpus=a"]
    there = cloud.environment | {"HOME": str(home)}
    subprocess.run(work, env=there, check=True)
    wait_for(lambda: calls.exists() and calls.read_text(), "the job does not begin")
    again = subprocess.run(work, env=there, stderr=subprocess.PIPE, text=True)
    assert (again.returncode, again.stderr) == (2, "corpus-wiki is already running\n")
    (cloud.home / "b").write_text("another source")
    printed = cloud.run("corpus", "wiki", "--corpus=b", status=2)
    assert printed.endswith("corpus.sh: corpus-wiki is already running: see status.sh\n")
    assert not (home / "cocondenser_jax" / "uploads").exists()
    assert calls.read_text() == "called\n"
    cloud.run("delete")


def test_a_resumed_run_ends_on_all_workers(tmp_path):
    cloud = Cloud(tmp_path, workers=2)
    set_up(cloud, PROGRAM.replace("mkdir -p", 'case "$HOME" in *1) exit ;; esac\nmkdir -p', 1))
    save_run(cloud, 9)
    printed = cloud.run("pretrain", *FIRST, settings={"HOSTS": "2"})
    assert printed.endswith("first: done\n")


ROLE = "--member=serviceAccount:123-compute@developer.gserviceaccount.com"
MAY_NOT_WRITE = f"gs://b {ROLE} --role=roles/storage.objectUser"


def test_a_vm_that_may_not_write_does_not_train(cloud):
    """Its account may read: all that it computes would be lost."""
    (home,) = set_up(cloud, "touch trained")
    denied = faults(f"denied {ALWAYS} storage cp *writable-*")
    for script, arguments in {"setup": [], "corpus": ["wiki", "--corpus=hf:x"]}.items():
        printed = cloud.run(script, *arguments, status=2, settings=denied)
        assert MAY_NOT_WRITE in printed
        (home / "cocondenser_jax" / ".venv" / "ready").touch()
    printed = cloud.run("pretrain", *FIRST, status=2, settings=denied)
    assert f"{MAY_NOT_WRITE}\npretrain.sh: the run was refused" in printed
    assert not (home / "cocondenser_jax" / "trained").exists()
    assert MAY_NOT_WRITE in cloud.run("status")


def test_a_new_vm_that_may_not_write_is_not_set_up_again_and_again(cloud):
    set_up(cloud, "touch trained")
    (cloud.folder / "vms" / "cocondenser" / "state").write_text("PREEMPTED")
    denied = faults(f"denied {ALWAYS} storage rm *writable-*")  # it may create, but not delete
    printed = cloud.run("pretrain", *FIRST, status=2, settings=denied)
    assert printed.count(MAY_NOT_WRITE) == 1
    assert printed.endswith("pretrain.sh: cocondenser cannot train: see the line above\n")


def test_a_run_that_cannot_save_any_more_is_stopped(cloud):
    """The role was taken away since it began."""
    (home,) = set_up(cloud, f"touch trained; {ENDLESS}")
    lost = faults(
        f"denied {ALWAYS} storage cp jobs/*", "denied 2 99 storage cp *writable-*", MAX_FAILURES="9"
    )
    printed = cloud.run("pretrain", *FIRST, status=2, settings=lost)
    assert "saving failed five times in a row: stopping the run" in printed
    assert "first: failed" not in printed  # it is known at once why
    assert f"{MAY_NOT_WRITE}\npretrain.sh: the run was refused" in printed
    assert (home / "cocondenser_jax" / "trained").exists()
    assert MAY_NOT_WRITE in cloud.run("status")


def test_a_bucket_that_does_not_answer_for_long_is_not_a_missing_role(cloud):
    set_up(cloud, f"test -e began || {{ touch began; {ENDLESS}; }}; {PROGRAM}")
    outage = faults("outage 1 6 storage cp jobs/*")
    printed = cloud.run("pretrain", *FIRST, settings=outage)
    assert "stopping the run" in printed
    assert "may not write" not in printed
    assert printed.endswith("first: done\n")


def test_a_vm_that_is_preempted_while_it_saves_costs_one_checkpoint(cloud):
    """The object is whole or absent."""
    set_up(cloud, PROGRAM)
    lost = faults("preempt 1 1 storage cp jobs/*/saved.tar *")
    printed = cloud.run("pretrain", *FIRST, settings=lost)
    assert printed.endswith("first: done\n")
    assert "gone" in printed
    bucket = cloud.folder / "buckets" / "b" / "runs" / "first"
    assert {path.name for path in bucket.glob("*.tar*")} <= {"9.tar", "10.tar"}
    with tarfile.open(bucket / "10.tar") as archive:
        assert "./checkpoints/10/params.safetensors" in archive.getnames()


def test_a_quota_is_not_waited_for(cloud):
    settings = faults(f"quota {ALWAYS} tpu-vm create *")
    printed = cloud.run("create", status=2, settings=settings)
    assert printed.splitlines()[-1].startswith(
        "create.sh: the project's quota in europe-west4-a is less than v3-8 (on-demand)"
    )
    cloud.calls()
    printed = cloud.run("pretrain", *FIRST, status=2, settings=settings)
    assert printed.endswith("cocondenser was not created, and would not be at another attempt\n")
    assert created(cloud) == 1


def test_a_zone_without_machines_is_waited_for(cloud):
    cloud.run("create", status=1, settings=faults("stockout 1 1 tpu-vm create *"))
    set_up(cloud, PROGRAM)
    (cloud.folder / "vms" / "cocondenser" / "state").write_text("PREEMPTED")
    printed = cloud.run("pretrain", *FIRST, settings=faults("stockout 2 3 tpu-vm create *"))
    assert printed.count("There is no more capacity in the zone") == 2
    assert printed.endswith("first: done\n")


def give_disk(cloud, gb):
    """Gives every VM a disk with so much room."""
    line = f"/dev/sda1 99999999 9 {int(gb * 1e6)} 9% /"
    (cloud.bin / "df").write_text(f"#!/bin/sh\necho Filesystem\necho '{line}'\n")
    (cloud.bin / "df").chmod(0o755)


def test_a_disk_that_is_too_small_is_refused_before_it_is_full(cloud):
    (home,) = set_up(cloud, "test $1 != pretrain || { touch trained; exit 1; }")
    folder = home / "cocondenser_jax"
    (cloud.home / "my text.gz").write_bytes(b"x" * 3_000_000)
    save_stores(cloud, "wiki")
    give_disk(cloud, 0.011)
    printed = cloud.run("corpus", "wiki", "--corpus=my text.gz", status=2)
    assert "wiki's text and store need 1 GB of the disk, 0 are free: see " in printed
    assert not (folder / "uploads").exists()
    give_disk(cloud, 7.4)
    arguments = [*FIRST, "--config.data.store=stores/wiki"]
    printed = cloud.run("pretrain", *arguments, status=2)
    assert "the stores and the run need 8 GB of the disk, 7 are free: see " in printed
    assert not (folder / "trained").exists()
    give_disk(cloud, 7.6)
    printed = cloud.run("pretrain", *arguments, status=2, settings={"MAX_FAILURES": "1"})
    assert printed.endswith("pretrain.sh: the run failed 1 times\n")
    assert (folder / "trained").exists()


def test_an_upload_goes_when_its_store_is_complete(cloud):
    (home,) = set_up(cloud, "test $1 != corpus || ls uploads/*/corpus >seen; test -e whole")
    folder = home / "cocondenser_jax"
    (cloud.home / "text").write_text("text")
    (cloud.folder / "buckets" / "b" / "more").mkdir()
    (cloud.folder / "buckets" / "b" / "more" / "text").write_text("more")
    arguments = ["my wiki", "--corpus=text", "--corpus=gs://b/more"]
    cloud.run("corpus", *arguments, status=2)
    assert (folder / "uploads").exists()  # another attempt reads it
    (folder / "whole").touch()
    cloud.run("corpus", *arguments, settings={"BUCKET": ""})
    assert (folder / "seen").read_text() == "more\ntext\n"
    assert not list((folder / "uploads").iterdir())
