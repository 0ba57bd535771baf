#!/usr/bin/env bash
# Runs on each worker. setup.sh PYTHON_VERSION DEVICES HOSTS

set -euo pipefail
python_version=$1 devices=$2 hosts=$3
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH=$HOME/.local/bin:$PATH

rm -f .venv/ready
command -v tmux >/dev/null || { sudo apt-get update && sudo apt-get install --yes tmux; }
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
[[ -d .venv ]] || uv venv --python "$python_version" .venv
# PyTorch runs on the CPU here and needs no gigabytes of CUDA libraries.
UV_TORCH_BACKEND=cpu uv pip install --quiet --python .venv --constraint constraints.txt \
  --editable '.[all,tpu]'

# Set, so that JAX fails without a TPU and does not fall back on the CPU.
JAX_PLATFORMS=tpu .venv/bin/python - "$devices" "$hosts" <<'PYTHON'
import sys

import jax

expected, n_hosts = map(int, sys.argv[1:])
if n_hosts > 1:
    jax.distributed.initialize()
found = jax.device_count()
print(f"JAX {jax.__version__} sees {found} devices")
if found != expected:
    sys.exit(f"expected {expected}: see DEVICES and HOSTS in env.sh")
PYTHON
touch .venv/ready
