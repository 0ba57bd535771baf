"""What the text of a program compiled for a TPU says: its collectives, transfers and cycles."""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple


class Collective(NamedTuple):
    """An exchange between devices."""

    kind: str  # all-gather, all-reduce, ...
    dtype: str  # of its largest array, in XLA's notation: f32, bf16
    n_bytes: int  # of its result


def collectives(compiled_text: str) -> list[Collective]:
    """Returns the collectives of a compiled program, from its text."""
    found = []
    pattern = r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)"
    for result, kind in re.findall(pattern + r"(?:-start)?\(", compiled_text):
        arrays = re.findall(r"(\w+)\[([\d,]*)\]", result)
        sizes = [
            (_bits(dtype) * math.prod(int(n) for n in shape.split(",") if n) // 8, dtype)
            for dtype, shape in arrays
        ]
        found.append(Collective(kind, max(sizes)[1], sum(size for size, _ in sizes)))
    return found


def host_transfers(compiled_text: str) -> int:
    """Returns how many instructions of a compiled program exchange data with the host."""
    operations = r" (?:infeed|outfeed|send|recv|send-start|recv-start)\("
    calls = r'custom_call_target="[^"]*(?:[Hh]ost|callback)[^"]*"'
    return len(re.findall(f"{operations}|{calls}", compiled_text))


def estimated_cycles(compiled_text: str, choose: Callable[..., Counter[str]] = max) -> Counter[str]:
    """Returns the cycles of a core by operation, as libtpu 0.0.42 estimates them.

    An operation is named by its pass and its place in the network, summed over layers. The body of
    a `lax.scan` counts as often as it runs; of the branches of a conditional, `choose` takes one:
    `max` the most expensive, or `min`. Gathers, scatters, sorts and asynchronous copies have no
    estimate.
    """
    computations: dict[str, list[str]] = {}
    for line in compiled_text.splitlines():
        if header := re.match(r"(ENTRY )?%(\S+) \(.*\{$", line):
            lines = computations["" if header[1] else header[2]] = []
        elif computations:
            lines.append(line)

    @functools.cache
    def cycles(name: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for line in computations[name]:
            if loop := re.search(r" while\(.*condition=%([^\s,]+), body=%([^\s,]+)", line):
                bound = re.search(r" constant\((\d+)\)", "\n".join(computations[loop[1]]))
                n_times = int(bound[1]) if bound else 1
                total.update({key: n_times * n for key, n in cycles(loop[2]).items()})
            elif branches := re.search(r" conditional\(.*branch_computations=\{([^}]*)\}", line):
                names = re.findall(r"%([^\s,]+)", branches[1])
                total += choose(map(cycles, names), key=Counter.total)
            elif estimate := re.search(r'"estimated_cycles":"(\d+)"', line):
                total[_operation(line)] += int(estimate[1])
        return total

    return cycles("")


def _operation(line: str) -> str:
    """Names the pass and the modules that an instruction comes from, without its primitive."""
    match = re.search(r'op_name="([^"]*)/', line)
    around, _, inside = (match[1] if match else "").partition("Condenser")
    if not inside:
        return "outside of the network" if match else "without a name"
    kind = "gradient" if "transpose(" in around else "forward"
    if inside.startswith(".encode"):
        kind = "first pass"
    parts = [part.rpartition(".")[2] for part in inside.split("/")[1:] if "(" not in part]
    modules = [re.sub(r"^_|_\d+$", "", part) for part in parts if part != "_backbone"]
    return f"{kind}, {'/'.join(modules)}"


def _bits(dtype: str) -> int:
    """The size of an element in XLA's notation: f32, bf16, s32, pred."""
    return int((re.findall(r"\d+", dtype) or [8])[0])
