"""`--tasks`: a result made in tasks equals that of one process, to the bit."""

import json
import lzma
import re
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus import build
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.files import workers
from cocondenser_jax.files.workers import Engine
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.search import encode, models
from cocondenser_jax.retriever.search.encode import Encoding
from tests.cli.workplace import make_workplace
from tests.lines import refusal, whole
from tests.processes import fork_workers
from tests.world import cut_file, instead, make_texts, write_records, write_tokenizer


def contents(store):
    names = [store.document_id(i) for i in range(store.n_documents)]
    spans = store.read_spans(np.arange(store.n_spans), store.max_length)
    return [names, store.first_span_D.tolist(), *(each.tolist() for each in spans)]


@pytest.fixture
def command(tmp_path):
    place = make_workplace(tmp_path)
    articles = place / "articles.jsonl"
    articles.write_bytes(lzma.decompress((place / "articles.jsonl.xz").read_bytes()))
    tokenizer, source = place / "bert-base-uncased", cut_file(articles, place / "articles", 9)
    return ["corpus", f"--corpus={source}", f"--tokenizer={tokenizer}", "--max_length=10"]


@pytest.mark.effect("corpus --tasks", "corpus --workers")
def test_a_corpus_in_seven_tasks_by_three_workers(tmp_path, command, capsys):
    assert main([*command, f"--out={tmp_path}/one"]) == 0
    expected = capsys.readouterr().out
    in_tasks = [*command, f"--out={tmp_path}/many", "--tasks=7"]
    assert main([*in_tasks, "--workers=3"]) == 0
    printed = capsys.readouterr()
    assert printed.out == expected.replace("/one", "/many")
    last = "next: cocondenser pretrain --config=configs/small.py:condenser --config.data.store="
    expected_end = f"{last}{tmp_path}/many --config.data.length=10 --workdir=runs/condenser\n"
    assert printed.out.endswith(expected_end)
    assert "corpus: 100%" in printed.err
    assert contents(open_store(tmp_path / "many")) == contents(open_store(tmp_path / "one"))
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "many").glob("*/*.bin")}
    assert sorted({path.parent.name for path in made}) == [
        f"task-0000{index}-of-00007" for index in range(7)
    ]
    assert main([*in_tasks, "--workers=1"]) == 0  # nothing is left to do
    progress = capsys.readouterr().err
    assert "digests: 100%" in progress  # whether the source has changed
    assert "corpus: " not in progress
    assert {path: path.stat().st_mtime_ns for path in made} == made
    shutil.rmtree(tmp_path / "many" / "task-00004-of-00007")
    assert main([*in_tasks, "--workers=1"]) == 0
    assert {p: p.stat().st_mtime_ns for p in made if "00004" not in str(p)}.items() <= made.items()
    assert contents(open_store(tmp_path / "many")) == contents(open_store(tmp_path / "one"))
    other = write_tokenizer(tmp_path / "uncased", ["other words in another order"])
    for flag, message in (
        ("--max_length=12", "max_length=10, now it is 12"),
        ("--short_span_prob=0.5", "short_span_prob=0.0, now it is 0.5"),
        ("--tasks=6", "tasks=7, now it is 6"),
        (f"--tokenizer={other}", "tokenizer_sha256="),
    ):
        assert main(instead(in_tasks, [flag])) == 2
        assert message in capsys.readouterr().err
    tokenizer = command[2].removeprefix("--tokenizer=")
    same = shutil.copytree(tokenizer, tmp_path / "the same")
    assert main(instead(in_tasks, [f"--tokenizer={same}"])) == 0


def test_a_place_with_something_else_is_left_alone(tmp_path, command, capsys):
    file = tmp_path / "file"
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (file, folder / "thesis.tex"):
        path.write_text("years of work")
    for out in (file, folder):
        assert main([*command, f"--out={out}", "--tasks=3"]) == 2
        assert refusal(capsys) == f"{out} already exists: choose a new folder, or remove it first"
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_more_tasks_than_pieces_are_refused(tmp_path, command, capsys):
    assert main([*command, f"--out={tmp_path}/out", "--tasks=10"]) == 2
    error = capsys.readouterr().err
    said = (
        "cocondenser: TMP…/articles has 9 pieces (files, row groups of Parquet): expected at"
        " most as"
        " many tasks, found 10; split a large file first"
    )
    assert re.match(whole(said), error.splitlines()[-1])
    assert not (tmp_path / "out").exists()


@pytest.fixture(autouse=True)
def _workers_have_imported(monkeypatch):
    fork_workers(monkeypatch)


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs tasks without workers, one after the other."""

    def run(work, missing, engine, bar):
        for index in missing:
            workers._run_task(work, index)

    monkeypatch.setitem(workers._EXECUTORS, "local", run)


def test_a_corpus_that_changes_is_made_again_from_there_on(
    tmp_path, command, in_this_process, monkeypatch, caplog
):
    *texts, other = make_texts(9, n_sentences=5, seed=1)
    twins = [*texts[:7], texts[2]]  # documents 2 and 7 are one text

    def write(documents):
        for k in range(4):
            rows = [*enumerate(documents)][2 * k : 2 * k + 2 if k < 3 else None]
            lines = [{"id": f"d{i}", "text": text} for i, text in rows]
            write_records(tmp_path / "source" / f"{k}.jsonl", lines)

    write(twins)
    command = ["corpus", f"--corpus={tmp_path}/source", *command[2:]]
    one = [*command, f"--out={tmp_path}/one"]
    command += ["--tasks=4", f"--out={tmp_path}/many"]
    with monkeypatch.context() as patch:  # it ends before it removes its work
        patch.setattr(build, "open_store", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(command) == 130
    assert (tmp_path / "many" / "work" / "digests").exists()
    folders = sorted((tmp_path / "many").glob("task-*"))
    kept = folders[0].stat().st_ino
    write([*texts[:2], other, *twins[3:], "One sentence more than there was before."])
    assert main(command) == 0
    names = ", ".join(folder.name for folder in folders[1:])
    source, out = tmp_path / "source", tmp_path / "many"
    assert f"{source} has changed: making {names} of {out} again" in caplog.messages
    assert folders[0].stat().st_ino == kept
    assert main(one) == 0
    found = contents(open_store(tmp_path / "many"))
    assert found == contents(open_store(tmp_path / "one"))
    assert sorted({name.split(":")[-1] for name in found[0]}) == [f"d{i}" for i in range(9)]
    caplog.clear()
    assert main(command) == 0
    assert not caplog.messages  # nothing has changed since


def test_a_task_that_cannot_be_read_is_named(tmp_path, command, capsys):
    source = tmp_path / "source"
    source.mkdir()
    for k, text in enumerate(make_texts(3, n_sentences=5, seed=1)):
        (source / f"{k}.jsonl").write_text(json.dumps({"text": text}))
    (source / "1.jsonl").write_text('{"text": "a"}\n{')
    flags = [f"--out={tmp_path}/out", "--tasks=3", "--workers=1"]
    command = ["corpus", f"--corpus={source}", *command[2:], *flags]
    assert main(command) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        f"cocondenser: task 1 of 3 failed twice: {source}/1.jsonl:2 is not valid JSON"
    )
    (source / "1.jsonl").write_text(json.dumps({"text": " "}))
    assert main(command) == 0
    assert re.search(r"dropped, empty +1\n", capsys.readouterr().out)


# Runs each job of an array, one after the other, and keeps the file.
SBATCH = """#!/bin/bash
file="${@: -1}"
cp "$file" "$STAND_IN/$(grep -c . "$STAND_IN/jobs").slurm"
echo "$@" >> "$STAND_IN/jobs"
last=$(sed -n 's/#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$file")
if ! grep -q merge_stats "$file"; then
  for i in $(seq 0 "$last"); do
    SLURM_NODELIST=here SLURM_ARRAY_TASK_ID=$i RUN_OFFSET=0 bash "$file" >> "$STAND_IN/log" 2>&1
  done
fi
echo Submitted batch job 7
"""
SCRIPT = """#!/bin/bash
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=2G
#SBATCH --nodes=1
#SBATCH --partition=cpu
#SBATCH --job-name=data_processing
#SBATCH --time=1:00:00
#SBATCH --output={logs}/slurm_logs/%A_%a.out
#SBATCH --error={logs}/slurm_logs/%A_%a.out
#SBATCH --array=0-1%5
#SBATCH --requeue
#SBATCH --qos=normal
echo "Starting data processing job data_processing"
source {prefix}/bin/activate
set -xe
export PYTHONUNBUFFERED=TRUE
srun  -l -n 1 launch_pickled_pipeline {logs}/executor.pik
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    pytest.importorskip("datatrove", reason="needs: pip install 'cocondenser-jax[cluster]'")
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "jobs").touch()
    programs = {
        "sbatch": SBATCH,
        "srun": '#!/bin/bash\nshift 3\nexec "$@"\n',
        "scontrol": "#!/bin/bash\necho here\n",
        # As of a job that has ended, which Slurm no longer knows.
        "squeue": "#!/bin/bash\necho 'Invalid job id specified' >&2; exit 1\n",
        "scancel": '#!/bin/bash\necho "$@" > "$STAND_IN/canceled"; exit 1\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("STAND_IN", str(folder))
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


@pytest.mark.effect("corpus --executor", "corpus --executor_options")
def test_a_corpus_on_slurm(tmp_path, command, slurm, capsys):
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"partition": "cpu"}))
    flags = ["--tasks=2", "--workers=5", "--executor=slurm", f"--executor_options={options}"]
    in_tasks = [*command, f"--out={tmp_path}/out", *flags]
    assert main(in_tasks) == 2
    assert "--executor_options of slurm: " in capsys.readouterr().err
    options.write_text(json.dumps({"partition": "cpu", "time": "1:00:00"}))
    assert main(in_tasks) == 0, (slurm / "log").read_text()
    stages = ["digests", "duplicates", "corpus"]
    scripts = [(slurm / f"{number}.slurm").read_text() for number in (0, 2, 4)]
    assert scripts == [
        SCRIPT.format(logs=f"{tmp_path}/out/work/logs/{stage}", prefix=sys.prefix)
        for stage in stages
    ]
    assert main([*command, f"--out={tmp_path}/one"]) == 0
    assert contents(open_store(tmp_path / "out")) == contents(open_store(tmp_path / "one"))


@pytest.mark.parametrize(("name", "status"), [("INT", 130), ("TERM", 143)])
def test_what_ends_the_command_cancels_its_jobs(tmp_path, command, slurm, name, status):
    """The array is in the queue, even while that gives no answer, and would go on without it."""
    (slurm / "sbatch").write_text("#!/bin/bash\necho Submitted batch job 7\n")
    busy = "echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1"
    (slurm / "squeue").write_text(
        f'#!/bin/bash\n[ -e "$STAND_IN/asked" ] || {{ touch "$STAND_IN/asked"; {busy}; }}\n'
        f"kill -{name} $PPID\nsleep 1; echo 7\n"
    )
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"partition": "cpu", "time": "1:00:00"}))
    flags = ["--tasks=2", "--executor=slurm", f"--executor_options={options}"]
    program = [sys.executable, "-m", "cocondenser_jax.cli", *command, f"--out={tmp_path}/out"]
    ended = subprocess.run([*program, *flags], capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    assert "Traceback" not in ended.stderr
    assert (slurm / "canceled").read_text() == "7\n"


def test_a_cluster_that_is_not_there(tmp_path, command, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"partition": "cpu", "time": "1:00:00"}))
    flags = ["--tasks=2", "--executor=slurm", f"--executor_options={options}"]
    assert main([*command, f"--out={tmp_path}/out", *flags]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("cocondenser: --executor=slurm: ")
    assert "sbatch" in last


@pytest.mark.effect("encode --tasks", "encode --workers")
def test_vectors_in_seven_tasks_are_those_of_one(tmp_path, model_folder, beir, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sums depend on the number of threads
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", "--shard_size=9"]
    assert main([*command, f"--out={tmp_path}/one"]) == 0
    expected = capsys.readouterr().out
    in_tasks = [*command, f"--out={tmp_path}/many", "--tasks=7"]
    assert main([*in_tasks, "--task=0/2"]) == 2
    said = "--task runs one task alone: give neither --tasks nor --parquet"
    assert capsys.readouterr().err.splitlines()[-1] == f"cocondenser: {said}"
    assert main([*in_tasks, "--workers=2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == expected.replace("/one", "/many")
    assert "encode: 100%" in printed.err
    one = {path.name: path for path in (tmp_path / "one").glob("*.arrow")}
    many = {path.name: path for path in (tmp_path / "many").glob("task-*-of-00007/*.arrow")}
    assert len(one) == 7
    assert {name: path.read_bytes() for name, path in one.items()} == {
        name: path.read_bytes() for name, path in many.items()
    }

    made = {name: path.stat().st_mtime_ns for name, path in many.items()}
    damaged = many["embeddings-00003.arrow"]
    damaged.write_bytes(damaged.read_bytes()[:-4])
    many["embeddings-00006.arrow"].unlink()
    assert main([*in_tasks, "--workers=1"]) == 0
    again = {name: path.stat().st_mtime_ns for name, path in many.items()}
    assert sorted(name for name in made if again[name] != made[name]) == [
        "embeddings-00003.arrow",
        "embeddings-00006.arrow",
    ]
    assert main([*in_tasks, "--max_length=7"]) == 2
    assert "max_length=None, now it is 7" in capsys.readouterr().err


def test_machines_that_share_a_corpus_have_shards_of_their_part(
    tmp_path, model_folder, beir, monkeypatch
):
    """The default: a twentieth of what a machine encodes, of 60 passages on four machines of 15."""
    asked = []
    monkeypatch.setattr(encode, "default_shard_size", lambda n: asked.append(n) or 4)
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", f"--out={tmp_path}/out"]
    assert main([*command, "--task=1/4"]) == 0
    assert asked == [15]
    shards = sorted(
        path.name for path in (tmp_path / "out" / "task-00001-of-00004").glob("*.arrow")
    )
    assert shards == [f"embeddings-{number:05d}.arrow" for number in (1, 5, 9, 13)]


@pytest.mark.effect("encode --executor", "encode --executor_options")
def test_vectors_on_slurm(tmp_path, model_folder, beir, slurm):
    options = tmp_path / "options.json"
    options.write_text(
        json.dumps({"partition": "gpu", "time": "1:00:00", "gpus_per_task": 1, "tasks_per_job": 2})
    )
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", "--shard_size=30"]
    flags = ["--tasks=2", "--executor=slurm", f"--executor_options={options}"]
    assert main([*command, f"--out={tmp_path}/out", *flags]) == 0, (slurm / "log").read_text()
    assert "#SBATCH --gpus=1\n" in (slurm / "0.slurm").read_text()
    assert len(list((tmp_path / "out").glob("*/*.arrow"))) == 2


def test_a_worker_loads_the_model_once(tmp_path, model_folder, beir, in_this_process, monkeypatch):
    loaded = []
    load = models.load
    monkeypatch.setattr(models, "load", lambda *a, **k: loaded.append(1) or load(*a, **k))
    encode._load_encoder_once.cache_clear()
    manifest = encode.encode_corpus(
        Encoding(open_model(model_folder)), beir, tmp_path / "out", engine=Engine(tasks=3)
    )
    encode._load_encoder_once.cache_clear()
    assert len(loaded) == 1
    # All that vectors depend on is compared when they are called for again: as it was given.
    names = "model_sha256 representation backend dtype corpus_sha256 shard_size".split()
    expected = {name: manifest.to_json()[name] for name in names}
    expected |= {"tasks": 3, "max_length": None, "precision": "auto"}
    assert json.loads((tmp_path / "out" / "tasks.json").read_text()) == expected


def test_a_task_on_slurm_that_cannot_be_read_is_named(tmp_path, command, slurm, capsys):
    source = tmp_path / "source"
    source.mkdir()
    for k in range(2):
        (source / f"{k}.jsonl").write_text('{"text": "a"}\n{')
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"partition": "cpu", "time": "1:00:00"}))
    flags = ["--tasks=2", "--executor=slurm", f"--executor_options={options}"]
    command = ["corpus", f"--corpus={source}", *command[2:]]
    assert main([*command, f"--out={tmp_path}/out", *flags]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        f"cocondenser: task 0 of 2 failed twice: {source}/0.jsonl:2 is not valid JSON"
    )
    assert (slurm / "canceled").read_text() == "7\n"


def test_a_full_disk_ends_in_one_line(tmp_path, command, small_disk, monkeypatch, capsys):
    monkeypatch.undo()  # forks have the limits of their server
    in_tasks = [*command, f"--out={tmp_path}/out", "--tasks=2", "--workers=1"]
    small_disk(3_000)  # less than a tokenizer
    assert main(in_tasks) == 2
    small_disk(resource.RLIM_INFINITY)
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"cocondenser: task 0 of 2 failed twice: .*File too large", last)
    assert main(in_tasks) == 0


def test_a_corpus_without_documents_is_refused_in_tasks(tmp_path, command, in_this_process, capsys):
    for k in range(2):
        write_records(tmp_path / "source" / f"{k}.jsonl", [{"text": "Short."}])
    words = ["corpus", f"--corpus={tmp_path}/source", *command[2:]]
    assert main([*words, f"--out={tmp_path}/out", "--tasks=2"]) == 2
    assert refusal(capsys) == (
        f"{tmp_path}/source: no document with a span of 8 tokens remains (0 empty, 1 duplicate, 1"
        " too_short)"
    )


def test_one_task_alone_writes_no_file_for_a_database(tmp_path, model_folder, beir, capsys):
    command = ["encode", f"--model={model_folder}", f"--corpus={beir}", f"--out={tmp_path}/out"]
    assert main([*command, "--task=0/2", f"--parquet={tmp_path}/file"]) == 2
    said = "--task runs one task alone: give neither --tasks nor --parquet"
    assert refusal(capsys) == said
    assert list(tmp_path.iterdir()) == []
