"""Locks outputs while they are written; the operating system releases a dead process's locks."""

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

# Errors of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(lock: Path, what: Path | str) -> Iterator[None]:
    """Holds a lock while the block writes to `what`.

    Args:
      lock: the lock file, which exists only during the block.
      what: the file, folder or URL, for messages.

    Raises:
      UserError: if another process holds the lock, naming that process.
    """
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
            lock.unlink()  # before the release, so that no other process's lock is removed
        os.close(descriptor)


def _lock(path: Path) -> int:
    """Creates and locks a file that names this process; returns its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Not flock(): surviving workers of a killed training would keep its lock for a while.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file between the two calls.
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
