#!/usr/bin/env bash
# Runs on worker 0, as a job. bench.sh [ARGUMENTS OF benchmarks/accelerator.py]

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

command -v make >/dev/null || { sudo apt-get update && sudo apt-get install --yes make; }
export PATH=$HOME/.local/bin:$PATH
# PyTorch makes its weights, and sentence-transformers encodes.
UV_TORCH_BACKEND=cpu uv pip install --quiet --python .venv --constraint constraints.txt \
  torch sentence-transformers
rm -f benchmarks/results/tpu.json            # one of another machine may have come with the project
export JAX_COMPILATION_CACHE_DIR=$PWD/compiled # measured again, it compiles nothing
make bench-tpu PYTHON=.venv/bin/python ARGUMENTS="$*"
