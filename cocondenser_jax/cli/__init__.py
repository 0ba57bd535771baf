"""`cocondenser <command>`: parses the command line, calls the package, prints the result.

A command is a function with its flags declared above it; its docstring is the help. Libraries are
imported inside it, so that `--help` and errors are fast.
"""

import contextlib
import errno
import importlib
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

import click

from cocondenser_jax import __version__
from cocondenser_jax.cli.flags import PROGRAM
from cocondenser_jax.cli.output import LogFormatter, progress_as_lines
from cocondenser_jax.errors import UserError, name_extra

# Libraries with INFO messages that are hidden.
_QUIET = (
    "aiobotocore",
    "datasets",
    "faiss",
    "httpx",
    "jax",
    "matplotlib",
    "sentence_transformers",
)

# Errors of the operating system that the user can fix.
_FIXABLE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.EMFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
}


for _module in ("training", "quickstart", "retrieval", "runs", "evaluation"):  # the order of --help
    importlib.import_module(f"cocondenser_jax.cli.{_module}")
click.version_option(__version__, message="%(version)s")(PROGRAM)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    # Set before torch is loaded. On a busy machine, spinning OpenMP threads made fine-tuning a
    # hundred times slower; sleeping threads cost nothing measurable.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # With at most one GPU, it warns that torch.distributed is not available.
    logging.getLogger("sentence_transformers.util.distributed").setLevel(logging.ERROR)
    try:
        with progress_as_lines():
            status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # so that a full device is still reported
        return status
    except click.UsageError as error:
        return _report_usage(error)
    except UserError as error:
        return _report(error)
    except ModuleNotFoundError as error:
        missing = name_extra(error)
        if missing is None:
            raise
        return _report(missing)
    except KeyboardInterrupt:
        print("cocondenser: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in _FIXABLE:
            raise
        _drop_output()
        return _report(error)


def _run(words: list[str]) -> int:
    if sys.stdout is None:
        raise UserError("standard output is closed: redirect it to a file, or to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not have every character
        sys.stdout.reconfigure(errors="backslashreplace")
    for word in words:
        if any("\udc80" <= character <= "\udcff" for character in word):
            raise UserError(f"{word}: expected UTF-8 (rename the file or folder)")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup, SIGHUP is ignored
            signal.signal(number, _end)
    try:
        with _ended_after_all(), PROGRAM.make_context("cocondenser", words) as context:
            PROGRAM.invoke(context)
            return 0
    except click.exceptions.Exit as end:  # after --help
        return end.exit_code


class _Ended(SystemExit):
    """The exception with which a signal ends the command."""


def _end(number: int, frame: FrameType | None) -> None:
    """Ends the command by an exception, so that partial outputs are removed."""
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process immediately
    raise _Ended(128 + number)


@contextlib.contextmanager
def _ended_after_all() -> Iterator[None]:
    """Raises an `_Ended` again if Python ignored it inside a garbage collector's callback.

    JAX (0.10.2) has such a callback. The exception is raised again a moment later, outside of it.
    """
    report = sys.unraisablehook

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        if not isinstance(ignored.exc_value, _Ended):
            report(ignored)
            return
        status = ignored.exc_value.code

        def end_again(number: int, frame: FrameType | None) -> None:
            raise _Ended(status)

        signal.signal(signal.SIGALRM, end_again)
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = report


def _report_usage(error: click.UsageError) -> int:
    """Prints the help for a call without arguments, or one line for a mistake."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)
        return 2
    program = error.ctx.command_path if error.ctx else "cocondenser"
    return _report(f"{error.format_message()} (see {program} --help)")


def _report(error: object) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:  # a process started by torchrun
        from cocondenser_jax.retriever.train.processes import main_process_reports

        if main_process_reports():
            return 2
    print(f"cocondenser: {UserError(str(error))}", file=sys.stderr)
    return 2


def _drop_output() -> None:
    """Keeps Python from writing the remaining output, and failing again, at exit."""
    with contextlib.suppress(OSError):  # standard output has no descriptor in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
