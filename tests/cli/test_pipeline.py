"""The guide's commands on a small corpus: what they leave, and what can be done with it.

They run in a folder of an odd name, as the first part of every path: each command has to take it.
"""

import contextlib
import io
import json
import logging
import re
import shlex
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.cli.flags import PROGRAM
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.errors import escape_control
from cocondenser_jax.files.whole import read_json
from cocondenser_jax.pretrain.checkpoint import load_run
from tests.cli.workplace import ODD_NAME, make_workplace, smaller
from tests.recording import FLOATS, MEASURED, all_said, assert_recorded, in_lines, seen_on
from tests.world import instead

ROOT = Path(__file__).parents[2]
SECRET = "hf_a1b2c3d4e5f6g7h8"
PLACE = re.compile(r"=(articles\.jsonl\.xz|bert-base-uncased|stores/.*|runs/.*|data(?:/.*)?)$")
# How the odd name is written in JSON, on a terminal, in a command there, and in a log.
WRITTEN = [json.dumps(ODD_NAME)[1:-1], escape_control(ODD_NAME)]
WRITTEN += [WRITTEN[1].replace("'", "'\"'\"'"), ODD_NAME]
# What other versions of a library write otherwise.
VERSIONS = r'(?<=": ")\d+(\.\d+)+(?=")|(?<= )\d+(\.\d+){2,}(?= \|)|(?<="bytes": )\d+'
# The .json files that other libraries write, or whose content changes with the machine.
BY_OTHERS = "token|retriever|cross_encoder|resolved/config.json|bm25/|sha256.json|probe.json"
CREDENTIALS = "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"


def commands_of(page):
    """Returns the commands of a page's blocks."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    code = "".join(block for language, block in blocks if not language)
    lines = code.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("cocondenser ")]


def guide_commands():
    """Returns the commands of the guide to a corpus of one's own."""
    return commands_of("docs/pretrain.md")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder after all of these commands, and in log.txt what they said."""
    top = tmp_path_factory.mktemp("pipeline")
    (top / ODD_NAME).mkdir()
    folder = make_workplace(top / ODD_NAME)
    said = io.StringIO()
    log = logging.StreamHandler(said)
    logging.getLogger().addHandler(log)
    redirected = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
    with pytest.MonkeyPatch.context() as patch, redirected[0], redirected[1]:
        patch.chdir(top)
        for name in CREDENTIALS:
            patch.setenv(name, SECRET)
        for _, command, *arguments in guide_commands():
            arguments = [PLACE.sub(lambda place: f"={ODD_NAME}/{place[1]}", a) for a in arguments]
            assert main([command, *instead(arguments, smaller(command))]) == 0, command
    logging.getLogger().removeHandler(log)
    (folder / "log.txt").write_text(said.getvalue(), errors="backslashreplace")
    return folder


def test_the_guide_runs_the_whole_pipeline():
    assert {command[1] for command in guide_commands()} == {
        "corpus", "pretrain", "convert", "finetune", "encode", "index", "retrieve", "evaluate"
    }  # fmt: skip


def test_the_readme_has_the_first_of_these_commands():
    shown = [words for words in commands_of("README.md") if words[1] in ("corpus", "pretrain")]
    assert shown == guide_commands()[:3]


def holders_of_the_secret(folder):
    """Lists the files whose name or content has it."""
    return [
        path.name
        for path in folder.rglob("*")
        if SECRET in path.name or (path.is_file() and SECRET.encode() in path.read_bytes())
    ]


def test_no_credential_is_written_or_printed(finished):
    assert holders_of_the_secret(finished) == []
    folders = {path.name for path in finished.rglob("*") if path.is_dir()}
    assert folders >= {"checkpoints", "model", "retriever", "index"}
    assert "loss" in (finished / "log.txt").read_text()
    (finished / "planted").write_bytes(b"\0" + SECRET.encode())
    assert holders_of_the_secret(finished) == ["planted"]
    (finished / "planted").unlink()


def test_a_model_says_nothing_of_the_links_to_its_folder(finished):
    for path in (finished / "runs").rglob("*.json"):
        assert "/link" not in path.read_text(), path.name
    tuned = json.loads((finished / "runs" / "finetune" / "finetune.json").read_text())
    assert tuned["model"]["folder"] == f"{ODD_NAME}/runs/model"


def test_each_command_says_how_to_go_on(finished):
    """What is printed can be run: the commands know its flags."""
    said = (finished / "log.txt").read_text()
    commands = [shlex.split(line) for line in re.findall("^next: cocondenser (.*)$", said, re.M)]
    assert [words[0] for words in commands] == [
        "pretrain", "convert", "convert", "encode", "search", "search", "evaluate"
    ]  # fmt: skip
    for name, *words in commands:
        PROGRAM.commands[name].make_context(name, words)
    place = escape_control(ODD_NAME)
    runs = f"{place}/runs"
    assert commands[2][1:] == [f"--run_dir={runs}/cocondenser", f"--out={runs}/cocondenser-model"]
    assert commands[3][1:] == [
        f"--model={runs}/finetune/retriever",
        f"--corpus={place}/data",
        f"--out={runs}/finetune/embeddings",
    ]
    assert commands[6][1:] == [f"--run={runs}/test.trec", f"--qrels={place}/data/qrels/test.tsv"]


def assert_same(name, texts, masked):
    """Compares texts with those recorded, but for the odd name."""
    for written in sorted(WRITTEN, key=len, reverse=True):
        texts = {heading: text.replace(written, "PLACE") for heading, text in texts.items()}
    assert_recorded(name, texts, masked=masked)


def records_in(folder):
    """Returns the content of the files by which commands know what others did, by their names."""
    texts = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".md":
            texts[name] = path.read_text()
        elif path.suffix == ".json" and not re.search(BY_OTHERS, name):
            texts[name] = in_lines(read_json(path))
    return texts


def test_all_that_is_said_is_as_recorded(finished):
    assert_same("pipeline_said", {"said": (finished / "log.txt").read_text()}, MEASURED)


def test_all_that_is_written_is_as_recorded(finished):
    """Of arrays and of files by other libraries, the names, if they write them always."""
    names = (path.relative_to(finished).as_posix() for path in finished.rglob("*.*"))
    files = sorted(name for name in names if not re.search("token|finetune/retriever", name))
    assert_same("pipeline_written", {"files": "\n".join(files), **records_in(finished)}, VERSIONS)


def test_what_the_other_commands_say_and_write_is_as_recorded(finished, tmp_path, monkeypatch):
    """Where ranks would depend on vectors that hardly differ, BM25's are compared."""
    (tmp_path / "guide").symlink_to(finished)
    monkeypatch.chdir(tmp_path)
    commands = """
        verify --store=guide/stores/wiki
        vocabulary --corpus=guide/data --size=80 --kind=mpnet --out=vocabulary
        resolve --model=guide/runs/finetune/retriever --out=resolved --dimensions=8
        bm25 --data=guide/data --split=train --run_out=train.trec --json_out=bm25.json
        bm25 --data=guide/data --split=test --run_out=bm25.trec --depth=20 --language=none
        bm25 --data=guide/data --split=test --run_out=long.trec --depth=30 --b=1
        fuse --run=bm25.trec --run=long.trec --run_out=fused.trec --json_out=fuse.json
        mine --run=train.trec --data=guide/data --run_out=pool.trec --depth=9 --json_out=mine.json
        finetune --config=configs/cross_encoder.py --workdir=scorer
            --config.train.max_steps=2 --config.data.batch_size=4
            --config.model.folder=guide/runs/model --config.data.folder=guide/data
            --config.data.negatives_run=pool.trec --config.model.max_length=24 --json_out=tune.json
        rerank --model=scorer/cross_encoder --run=bm25.trec --data=guide/data --split=test
            --depth=9 --run_out=reranked.trec --json_out=rerank.json
        encode --model=resolved --corpus=guide/data --out=half --dtype=float16
            --json_out=encode.json
        retrieve --embeddings=half --model=resolved --data=guide/data --split=test
            --run_out=hybrid.trec --hybrid=rrf --json_out=retrieve.json
        search --corpus=guide/data --query=river --depth=3 --json_out=search.json
        evaluate --run=fused.trec --qrels=guide/data/qrels/test.tsv --compare_with=bm25.trec
            --data=guide/data --report=report.html --json_out=evaluate.json
    """
    said = {}
    for line in re.split(r"\n {8}(?! )", commands.strip()):
        with all_said() as each:
            assert main(shlex.split(line)) == 0, line
        said[" ".join(line.split())] = each.getvalue()
    texts = {**said, **records_in(tmp_path), "report": seen_on(Path("report.html").read_text())}
    assert_recorded("commands", texts, masked=FLOATS)


def test_the_pipeline_ends_in_metrics(finished, capsys):
    run, qrels = finished / "runs" / "test.trec", finished / "data" / "qrels" / "test.tsv"
    assert main(["evaluate", f"--run={run}", f"--qrels={qrels}"]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    # 40 passages, depth 100: every query finds its passage somewhere.
    assert float(printed["Recall@100"]) == 1.0
    assert 0.0 < float(printed["MRR@10"]) <= 1.0


@pytest.mark.effect("pretrain --config", "pretrain --workdir", "finetune --config")
@pytest.mark.effect("finetune --workdir")
def test_each_run_is_that_of_its_experiment(finished):
    for stage in ("condenser", "cocondenser"):
        config = read_json(finished / "runs" / stage / "run.json")["config"]
        assert config["train"]["objective"] == stage
        assert config["model"]["n_head_layers"] == 1  # in small.py, not in default.py
    config = read_json(finished / "runs" / "finetune" / "finetune.json")
    assert (config["task"], config["optimizer"]["learning_rate"]) == ("retriever", 3e-4)


def same(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.effect("convert --run_dir", "convert --out", "convert --step")
def test_an_older_checkpoint_is_converted(finished, tmp_path):
    run, out = finished / "runs" / "cocondenser", tmp_path / "old"
    assert main(["convert", f"--run_dir={run}", f"--out={out}", "--step=2"]) == 0
    _, params = load_folder(str(out))
    assert same(params, load_run(run, 2)[1])
    assert not same(params, load_run(run)[1])
    _, latest = load_folder(str(finished / "runs" / "model"))
    assert same(latest, load_run(run)[1])


@pytest.fixture
def headless(finished, tmp_path):
    """The exported folder without the Condenser head."""
    folder = Path(shutil.copytree(finished / "runs" / "model", tmp_path / "headless"))
    (folder / "condenser_head.safetensors").unlink()
    return folder


def test_pretraining_starts_from_an_exported_folder(finished, headless, tmp_path):
    def pretrain(name, *settings):
        """Runs a step that changes nothing."""
        words = [
            "--config=configs/small.py",
            f"--workdir={tmp_path}/{name}",
            f"--config.data.store={finished}/stores/wiki",
            "--config.train.steps=1",
            "--config.optimizer.learning_rate=0",
            *settings,
        ]
        return main(["pretrain", *instead(smaller("pretrain"), words)])

    assert pretrain("whole", f"--config.warm_start={finished}/runs/model") == 0
    assert pretrain("refused", f"--config.warm_start={headless}") == 2
    assert not (tmp_path / "refused").exists()
    assert pretrain("new", f"--config.warm_start={headless}", "--config.init_head=True") == 0
    _, params, _ = load_run(finished / "runs" / "cocondenser")
    _, whole, _ = load_run(tmp_path / "whole")
    _, new_head, _ = load_run(tmp_path / "new")
    assert same(whole, params)
    assert not same(new_head.pop("head_0"), params.pop("head_0"))
    assert same(new_head, params)


def test_once_there_is_a_checkpoint_what_the_run_started_from_may_go(
    finished, tmp_path, monkeypatch
):
    (tmp_path / "stores").symlink_to(finished / "stores")
    monkeypatch.chdir(tmp_path)
    _, *command = guide_commands()[2]
    assert "--config.warm_start=runs/condenser" in command
    command = instead(command, smaller("pretrain"))
    assert main(command) == 2
    shutil.copytree(finished / "runs" / "cocondenser", "runs/cocondenser", dirs_exist_ok=True)
    assert main(command) == 0
