"""The scripts for TPU VMs, against a cloud of folders: see stand_in_gcloud.py."""

import shutil
import sys
import tarfile

import pytest
from transformers import AutoModel

from tests.tpu_scripts.cloud import SCRIPTS, Cloud, set_up
from tests.world import TINY, as_flags, make_texts, read_metrics, write_records, write_tokenizer

# What each script needs to be given.
ARGUMENTS = {
    "create": [],
    "setup": [],
    "corpus": ["wiki", "--corpus=gs://b/text.jsonl", "--tokenizer=bert-base-uncased"],
    "pretrain": ["first", "--config=configs/condenser.py", "--config.data.store=stores/wiki"],
    "bench": ["--out=tpu.json", "--parts=peak"],
    "status": [],
    "fetch": ["first"],
    "delete": [],
}


@pytest.mark.parametrize("script", ARGUMENTS)
def test_help_says_how_to_call_a_script(cloud, script):
    printed = cloud.run(script, "--help")
    assert f"  {script}.sh" in printed or f" {script}.sh" in printed
    assert "--dry-run" in printed
    assert "set -euo" not in printed
    assert cloud.calls() == []


@pytest.mark.parametrize(
    ("script", "provisioning"),
    [*((script, "on-demand") for script in ARGUMENTS), ("create", "queued-spot")],
)
def test_a_dry_run_shows_commands_and_runs_none(cloud, script, provisioning):
    settings = {"PROVISIONING": provisioning, "PROJECT": "my-project"}
    printed = cloud.run(script, *ARGUMENTS[script], "--dry-run", settings=settings)
    commands = [line for line in printed.splitlines() if line.startswith("gcloud ")]
    assert commands
    for command in commands:
        assert command.startswith(("gcloud compute tpus ", "gcloud storage "))
        assert ("--project=my-project" in command) == ("compute" in command)
    assert cloud.calls() == []
    assert list(cloud.home.iterdir()) == []


def test_a_vm_is_created_as_the_settings_say(cloud):
    def created(provisioning):
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
def test_a_vm_is_created_once_and_again_after_a_preemption(cloud, provisioning):
    def created():
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
        (cloud.folder / "requests" / "cocondenser").write_text("SUSPENDED europe-west4-a")
        assert created() == ["delete", "create"]


def test_a_vm_that_is_preempted_before_it_is_ready_is_not_waited_for(cloud):
    cloud.make_vm()
    (cloud.folder / "vms" / "cocondenser" / "state").write_text("CREATING")
    printed = cloud.run("create", status=1)
    assert printed.endswith("create.sh: cocondenser is PREEMPTED\n")


@pytest.mark.timeout(120)
def test_a_request_that_fails_is_not_waited_for(cloud):
    (cloud.folder / "requests").mkdir()
    (cloud.folder / "requests" / "cocondenser").write_text("PROVISIONING europe-west4-a")
    printed = cloud.run("create", status=1, settings={"PROVISIONING": "queued"})
    assert printed.endswith("create.sh: cocondenser is FAILED\n")


def write_text(folder):
    """Writes `my articles.jsonl` and `a tokenizer`: users have names with spaces."""
    texts = make_texts(40, n_sentences=5)
    write_records(folder / "my articles.jsonl", ({"text": text} for text in texts))
    write_tokenizer(folder / "a tokenizer", texts)


RARE = {"train.steps": 300, "checkpoint.every": 20, "checkpoint.keep": 2, "log_every": 20}
EXPERIMENT = [
    "--config=configs/quickstart.py:condenser",
    *as_flags(TINY | RARE | {"probe.every": 0}),
]


@pytest.mark.timeout(900)
def test_the_whole_pipeline_with_a_preemption(cloud):
    write_text(cloud.home)
    bucket = cloud.folder / "buckets" / "b"
    cloud.run("create")
    cloud.environment |= {"DEVICES": "2"}  # eight would wait for each other on two cores
    assert "sees 2 devices" in cloud.run("setup")
    source = ["--corpus=my articles.jsonl", "--tokenizer=a tokenizer", "--max_length=16"]
    assert "documents" in cloud.run("corpus", "my wiki", *source)
    assert (bucket / "stores" / "my wiki" / "manifest.json").is_file()
    shutil.copytree(bucket / "stores" / "my wiki", bucket / "stores" / "books")

    # After the first checkpoint was saved, in the middle of the next.
    faults = {"CLOUD_FAULTS": "preempt 2 2 storage cp jobs/*/saved.tar *"}
    store = "--config.data.store=stores/my wiki,2*stores/books"
    printed = cloud.run("pretrain", "first run", *EXPERIMENT, store, settings=faults)
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
    steps = [line["step"] for line in read_metrics(cloud.home / "runs" / "first run")]
    assert steps == list(range(20, 301, 20))
    assert AutoModel.from_pretrained(cloud.home / "a model").config.hidden_size == 16


def test_a_store_is_not_waited_for_on_a_vm_that_was_preempted(cloud):
    set_up(cloud, 'printf PREEMPTED >"$CLOUD/vms/cocondenser/state"; sleep 3')
    printed = cloud.run("corpus", "wiki", "--corpus=hf:x", status=2)
    assert printed.endswith("corpus.sh: cocondenser is PREEMPTED\n")


def test_wrong_settings_end_the_run(cloud):
    set_up(cloud, f'PYTHONPATH="{SCRIPTS.parent}" "{sys.executable}" -m cocondenser_jax.cli "$@"')
    printed = cloud.run("pretrain", "first", "--config=configs/none.py", status=2)
    assert "no config file 'configs/none.py'" in printed
    assert "first: refused" in printed


def test_a_run_that_keeps_failing_is_abandoned(cloud):
    set_up(cloud, "echo no memory; exit 1")
    printed = cloud.run("pretrain", "first", "--config=x", status=2, settings={"MAX_FAILURES": "3"})
    assert "the run failed 3 times" in printed
    assert printed.count("first: failed") == 3
    assert "no memory" in printed


def test_a_run_that_was_stopped_is_not_done(cloud):
    program = "mkdir -p runs/first/checkpoints && cd runs/first/checkpoints"
    set_up(cloud, f"{program} && if [ -d 2 ]; then mkdir 4; else mkdir 2; exit 143; fi")
    printed = cloud.run("pretrain", "first", "--config=x")
    assert printed.count("first: stopped") == 1
    assert printed.endswith("first: done\n")
    assert (cloud.folder / "buckets" / "b" / "runs" / "first" / "4.tar").is_file()


def test_a_checkpoint_that_is_removed_late_leaves_the_bucket(cloud):
    """As pretrain does it: an earlier one goes after the last has its place, and may be saved."""
    steps = 'echo \'{"config": {"train": {"steps": 4}}}\' >runs/first/run.json'
    wait = "until [ -e ../../../jobs/pretrain-first/saved/{} ]; do sleep 0.1; done"
    program = (
        f"mkdir -p runs/first/checkpoints && {steps} && cd runs/first/checkpoints && mkdir 2"
        f" && {wait.format(2)} && mkdir 4 && {wait.format(4)} && rmdir 2"
    )
    set_up(cloud, program)
    cloud.run("pretrain", "first", "--config=x")
    assert [x.name for x in (cloud.folder / "buckets/b/runs/first").glob("*.tar")] == ["4.tar"]


def test_every_worker_trains(tmp_path):
    cloud = Cloud(tmp_path, workers=2)
    homes = set_up(cloud, 'echo "$@" >arguments')
    cloud.run("pretrain", "first", "--config=x", settings={"HOSTS": "2"})
    assert len(homes) == 2
    for home in homes:
        arguments = (home / "cocondenser_jax" / "arguments").read_text()
        assert arguments == "pretrain --workdir=runs/first --coordinator=auto --config=x\n"


def test_what_is_missing_is_named(cloud):
    no_bucket = {"BUCKET": ""}
    for script in ("pretrain", "fetch"):
        printed = cloud.run(script, *ARGUMENTS[script], status=2, settings=no_bucket)
        assert "expected gs://NAME" in printed
        assert "expected the run's name first" in cloud.run(script, "--config=x", status=2)
    assert "unknown argument now" in cloud.run("delete", "now", status=2)
    assert cloud.calls() == []
