"""What a command prints where nobody watches a terminal."""

import io
import json
import shlex

from tqdm import tqdm

from cocondenser_jax.cli import main, output
from cocondenser_jax.cli.output import progress_as_lines
from cocondenser_jax.retriever.data.layouts import Passage


class Clock:
    """The seconds that pass are those that a test says."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(output.time, "time", lambda: self.now)


def test_the_next_command_can_be_copied(capsys):
    output.print_command("search", "--model=a b", "--query=it's")
    (line,) = capsys.readouterr().out.splitlines()
    words = shlex.split(line.removeprefix("next: "))
    assert words == ["cocondenser", "search", "--model=a b", "--query=it's"]


def test_bars_are_lines_where_stderr_is_a_file(monkeypatch):
    clock = Clock(monkeypatch)
    file = io.StringIO()
    with progress_as_lines():
        with tqdm(total=100, desc="outer", file=file, mininterval=0) as outer:
            for _ in range(100):
                clock.now += 1
                with tqdm(total=1, desc="inner", file=file, leave=False) as inner:
                    inner.update()
                outer.update()
        with tqdm(total=1, desc="slow and gone", file=file, leave=False):
            clock.now += 60
        with tqdm(total=1, desc="short", file=file) as short:
            short.update()
    lines = file.getvalue().replace("\r", "").splitlines()
    lines = [line.replace("\x1b[A", "") for line in lines if line.strip("\x1b[A")]
    assert [line.split("|")[0] for line in lines] == [
        *("outer:  30%", "outer:  60%", "outer:  90%", "outer: 100%", "short: 100%"),
    ]
    bar = tqdm(total=1, file=file, desc="after")
    assert file.getvalue().split("\n")[-1].startswith("\rafter: ")
    bar.close()


def test_a_terminal_keeps_its_bars(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    with progress_as_lines():
        assert tqdm.display is not output._print_bar
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with progress_as_lines():
        assert tqdm.display is output._print_bar
    assert tqdm.display is not output._print_bar


def test_a_command_that_writes_to_a_file_redraws_nothing(model_folder, beir, tmp_path, capfd):
    encode = ["encode", f"--model={model_folder}", f"--corpus={beir}", f"--out={tmp_path}/vectors"]
    assert main(encode) == 0
    err = capfd.readouterr().err
    assert "\r" not in err
    assert sum(line.startswith("encode: 100%") for line in err.splitlines()) == 1


def test_metrics_are_printed_as_a_reader_expects(capsys, tmp_path):
    metrics = {
        "passages": 12345,
        "loss": 0.25,
        "model": {"normalized": True, "truncated": False, "prompt": None, "sizes": []},
        "name": "",
    }
    output.print_metrics(metrics, tmp_path / "metrics.json")
    assert capsys.readouterr().out.splitlines() == [
        "passages          12,345",
        "loss              0.2500",
        "model.normalized  yes",
        "model.truncated   no",
    ]
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics


def test_hits_have_a_rank_an_id_a_title_a_score_and_the_begin_of_the_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    hits = [(12.346, Passage("d1", "A title", "word " * 12)), (-0.5, Passage("d22", "", "a\nb"))]
    output.print_search("what is it", hits, nothing="none")
    assert capsys.readouterr().out.splitlines() == [
        '"what is it"',
        "  1  d1  A title  (12.35)",
        "     word word word word word word word",
        "     word word word word word",
        "  2  d22  (-0.50)",
        "     a b",
    ]
    monkeypatch.setenv("COLUMNS", "400")
    output.print_search("x", [(1.0, Passage("d", "t", "word " * 70))], nothing="none")
    assert capsys.readouterr().out.splitlines()[2] == "     " + "word " * 60 + "…"
    monkeypatch.setenv("COLUMNS", "8")  # no text fits beside the space before it
    output.print_search("x", [(1.0, Passage("d", "t", "word " * 5))], nothing="none")
    assert capsys.readouterr().out.splitlines()[2:] == ["     word word word word", "     word"]
    output.print_search("q", [], nothing="none: x")
    assert capsys.readouterr().out == '"q"\n  none: x\n'


def test_a_table_has_aligned_columns(capsys):
    rows = [["MRR@10", "0.5", "0.001"], ["R\x1b", "12.25", ""]]
    output.print_table(["", "run", "p"], rows)
    assert capsys.readouterr().out.splitlines() == [
        "          run      p",
        "MRR@10    0.5  0.001",
        r"R\x1b   12.25",
    ]
