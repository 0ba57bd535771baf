"""bm25s without JAX."""

import subprocess
import sys


def test_jax_stays_out():
    code = (
        "import sys; from cocondenser_jax.retriever.search.import_bm25s import import_bm25s;"
        "import_bm25s();"
        "assert not any(name.split('.')[0] == 'jax' for name in sys.modules), sys.modules['jax']"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
