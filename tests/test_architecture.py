"""What import-linter cannot say of the package: sizes, names, the one place of pmap."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cocondenser_jax"
MAX_LINES = 400  # of a file
MAX_PACKAGE_LINES = 12_000
CATCH_ALLS = {"utils", "util", "helpers", "common", "misc"}
PMAP_FILE = "pretrain/devices.py"


def read_sources(root):
    """Returns the source of each module below `root` by its path relative to it."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*.py"))
    }


def packed(source):
    """Returns the lines that assign a tuple to a tuple: `a, b = x, y` is two thoughts."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and any(isinstance(target, ast.Tuple) for target in node.targets)
    ]


def complaints(sources):
    """Returns one line for each broken rule."""
    n_lines = {path: len(source.splitlines()) for path, source in sources.items()}
    found = [
        f"{path}: {n} lines, more than {MAX_LINES}" for path, n in n_lines.items() if n > MAX_LINES
    ]
    n_all = sum(n_lines.values())
    if n_all > MAX_PACKAGE_LINES:
        found.append(f"the package has {n_all} lines; at most {MAX_PACKAGE_LINES}")
    modules = {path.split("/")[0] for path in sources if "/" in path}
    for module in sorted(modules):
        size = sum(n for path, n in n_lines.items() if path.startswith(f"{module}/"))
        if 5 * size > n_all and len(modules) > 5:
            found.append(f"{module}: more than a fifth of the package")
    for path, source in sources.items():
        if CATCH_ALLS & set(path.removesuffix(".py").split("/")):
            found.append(f"{path}: a catch-all; name it after what it does")
        if re.search(r"\b(jax\.pmap\(|import pmap\b)", source) and path != PMAP_FILE:
            found.append(f"{path}: pmap belongs in {PMAP_FILE}")
        found += [f"{path}:{line}: assigns a tuple to a tuple" for line in packed(source)]
    return found


def test_the_package_keeps_its_rules():
    sources = read_sources(PACKAGE)
    assert {"__init__.py", "errors.py", "model/__init__.py", PMAP_FILE} <= set(sources)
    assert complaints(sources) == []


def test_no_other_file_is_too_long():
    folders = ("tests", "benchmarks", "configs", "examples", "papers")
    sources = {
        f"{folder}/{path}": source
        for folder in folders
        for path, source in read_sources(ROOT / folder).items()
    }
    assert [line for line in complaints(sources) if "lines, more than" in line] == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("verify.py", "x = 1\n" * 401, "verify.py: 401 lines, more than 400"),
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
        ("errors.py", "a, b = 1, 2\n", "errors.py:1: assigns a tuple to a tuple"),
        ("model/big.py", "x = 1\n" * 300, "model: more than a fifth of the package"),
    ],
)
def test_a_broken_rule_is_named(path, source, complaint):
    modules = ("corpus", "model", "pretrain", "cli", "convert", "analysis", "evaluation")
    sources = {f"{module}/a.py": "x = 1\n" * 60 for module in modules}
    assert complaints(sources) == []
    assert complaints({**sources, path: source}) == [complaint]


def test_a_package_that_has_grown_is_named():
    files = {f"package{i}/a.py": "x = 1\n" * 300 for i in range(MAX_PACKAGE_LINES // 300)}
    files["rest.py"] = "x = 1\n" * (MAX_PACKAGE_LINES % 300)
    assert complaints(files) == []
    grown = complaints({**files, "more.py": "x = 1\n"})
    assert grown == [f"the package has {MAX_PACKAGE_LINES + 1} lines; at most {MAX_PACKAGE_LINES}"]


def typed(source):
    """Returns the lines of functions and variables with types; fields of a class need them."""
    tree = ast.parse(source)
    fields = {
        id(field)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
    }
    lines = []
    for node in ast.walk(tree):
        is_variable = isinstance(node, ast.AnnAssign) and id(node) not in fields
        is_argument = isinstance(node, ast.arg) and node.annotation is not None
        is_function = isinstance(node, ast.FunctionDef) and node.returns is not None
        if is_variable or is_argument or is_function:
            lines.append(node.lineno)
    return lines


def test_tests_carry_no_types():
    assert typed("def f(x, *y, z=1): x = 1\nclass A:\n    x: int\n") == []
    assert typed("def f() -> None: ...\ndef g(x: int): ...\nx: int = 1\n") == [1, 3, 2]
    found = {path: typed(source) for path, source in read_sources(ROOT / "tests").items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_table_of_workarounds_names_files_and_tests_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = page[page.index("## Workarounds") : page.index("## Style")].splitlines()[6:-1]
    tests = read_sources(ROOT / "tests")
    for row in rows:
        cells = row.split("|")
        (place,) = re.findall(r"`([\w/]+\.(?:py|sh))`", cells[1])
        assert any((root / place).is_file() for root in (PACKAGE, ROOT)), row
        for name in re.findall(r"\b(test_\w+)(?!\.py)\b", cells[5]):
            assert any(f"def {name}(" in source for source in tests.values()), row
        for name in re.findall(r"tests/([\w/]+\.py)", cells[5]):
            assert name in tests, row


def test_the_architecture_page_names_every_module_and_no_other():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tables = page[page.index("## The modules") : page.index("## One training step")]
    named = set(re.findall(r"`(\w+\.py)`", tables))
    modules = {path.rpartition("/")[2] for path in read_sources(PACKAGE)}
    modules -= {"__init__.py", "__main__.py"}
    configs = {path.name for path in (ROOT / "configs").glob("*.py")}
    assert sorted(modules - named) == []
    assert sorted(named - modules - configs) == []
