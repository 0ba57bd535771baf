#!/usr/bin/env bash
# Deletes the TPU VM and its queued request, if any, without asking.
#
#   delete.sh
#
# The bucket stays; stores and runs that are only on the VM are lost.
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_no_arguments "$@"

if is_queued; then
  tpu queued-resources delete "$TPU_NAME" --force
else
  tpu tpu-vm delete "$TPU_NAME"
fi
