"""`cocondenser <command>`: parses the command line, calls one function, prints.

Each module declares some commands: their flags, and beside them the call. Commands import the
libraries they need when they run, so that `--help` and user errors are fast.
"""

import logging
import os
import sys
from collections.abc import Sequence

from cocondenser_jax import __version__
from cocondenser_jax.cli import analysis, evaluation, finetuning, pretraining, quickstart, retrieval
from cocondenser_jax.cli.flags import LogFormatter, Parser
from cocondenser_jax.errors import UserError

# Libraries whose INFO messages no user asked for.
_QUIET = "datasets faiss httpx jax orbax sentence_transformers".split()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    # Before torch is loaded: on a busy machine, OpenMP threads that spin while they wait made
    # fine-tuning a hundred times slower; threads that sleep cost nothing measurable.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Orbax raises the errors that it logs, and only warns of some of what it could not do.
    logging.getLogger("absl").addFilter(_is_warning)
    try:
        parser = _make_parser()
        arguments, rest = parser.parse_known_args(argv)
        if rest and not hasattr(arguments, "config"):
            raise UserError(
                f"unknown argument {rest[0]!r} (see cocondenser {arguments.command} --help)"
            )
        arguments.overrides = rest
        return int(arguments.run(arguments) or 0)
    except UserError as error:
        print(f"cocondenser: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cocondenser: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno == logging.WARNING


def _make_parser() -> Parser:
    parser = Parser(
        prog="cocondenser",
        description="Condenser and coCondenser pre-training, conversion, and dense retrieval.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    for module in (quickstart, pretraining, finetuning, retrieval, evaluation, analysis):
        module.add_commands(commands)
    return parser
