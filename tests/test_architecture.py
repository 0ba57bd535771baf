"""What import-linter and ruff cannot say of the package: names, and where devices are."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cocondenser_jax"
CATCH_ALLS = {"utils", "util", "helpers", "common", "misc"}
PMAP_FILE = "pretrain/devices.py"
DEVICE_FILES = (PMAP_FILE, "pretrain/hosts.py")
# How a program finds out that there are several devices, or hosts.
DEVICES = re.compile(
    r"\bjax\.((local_)?devices\b|(local_)?device_count|process_(index|count)|make_mesh|sharding)"
)


def read_sources(root):
    """Returns the source of each module below `root` by its path relative to it."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*.py"))
    }


def complaints(sources):
    """Returns one line for each broken rule."""
    found = []
    for path, source in sources.items():
        if CATCH_ALLS & set(path.removesuffix(".py").split("/")):
            found.append(f"{path}: a catch-all; name it after what it does")
        if re.search(r"\b(jax\.pmap\(|import pmap\b)", source) and path != PMAP_FILE:
            found.append(f"{path}: pmap belongs in {PMAP_FILE}")
        if DEVICES.search(source) and path not in DEVICE_FILES:
            found.append(f"{path}: ask {' or '.join(DEVICE_FILES)} about devices")
    return found


def test_the_package_keeps_its_rules():
    sources = read_sources(PACKAGE)
    assert {"__init__.py", "errors.py", "model/__init__.py", PMAP_FILE} <= set(sources)
    assert complaints(sources) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("corpus/utils.py", "", "corpus/utils.py: a catch-all; name it after what it does"),
        (
            "model/encoder.py",
            "from jax import pmap\n",
            "model/encoder.py: pmap belongs in pretrain/devices.py",
        ),
        (
            "pretrain/loop.py",
            "f = jax.pmap(abs)\n",
            "pretrain/loop.py: pmap belongs in pretrain/devices.py",
        ),
        (
            "pipelines/adapt.py",
            "n = jax.local_device_count()\n",
            "pipelines/adapt.py: ask pretrain/devices.py or pretrain/hosts.py about devices",
        ),
    ],
)
def test_a_broken_rule_is_named(path, source, complaint):
    sources = {"corpus/a.py": "x = 1\n", "pretrain/devices.py": "f = jax.pmap(abs)\n"}
    assert complaints(sources) == []
    assert complaints({**sources, path: source}) == [complaint]


def test_the_table_of_workarounds_names_files_and_tests_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = page[page.index("## Workarounds") : page.index("## Style")].splitlines()[6:-1]
    tests = read_sources(ROOT / "tests")
    for row in rows:
        _, *cells, _ = row.split("|")
        assert len(cells) == 3, row
        (place,) = re.findall(r"`([\w/]+\.(?:py|sh))`", cells[0])
        assert any((root / place).is_file() for root in (PACKAGE, ROOT)), row
        for name in re.findall(r"\b(test_\w+)(?!\.py)\b", cells[2]):
            assert any(f"def {name}(" in source for source in tests.values()), row
        for name in re.findall(r"tests/([\w/]+\.py)", cells[2]):
            assert name in tests, row


PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_architecture_page_names_every_package_and_module_beside_them():
    text = PAGE[PAGE.index("## The packages") : PAGE.index("## One training step")]
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)) == packages | {"configs"}
    modules = {path.name for path in PACKAGE.glob("[a-z]*.py")}
    assert modules - set(re.findall(r"`(\w+\.py)`", text)) == set()


def test_the_architecture_page_names_files_that_exist():
    sources = read_sources(PACKAGE) | {f"configs/{p.name}": "" for p in ROOT.glob("configs/*.py")}
    for path in re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE):
        assert path in sources or (ROOT / path).is_file(), path


def test_the_example_of_an_objective_applies_and_passes_its_test(tmp_path):
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for name in ("configs", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, symlinks=True)
    apply = ["git", "apply", "-C1", "-"]
    subprocess.run(apply, input=diff, cwd=tmp_path, text=True, check=True)
    added = re.findall(r"^\+def (test_\w+)", diff, re.MULTILINE)
    tests = [f"tests/pretrain/test_objectives.py::{name}" for name in added]
    program = [sys.executable, "-m", "pytest", "--quiet", *tests]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ran = subprocess.run(
        program, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(added) == 1
    assert "1 passed" in ran.stdout
