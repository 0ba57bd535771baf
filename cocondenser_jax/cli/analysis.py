"""Commands that look into models and runs, and plot what they find."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    Arguments,
    Commands,
    Parser,
    add_command,
    add_command_group,
    add_json_out,
    at_least,
    chosen,
    print_table,
    whole_numbers,
)
from cocondenser_jax.files import write_json

_PRINTED_DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def add_commands(commands: Commands) -> None:
    """Adds them to the command line."""
    group = add_command_group(
        commands, "analyze", "Plot what models attend to, and how two runs agree."
    )
    _add_attention(group)
    _add_neighbourhood(group)


def _add_attention(commands: Commands) -> None:
    command = add_command(
        commands,
        _attention,
        "--model=runs/condenser.model --model=runs/cocondenser.model --texts=data/msmarco"
        " --out=attention.png",
    )
    model = "a BERT or RoBERTa, as convert and finetune write it, a line per tower; may be repeated"
    command.path("--model", model, metavar="FOLDER", action="append")
    texts = "a data folder, its file of passages, or a .txt of one text per line (also compressed)"
    command.path("--texts", texts)
    n_texts = "drawn at random; all where there are fewer"
    command.flag("--n_texts", n_texts, 1_000, type=at_least(1))
    command.flag("--seed", "of the draw", 0, type=at_least(0))
    command.flag("--passage_length", "tokens kept of a text", 128)
    _add_outputs(command)


def _attention(arguments: Arguments) -> None:
    """Plot how broad the attention of CLS is in each layer: its entropy, for several models."""
    from cocondenser_jax.analysis.attention import compare_models

    options = chosen(arguments, "n_texts seed passage_length")
    result, panel = compare_models(arguments.model, arguments.texts, **options)
    columns = {name: model["entropy"] for name, model in result["models"].items()}
    n_layers = max(map(len, columns.values()))
    _print_columns("layer", columns, range(1, n_layers + 1))
    _write(arguments, result, panel)


def _add_neighbourhood(commands: Commands) -> None:
    command = add_command(
        commands,
        _neighbourhood,
        "--stage1=runs/bm25.trec --stage1=runs/round1.trec --stage2=runs/round2.trec --n=10,50"
        " --out=neighbourhood.png",
    )
    stage1 = "TREC run to read to depth k; may be repeated"
    command.path("--stage1", stage1, metavar="RUN", action="append")
    stage2 = "TREC run whose top n are each query's neighbourhood"
    command.path("--stage2", stage2, metavar="RUN")
    n = "sizes of the neighbourhood, separated by commas (default: 10)"
    command.add_argument("--n", type=whole_numbers, default=[10], help=n)
    _add_outputs(command)


def _neighbourhood(arguments: Arguments) -> None:
    """Plot how much of the top n of a run lies in the top k of others, by k."""
    from cocondenser_jax.analysis.neighbourhood import compare_runs

    result, panel = compare_runs(arguments.stage1, arguments.stage2, arguments.n)
    columns = {
        f"{name}, n={n}": values
        for name, run in result["stage1"].items()
        for n, values in run["recall"].items()
    }
    depth = max(map(len, columns.values()))
    _print_columns("k", columns, [*(k for k in _PRINTED_DEPTHS if k < depth), depth])
    _write(arguments, result, panel)


def _write(arguments: Arguments, result: Any, panel: Any) -> None:
    from cocondenser_jax.analysis.plots import write_plot

    if arguments.json_out:
        write_json(arguments.json_out, result)
    write_plot(panel, arguments.out)


def _print_columns(head: str, columns: dict[str, list[float]], numbers: Iterable[int]) -> None:
    """Prints the values of each column at some numbers, which count from 1."""
    rows = [
        (
            f"{n}",
            *(f"{values[n - 1]:.4f}" if n <= len(values) else "" for values in columns.values()),
        )
        for n in numbers
    ]
    print_table((head, *columns), rows)


def _add_outputs(command: Parser) -> None:
    command.flag("--out", "the plot: a .png or .svg file", required=True, type=_plot_file)
    add_json_out(command)


def _plot_file(text: str) -> Path:
    if Path(text).suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"expected a .png or .svg file, not {text!r}")
    return Path(text)
