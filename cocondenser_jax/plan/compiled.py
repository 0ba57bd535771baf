"""Reads the text of a compiled step: launches on a GPU, and communication between devices.

Written for the text of XLA in jaxlib 0.10.2 (GPUs) and libtpu 0.0.42 (TPUs).
"""

import functools
import math
import re
from typing import NamedTuple

# Instructions that launch no kernel: they name, group and order the results of others. A collective
# counts as launched at its start.
_NO_LAUNCH = {
    "all-gather-done",
    "all-reduce-done",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "parameter",
    "partition-id",
    "reduce-scatter-done",
    "replica-id",
    "tuple",
    "while",
}


class Collective(NamedTuple):
    """A collective operation between devices."""

    kind: str  # all-gather, all-reduce, ...
    dtype: str  # of its largest array, in XLA's notation: f32, bf16
    n_bytes: int  # of the larger of its input and its output


class Launch(NamedTuple):
    """A kernel, library call, copy or collective that is launched on a GPU."""

    kind: str  # cuBLAS, Triton, fusion, copy, ...
    name: str  # the place in the Python program, as JAX names it
    arrays: list[tuple[str, tuple[int, ...]]]  # dtype and shape of its output
    times: int  # a step
    reads: tuple[tuple[str, tuple[int, ...]], ...]  # each array once


class Launches(NamedTuple):
    """The launches of a step."""

    step: list[Launch]
    # Those of one chunk, for each loop over chunks in order (the passes).
    chunks: list[list[Launch]]


class _Instruction(NamedTuple):
    name: str
    result: str
    operation: str
    line: str


def collectives(compiled_text: str) -> list[Collective]:
    """Returns the collectives of a compiled program, from its text."""
    pattern = r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)"
    exchanges = []
    for result, kind, start in re.findall(pattern + r"(-start)?\(", compiled_text):
        arrays = [(n_bytes(*array), array[0]) for array in arrays_of(result)]
        sides = [arrays]
        if start and kind in ("all-gather", "reduce-scatter"):  # it also names its operands
            sides = [arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]]
        size = max(sum(size for size, _ in side) for side in sides)
        exchanges.append(Collective(kind, max(arrays)[1], size))
    return exchanges


def arrays_of(result: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the dtype and shape of each array in an instruction's type."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", result)
    return [(dtype, tuple(int(n) for n in shape.split(",") if n)) for dtype, shape in found]


def n_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Returns the size of an array, whose dtype is in XLA's notation: f32, bf16, s32, pred."""
    bits = int((re.findall(r"\d+", dtype) or [8])[0])
    return bits * math.prod(shape) // 8


def find_launches(compiled_text: str) -> Launches:
    """Returns the launches of a step on a GPU, from its compiled text.

    A loop body counts as often as it runs; of a conditional, the branch that writes most counts: a
    chunk of the full length.
    """
    computations = _read_computations(compiled_text)

    @functools.cache
    def launches(name: str) -> list[Launch]:
        found = []
        results = {each.name: each.result for each in computations[name]}
        for instruction in computations[name]:
            inner = [launches(called) for called in _called(instruction)]
            if inner:
                times = _trip_count(instruction)
                chosen = max(inner, key=written_bytes)
                found += [launch._replace(times=times * launch.times) for launch in chosen]
            elif instruction.operation not in _NO_LAUNCH:
                found.append(_launch(instruction, results))
        return found

    loops = [x for x in computations[""] if x.operation == "while"]
    return Launches(launches(""), [launches(_called(loop)[0]) for loop in loops])


def written_bytes(launches: list[Launch]) -> int:
    """Returns the bytes that launches write."""
    return sum(n_bytes(*array) * launch.times for launch in launches for array in launch.arrays)


def moved_bytes(launches: list[Launch]) -> int:
    """Returns the bytes that launches read and write, if each reads whole arrays."""
    read = sum(n_bytes(*array) * launch.times for launch in launches for array in launch.reads)
    return read + written_bytes(launches)


def n_launches(launches: list[Launch]) -> int:
    """Counts launches, each as often as it happens."""
    return sum(launch.times for launch in launches)


def _read_computations(compiled_text: str) -> dict[str, list[_Instruction]]:
    """Returns the instructions of each computation by name; the main program's name is empty."""
    computations: dict[str, list[_Instruction]] = {}
    pattern = re.compile(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([a-z][\w-]*)\(")
    instructions: list[_Instruction] = []
    for line in compiled_text.splitlines():
        if header := re.match(r"(ENTRY )?%(\S+) \(.*\{$", line):
            instructions = computations["" if header[1] else header[2]] = []
        elif match := pattern.match(line):
            instructions.append(_Instruction(match[1], match[2], match[3], line))
    return computations


def _called(instruction: _Instruction) -> list[str]:
    """Returns the computations that an instruction may run, each with its own launches."""
    keys = {"while": "body", "call": "to_apply", "conditional": "(?:true|false)_computation"}
    if instruction.operation not in keys:
        return []
    if branches := re.search(r"branch_computations=\{([^}]*)\}", instruction.line):
        return re.findall(r"%([^\s,]+)", branches[1])
    return re.findall(rf"{keys[instruction.operation]}=%([^\s,)]+)", instruction.line)


def _trip_count(instruction: _Instruction) -> int:
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', instruction.line)
    return int(known[1]) if known else 1


def _launch(instruction: _Instruction, results: dict[str, str]) -> Launch:
    """Describes a launch; `results` are those of all instructions of its computation."""
    name = re.search(r'op_name="([^"]*)"', instruction.line)
    kind = instruction.operation.removesuffix("-start")
    arrays = arrays_of(instruction.result)
    operands = instruction.line.partition(f" {instruction.operation}(")[2].partition("), ")[0]
    read = {each: results.get(each, "") for each in re.findall(r"%([\w.\-]+)", operands)}
    reads = tuple(array for result in read.values() for array in arrays_of(result))
    if kind == "custom-call" and "cublas" in instruction.line:
        kind = "cuBLAS"
        arrays = [array for array in arrays if array[0] != "s8"]  # its workspace
    elif '"kind":"__triton"' in instruction.line or "__gpu$xla.gpu.triton" in instruction.line:
        kind = "Triton"
    return Launch(kind, name[1] if name else "", arrays, times=1, reads=reads)
