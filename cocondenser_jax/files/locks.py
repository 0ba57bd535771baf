"""Locks what is being written; the operating system releases the locks of ended processes."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from cocondenser_jax.errors import UserError

logger = logging.getLogger(__name__)

# The errors of a file system that has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(lock: Path, what: Path) -> Iterator[None]:
    """Holds `lock`, a file that exists only meanwhile, for writing to `what`."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(lock)
    except BlockingIOError:
        holder = "another process"
        with contextlib.suppress(OSError):
            holder = lock.read_text(errors="replace")[:200] or holder
        raise UserError(
            f"{what} is in use by {holder}: wait until it ends, or choose another place"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise UserError(f"cannot write to {what}: {error.strerror}") from error
        logger.warning("%s cannot be locked (%s): start nothing else in it", what, error.strerror)
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()  # before it is released: nobody else's is removed
        os.close(descriptor)


def _lock(path: Path) -> int:
    """Creates and locks a file that names this process, and returns its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Not flock(), whose lock the workers of a killed training would keep a while.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed it between the two calls.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    since = time.strftime("%Y-%m-%d %H:%M:%S")
                    holder = f"process {os.getpid()} on {socket.gethostname()} since {since}"
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, holder.encode())
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
