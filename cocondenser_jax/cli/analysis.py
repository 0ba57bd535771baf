"""Commands that look into models and runs, and draw what they find."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    Arguments,
    Commands,
    Parser,
    add_command,
    add_command_group,
    add_json_out,
    whole_numbers,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_json

_PRINTED_DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def add_commands(commands: Commands) -> None:
    """Adds them to the command line."""
    group = add_command_group(
        commands, "analyze", "Draw what models attend to, and how two runs agree."
    )
    _add_attention(group)
    _add_neighbourhood(group)


def _add_attention(commands: Commands) -> None:
    command = add_command(
        commands,
        "attention",
        _attention,
        "Draw how broad the attention of CLS is in each layer: its entropy, for several models.",
        "--model=runs/condenser.model --model=runs/cocondenser.model --texts=data/msmarco"
        " --out=attention.png",
    )
    model = (
        "a BERT or RoBERTa, as convert and finetune write it, each tower a line; may be repeated"
    )
    command.add_argument(
        "--model",
        dest="models",
        metavar="FOLDER",
        action="append",
        required=True,
        type=Path,
        help=model,
    )
    texts = "a data folder, its file of passages, or a .txt with a text a line (also compressed)"
    command.add_argument("--texts", required=True, type=Path, help=texts)
    n_texts = "drawn at random; all where there are fewer (default: 1000)"
    command.add_argument("--n_texts", type=int, default=1_000, help=n_texts)
    command.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    length = "tokens kept of a text (default: 128)"
    command.add_argument("--passage_length", type=int, default=128, help=length)
    _add_out(command)
    add_json_out(command)


def _attention(arguments: Arguments) -> None:
    from cocondenser_jax.analysis.attention import entropy_panel, layer_entropies
    from cocondenser_jax.analysis.plots import write_plot
    from cocondenser_jax.retrieval.models import load_retriever, towers

    for flag, least in (("n_texts", 1), ("seed", 0)):
        if getattr(arguments, flag) < least:
            raise UserError(f"--{flag}={getattr(arguments, flag)}: expected at least {least}")
    length = arguments.passage_length
    # All are opened before the first is asked, so that a wrong folder is found out at once.
    encoders: dict[str, Any] = {
        f"{name}, {tower}" if tower else name: encoder
        for name, folder in _by_name(arguments.models).items()
        for tower, encoder in towers(load_retriever(folder, passage_length=length)).items()
    }
    texts = _drawn_texts(arguments.texts, arguments.n_texts, arguments.seed)
    entropies = {
        name: layer_entropies(encoder.model, encoder.tokenizer, texts, length)
        for name, encoder in encoders.items()
    }
    columns = {name: found.layers.tolist() for name, found in entropies.items()}
    _print_table("layer", columns, range(1, 1 + max(map(len, columns.values()))))
    if arguments.json_out:
        models = {
            name: {
                "folder": encoders[name].model.name_or_path,
                "entropy": columns[name],
                "uniform": found.uniform,
            }
            for name, found in entropies.items()
        }
        settings = {"seed": arguments.seed, "passage_length": length}
        write_json(arguments.json_out, {"texts": len(texts), **settings, "models": models})
    write_plot(entropy_panel(entropies), arguments.out)


def _add_neighbourhood(commands: Commands) -> None:
    command = add_command(
        commands,
        "neighbourhood",
        _neighbourhood,
        "Draw how much of the top n of a run lies in the top k of others, by k.",
        "--stage1=runs/bm25.trec --stage1=runs/round1.trec --stage2=runs/round2.trec --n=10,50"
        " --out=neighbourhood.png",
    )
    stage1 = "TREC run to read to depth k; may be repeated"
    command.add_argument(
        "--stage1", metavar="RUN", action="append", required=True, type=Path, help=stage1
    )
    stage2 = "TREC run whose top n are each query's neighbourhood"
    command.add_argument("--stage2", metavar="RUN", required=True, type=Path, help=stage2)
    n = "sizes of the neighbourhood, separated by commas (default: 10)"
    command.add_argument("--n", type=whole_numbers, default=[10], help=n)
    _add_out(command)
    add_json_out(command)


def _neighbourhood(arguments: Arguments) -> None:
    from cocondenser_jax.analysis.neighbourhood import neighbourhood_recall, recall_panel
    from cocondenser_jax.analysis.plots import write_plot

    runs = _by_name(arguments.stage1)
    stage1 = {name: _rankings(run) for name, run in runs.items()}
    stage2 = _rankings(arguments.stage2)
    recalls = {
        name: {n: neighbourhood_recall(rankings, stage2, n) for n in arguments.n}
        for name, rankings in stage1.items()
    }
    columns = {
        f"{name}, n={n}": found.tolist()
        for name, by_n in recalls.items()
        for n, found in by_n.items()
    }
    depth = max(map(len, columns.values()))
    _print_table("k", columns, [k for k in _PRINTED_DEPTHS if k < depth] + [depth])
    if arguments.json_out:
        figures = {
            name: {
                "run": str(runs[name]),
                "recall": {n: found.tolist() for n, found in by_n.items()},
            }
            for name, by_n in recalls.items()
        }
        result = {"stage2": str(arguments.stage2), "queries": len(stage2), "stage1": figures}
        write_json(arguments.json_out, result)
    write_plot(recall_panel(recalls), arguments.out)


def _rankings(run: Path) -> dict[str, list[str]]:
    from cocondenser_jax.collection.trec import ranked, read_run

    return {
        query: [passage for passage, _ in ranked(scores)] for query, scores in read_run(run).items()
    }


def _add_out(command: Parser) -> None:
    command.add_argument(
        "--out", required=True, type=_plot_file, help="the plot: a .png or .svg file"
    )


def _plot_file(text: str) -> Path:
    if Path(text).suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"expected a .png or .svg file, not {text!r}")
    return Path(text)


def _by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """Returns the paths by the shortest of their ends that tell them apart."""
    distinct = {path.absolute(): path for path in paths}
    names: list[str] = []
    for n_parts in range(1, 1 + max(len(path.parts) for path in distinct)):
        names = [Path(*path.parts[-n_parts:]).as_posix() for path in distinct]
        if len(set(names)) == len(names):
            break
    return dict(zip(names, distinct.values(), strict=True))


def _drawn_texts(source: Path, n: int, seed: int) -> list[str]:
    """Draws n texts, or takes all if there are fewer; no others are ever held in memory."""
    import numpy as np

    n_texts = sum(1 for _ in _texts(source))
    if not n_texts:
        raise UserError(f"{source} holds no text")
    drawn = set(np.random.default_rng(seed).permutation(n_texts)[:n])
    return [text for i, text in enumerate(_texts(source)) if i in drawn]


def _texts(source: Path) -> Iterator[str]:
    """Yields the lines of a .txt that are not blank, or passages as encoders read them."""
    from cocondenser_jax.collection.folder import passage_text, read_corpus
    from cocondenser_jax.collection.layouts import plain_name
    from cocondenser_jax.files import numbered_lines

    if plain_name(source).endswith(".txt"):
        return (text for _, text in numbered_lines(source))
    return map(passage_text, read_corpus(source))


def _print_table(head: str, columns: Mapping[str, Sequence[float]], numbers: Iterable[int]) -> None:
    """Prints a row for each number, from 1: the values that the columns have in that place."""
    print(f"{head:<6}{''.join(f'  {name:>8}' for name in columns)}".rstrip())
    for number in numbers:
        cells = (
            f"{column[number - 1]:.4f}" if number <= len(column) else ""
            for column in columns.values()
        )
        row = "".join(
            f"  {cell:>{max(8, len(name))}}" for name, cell in zip(columns, cells, strict=True)
        )
        print(f"{number:<6}{row}".rstrip())
