"""Imports bm25s without JAX."""

import functools
import logging
import sys
from types import ModuleType


@functools.cache
def import_bm25s() -> ModuleType:
    """Imports bm25s while JAX is hidden: bm25s 0.3.16 would compute with it and claim the TPU."""
    hidden = [name for name in ("jax", "jax.lax") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import bm25s
    finally:
        for name in hidden:
            del sys.modules[name]
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # importing it sets DEBUG
    return bm25s
