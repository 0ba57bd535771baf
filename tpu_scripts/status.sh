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
request=$(request_state) || fail "no answer from gcloud"
[[ $request == GONE ]] || echo "request $TPU_NAME: $request"
if [[ $state == GONE && $request == GONE ]]; then
  zone=$(elsewhere) || fail "no answer from gcloud"
  [[ ! $zone ]] || say "$TPU_NAME is in $zone, not in $ZONE: ZONE=$zone status.sh"
fi
if [[ $state == READY || $DRY_RUN ]]; then
  # shellcheck disable=SC2016 # it is expanded there
  on_vm all bash -c 'if [[ -e $1/.venv/ready ]]; then
      bash "$1/tpu_scripts/on_vm/job.sh" list
    else
      echo "not set up yet"
    fi' list "$VM_FOLDER" || say "no answer from $TPU_NAME"
fi
if [[ $BUCKET ]]; then
  status=0
  { error=$(run gcloud storage ls --long --recursive "$BUCKET/runs/" 2>&1 >&4) || status=1; } 4>&1
  if [[ $status -eq 1 && $error == *"matched no objects"* ]]; then
    say "no runs in $BUCKET"
  elif [[ $status -eq 1 ]]; then
    printf '%s\n' "$error" >&2
    fail "cannot list $BUCKET/runs"
  fi
fi
