"""The programs that repeat rows: what they print, refuse and run."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from papers import commands
from papers.gpus import on_gpus
from papers.program import Study, end_on_signals, execute, run_program
from papers.reproduce import PAPERS, main
from papers.steps import Folders, Step, run_steps
from papers.tables import load_tables

TABLES = load_tables(PAPERS.folder)


def test_list_names_tables_rows_and_what_is_left_out(capsys):
    main(["--list"])
    printed = capsys.readouterr().out
    for name, table in TABLES.items():
        assert f"{name}: {table['title']}\n" in printed
        rows = [row for row, content in table["rows"].items() if "ours" not in content]
        assert not rows or f"\n  {', '.join(rows)}\n" in printed
    lines = printed.splitlines()
    for line in (
        "  not repeated: GloVe, InferSent, USE: other sentence encoders, quoted from "
        "Reimers & Gurevych",
        "  not repeated: figure 1: a drawing of the architecture",
        "  ours: mlm-500: MLM without the Condenser head, on the same text for the same number of "
        "steps",
        "  no figures: the figure prints no numbers",
    ):
        assert line in lines
    start = lines.index("condenser: Gao & Callan, Condenser: a pre-training architecture for dense "
                        "retrieval")  # fmt: skip
    assert lines[start + 1] == "  All figures come from the text of version 2 (EMNLP 2021)."


def test_dry_run_prints_what_is_missing(tmp_path, capsys):
    words = ["co/table1", "--row=cocondenser", "--dry_run"]
    folders = [f"--workdir={tmp_path}/w w", f"--data={tmp_path}/d"]
    main([*words, *folders])
    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert commands[0][:2] == ["cocondenser", "corpus"]
    assert f"--out={tmp_path}/w w/stores/wikipedia" in commands[0]
    assert f"--corpus={tmp_path}/d/wikipedia" in commands[0]
    get = f"# {tmp_path}/d/dpr: `python -m papers.get_data dpr --downloads=DIR` makes it"
    assert any(line.startswith(get) for line in lines)
    models = "condenser 33.6, cocondenser-marco 7.2, cocondenser-wikipedia 10.1"
    assert any(line.endswith(f"of the pre-training, on a v3-8: {models}") for line in lines)
    assert any(": pre-training 50.9 (v3-8), " in line and "; all else " in line for line in lines)
    assert any(line.startswith("# on the CPU: ") for line in lines)
    assert any(line.startswith("# on the disk: ") for line in lines)
    assert not (tmp_path / "w w").exists()
    (tmp_path / "w w" / "stores" / "wikipedia").mkdir(parents=True)
    main([*words, *folders])
    fewer = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert len(fewer) == len(commands) - 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("co/tabel1", "no table 'co/tabel1': did you mean co/table1 or "),
        ("co/table1 --row=cocondener", "no row 'cocondener': did you mean cocondenser or "),
        ("", "give either a table, such as co/table1, or --list"),
        ("co/table1 --list", "give either a table, such as co/table1, or --list"),
        (
            "co/table1 --data=nowhere --workdir=made",
            "nowhere/msmarco-untitled is missing: `python -m papers.get_data msmarco-untitled",
        ),
    ],
)
def test_a_mistake_is_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "said"), [(2, ""), (1, "reproduce: exit status 1: false 1\n")])
def test_a_command_that_has_said_why_it_ended_is_not_named_again(
    status, said, tmp_path, monkeypatch, capsys
):
    step = Step(tmp_path / "out", [["false", "1"]])

    def begin(*_):
        run_steps({tmp_path / "out": step}, Folders(tmp_path, tmp_path), lambda command: status)

    monkeypatch.setattr("papers.program._reproduce", begin)
    with pytest.raises(SystemExit, match="2"):
        main(["co/table1"])
    assert capsys.readouterr().err == said


def test_a_row_runs_in_processes_of_its_own(beir, tmp_path, capfd):
    def bm25(*flags):
        data = Step(f"$DATA/{beir.name}", get="nowhere")
        out = "$WORK/bm25.trec"
        run = Step(out, [commands.bm25(data.out, out, "--split=train")], [data])
        evaluate = commands.evaluate(out, f"{data.out}/qrels/train.tsv", *flags, f"{out}.json")
        return Step(f"{out}.json", [evaluate], [run, data])

    recipes = SimpleNamespace(good=lambda: bm25("MRR@10"), bad=lambda: bm25("XX"))
    (tmp_path / "a.yaml").write_text(
        "tables: {b: {title: t, tolerance: 0.1, rows: {"
        "bm25: {published: {of.good: {MRR@10: 0.3}}}, bad: {published: {of.bad: {}}}}}}"
    )
    study = Study("a study", tmp_path, {"of": recipes}, example="a/b", workdir=tmp_path)

    def reproduce(row, *flags):
        run_program(study, "It repeats.", ["a/b", f"--row={row}", f"--data={beir.parent}", *flags])

    reproduce("bm25", f"--json_out={tmp_path}/compared.json")
    printed = capfd.readouterr().out
    assert f"$ cocondenser bm25 --data={beir}" in printed
    (compared,) = json.loads((tmp_path / "compared.json").read_text())
    measured = json.loads((tmp_path / "bm25.trec.json").read_text())["mean"]["MRR@10"]
    assert compared["measured"] == measured > 0.5
    assert compared["difference"] == pytest.approx(measured - 0.3)
    assert not compared["within"]
    assert f"bm25 of.good MRR@10    {measured:.4f}" in printed
    reproduce("bm25")
    assert "$ cocondenser" not in capfd.readouterr().out
    (tmp_path / "bm25.trec.json").unlink()
    with pytest.raises(SystemExit, match="2"):
        reproduce("bad")
    printed = capfd.readouterr()
    assert printed.out.splitlines()[-1].startswith("$ cocondenser evaluate")
    assert printed.err.splitlines()[-1].startswith("cocondenser: unknown metric 'XX'")


def on(n_gpus, words):
    command, variables = on_gpus(words.split(), [f"GPU-{number}" for number in range(n_gpus)])
    return shlex.join([*(f"{name}={value}" for name, value in variables.items()), *command])


def test_a_batch_stays_what_it_is_on_several_gpus():
    """With queries of MS MARCO's batch, 8, and of NQ's, 128."""
    launch = "python -m torch.distributed.run --standalone --nproc_per_node={}"
    launch += " -m cocondenser_jax.cli finetune"
    inputs = "--config.model.folder=m --config.data.folder=d --config.data.negatives_run=r"
    marco = f"--workdir=W --config=configs/finetune.py {inputs}"
    for n_gpus, n_processes in ((2, 2), (3, 2), (7, 4), (8, 8), (16, 8)):
        words = f"cocondenser finetune {marco}"
        assert on(n_gpus, words) == f"{launch.format(n_processes)} {marco}"
    nq = f"--config=configs/finetune.py:nq --workdir=W {inputs}"
    assert on(16, f"cocondenser finetune {nq}") == f"{launch.format(16)} {nq}"
    three = f"{marco} --config.data.batch_size=3"
    assert on(8, f"cocondenser finetune {three}") == f"{launch.format(3)} {three}"
    seven = f"cocondenser finetune {marco} --config.data.batch_size=7"
    assert on(2, seven) == f"CUDA_VISIBLE_DEVICES=GPU-0 {seven}"
    for n_gpus in (0, 1):
        assert on(n_gpus, f"cocondenser finetune {marco}") == f"cocondenser finetune {marco}"


def test_other_commands_of_a_recipe_on_gpus():
    retrieve = "cocondenser retrieve --embeddings=e --run_out=r"
    assert [on(n, retrieve) for n in (0, 1, 8)] == [retrieve, *[f"{retrieve} --device=cuda"] * 2]
    script = "python -m papers.abs_rank --workdir=W"
    assert [on(n, script) for n in (0, 1, 8)] == [script] * 2 + [
        f"CUDA_VISIBLE_DEVICES=GPU-0 {script}"
    ]
    for words in ("cocondenser pretrain --config=c", "cocondenser encode --out=o"):
        assert on(8, words) == words


def test_a_recipe_runs_on_the_gpus_that_are_visible(monkeypatch, capfd):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,2,5")
    program = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    assert execute(["python", "-c", program]) == 0
    printed = capfd.readouterr().out
    assert printed == f"$ CUDA_VISIBLE_DEVICES=4 python -c {shlex.quote(program)}\n4\n"


def test_programs_of_a_recipe_run_with_this_python(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert (
        execute(["python", "-c", f"import sys; sys.exit(sys.executable != {sys.executable!r})"])
        == 0
    )
    assert execute(["cocondenser", "--version"]) == 0
    assert execute(["cocondenser", "nothing"]) == 2


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    command = [sys.executable, "-m", "papers.reproduce", "--list"]
    root = Path(__file__).parents[2]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdout=pipe, stderr=pipe) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_request_to_end_reaches_the_command(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\ntrap 'touch $0.ended; exit' TERM\ntouch $0.started\n"
        "while :; do sleep 0.1; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    def end(*_):
        raise SystemExit(143)

    def ask():
        while not (tmp_path / "python.started").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        threading.Thread(target=ask).start()
        with pytest.raises(SystemExit):
            execute(["cocondenser", "pretrain"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "python.ended").exists()


@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_program_under_nohup_does_not_end_with_its_terminal(hangup):
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, hangup)
    try:
        end_on_signals()
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) == (hangup == signal.SIG_IGN)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
