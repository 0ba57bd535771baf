"""Mutants of the package, by mutmut's operators without noise, and the tests for them."""

import difflib
import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

# Changed texts are not faults, and a value replaced by None fails everywhere.
OPERATORS_LEFT_OUT = {"operator_string", "operator_dict_arguments", "operator_assignment"}
NODES_LEFT_OUT = cst.Annotation, cst.Decorator, cst.Parameters, cst.Assert, cst.Raise
CALLS_LEFT_OUT = re.compile(r"logger\.\w+|print|isinstance|cast|warnings\.warn")
KEYWORDS_LEFT_OUT = {"desc", "encoding", "flush", "strict"}  # texts, and guards of what cannot be

# Files whose tests have another name.
TESTS = {
    "model/condenser.py": ["tests/model/test_condenser.py", "tests/model/test_parity.py"],
    "model/encoder.py": ["tests/model/test_condenser.py", "tests/model/test_parity.py"],
    "retriever/data/folder.py": [
        "tests/retriever/data/test_folder.py",
        "tests/retriever/data/test_layouts.py",
    ],
    "convert/to_torch.py": [
        "tests/convert/test_to_torch.py",
        "tests/convert/test_representation.py",
    ],
    "corpus/examples.py": ["tests/corpus/test_examples.py", "tests/corpus/test_batches.py"],
    "corpus/store.py": ["tests/corpus/test_store.py"],
    "retriever/train/hard_batches.py": [
        "tests/retriever/train/test_hard_batches.py",
        "tests/test_fuzz.py",
    ],
    "pretrain/checkpoint.py": ["tests/pretrain/test_checkpoint.py", "tests/pretrain/test_probe.py"],
    "pretrain/loop.py": ["tests/pretrain/test_loop.py", "tests/pretrain/test_hosts.py"],
    "retriever/search/encode.py": [
        "tests/retriever/search/test_encode.py",
        "tests/cli/test_tasks.py",
    ],
    "retriever/search/models.py": [
        "tests/retriever/search/test_models.py",
        "tests/retriever/search/test_fuzz.py",
    ],
    "files/workers.py": ["tests/files/test_workers.py", "tests/cli/test_tasks.py"],
}


class Mutant(NamedTuple):
    """A file with a fault."""

    key: str  # hash of the file's name, of the code before and after, and of the seed
    path: str
    line: int
    change: str  # the lines that differ: "before → after"
    source: str  # of the whole file

    @property
    def name(self) -> str:
        """The name, which does not depend on line numbers."""
        return f"{self.path}: {self.change}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


def sample(root: Path, module: str, n: int, seed: int) -> list[Mutant]:
    """Draws `n` faults of a module by hash, so that changes elsewhere preserve the sample."""
    faults = []
    folder = root / "cocondenser_jax" / module
    for path in sorted(folder.glob("*.py")):
        name, places, seen = path.relative_to(root).as_posix(), _Places(), Counter[str]()
        tree = cst.parse_module(path.read_text(encoding="utf-8"))
        tree.visit(places)
        for node, new in places.replacements:
            change = f"{name}\n{_code(node)}\n{_code(new)}"
            seen[change] += 1
            key = hashlib.sha256(f"{seed}\n{seen[change]}\n{change}".encode()).hexdigest()
            faults.append((key, name, tree, node, new))
    faults.sort(key=lambda place: place[0])
    return [_mutant(*place) for place in faults[:n]]


def tests_of(root: Path, path: str) -> list[str]:
    """Returns the test file of the same name, or the module's test files that import the file."""
    if tests := TESTS.get(path.removeprefix("cocondenser_jax/")):
        return tests
    module, _, name = path.removesuffix(".py").partition("/")[2].rpartition("/")
    if (root / f"tests/{module}/test_{name}.py").exists():
        return [f"tests/{module}/test_{name}.py"]
    imports = re.compile(
        rf"cocondenser_jax\.{module.replace('/', '.')}(\.{name}\b| import .*\b{name}\b)"
    )
    tests = [
        test.relative_to(root).as_posix()
        for test in sorted((root / "tests" / module).glob("test_*.py"))
        if imports.search(test.read_text(encoding="utf-8")) and test.name != "test_fuzz.py"
    ]
    if not tests:
        raise SystemExit(f"{path} has no tests: name some in TESTS")
    return tests


def _mutant(key: str, name: str, tree: cst.Module, node: cst.CSTNode, new: cst.CSTNode) -> Mutant:
    replaced = tree.deep_replace(node, new)
    assert isinstance(replaced, cst.Module)
    lines, new_lines = tree.code.splitlines(), replaced.code.splitlines()
    blocks = difflib.SequenceMatcher(None, lines, new_lines, autojunk=False).get_opcodes()
    _, i, end, new_i, new_end = next(block for block in blocks if block[0] != "equal")
    before, after = (
        " ".join(line.strip() for line in part) for part in (lines[i:end], new_lines[new_i:new_end])
    )
    return Mutant(key, name, i + 1, f"{before} → {after}", replaced.code)


class _Places(cst.CSTVisitor):
    """Collects possible replacements."""

    def __init__(self) -> None:
        self.replacements: list[tuple[cst.CSTNode, cst.CSTNode]] = []
        self._functions = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        self._functions += isinstance(node, cst.FunctionDef)
        if _left_out(node):
            return False
        for node_type, operator in mutation_operators if self._functions else ():
            if isinstance(node, node_type) and operator.__name__ not in OPERATORS_LEFT_OUT:
                news = (new for new in operator(node) if _wanted(operator.__name__, node, new))
                self.replacements.extend((node, new) for new in news)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._functions -= isinstance(original_node, cst.FunctionDef)


def _left_out(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Arg):
        return _keyword(node) in KEYWORDS_LEFT_OUT
    if isinstance(node, cst.Call):
        return bool(CALLS_LEFT_OUT.fullmatch(_code(node.func)))
    return isinstance(node, NODES_LEFT_OUT)


def _wanted(operator: str, node: cst.CSTNode, new: cst.CSTNode) -> bool:
    if isinstance(node, cst.BinaryOperation):  # a path divided by a text cannot be multiplied
        return not any(isinstance(side, cst.BaseString) for side in (node.left, node.right))
    if operator != "operator_arg_removal":
        return True
    # Without an argument that has no keyword, few calls are valid.
    removed = Counter(_keywords(node)) - Counter(_keywords(new))
    return bool(removed.keys() - KEYWORDS_LEFT_OUT - {""})


def _keywords(call: cst.CSTNode) -> list[str]:
    return [_keyword(argument) for argument in cst.ensure_type(call, cst.Call).args]


def _keyword(argument: cst.Arg) -> str:
    return argument.keyword.value if argument.keyword else ""


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
