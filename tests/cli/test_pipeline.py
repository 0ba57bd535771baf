"""The README's commands on a small corpus: what they leave, and what can be done with it."""

import contextlib
import io
import json
import logging
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cocondenser_jax.cli import main
from cocondenser_jax.collection.folder import read_corpus, read_split
from cocondenser_jax.collection.trec import read_run
from cocondenser_jax.retrieval.bm25 import bm25_run
from tests.cli.workplace import SMALLER, make_workplace

README = Path(__file__).parents[2] / "README.md"
SECRET = "hf_a1b2c3d4e5f6g7h8"
CREDENTIALS = "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"


def readme_commands() -> list[list[str]]:
    """Returns the commands of the README's section on a corpus of one's own."""
    section = README.read_text().split("## A corpus of your own")[1].split("\n## ")[0]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    assert block
    lines = block[1].replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("cocondenser ")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after all of these commands, and in log.txt what they said."""
    folder = make_workplace(tmp_path_factory.mktemp("pipeline"))
    said = io.StringIO()
    log = logging.StreamHandler(said)
    logging.getLogger().addHandler(log)
    redirected = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
    with pytest.MonkeyPatch.context() as patch, redirected[0], redirected[1]:
        patch.chdir(folder)
        for name in CREDENTIALS:
            patch.setenv(name, SECRET)
        for _, command, *arguments in readme_commands():
            assert main([command, *arguments, *SMALLER.get(command, "").split()]) == 0, command
    logging.getLogger().removeHandler(log)
    (folder / "log.txt").write_text(said.getvalue())
    return folder


def test_the_readme_runs_the_whole_pipeline() -> None:
    assert {command[1] for command in readme_commands()} == {
        "corpus", "pretrain", "convert", "finetune", "encode", "search", "evaluate"
    }  # fmt: skip


def holders_of_the_secret(folder: Path) -> list[str]:
    """Lists the files whose name or content has it."""
    return [
        path.name
        for path in folder.rglob("*")
        if SECRET in path.name or (path.is_file() and SECRET.encode() in path.read_bytes())
    ]


def test_no_credential_is_written_or_printed(finished: Path) -> None:
    assert holders_of_the_secret(finished) == []
    folders = {path.name for path in finished.rglob("*") if path.is_dir()}
    assert folders >= {"checkpoints", "tensorboard", "model", "retriever", "index"}
    assert "loss" in (finished / "log.txt").read_text()
    (finished / "planted").write_bytes(b"\0" + SECRET.encode())
    assert holders_of_the_secret(finished) == ["planted"]
    (finished / "planted").unlink()


def test_the_pipeline_ends_in_metrics(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, qrels = finished / "runs" / "test.trec", finished / "data" / "qrels" / "test.tsv"
    assert main(["evaluate", f"--run={run}", f"--qrels={qrels}"]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    # 40 passages, depth 100: every query finds its passage somewhere.
    assert float(printed["Recall@100"]) == 1.0
    assert 0.0 < float(printed["MRR@10"]) <= 1.0


def test_search_prints_passages(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, model = finished / "runs" / "index", finished / "runs" / "finetune" / "retriever"
    arguments = [f"--index={index}", f"--model={model}", "--query=red stone", "--top_k=3"]
    assert main(["search", *arguments]) == 0
    assert len(re.findall(r"^ +-?\d+\.\d\d  p\d+$", capsys.readouterr().out, re.MULTILINE)) == 3


def test_a_corpus_is_searched_without_an_index(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"--model={finished}/runs/finetune/retriever"
    data = f"--data={finished}/data"
    vectors = [f"--out={tmp_path}/x", "--factory=none", "--shard_size=15"]
    parquet = f"--parquet={tmp_path}/vectors.parquet"
    assert main(["encode", model, f"--corpus={finished}/data", *vectors, parquet]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vectors.parquet", "x.embeddings"]
    runs = []
    for place in (f"--embeddings={tmp_path}/x.embeddings", f"--index={finished}/runs/index"):
        out = [f"--run_out={tmp_path}/run.trec", f"--json_out={tmp_path}/figures.json"]
        assert main(["search", place, model, data, "--split=test", *out]) == 0
        runs.append([line.split()[:4] for line in (tmp_path / "run.trec").open()])
        figures = json.loads((tmp_path / "figures.json").read_text())
        assert (figures["queries"], figures["passages"]) == (10, 40)
        for part in ("encoding", "search"):
            seconds = figures[f"{part}_seconds"]
            assert figures[f"{part}_ms_per_query"] == pytest.approx(seconds * 1000 / 10)
        assert "search_ms_per_query" in capsys.readouterr().out
    assert runs[0] == runs[1]


class Terminal(io.StringIO):
    """Standard input with someone in front of it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_queries_are_answered_line_by_line(
    finished: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[io.StringIO],
) -> None:
    monkeypatch.setattr("sys.stdin", kind("red stone\n\n  \n blue bird"))
    place = [f"--index={finished}/runs/index", f"--model={finished}/runs/finetune/retriever"]
    assert main(["search", "--interactive", *place, "--top_k=2"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r'^(?:query: )*"(.*)"$', printed, re.MULTILINE) == ["red stone", "blue bird"]
    assert len(re.findall(r"^ +-?\d+\.\d\d  p\d+$", printed, re.MULTILINE)) == 4
    assert (
        len(re.findall(r"^  encoding \d+\.\d ms, search \d+\.\d ms$", printed, re.MULTILINE)) == 2
    )
    assert printed.count("query: ") == (5 if kind is Terminal else 0)


def test_bm25_by_command_line(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = finished / "bm25.trec"
    data = finished / "data"
    assert main(["search", "--bm25", f"--data={data}", "--split=test", f"--run_out={out}"]) == 0
    assert main(["evaluate", f"--run={out}", f"--qrels={data}/qrels/test.tsv"]) == 0
    printed = capsys.readouterr().out
    # A ranking of the 40 passages by chance has 0.07.
    assert float(re.search(r"MRR@10 +([\d.]+)", printed)[1]) > 0.25  # type: ignore[index]
    other = [f"--run_out={finished}/other.trec", "--k1=0.82", "--b=0.68"]
    assert main(["search", "--bm25", f"--data={data}", "--split=test", *other]) == 0
    queries, _ = read_split(data, "test")
    expected = bm25_run(read_corpus(data), queries, k1=0.82, b=0.68)
    found = read_run(finished / "other.trec")
    assert {query: list(results) for query, results in found.items()} == {
        query: list(results) for query, results in expected.items() if results
    }
    best = next(iter(expected))
    assert max(found[best].values()) == pytest.approx(max(expected[best].values()), rel=1e-5)


def test_convert_and_back_gives_the_same_parameters(finished: Path, tmp_path: Path) -> None:
    folder = finished / "runs" / "model"
    assert main(["convert", f"--pytorch_folder={folder}", f"--out={tmp_path}/run"]) == 0
    assert main(["convert", f"--checkpoint={tmp_path}/run", f"--out={tmp_path}/again"]) == 0
    for name in ("model.safetensors", "condenser_head.safetensors"):
        left, right = load_file(folder / name), load_file(tmp_path / "again" / name)
        assert left.keys() == right.keys()
        for key, value in left.items():
            np.testing.assert_array_equal(value, right[key])


def test_pretraining_starts_from_an_exported_folder(finished: Path, tmp_path: Path) -> None:
    arguments = [
        "--config=configs/small.py",
        f"--workdir={tmp_path}/run",
        f"--config.data.store={finished}/stores/wiki",
        f"--config.warm_start={finished}/runs/model",
        *SMALLER["pretrain"].split(),
    ]
    assert main(["pretrain", *arguments]) == 0
    shutil.copytree(finished / "runs" / "model", tmp_path / "headless")
    (tmp_path / "headless" / "condenser_head.safetensors").unlink()
    headless = [f"--config.warm_start={tmp_path}/headless", f"--workdir={tmp_path}/other"]
    assert main(["pretrain", *arguments, *headless]) == 2
    assert main(["pretrain", *arguments, *headless, "--config.init_head=True"]) == 0
    # Once there is a checkpoint, what the run started from may go.
    shutil.rmtree(tmp_path / "headless")
    assert main(["pretrain", *arguments, *headless, "--config.init_head=True"]) == 0


def test_a_converted_model_is_not_a_run_to_resume(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished / "runs" / "model"
    assert main(["convert", f"--pytorch_folder={folder}", f"--out={tmp_path}/run"]) == 0
    arguments = [
        "--config=configs/small.py",
        f"--workdir={tmp_path}/run",
        f"--config.data.store={finished}/stores/wiki",
        *SMALLER["pretrain"].split(),
    ]
    assert main(["pretrain", *arguments]) == 2
    assert "holds a converted model" in capsys.readouterr().err
    assert main(["verify", f"--checkpoint={tmp_path}/run"]) == 2
    assert "says nothing about its data" in capsys.readouterr().err
