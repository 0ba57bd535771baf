"""Launches of a training step compiled for a GPU, and the bytes that they write.

python -m benchmarks.launches --config=configs/cocondenser.py --topology=h100-1 \
  [--layer] [--config.KEY=VALUE ...]

Prints a line for each kind of launch of a step, and one for each pass over a chunk of the full
length: its launches, the gigabytes that they write, and the part of attention's square arrays
(scores, weights, dropout masks and their gradients). With --layer, it compares a layer and its
gradient by XLA and with the kernel: launches, and the megabytes that they read and write.
"""

import argparse
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp

from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.encoder import TransformerLayer
from cocondenser_jax.model.layout import Layout, lay_out, round_maps, with_rounded
from cocondenser_jax.plan.compiled import (
    Launch,
    find_launches,
    moved_bytes,
    n_launches,
    written_bytes,
)
from cocondenser_jax.plan.machines import Machine, find_machine, prepare_to_plan
from cocondenser_jax.plan.plan import resolve_to_plan
from cocondenser_jax.pretrain.devices import compile_step
from cocondenser_jax.settings import load_config


def main() -> None:
    """Compiles the step of an experiment, or a layer, and prints the launches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/cocondenser.py")
    parser.add_argument("--topology", default="h100-1")
    parser.add_argument("--layer", action="store_true", help="one, with its gradient, both ways")
    arguments, overrides = parser.parse_known_args()
    config = load_config(arguments.config, overrides, complete=False)
    prepare_to_plan()
    experiment = resolve_to_plan(config)
    model_config = ModelConfig(**experiment.network)
    machine, spec = find_machine(arguments.topology), experiment.batches
    if arguments.layer:
        n_spans = experiment.step.loss.chunk_size or spec.n_rows
        for attention in ("xla", "gpu"):
            launches = compile_layer(model_config, machine, n_spans, spec.length, attention)
            print(f"{attention}: {describe_traffic(launches)}")
        return
    program = compile_step(model_config, experiment.step, spec, machine.devices, machine.options)
    for line in describe_launches(program.as_text() or "", spec.length):
        print(line)


def describe_launches(compiled_text: str, length: int) -> list[str]:
    """Returns a line for each kind of launch of a step, and one for each pass over a chunk."""
    step, chunks = find_launches(compiled_text)
    kinds: Counter[str] = Counter()
    for launch in step:
        kinds[launch.kind] += launch.times
    lines = [f"{kind}: {n:,}" for kind, n in kinds.most_common()]
    for i, chunk in enumerate(chunks):
        lines.append(f"a chunk in pass {i + 1}: {describe(chunk, length)}")
    return lines


def describe(launches: list[Launch], length: int) -> str:
    """Returns the number of launches, the bytes written, and those of square arrays, in words."""
    squares = [
        launch._replace(arrays=[x for x in launch.arrays if x[1][-2:] == (length, length)])
        for launch in launches
    ]
    written, scores = written_bytes(launches) / 1e9, written_bytes(squares) / 1e9
    n = n_launches(launches)
    return f"{n:,} launches, {written:.3f} GB written, {scores:.3f} GB of them attention's squares"


def describe_traffic(launches: list[Launch]) -> str:
    """Returns the number of launches and the bytes read and written, in words."""
    return f"{n_launches(launches)} launches, {moved_bytes(launches) / 1e6:,.0f} MB"


def compile_layer(
    config: ModelConfig, machine: Machine, n_spans: int, length: int, attention: str
) -> list[Launch]:
    """Returns the launches of a layer and its gradient, which is added to sums as in the step."""
    layer = TransformerLayer(config, jnp.dtype("bfloat16"), 0, attention)
    layout = Layout(attention)
    network = jax.eval_shape(lambda: lay_out(config, layout, init_params(config, 0)))
    params = network["layers_0"]
    hidden_BxLxD = jax.ShapeDtypeStruct((n_spans, length, config.hidden_size), jnp.bfloat16)
    mask_BxL = jax.ShapeDtypeStruct((n_spans, length), jnp.bool_)
    has_dropout = config.hidden_dropout_prob or config.attention_probs_dropout_prob
    seeds_B = jax.ShapeDtypeStruct((n_spans,), jnp.uint32) if has_dropout else None
    rounded = jax.eval_shape(lambda x: round_maps({"layers_0": x}, "bfloat16"), params)

    def gradient(params: Any, rounded: Any, hidden: Any, inputs: Any, sums: Any, by: Any) -> Any:
        def run(params: Any, hidden: Any) -> Any:
            laid = with_rounded({"layers_0": params}, rounded)["layers_0"]
            return layer.apply({"params": laid}, hidden, *inputs)

        out, pull_back = jax.vjp(run, params, hidden)
        by_params, by_hidden = pull_back(by)
        return out, jax.tree.map(jnp.add, sums, by_params), by_hidden

    place = jax.sharding.SingleDeviceSharding(machine.devices[0])
    mapped = jax.jit(gradient, in_shardings=place, out_shardings=place, donate_argnums=4)
    arrays = params, rounded, hidden_BxLxD, (mask_BxL, seeds_B), params, hidden_BxLxD
    program = mapped.lower(*arrays).compile(machine.options)
    return find_launches(program.as_text() or "").step


if __name__ == "__main__":
    main()
