#!/usr/bin/env bash
# Shows the state of the TPU VM, its jobs, and the contents of the bucket.
#
#   status.sh
#
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_no_arguments "$@"

state=$(vm_state) || fail "no answer from gcloud"
echo "VM $TPU_NAME: $state"
if is_queued; then
  echo "request $TPU_NAME: $(request_state)"
fi
if [[ $state == READY || $DRY_RUN ]]; then
  job all list || say "not set up yet"
fi
if [[ $BUCKET ]]; then
  need_bucket
  run gcloud storage ls --long --recursive "$BUCKET/runs/" || say "no runs in $BUCKET"
fi
