"""Communication and estimated time of a training step, compiled for a TPU by libtpu.

python -m benchmarks.cycles --config=configs/cocondenser.py --topology=v3-8 [--config.KEY=VALUE ...]

Prints the step's collectives with their bytes, and its transfers to or from the host. Then the time
of a step with all chunks at full length, of one with short chunks, of the ten most expensive
operations of the former and, if the experiment names its store, of a step with the store's chunks.
The parsed text is that of libtpu 0.0.42; only programs of one version are comparable.
"""

import argparse
import functools
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cocondenser_jax.corpus.batches import Batch, make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.plan.compiled import collectives
from cocondenser_jax.plan.machines import find_machine, prepare_to_plan
from cocondenser_jax.plan.plan import resolve_to_plan
from cocondenser_jax.pretrain.devices import compile_step
from cocondenser_jax.pretrain.experiment import Experiment
from cocondenser_jax.pretrain.step import LENGTH_FRACTIONS, at_shortest_length, split_rows
from cocondenser_jax.settings import load_config

CLOCKS = {"v2": 700, "v3": 940}  # MHz; Jouppi et al., CACM 2020. Those of others are not published


def main() -> None:
    """Compiles the step of an experiment and prints the milliseconds of its operations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/cocondenser.py")
    parser.add_argument("--topology", choices=("v2-8", "v3-8"), default="v3-8")
    arguments, overrides = parser.parse_known_args()
    config = load_config(arguments.config, overrides, complete=False)
    prepare_to_plan()
    experiment = resolve_to_plan(config)
    devices = find_machine(arguments.topology).devices
    clock = CLOCKS[arguments.topology[:2]]
    model_config = ModelConfig(**experiment.network)
    program = compile_step(model_config, experiment.step, experiment.batches, devices)
    text = program.as_text() or ""
    for line in describe_exchange(text):
        print(line)
    full = estimated_cycles(text, max)
    short = estimated_cycles(text, min)
    show("step of full chunks", full.total(), clock)
    show("step of short chunks", short.total(), clock)
    for name, cycles in full.most_common(10):
        show(name, cycles, clock)
    if config.data.store:
        fraction = fraction_of_full_chunks(experiment, Path(config.data.store), len(devices))
        mean = fraction * full.total() + (1 - fraction) * short.total()
        show("step of the store", mean, clock)


def describe_exchange(compiled_text: str) -> list[str]:
    """Returns a line for each kind of collective of a step, and one for transfers to the host."""
    sizes: dict[str, list[int]] = {}
    for each in collectives(compiled_text):
        sizes.setdefault(f"{each.kind} {each.dtype}", []).append(each.n_bytes)
    lines = [f"{kind}: {len(n)} ({sum(n) / 1e6:,.3f} MB)" for kind, n in sizes.items()]
    return [*lines, f"transfers to or from the host: {host_transfers(compiled_text)}"]


def host_transfers(compiled_text: str) -> int:
    """Returns the number of instructions of a compiled program that transfer data with the host."""
    operations = r" (?:infeed|outfeed|send|recv|send-start|recv-start)\("
    calls = r'custom_call_target="[^"]*(?:[Hh]ost|callback)[^"]*"'
    return len(re.findall(f"{operations}|{calls}", compiled_text))


def show(name: str, cycles: float, clock: int) -> None:
    """Prints cycles as milliseconds."""
    print(f"{name:60} {cycles / (clock * 1e3):12.2f} ms")


def fraction_of_full_chunks(experiment: Experiment, store: Path, n_devices: int) -> float:
    """Returns the fraction of chunks with the full length in a store's first batch."""
    spec = experiment.batches
    n_local = spec.n_rows // n_devices
    chunk_size = experiment.step.loss.chunk_size or n_local
    batch = make_batch(open_store(store), spec, 0)
    lengths_C = chunk_lengths(batch, n_devices, spec.n_rows // chunk_size)
    return float((lengths_C == spec.length).mean())


def estimated_cycles(compiled_text: str, choose: Callable[..., Counter[str]] = max) -> Counter[str]:
    """Returns the cycles of a core by operation.

    Operations are named by pass and place in the network, and summed over layers. The body of a
    `lax.scan` counts as often as it runs; `choose` selects a branch of a conditional, by default
    the most expensive. Gathers, scatters, sorts and asynchronous copies have no estimate.
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
    """Returns the pass and the modules of an instruction, without its primitive."""
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


def chunk_lengths(batch: Batch, n_devices: int, n_chunks: int) -> np.ndarray:
    """Returns the number of columns with which each chunk of a batch is computed."""

    def length(chunk: tuple) -> jax.Array:
        return jnp.int32(chunk[0].input_ids_SxL.shape[1])

    tokens_S = np.sum(batch.attention_mask_SxL, axis=1)
    devices_S = np.arange(len(tokens_S)) * n_devices // len(tokens_S)
    in_order = jax.tree.map(lambda x: x[np.lexsort((tokens_S, devices_S))], batch)
    chunks = split_rows(in_order, n_chunks), None
    chosen = functools.partial(at_shortest_length, length, fractions=LENGTH_FRACTIONS)
    return np.asarray(jax.lax.map(chosen, chunks))


if __name__ == "__main__":
    main()
