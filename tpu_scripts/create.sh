#!/usr/bin/env bash
# Creates the TPU VM and waits until it is ready.
#
#   create.sh                                    a v3-8, on demand
#   TPU=v4-32 create.sh                          another row of the table in env.sh
#   PROVISIONING=spot create.sh                  cheaper, but may be preempted at any time
#   PROVISIONING=queued create.sh                waits in the queue for machines
#   PROVISIONING=queued-spot create.sh           both
#
# Called again it waits on, or does nothing. A VM that was preempted is deleted and created again.
# Status 2: it would fail again (settings, quota); 1: it may be there later.
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_no_arguments "$@"

# Creates it. Status 2 if another attempt would fail, too.
create() {
  local error status=0 zone
  zone=$(elsewhere) || fail "no answer from gcloud"
  [[ ! $zone ]] || fail "$TPU_NAME is in $zone already: use it there (ZONE=$zone), or delete it first"
  [[ " $ZONES " == *" $ZONE "* ]] || say "Google's list has $TPU in $ZONES, not in $ZONE"
  { error=$(create_vm 2>&1 >&4 | tee /dev/stderr) || status=$?; } 4>&1
  case $error in
    *"Quota '"*exceeded* | *"Quota limit '"*exceeded*)
      fail "the project's quota in $ZONE is less than $TPU ($PROVISIONING): ask for more at" \
        "https://console.cloud.google.com/iam-admin/quotas, or try another ZONE: $ZONES"
      ;;
    *INVALID_ARGUMENT* | *PERMISSION_DENIED* | *"Invalid value for field"*)
      [[ $status -eq 0 ]] || fail "$TPU_NAME cannot be created: gcloud says why"
      ;;
  esac
  [[ $status -eq 0 ]] || exit "$status"
}

# The state of the VM, or of the request for it while there is no VM yet.
look() {
  local state
  state=$(vm_state) || return
  if [[ $state == GONE ]] && is_queued; then
    state=$(request_state) || return
  fi
  echo "$state"
}

state=$(patiently look)
case $state in
  PREEMPTED | TERMINATED | SUSPENDED | FAILED)
    say "$TPU_NAME is $state: creating it again"
    "$here/delete.sh"
    create
    ;;
  GONE) create ;;
  STOPPED) start_vm ;;
esac
[[ ! $DRY_RUN ]] || exit 0

while true; do
  state=$(patiently look)
  case $state in
    READY) break ;;
    GONE | PREEMPTED | TERMINATED | SUSPENDED | FAILED | STOPPED)
      say "$TPU_NAME is $state"
      exit 1
      ;;
  esac
  say "$TPU_NAME is $state"
  sleep "$POLL_SECONDS"
done
# Compute Engine calls a VM running before its ssh answers.
[[ $GCLOUD_API != compute ]] || patiently on_vm all true
say "$TPU_NAME is ready"
