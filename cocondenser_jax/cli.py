"""`cocondenser <verb>`: parses the command line, calls one function, prints.

Libraries are imported where a verb needs them, so that `--help` and mistakes answer at once.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cocondenser_jax import __version__
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_json

Arguments = argparse.Namespace


class _Parser(argparse.ArgumentParser):
    """Answers a wrong flag with one line and exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("absl", "orbax", "jax", "httpx", "sentence_transformers", "faiss", "bm25s"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        parser = _make_parser()
        arguments, rest = parser.parse_known_args(argv)
        if rest and not hasattr(arguments, "config"):
            raise UserError(f"unknown argument {rest[0]!r} (see cocondenser {arguments.verb} --help)")
        arguments.overrides = rest
        arguments.run(arguments)
    except UserError as error:
        print(f"cocondenser: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cocondenser: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _corpus(arguments: Arguments) -> None:
    from cocondenser_jax.corpus.store import build_store

    manifest = build_store(
        arguments.source,
        arguments.tokenizer,
        arguments.out,
        max_tokens=arguments.max_tokens,
        shard=arguments.shard,
    )
    figures = {**manifest["counts"], **{f"dropped, {k}": v for k, v in manifest["dropped"].items()}}
    _print_figures(figures, arguments.json_out)


def _pretrain(arguments: Arguments) -> None:
    from cocondenser_jax.experiments import load_config
    from cocondenser_jax.pretrain.loop import train

    config = load_config(arguments.config, arguments.overrides)
    if not config.data.store:
        raise UserError("no data: give --config.data.store=FOLDER, made by cocondenser corpus")
    train(config, arguments.workdir, warm_start=_warm_start(config))


def _warm_start(config: Any) -> tuple[Any, Any] | None:
    """Reads what a run begins with: one of our run folders, or a Hugging Face model."""
    if not config.warm_start:
        return None
    if (Path(config.warm_start) / "run.json").is_file():
        from cocondenser_jax.pretrain.checkpoint import load_run

        model_config, params, _ = load_run(Path(config.warm_start))
        return model_config, params
    from cocondenser_jax.convert.from_torch import load_folder

    return load_folder(
        config.warm_start,
        n_head_layers=config.model.n_head_layers if config.init_head else None,
        init_head_seed=config.seed if config.init_head else None,
    )


def _convert(arguments: Arguments) -> None:
    if (arguments.checkpoint is None) == (arguments.pytorch_folder is None):
        raise UserError("give either --checkpoint (to PyTorch) or --pytorch_folder (to Flax)")
    if arguments.checkpoint is not None:
        from cocondenser_jax.convert.to_torch import export_folder
        from cocondenser_jax.pretrain.checkpoint import load_run

        model_config, params, facts = load_run(arguments.checkpoint, arguments.step)
        export_folder(
            params,
            model_config,
            arguments.checkpoint / "tokenizer",
            arguments.out,
            facts,
            research_layout=arguments.research_layout,
        )
    else:
        from cocondenser_jax.convert.from_torch import load_folder
        from cocondenser_jax.pretrain.checkpoint import save_converted

        seed = 0 if arguments.init_head else None
        model_config, params = load_folder(arguments.pytorch_folder, init_head_seed=seed)
        save_converted(arguments.out, model_config, params, arguments.pytorch_folder)
    print(arguments.out)


def _print_figures(figures: dict[str, Any], json_out: Path | None) -> None:
    """Prints one figure a line, and writes them all where asked."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:,}" if isinstance(value, int) else f"{name:<{width}}  {value:.4f}")
    if json_out:
        write_json(json_out, figures)
