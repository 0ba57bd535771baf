"""The scripts for TPU VMs when gcloud, a VM or the bucket fails: see stand_in_gcloud.py."""

import tarfile

import pytest

from cocondenser_jax.files import write_checksums
from tests.tpu_scripts.cloud import PROGRAM, Cloud, set_up

FIRST = ["first", "--config=x"]
ALWAYS = "1 99"


def faults(*lines: str, **settings: str) -> dict[str, str]:
    return {"CLOUD_FAULTS": "\n".join(lines), **settings}


def created(cloud: Cloud) -> int:
    """Returns how many VMs were created or deleted since the last look at the calls."""
    return sum(call[3] in ("create", "delete") for call in cloud.calls() if call[0] == "compute")


def save_run(cloud: Cloud, step: int, items: tuple[str, ...] = ("params", "optimizer")) -> None:
    """Puts a checkpoint of `first` into the bucket."""
    folder = cloud.folder / f"run-{step}"
    for item in items:
        (folder / "checkpoints" / str(step) / item).mkdir(parents=True)
        (folder / "checkpoints" / str(step) / item / "a").write_text("weights")
        write_checksums(folder / "checkpoints" / str(step) / item)
    (folder / "run.json").write_text('{"config": {"train": {"steps": 10}}}')
    bucket = cloud.folder / "buckets" / "b" / "runs" / "first"
    bucket.mkdir(parents=True, exist_ok=True)
    with tarfile.open(bucket / f"{step}.tar", "w") as archive:
        archive.add(folder, ".")


@pytest.mark.parametrize("call", ["tpu-vm describe *", "tpu-vm ssh *"])
def test_an_outage_is_not_a_lost_vm(cloud: Cloud, call: str) -> None:
    set_up(cloud, PROGRAM)
    cloud.calls()
    printed = cloud.run("pretrain", *FIRST, settings=faults(f"outage 2 3 {call}"))
    assert "gone" not in printed
    assert created(cloud) == 0
    assert (cloud.folder / "buckets" / "b" / "runs" / "first" / "10.tar").is_file()


@pytest.mark.parametrize("script", ["create", "corpus", "pretrain"])
def test_an_outage_is_not_waited_for_without_end(cloud: Cloud, script: str) -> None:
    cloud.run("create")
    cloud.calls()
    arguments = {"create": [], "corpus": ["wiki", "--source=hf:x"], "pretrain": FIRST}[script]
    outage = faults(f"outage {ALWAYS} tpu-vm *", MAX_OUTAGES="2")
    printed = cloud.run(script, *arguments, status=2, settings=outage)
    assert printed.endswith(f"{script}.sh: no answer from gcloud or the VM, 2 times\n")
    assert printed.count("trying again") == 1
    assert created(cloud) == 0


def test_a_notice_of_gcloud_is_not_a_state(cloud: Cloud) -> None:
    gcloud = cloud.bin / "gcloud"
    gcloud.write_text(gcloud.read_text().replace("exec ", "echo Update me! >&2\nexec "))
    cloud.run("create")
    assert cloud.run("create").endswith("create.sh: cocondenser is ready\n")


def test_a_run_survives_preemptions_at_every_command(cloud: Cloud) -> None:
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
def test_a_store_is_not_waited_for_on_a_lost_vm(cloud: Cloud, fault: str, says: str) -> None:
    set_up(cloud, "sleep 5")
    printed = cloud.run("corpus", "wiki", "--source=hf:x", status=2, settings=faults(fault))
    assert printed.endswith(f"corpus.sh: {says}\n")
