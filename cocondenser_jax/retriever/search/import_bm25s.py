"""Imports bm25s without what it does to JAX."""

import functools
import logging
import sys
from types import ModuleType


@functools.cache
def import_bm25s() -> ModuleType:
    """Imports bm25s without JAX: bm25s 0.3.16 runs a computation on it, which claims the TPU."""
    hidden = [name for name in ("jax", "jax.lax") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import bm25s
    finally:
        for name in hidden:
            del sys.modules[name]
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # importing it sets DEBUG
    return bm25s
