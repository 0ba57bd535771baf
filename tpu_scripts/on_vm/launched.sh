#!/usr/bin/env bash
# Runs on each host, where a launcher (SkyPilot, xpk) starts it and starts it again after a failure.
# launched.sh RUN BUCKET PYTHON_VERSION EXTRAS DEVICES HOSTS SAVE_SECONDS ARGUMENT...
#
# Does what setup.sh and pretrain.sh do from another machine: installs, notes the command in the
# bucket, without which the run counts as one that cannot be listed, and trains.

set -euo pipefail
run=$1 bucket=$2 python_version=$3 extras=$4 devices=$5 hosts=$6 save_seconds=$7
shift 7
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
job=jobs/pretrain-$run

bash tpu_scripts/on_vm/setup.sh "$python_version" "$devices" "$hosts" "$bucket" \
  "$extras"
mkdir -p "$job"
printf '%q ' pretrain.sh "$run" "$@" >"$job/command.txt"
gcloud storage cp "$job/command.txt" "$bucket/runs/$run/command.txt"
bash tpu_scripts/on_vm/pretrain.sh "$run" "$bucket" "$hosts" "$save_seconds" "$@" 2>&1 |
  tee -a "$job/log"
