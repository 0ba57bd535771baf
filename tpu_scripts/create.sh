#!/usr/bin/env bash
# Creates the TPU VM and waits until it is ready.
#
#   BUCKET=gs://... create.sh                    on demand
#   PROVISIONING=spot create.sh                  cheaper, but may be preempted at any time
#   PROVISIONING=queued create.sh                waits in the queue for machines
#   PROVISIONING=queued-spot create.sh           both
#
# Called again it waits on, or does nothing. A VM that was preempted is deleted and created again.
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_no_arguments "$@"

size=("--accelerator-type=$ACCELERATOR_TYPE")
case $PROVISIONING in
  on-demand | queued) ;;
  spot | queued-spot) size+=(--spot) ;;
  *) fail "PROVISIONING is '$PROVISIONING': expected on-demand, spot, queued or queued-spot" ;;
esac

create() {
  if is_queued; then
    tpu queued-resources create "$TPU_NAME" --node-id="$TPU_NAME" "${size[@]}" \
      --runtime-version="$RUNTIME_VERSION"
  else
    tpu tpu-vm create "$TPU_NAME" "${size[@]}" --version="$RUNTIME_VERSION"
  fi
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
  STOPPED) tpu tpu-vm start "$TPU_NAME" ;;
esac
[[ ! $DRY_RUN ]] || exit 0

while true; do
  state=$(patiently look)
  case $state in
    READY) break ;;
    GONE | PREEMPTED | TERMINATED | SUSPENDED | FAILED | STOPPED) fail "$TPU_NAME is $state" ;;
  esac
  say "$TPU_NAME is $state"
  sleep "$POLL_SECONDS"
done
say "$TPU_NAME is ready"
