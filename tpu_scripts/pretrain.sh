#!/usr/bin/env bash
# Pre-trains on all workers of the TPU VM to the end, through preemptions of the VM.
#
#   pretrain.sh condenser --config=configs/condenser.py --config.data.store=stores/wiki
#   pretrain.sh cocondenser --config=configs/cocondenser.py --config.data.store=stores/wiki \
#     --config.warm_start=runs/condenser
#
# What follows the run's name goes to `cocondenser pretrain`. The run lies in runs/NAME on the VM,
# every checkpoint also in BUCKET/runs/NAME. A VM that is absent or was preempted is created and
# set up; a run that stopped resumes from its last checkpoint; stores/... and runs/... that the
# arguments name are fetched from the bucket. It fails on wrong settings, a bucket that the VM may
# not write to, and a quota that is too small; after MAX_FAILURES failures on a running VM, and after
# MAX_OUTAGES questions without an answer or attempts to create the VM. It may be stopped and called
# again: the run continues meanwhile.
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_flags "$@"
need_name "the run's name"
need_bucket
run=${ARGUMENTS[0]}
name=pretrain-$run

start() {
  job all start "$name" bash tpu_scripts/on_vm/pretrain.sh \
    "$run" "$BUCKET" "$HOSTS" "$SAVE_SECONDS" "${ARGUMENTS[@]:1}"
}

# Prints the state of the run: gone (no VM), bare (the VM is not set up), absent (not started),
# running, done, stopped (by a SIGTERM), refused (wrong settings) or failed. Fails without an
# answer.
look() {
  local state states
  state=$(vm_state) || return
  [[ $state == READY ]] || { echo gone && return; }
  # shellcheck disable=SC2016 # it is expanded there
  states=$(on_vm all bash -c 'if [[ -e $1/.venv/ready ]]; then
      bash "$1/tpu_scripts/on_vm/job.sh" state "$2"
    else
      echo bare
    fi' look "$VM_FOLDER" "$name" | sort -u) || return
  case " ${states//$'\n'/ } " in
    *" bare "*) echo bare ;;
    *" running "*) echo running ;;
    *" absent "*) echo absent ;;
    " 0 ") echo "done" ;;
    *" 143 "*)
      # Worker 0 decides: the others keep the run folder that they fetched, at an earlier step.
      if [[ $(job 0 state "$name") == 0 ]]; then echo "done"; else echo stopped; fi
      ;;
    *" 2 "*) echo refused ;;
    *) echo failed ;;
  esac
}

# Counts a failure, unless the VM is lost.
count_failure() {
  [[ $(patiently vm_state) == READY ]] || return 0
  failures=$((failures + 1))
  [[ $failures -lt $MAX_FAILURES ]] || fail "the run failed $failures times"
}

# Copied first: if the run's folder cannot be listed later, the bucket cannot be reached; it does
# not mean that the run is new.
command_file=$(mktemp)
trap 'rm "$command_file"' EXIT
printf '%q ' pretrain.sh "${ARGUMENTS[@]}" >"$command_file"
run gcloud storage cp "$command_file" "$BUCKET/runs/$run/command.txt" ||
  fail "cannot write to $BUCKET/runs/$run"
if [[ $DRY_RUN ]]; then
  "$here/create.sh"
  "$here/setup.sh"
  start
  exit
fi

failures=0 not_created=0 before=1
while true; do
  found=$(patiently look)
  say "$run: $found"
  # What ended before this call may succeed now: with another role, disk or argument.
  [[ ! $before || ($found != refused && $found != failed) ]] || found=stopped
  before=''
  case $found in
    gone)
      ended=0
      "$here/create.sh" || ended=$?
      [[ $ended -ne 0 ]] || { not_created=0 && continue; }
      [[ $ended -ne 2 ]] || fail "$TPU_NAME was not created, and would not be at another attempt"
      not_created=$((not_created + 1))
      [[ $not_created -lt $MAX_OUTAGES ]] || fail "$TPU_NAME was not created, $not_created times"
      ;;
    bare)
      ended=0
      "$here/setup.sh" || ended=$?
      [[ $ended -ne 0 ]] || continue
      [[ $ended -ne 2 ]] || fail "$TPU_NAME cannot train: see the line above"
      count_failure
      ;;
    absent | stopped)
      start && continue
      count_failure
      ;;
    running) ;;
    "done") exit ;;
    refused | failed)
      job all log "$name" 20 || true
      [[ $found == failed ]] || fail "the run was refused: its log, above, says why"
      count_failure
      start || true
      ;;
  esac
  sleep "$POLL_SECONDS"
done
