"""The floors of the house, read from the imports of the source.

`complaints` takes the package as a mapping from file to source text, so that the tests below can
also show it small packages that break each rule.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = "cocondenser_jax"
MAX_LINES = 450
CATCH_ALLS = {"common", "helpers", "misc", "util", "utils"}

FOUNDATION = {"errors", "files", "metrics"}
BOTTOM = {"corpus", "model"}
MIDDLE = {"pretrain", "convert", "retrieval", "evaluation", "analysis"}
TOP = {"cli", "quickstart", "experiments", "verify"}
ALLOWED_ROOMS = {
    "": set[str](),
    **dict.fromkeys(FOUNDATION, FOUNDATION),
    **{room: {room} | FOUNDATION for room in BOTTOM},
    **{room: {room} | FOUNDATION | BOTTOM for room in MIDDLE},
    **{room: {"configs"} | FOUNDATION | BOTTOM | MIDDLE | TOP for room in TOP},
}

# One file may import another of the same floor only here.
EXCEPTIONS = {
    ("pretrain.loop", "evaluation"),
    ("retrieval", "evaluation.trec"),
}
# What a room must not load, not even through the modules of ours that it imports.
JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
FORBIDDEN_LIBRARIES = {
    "corpus": {*JAX, "torch"},
    "model": {"torch", "optax", "orbax"},
    "pretrain": {"torch"},
    "retrieval": JAX,
    "evaluation": {*JAX, "torch"},
    "analysis": JAX,
}


def read_package(root: Path) -> dict[str, str]:
    """Returns the source of each module below `root` by its path relative to it."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*.py"))
    }


def module_name(path: str) -> str:
    """Returns the dotted name inside the package: `pretrain/loop.py` is `pretrain.loop`."""
    return path.removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")


def imported_names(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and absolute dotted name of all that a module imports, wherever it does so.

    `from a import b` yields `a.b`, for b may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = [PACKAGE, *path.split("/")[:-1]]
                parents = package[: len(package) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            function = ast.unparse(node.func).rpartition(".")[2]
            name = node.args[0]
            if function in {"import_module", "__import__"} and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def own_target(name: str, modules: set[str]) -> str:
    """Returns the module of ours that `name`, without the package's own name, lies in."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def may_import(importer: str, target: str) -> bool:
    """Says whether the module `importer` may import the module `target`, both ours."""
    room, target_room = importer.partition(".")[0], target.partition(".")[0]
    return (
        target_room in {"", *ALLOWED_ROOMS.get(room, ())}  # "": the package itself, its version
        or (importer, target) in EXCEPTIONS
        or (importer, target_room) in EXCEPTIONS
        or (room, target) in EXCEPTIONS
    )


def complaints(sources: Mapping[str, str]) -> list[str]:
    """Returns one line for each broken rule."""
    modules = {module_name(path) for path in sources} | {"", "configs"}
    modules |= {module.partition(".")[0] for module in modules}
    trees = {path: ast.parse(source, path) for path, source in sources.items()}
    found: list[str] = []
    # Python loads a module's package before the module.
    own_imports = {module: {module.rpartition(".")[0]} for module in modules}
    libraries: dict[str, set[str]] = {module: set() for module in modules}

    for path, tree in trees.items():
        importer = module_name(path)
        if importer.partition(".")[0] not in ALLOWED_ROOMS:
            found.append(f"{path}: no such room in the house")
        for line, name in imported_names(path, tree):
            if name.partition(".")[0] != PACKAGE:
                libraries[importer].add(name.partition(".")[0])
                continue
            target = own_target(name.partition(".")[2], modules)
            own_imports[importer].add(target)
            if not may_import(importer, target):
                found.append(f"{path}:{line}: {importer or PACKAGE} must not import {target}")

    for importer in sorted(modules):
        reached, waiting = set(), [importer]
        while waiting:
            if (module := waiting.pop()) not in reached:
                reached.add(module)
                waiting += own_imports[module]
        for module in sorted(reached):
            bad = libraries[module] & FORBIDDEN_LIBRARIES.get(importer.partition(".")[0], set())
            through = "" if module == importer else f" through {module}"
            found += [f"{importer} must not load {library}{through}" for library in sorted(bad)]

    pmap_files = sorted(path for path, tree in trees.items() if uses_pmap(tree))
    found += [
        f"{path}: pmap belongs in pretrain"
        for path in pmap_files
        if not path.startswith("pretrain/")
    ]
    if len(pmap_files) > 1:
        found.append(f"pmap in more than one file: {', '.join(pmap_files)}")

    for path, source in sources.items():
        if (n_lines := len(source.splitlines())) > MAX_LINES:
            found.append(f"{path}: {n_lines} lines, more than {MAX_LINES}")
        if CATCH_ALLS & set(module_name(path).split(".")):
            found.append(f"{path}: a catch-all; name it after what it does")
    return found


def uses_pmap(tree: ast.Module) -> bool:
    """Says whether the code (not its comments or docstrings) names `pmap`."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "pmap")
        or (isinstance(node, ast.ImportFrom) and any(a.name == "pmap" for a in node.names))
        for node in ast.walk(tree)
    )


def test_the_package_keeps_its_floors() -> None:
    sources = read_package(Path(__file__).parents[1] / PACKAGE)
    assert {"__init__.py", "errors.py", "files.py", "model/__init__.py"} <= set(sources)
    assert complaints(sources) == []


def test_the_architecture_page_names_every_module_and_no_other() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = page[page.index("## The rooms") : page.index("## One training step")]
    named = set(re.findall(r"`(\w+\.py)`", rooms))
    modules = {path.rpartition("/")[2] for path in read_package(root / PACKAGE)} - {
        "__init__.py",
        "__main__.py",
    }
    configs = {path.name for path in (root / "configs").glob("*.py")}
    assert sorted(modules - named) == []
    assert sorted(named - modules - configs) == []


ALLOWED = {
    "__init__.py": '"""Jax, pmap and torch in words only."""\n__version__ = "1"\n',
    "errors.py": "",
    "files.py": "import json\nfrom cocondenser_jax.errors import UserError\n",
    "corpus/__init__.py": "",
    "corpus/store.py": "import numpy\nfrom cocondenser_jax.files import new_folder\n",
    "corpus/batches.py": "from cocondenser_jax.corpus.store import open_store\n",
    "model/__init__.py": "",
    "model/encoder.py": "import jax\nfrom flax import linen\n",
    "pretrain/__init__.py": "",
    "pretrain/loop.py": (
        "import jax\nfrom cocondenser_jax import evaluation\n"
        "from cocondenser_jax.evaluation.ranking import reciprocal_rank\n"
        "from cocondenser_jax.corpus import batches\nstep = jax.pmap(abs)\n"
    ),
    "evaluation/__init__.py": "",
    "evaluation/trec.py": "import numpy\n",
    "evaluation/ranking.py": "from .trec import read_run\n",
    "retrieval/__init__.py": "",
    "retrieval/search.py": "import torch\nfrom cocondenser_jax.evaluation.trec import write_run\n",
    "analysis/plots.py": "from cocondenser_jax import __version__\n",
    "cli.py": "from cocondenser_jax import quickstart\nimport cocondenser_jax.retrieval.search\n",
    "quickstart.py": (
        "from cocondenser_jax.configs import quickstart\n"
        "def run():\n    from cocondenser_jax.pretrain import loop\n"
    ),
}


def test_a_package_that_keeps_the_rules_gets_no_complaint() -> None:
    assert complaints(ALLOWED) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        (
            "corpus/store.py",
            "import os\nfrom cocondenser_jax.model.encoder import Encoder\n",
            "corpus/store.py:2: corpus.store must not import model.encoder",
        ),
        (
            "model/encoder.py",
            "from cocondenser_jax import corpus\n",
            "model/encoder.py:1: model.encoder must not import corpus",
        ),
        (
            "model/encoder.py",
            "from ..corpus.batches import Batch\n",
            "model/encoder.py:1: model.encoder must not import corpus.batches",
        ),
        (
            "pretrain/step.py",
            "def f():\n    import cocondenser_jax.evaluation.trec\n",
            "pretrain/step.py:2: pretrain.step must not import evaluation.trec",
        ),
        (
            "pretrain/loop.py",
            "from cocondenser_jax.retrieval import search\n",
            "pretrain/loop.py:1: pretrain.loop must not import retrieval.search",
        ),
        (
            "retrieval/search.py",
            "from cocondenser_jax.evaluation.ranking import reciprocal_rank\n",
            "retrieval/search.py:1: retrieval.search must not import evaluation.ranking",
        ),
        (
            "pretrain/metrics.py",
            "from cocondenser_jax.evaluation import trec\n",
            "pretrain/metrics.py:1: pretrain.metrics must not import evaluation.trec",
        ),
        (
            "evaluation/trec.py",
            "import importlib\nimportlib.import_module('cocondenser_jax.cli')\n",
            "evaluation/trec.py:2: evaluation.trec must not import cli",
        ),
        (
            "pretrain/step.py",
            "from cocondenser_jax.configs.default import get_config\n",
            "pretrain/step.py:1: pretrain.step must not import configs",
        ),
        (
            "files.py",
            "import cocondenser_jax.corpus.store as store\n",
            "files.py:1: files must not import corpus.store",
        ),
        (
            "__init__.py",
            "from cocondenser_jax.cli import main\n",
            "__init__.py:1: cocondenser_jax must not import cli",
        ),
        ("retrieval/encode.py", "import jax.numpy as jnp\n", "retrieval.encode must not load jax"),
        (
            "retrieval/encode.py",
            "from cocondenser_jax.model.encoder import Encoder\n",
            "retrieval.encode must not load flax through model.encoder",
        ),
        (
            "retrieval/__init__.py",
            "import flax\n",
            "retrieval.search must not load flax through retrieval",
        ),
        ("evaluation/trec.py", "from optax import adam\n", "evaluation.trec must not load optax"),
        ("analysis/plots.py", "import jax\n", "analysis.plots must not load jax"),
        ("pretrain/step.py", "import torch\n", "pretrain.step must not load torch"),
        ("corpus/batches.py", "import torch\n", "corpus.batches must not load torch"),
        (
            "pretrain/step.py",
            "import jax\nf = jax.pmap(abs)\n",
            "pmap in more than one file: pretrain/loop.py, pretrain/step.py",
        ),
        ("model/heads.py", "from jax import pmap\n", "model/heads.py: pmap belongs in pretrain"),
        ("corpus/long.py", "x = 1\n" * 451, "corpus/long.py: 451 lines, more than 450"),
        (
            "corpus/utils.py",
            "",
            "corpus/utils.py: a catch-all; name it after what it does",
        ),
        ("attic/old.py", "", "attic/old.py: no such room in the house"),
    ],
)
def test_a_broken_rule_is_named(path: str, source: str, complaint: str) -> None:
    assert complaint in complaints({**ALLOWED, path: source})
