#!/usr/bin/env bash
# Runs on each worker. setup.sh PYTHON_VERSION DEVICES HOSTS BUCKET EXTRAS

set -euo pipefail
python_version=$1 devices=$2 hosts=$3 bucket=$4 extras=$5
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tpu_scripts/on_vm/bucket.sh
. tpu_scripts/on_vm/bucket.sh
# shellcheck disable=SC1091 # where setup.sh was given any
[[ ! -e secrets.sh ]] || . ./secrets.sh
export PATH=$HOME/.local/bin:$PATH

rm -f .venv/ready
[[ -z $bucket ]] || require_writable "$bucket"
command -v tmux >/dev/null || { sudo apt-get update && sudo apt-get install --yes tmux; }
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
[[ -d .venv ]] || uv venv --python "$python_version" .venv
[[ -z ${WANDB_API_KEY:-} ]] || extras+=,wandb
# PyTorch, if asked for, runs on the CPU here and needs no gigabytes of CUDA libraries.
UV_TORCH_BACKEND=cpu uv pip install --quiet --python .venv --constraint constraints.txt \
  --editable ".[$extras]"

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
    sys.exit(f"expected {expected} (DEVICES in env.sh, or the second argument of this script)")
PYTHON
touch .venv/ready
