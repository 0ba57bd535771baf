"""Reads the docstrings of installed packages: real text on every machine with Python."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import without_surrogates

DEFAULT_PACKAGES = ("numpy", "scipy", "jax", "flax", "optax", "torch", "transformers", "pandas")
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
# The underline of a heading or the rule of a table.
_RULE = re.compile(r"^[ \t]*([-=~^*#+`'\"_ ])\1{2,}[-=~^*#+`'\"_ ]*\n", re.MULTILINE)


def read_docstrings(packages: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
    """Reads the docstrings of packages from their files, without importing them.

    Args:
      packages: names; None means those of DEFAULT_PACKAGES that are installed.

    Yields:
      (qualified name, docstring) of each public module, class, function and method whose docstring
      has at least two paragraphs: the text of `inspect.cleandoc`, without lines that only
      underline. Drops repeated docstrings; numbers repeated names #2, #3 …. Ordered by package,
      file name and line.
    """
    roots = {package: _find(package) for package in packages or DEFAULT_PACKAGES}
    missing = [package for package, root in roots.items() if root is None]
    if packages and missing:
        raise UserError(f"pydocs: no package {missing[0]} is installed here")
    files = [(root.parent, file) for root in roots.values() if root for file in _modules(root)]

    seen: set[str] = set()
    names: Counter[str] = Counter()
    for base, file in files:
        for name, docstring in _file_docstrings(base, file):
            if docstring in seen:
                continue
            seen.add(docstring)
            names[name] += 1
            yield (f"{name}#{names[name]}" if names[name] > 1 else name), docstring


def _find(package: str) -> Path | None:
    """Finds a package's folder, or the file of a single module, without importing it."""
    spec = PathFinder.find_spec(package) if package.isidentifier() else None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _modules(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    return sorted(
        file
        for file in root.rglob("*.py")
        if not _TEST_FOLDERS.intersection(file.relative_to(root).parts[:-1])
        and not file.stem.startswith("test_")
        and not file.stem.endswith("_test")
    )


def _file_docstrings(base: Path, file: Path) -> list[tuple[str, str]]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError):  # templates, other versions' syntax
        return []
    parts = file.relative_to(base).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return list(_node_docstrings(tree, module))


def _node_docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[tuple[str, str]]:
    raw = ast.get_docstring(node, clean=False)
    if raw and "\n" in raw:
        docstring = _RULE.sub("", inspect.cleandoc(raw) + "\n").strip()
        if re.search(r"\n\s*\n", docstring) and without_surrogates(docstring) == docstring:
            yield name, docstring
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not re.match("_(?!_)", child.name):
                yield from _node_docstrings(child, f"{name}.{child.name}")
