"""The command line: the README's road on a small corpus, and what bad input gets."""

import contextlib
import io
import json
import logging
import lzma
import random
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_wordpiece

README = Path(__file__).parents[1] / "README.md"
WORDS = "red green blue stone river cloud tree house bird fish salt iron wind snow fire".split()
# The road of the README at a size for tests: the same commands, with these settings added.
SMALLER = {
    "corpus": "--max_tokens=16",
    "pretrain": "--config.train.steps=3 --config.data.documents_per_step=16"
    " --config.data.length=16 --config.model.hidden_size=16 --config.model.intermediate_size=32"
    " --config.model.num_hidden_layers=2 --config.model.skip_from=1"
    " --config.model.max_position_embeddings=32 --config.model.num_attention_heads=2",
    "finetune": "--config.max_steps=2 --config.batch_size=4 --config.query_length=8"
    " --config.passage_length=16",
}
SECRET = "hf_a1b2c3d4e5f6g7h8"
CREDENTIALS = "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(8, 11))) + "."


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """articles.jsonl.xz, a tokenizer, and a BEIR folder, as the README supposes them."""
    folder = tmp_path_factory.mktemp("road")
    rng = random.Random(1)
    texts = [" ".join(sentence(rng) for _ in range(5)) for _ in range(40)]
    with lzma.open(folder / "articles.jsonl.xz", "wt") as file:
        file.writelines(json.dumps({"title": text[:9], "text": text}) + "\n" for text in texts)
    (folder / "bert-base-uncased").mkdir()
    save_tokenizer(train_wordpiece(texts, 80), folder / "bert-base-uncased")
    data = folder / "data"
    (data / "qrels").mkdir(parents=True)
    with (data / "corpus.jsonl").open("w") as file:
        file.writelines(
            json.dumps({"_id": f"p{i}", "title": "", "text": text}) + "\n"
            for i, text in enumerate(texts)
        )
    with (data / "queries.jsonl").open("w") as file:
        file.writelines(
            json.dumps({"_id": f"q{i}", "text": text.split(".")[0]}) + "\n"
            for i, text in enumerate(texts)
        )
    for split, part in (("train", range(30)), ("test", range(30, 40))):
        judgments = "".join(f"q{i}\tp{i}\t1\n" for i in part)
        (data / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgments)
    return folder


def road() -> list[list[str]]:
    """The commands of the README's section on a corpus of one's own."""
    section = README.read_text().split("## A corpus of your own")[1].split("\n## ")[0]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    assert block
    lines = block[1].replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("cocondenser ")]


@pytest.fixture(scope="module")
def walked(workplace: Path) -> Path:
    """The workplace after all commands of the road, and in log.txt what they said."""
    said = io.StringIO()
    log = logging.StreamHandler(said)
    logging.getLogger().addHandler(log)
    redirected = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
    with pytest.MonkeyPatch.context() as patch, redirected[0], redirected[1]:
        patch.chdir(workplace)
        for name in CREDENTIALS:
            patch.setenv(name, SECRET)
        for _, verb, *arguments in road():
            assert main([verb, *arguments, *SMALLER.get(verb, "").split()]) == 0, verb
    logging.getLogger().removeHandler(log)
    (workplace / "log.txt").write_text(said.getvalue())
    return workplace


def test_the_road_visits_every_verb() -> None:
    assert {command[1] for command in road()} == {
        "corpus", "pretrain", "convert", "finetune", "encode", "index", "retrieve", "evaluate"
    }  # fmt: skip


def holders_of_the_secret(folder: Path) -> list[str]:
    """Lists the files whose name or content has it."""
    return [
        path.name
        for path in folder.rglob("*")
        if SECRET in path.name or (path.is_file() and SECRET.encode() in path.read_bytes())
    ]


def test_no_credential_is_written_or_printed(walked: Path) -> None:
    assert holders_of_the_secret(walked) == []
    folders = {path.name for path in walked.rglob("*") if path.is_dir()}
    assert folders >= {"checkpoints", "tensorboard", "model", "retriever", "index"}
    assert "loss" in (walked / "log.txt").read_text()
    (walked / "planted").write_bytes(b"\0" + SECRET.encode())
    assert holders_of_the_secret(walked) == ["planted"]
    (walked / "planted").unlink()


def test_the_road_ends_in_figures(walked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, qrels = walked / "runs" / "test.trec", walked / "data" / "qrels" / "test.tsv"
    assert main(["evaluate", f"--run={run}", f"--qrels={qrels}"]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    # 40 passages, depth 100: every query finds its passage somewhere.
    assert float(printed["Recall@100"]) == 1.0
    assert 0.0 < float(printed["MRR@10"]) <= 1.0


def test_convert_and_back_gives_the_same_parameters(walked: Path, tmp_path: Path) -> None:
    folder = walked / "runs" / "model"
    assert main(["convert", f"--pytorch_folder={folder}", f"--out={tmp_path}/run"]) == 0
    assert main(["convert", f"--checkpoint={tmp_path}/run", f"--out={tmp_path}/again"]) == 0
    for name in ("model.safetensors", "condenser_head.safetensors"):
        left, right = load_file(folder / name), load_file(tmp_path / "again" / name)
        assert left.keys() == right.keys()
        for key, value in left.items():
            np.testing.assert_array_equal(value, right[key])


def test_pretraining_goes_on_from_an_exported_folder(walked: Path, tmp_path: Path) -> None:
    arguments = [
        "--config=configs/small.py",
        f"--workdir={tmp_path}/run",
        f"--config.data.store={walked}/stores/wiki",
        f"--config.warm_start={walked}/runs/model",
        *SMALLER["pretrain"].split(),
    ]
    assert main(["pretrain", *arguments]) == 0
    shutil.copytree(walked / "runs" / "model", tmp_path / "headless")
    (tmp_path / "headless" / "condenser_head.safetensors").unlink()
    headless = [f"--config.warm_start={tmp_path}/headless", f"--workdir={tmp_path}/other"]
    assert main(["pretrain", *arguments, *headless]) == 2
    assert main(["pretrain", *arguments, *headless, "--config.init_head=True"]) == 0
    # Once there is a checkpoint, what the run began with may go.
    shutil.rmtree(tmp_path / "headless")
    assert main(["pretrain", *arguments, *headless, "--config.init_head=True"]) == 0


def test_a_converted_model_is_not_a_run_to_go_on(
    walked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = walked / "runs" / "model"
    assert main(["convert", f"--pytorch_folder={folder}", f"--out={tmp_path}/run"]) == 0
    arguments = [
        "--config=configs/small.py",
        f"--workdir={tmp_path}/run",
        f"--config.data.store={walked}/stores/wiki",
        *SMALLER["pretrain"].split(),
    ]
    assert main(["pretrain", *arguments]) == 2
    assert "holds a converted model" in capsys.readouterr().err
    assert main(["verify", "checkpoint", f"--checkpoint={tmp_path}/run"]) == 2
    assert "says nothing about its data" in capsys.readouterr().err


def bad_inputs(folder: Path) -> dict[str, tuple[list[str], str]]:
    """Commands with one mistake each, and what the one line has to say."""
    texts = {
        "empty.jsonl": b"",
        "broken.jsonl": b'{"text": "one"}\n{"text": \n',
        "latin1.txt": b"caf\xe9\n",
        "nothing.jsonl": b'{"name": "no text"}\n',
        "huge.txt": b"word " * 10_500_000,
    }
    for name, content in texts.items():
        (folder / name).write_bytes(content)

    def corpus(source: str) -> list[str]:
        tokenizer = folder / "bert-base-uncased"
        return ["corpus", f"--source={source}", f"--tokenizer={tokenizer}", f"--out={folder}/out"]

    def pretrain(*words: str) -> list[str]:
        store = f"--config.data.store={folder}/stores/wiki"
        smaller = [store, *SMALLER["pretrain"].split()]
        return [
            "pretrain",
            "--config=configs/small.py",
            f"--workdir={folder}/out",
            *smaller,
            *words,
        ]

    return {
        "missing corpus": (corpus(f"{folder}/none.jsonl"), "none.jsonl"),
        "unknown source": (corpus("gopher:x"), "gopher"),
        "empty corpus": (corpus(f"{folder}/empty.jsonl"), "no documents"),
        "broken JSON": (corpus(f"{folder}/broken.jsonl"), "broken.jsonl:2"),
        "not UTF-8": (corpus(f"{folder}/latin1.txt"), "UTF-8"),
        "no text": (corpus(f"{folder}/nothing.jsonl"), "nothing.jsonl:1"),
        "a document of 50 MB": (corpus(f"{folder}/huge.txt"), "huge.txt:1"),
        "no tokenizer": (
            ["corpus", "--source=pydocs", f"--tokenizer={folder}/data", f"--out={folder}/out"],
            "tokenizer",
        ),
        "a folder that is taken": (
            [*corpus(f"{folder}/articles.jsonl.xz")[:-1], f"--out={folder}/data"],
            "already exists",
        ),
        "bad shard": ([*corpus("pydocs"), "--shard=3/2"], "0 <= i < n"),
        "chunk size": (pretrain("--config.train.chunk_size=3"), "chunk_size 3 does not divide"),
        "unknown key": (pretrain("--config.train.stepz=3"), "no setting config.train.stepz"),
        "wrong type": (pretrain("--config.train.steps=many"), "expected a value like"),
        "unknown flag": (pretrain("--steps=3"), "unknown argument '--steps=3'"),
        "no store": (pretrain("--config.data.store="), "no data"),
        "not a store": (pretrain(f"--config.data.store={folder}/data"), "data"),
        "tokenizer of another model": (
            pretrain(f"--config.warm_start={folder}/other"),
            "build the store with the model's own tokenizer",
        ),
        "workdir with something else": (pretrain(f"--workdir={folder}/data"), "already holds"),
        "no such run": (["convert", f"--checkpoint={folder}/none", f"--out={folder}/out"], "none"),
        "both directions": (["convert", f"--out={folder}/out"], "give either"),
        "no qrels": (
            ["evaluate", f"--run={folder}/runs/test.trec", f"--qrels={folder}/none.tsv"],
            "none.tsv",
        ),
        "missing flag": (["evaluate"], "one of the arguments --run --model is required"),
        "no verb": ([], "COMMAND"),
    }


@pytest.fixture(scope="module")
def bad(walked: Path) -> dict[str, tuple[list[str], str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(walked)
        tokenizer = train_wordpiece(["some other words entirely"] * 9, 40)
        (walked / "other_tokenizer").mkdir()
        save_tokenizer(tokenizer, walked / "other_tokenizer")
        smaller = SMALLER["pretrain"].split()
        source = ["--source=articles.jsonl.xz", "--tokenizer=other_tokenizer", "--out=stores/other"]
        assert main(["corpus", *source, "--max_tokens=16"]) == 0
        assert (
            main(
                [
                    "pretrain",
                    "--config=configs/small.py",
                    "--workdir=other",
                    "--config.data.store=stores/other",
                    *smaller,
                ]
            )
            == 0
        )
    return bad_inputs(walked)


CASES = (
    "missing corpus", "unknown source", "empty corpus", "broken JSON", "not UTF-8", "no text",
    "a document of 50 MB", "no tokenizer", "a folder that is taken", "bad shard", "chunk size",
    "unknown key", "wrong type", "unknown flag", "no store", "not a store",
    "tokenizer of another model", "workdir with something else", "no such run",
    "both directions", "no qrels", "missing flag", "no verb",
)  # fmt: skip


def test_no_case_is_forgotten(bad: dict[str, tuple[list[str], str]]) -> None:
    assert set(CASES) == bad.keys()


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_one_line_and_leaves_nothing(
    bad: dict[str, tuple[list[str], str]],
    case: str,
    walked: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(walked)
    before = sorted(path.name for path in walked.iterdir())
    data = sorted(path.name for path in (walked / "data").rglob("*"))
    command, says = bad[case]
    capsys.readouterr()
    assert main(command) == 2
    lines = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("cocondenser:")
    ]
    assert len(lines) == 1
    assert says in lines[0]
    assert sorted(path.name for path in walked.iterdir()) == before
    assert sorted(path.name for path in (walked / "data").rglob("*")) == data
