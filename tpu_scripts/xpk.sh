#!/usr/bin/env bash
# Pre-trains on a TPU cluster of Google Kubernetes Engine, with xpk in place of the other scripts.
#
#   pip install xpk
#   xpk cluster create --cluster=my-cluster --tpu-type=v5litepod-8 --spot
#   CLUSTER=my-cluster TPU=v5e-8 HOSTS=2 xpk.sh condenser \
#     --config=configs/condenser.py --config.data.store=stores/wiki
#
# What follows the run's name goes to `cocondenser pretrain`, as in pretrain.sh. xpk puts a copy of
# the project into a container image, and Kubernetes starts it again when it fails or is preempted.
# The token store is fetched from BUCKET/stores/NAME; checkpoints are kept in BUCKET/runs/NAME.
# WANDB_API_KEY and HF_TOKEN are not passed on: give the cluster its own secrets.
# --dry-run shows the command and runs none. All other settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_flags "$@"
need_name "the run's name"
need_bucket
[[ ${CLUSTER:-} ]] || fail "expected CLUSTER (see --help)"
run=${ARGUMENTS[0]}

# xpk runs one line of bash on each host, as root. setup.sh installs tmux with sudo, unless it is
# there.
printf -v train '%q ' bash tpu_scripts/on_vm/launched.sh \
  "$run" "$BUCKET" "$PYTHON_VERSION" "$EXTRAS" "$DEVICES" "$HOSTS" "$SAVE_SECONDS" "${ARGUMENTS[@]:1}"
command="apt-get update && apt-get install --yes tmux && $train"

copy=$(mktemp -d)
trap 'rm -rf "$copy" "$copy.tar.gz"' EXIT
DRY_RUN='' pack "$copy.tar.gz"
tar -xzf "$copy.tar.gz" -C "$copy"
run xpk workload create --cluster="$CLUSTER" --workload="$run" --tpu-type="$ACCELERATOR_TYPE" \
  --zone="$ZONE" ${PROJECT:+"--project=$PROJECT"} --max-restarts="$MAX_FAILURES" \
  --base-docker-image=google/cloud-sdk:slim --script-dir="$copy" --command="$command"
