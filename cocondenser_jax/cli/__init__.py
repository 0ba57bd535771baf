"""`cocondenser <command>`: parses the command line, calls one function, prints.

A command is one function in two halves. The first adds its flags to a parser, and yields an example
for the end of `--help`. There the arguments are sent to the second, which does the work and returns
the exit status, None for 0. The function's docstring is the help. Libraries are imported in the
second half, so that `--help` and user errors are fast.
"""

import argparse
import contextlib
import errno
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from cocondenser_jax import __version__
from cocondenser_jax.cli import evaluation, quickstart, retrieval, training
from cocondenser_jax.cli.flags import LogFormatter, Parser
from cocondenser_jax.errors import UserError, name_extra

# Libraries whose INFO messages no user asked for.
_QUIET = "datasets faiss httpx jax sentence_transformers".split()

# What an operating system answers that its user can change.
_FIXABLE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EMFILE),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
}

# In the order of --help; verify_store is `verify store`.
_COMMANDS = {
    quickstart: "quickstart adapt report",
    training: "vocabulary corpus pretrain plan convert verify_checkpoint verify_store finetune",
    retrieval: "encode index search retrieve bm25 fuse rerank mine",
    evaluation: "evaluate",
}
_GROUPS = {
    "verify": "Check a checkpoint or a token store.",
}


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
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"cocondenser: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        missing = name_extra(error)
        if missing is None:
            raise
        print(f"cocondenser: {missing}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cocondenser: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in _FIXABLE:
            raise
        print(f"cocondenser: {UserError(str(error))}", file=sys.stderr)
        _drop_output()
        return 2


def _run(argv: Sequence[str]) -> int:
    _check_surroundings()
    _check_encoding(argv)
    with _cleaned_up():
        parser = _make_parser()
        arguments, rest = parser.parse_known_args(argv)
        if rest and not hasattr(arguments, "config"):
            raise UserError(f"unknown argument {rest[0]!r} (see {arguments.prog} --help)")
        arguments.overrides = rest
        status = 0
        try:
            arguments.command.send(arguments)
        except StopIteration as end:
            status = end.value or 0
        sys.stdout.flush()  # here, where a full device can still be reported
        return status


def _check_surroundings() -> None:
    """Raises a UserError for what libraries answer with a traceback, or with lost output."""
    if sys.stdout is None:
        raise UserError("standard output is closed: redirect it to a file, or to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not have every character
        sys.stdout.reconfigure(errors="backslashreplace")
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        if not os.environ.get(name, "0").isdecimal():
            raise UserError(
                f"the environment variable {name} is {os.environ[name]!r}: expected a whole number"
            )


def _check_encoding(argv: Sequence[str]) -> None:
    """Raises a UserError for a path that is not UTF-8: few libraries read and write such a path."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{word}: expected UTF-8 (rename the file or folder)") from error


@contextlib.contextmanager
def _cleaned_up() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the command as an exception does: nothing half-made stays."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # the next one ends it at once
        raise SystemExit(128 + number)

    can_hear = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if can_hear else ()
    heard = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def _drop_output() -> None:
    """Keeps Python from writing the rest of the output, and failing again, when it ends."""
    with contextlib.suppress(OSError):  # in a test, it has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _make_parser() -> Parser:
    parser = Parser(
        prog="cocondenser",
        description="Condenser and coCondenser pre-training, conversion, and dense retrieval.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    groups = {"": parser.add_subparsers(required=True, metavar="COMMAND")}
    for module, functions in _COMMANDS.items():
        for function in functions.split():
            group, _, name = function.rpartition("_")
            if group not in groups:
                added = groups[""].add_parser(group, **_about(_GROUPS[group]))
                groups[group] = added.add_subparsers(required=True, metavar="WHAT")
            declare = getattr(module, function)
            added = groups[group].add_parser(name, **_about(declare.__doc__))
            command = declare(added)
            added.epilog = f"example:\n  %(prog)s {next(command)}"
            added.set_defaults(command=command, prog=added.prog)
    return parser


def _about(does: str) -> dict[str, Any]:
    plain = argparse.RawDescriptionHelpFormatter
    return {"help": does, "description": does, "allow_abbrev": False, "formatter_class": plain}
