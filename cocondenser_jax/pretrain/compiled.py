"""What the text of a program compiled for a TPU says: its collectives and transfers."""

import math
import re
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


def _bits(dtype: str) -> int:
    """The size of an element in XLA's notation: f32, bf16, s32, pred."""
    return int((re.findall(r"\d+", dtype) or [8])[0])
