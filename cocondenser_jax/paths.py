"""Paths of any characters, for libraries that take only some."""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def plain_path(path: Path) -> Iterator[Path]:
    """Yields a path of the same place without special characters: itself, or a link for a while.

    TensorStore, tokenizers, safetensors, faiss and datasets accept UTF-8 only.
    """
    absolute = path.absolute()
    if re.fullmatch(r"[\w/.-]+", str(absolute), re.ASCII):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="cocondenser-") as temporary:
        link = Path(temporary) / "link"
        link.symlink_to(absolute)
        yield link
