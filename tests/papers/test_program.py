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

from papers import commands
from papers.program import Study, execute, run_program
from papers.reproduce import PAPERS, main
from papers.steps import Step
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
    assert f"--source={tmp_path}/d/wikipedia" in commands[0]
    get = f"# {tmp_path}/d/dpr: `python -m papers.get_data dpr --downloads=DIR` makes it"
    assert any(line.startswith(get) for line in lines)
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
    assert "exit status 2: cocondenser evaluate" in capfd.readouterr().err


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
