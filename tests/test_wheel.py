"""The wheel, installed in an environment of its own, works where the repository is not."""

import ast
import email
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cocondenser_jax
from cocondenser_jax.errors import EXTRAS
from tests.world import (
    TINY,
    as_flags,
    make_texts,
    read_metrics,
    write_qrels,
    write_records,
    write_tokenizer,
)

ROOT = Path(__file__).parents[1]
FRESH = os.environ.get("WHEEL") == "fresh"  # as `make wheel` sets it
PRETRAIN = as_flags(TINY | {"train.steps": 2, "log_every": 1})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that no build/ stays in the repository; links are copied as links."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("cocondenser_jax", "configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "copy" / name, symlinks=True, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / "copy")
    options = ["--no-deps", "--no-build-isolation", f"--wheel-dir={folder}"]
    pip = [sys.executable, "-m", "pip", "wheel", *options, str(folder / "copy")]
    subprocess.run(pip, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def install(wheel):
    """Gives a function that installs the wheel with an extra, and returns a function to run it.

    The libraries are those of the environment that runs the tests, or, if FRESH, those that the
    extra names and no others.
    """

    @functools.cache
    def installed(extra):
        folder = wheel.parent / (extra or "environment")
        venv.create(folder)
        python = str(folder / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        if FRESH:
            pip += [f"--constraint={ROOT}/constraints.txt", f"{wheel}[{extra}]" if extra else wheel]
        else:
            (packages,) = folder.glob("lib/python*/site-packages")
            # An editable install lies behind a .pth file, which is not read in a folder named in
            # another.
            libraries = [path for path in sys.path if Path(path).name == "site-packages"]
            (packages / "libraries.pth").write_text("\n".join(libraries))
            pip += ["--no-deps", str(wheel)]
        subprocess.run(pip, check=True)
        return folder / "bin"

    def start(extra, folder):
        programs = installed(extra if FRESH else "")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

        def run(program, *arguments, status=0):
            done = subprocess.run(
                [str(programs / program), *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == status, done.stderr
            return done.stdout if status == 0 else done.stderr

        return run

    return start


def test_the_wheel_holds_every_module_page_and_config(wheel):
    expected = {
        *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("cocondenser_jax/**/*.py")),
        "cocondenser_jax/py.typed",
        "cocondenser_jax/convert/model_card.md",
        "cocondenser_jax/retriever/compare/page.html",
        *(f"cocondenser_jax/configs/{path.name}" for path in ROOT.glob("configs/*.py")),
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA")}
    return email.message_from_bytes(zipfile.ZipFile(wheel).read(name))


def test_an_index_shows_the_version_and_links_that_lead_somewhere(metadata):
    assert metadata["Version"] == cocondenser_jax.__version__
    readme = metadata.get_payload()
    links = re.findall(r"\]\(([^)]*)\)", readme)
    assert f"/blob/v{metadata['Version']}/docs/architecture.md#add-an-objective" in " ".join(links)
    assert f"/raw/v{metadata['Version']}/docs/figures/first.svg" in " ".join(links)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def imported_packages():
    """Returns the packages that a module of ours imports, wherever in it."""
    names = set()
    for path in [*ROOT.glob("cocondenser_jax/**/*.py"), *ROOT.glob("configs/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"cocondenser_jax"}


def test_every_package_that_is_imported_is_required_by_the_extra_that_errors_name(metadata):
    required = {}  # distribution -> extras, "" for those that every installation has
    for line in metadata.get_all("Requires-Dist"):
        requirement = Requirement(line)
        extra = re.search(r'extra == "(.+)"', str(requirement.marker))
        name = canonicalize_name(requirement.name)
        required.setdefault(name, set()).add(extra[1] if extra else "")
    distributions = importlib.metadata.packages_distributions()
    in_extra = {name: extra for extra, names in EXTRAS.items() for name in names}
    for package in sorted(imported_packages()):
        # Where it is not installed, a distribution is taken to be called like its package.
        installed = distributions.get(package, [package])
        (distribution,) = {canonicalize_name(name) for name in installed}
        extra = in_extra.get(package, "")
        assert extra in required.get(distribution, set()), package
        # Of Ray and trackers, which are large, a clone does without.
        assert (
            extra in {"", "ir", "ray", "tensorboard", "trackio", "wandb"}
            or {"all", extra} <= required[distribution]
        ), package


def write_corpus(folder):
    texts = make_texts(24)
    records = ({"_id": str(n), "text": text} for n, text in enumerate(texts))
    write_records(folder / "corpus.jsonl", records)
    write_tokenizer(folder / "tokenizer", texts)


@pytest.mark.timeout(1800)
def test_it_builds_a_store_and_trains_where_the_repository_is_not(install, tmp_path):
    run = install("", tmp_path)
    where = run("python", "-c", "import cocondenser_jax; print(cocondenser_jax.__file__)")
    assert not Path(where).is_relative_to(ROOT)
    assert "pretrain" in run("cocondenser", "--help")
    write_corpus(tmp_path)
    source = ["--corpus=corpus.jsonl", "--tokenizer=tokenizer", "--max_length=16", "--out=store"]
    run("cocondenser", "corpus", *source)
    (tmp_path / "run.trec").write_text("1 Q0 a 1 2.0 x\n1 Q0 b 2 1.0 x\n")
    write_qrels(tmp_path / "qrels.tsv", {"1": {"b": 1}})
    metrics = run("cocondenser", "evaluate", "--run=run.trec", "--qrels=qrels.tsv")
    assert re.search(r"RR@10 +0.5000", metrics)

    config = ["--config=configs/small.py:condenser", "--config.data.store=store", *PRETRAIN]
    pretrain = ["pretrain", *config, "--workdir=run"]
    if FRESH:
        assert "cocondenser-jax[pretrain]" in run("cocondenser", *pretrain, status=2)
    install("pretrain", tmp_path)("cocondenser", *pretrain)
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [
        1,
        2,
        2,
    ]  # the last is the probe


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not FRESH, reason="the commands are tested elsewhere: make wheel")
def test_it_searches_without_jax(install, tmp_path, research_folders):
    run = install("retrieval", tmp_path)
    write_corpus(tmp_path)
    model = f"--model={research_folders['bert']}"
    run("cocondenser", "encode", model, "--corpus=.", "--out=embeddings")
    run("cocondenser", "index", "--embeddings=embeddings", "--out=index")
    query = ["--query=Search.", "--depth=3"]
    assert run("cocondenser", "search", "--index=index", model, *query).count("\n") >= 3
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")  # what is wrong with a folder comes first
    missing = run("cocondenser", "convert", "--run_dir=run", "--out=m", status=2)
    assert "cocondenser-jax[pretrain]" in missing
