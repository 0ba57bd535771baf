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

if [[ $DRY_RUN ]]; then
  if is_queued; then delete_request; else delete_vm; fi
  exit
fi
# Both are looked for: PROVISIONING may be another than when it was created.
request=$(patiently request_state)
vm=$(patiently vm_state)
if [[ $request != GONE ]]; then
  delete_request
elif [[ $vm != GONE ]]; then
  delete_vm
else
  zone=$(patiently elsewhere)
  [[ ! $zone ]] || fail "$TPU_NAME is in $zone, not in $ZONE: ZONE=$zone delete.sh"
  fail "no VM and no request is called $TPU_NAME in $ZONE"
fi
