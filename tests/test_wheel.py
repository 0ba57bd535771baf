"""The wheel, installed in an environment of its own, works where the repository is not."""

import ast
import email
import importlib.metadata
import json
import os
import random
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
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_tokenizer
from cocondenser_jax.errors import EXTRAS

ROOT = Path(__file__).parents[1]
WORDS = "red green blue stone river cloud tree house bird fish salt iron wind snow fire".split()
TINY = (
    "--config.train.steps=2 --config.data.length=16 --config.data.batch_size=16"
    " --config.model.hidden_size=16 --config.model.intermediate_size=32"
    " --config.model.num_hidden_layers=2 --config.model.skip_from=1 --config.log_every=1"
).split()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that no build/ stays in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("cocondenser_jax", "configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "copy" / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / "copy")
    options = ["--no-deps", "--no-build-isolation", f"--wheel-dir={folder}"]
    pip = [sys.executable, "-m", "pip", "wheel", *options, str(folder / "copy")]
    subprocess.run(pip, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def programs(wheel):
    """The bin/ of an environment with the wheel and, from this one, the libraries."""
    folder = wheel.parent / "environment"
    venv.create(folder)
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # An editable install lies behind a .pth file, which is not read in a folder named in another.
    libraries = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "libraries.pth").write_text("\n".join(libraries))
    return folder / "bin"


def test_the_wheel_holds_every_module_page_and_config(wheel):
    expected = {
        *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("cocondenser_jax/**/*.py")),
        "cocondenser_jax/py.typed",
        "cocondenser_jax/convert/model_card.md",
        *(f"cocondenser_jax/analysis/{name}.html" for name in ("page", "parts")),
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
    assert f"/blob/v{metadata['Version']}/docs/data.md#prompts" in " ".join(links)
    assert f"/raw/v{metadata['Version']}/docs/figures/pipeline.svg" in " ".join(links)
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
    in_extra = {name: extra for extra, names in EXTRAS.items() for name in names.split()}
    for package in sorted(imported_packages()):
        (distribution,) = {canonicalize_name(name) for name in distributions[package]}
        extra = in_extra.get(package, "")
        assert extra in required.get(distribution, set()), package
        assert not extra or {"all", extra} <= required[distribution], package


def test_it_trains_where_the_repository_is_not(programs, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program, *arguments):
        done = subprocess.run(
            [str(programs / program), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("python", "-c", "import cocondenser_jax; print(cocondenser_jax.__file__)")
    assert Path(where).is_relative_to(programs.parent)
    assert "pretrain" in run("cocondenser", "--help")

    rng = random.Random(0)
    texts = [
        ". ".join(" ".join(rng.choices(WORDS, k=9)) for _ in range(6)) + "." for _ in range(24)
    ]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "tokenizer").mkdir()
    save_tokenizer(train_tokenizer(texts, 80), tmp_path / "tokenizer")
    source = ["--source=text.jsonl", "--tokenizer=tokenizer", "--max_tokens=16", "--out=store"]
    run("cocondenser", "corpus", *source)
    config = ["--config=configs/small.py:condenser", "--config.data.store=store", *TINY]
    run("cocondenser", "pretrain", *config, "--workdir=run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == [1, 2, 2]  # the last is the probe
