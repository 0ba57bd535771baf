"""Conversion: seconds to export a BERT-base with its head, and to read it back.

python -m benchmarks.convert --json_out=benchmarks/results/convert.json
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks.corpora import docstrings, write_tokenizer
from benchmarks.results import report
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig


def main() -> None:
    """Measures both directions and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    config = ModelConfig()
    params = jax.tree.map(np.asarray, init_params(config, 0))
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer = write_tokenizer(docstrings()[:2000], Path(temporary) / "tokenizer")
        start = time.perf_counter()
        export_folder(params, config, tokenizer, Path(temporary) / "model", {})
        exported = time.perf_counter()
        load_folder(str(Path(temporary) / "model"))
        loaded = time.perf_counter()
    row = {"export, s": round(exported - start, 2), "read back, s": round(loaded - exported, 2)}
    report([row], arguments.json_out)


if __name__ == "__main__":
    main()
