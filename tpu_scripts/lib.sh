# shellcheck shell=bash
# What the scripts share: flags, --dry-run, and gcloud with its usual arguments.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tpu_scripts/env.sh
. "$here/env.sh"
export DRY_RUN=${DRY_RUN:-}
exec 3>&1 # where commands are shown, also from within $(...)

fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 2
}

# need_name WHAT: the first of ARGUMENTS must be a name.
need_name() {
  [[ ${#ARGUMENTS[@]} -ge 1 && ${ARGUMENTS[0]} != -* ]] || fail "expected $1 first (see --help)"
}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# Answers --help with the head of the script, reads --dry-run, puts all else into ARGUMENTS.
take_flags() {
  local argument
  ARGUMENTS=()
  for argument in "$@"; do
    case $argument in
      --help | -h) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
      --dry-run) DRY_RUN=1 ;;
      *) ARGUMENTS+=("$argument") ;;
    esac
  done
}

take_no_arguments() {
  take_flags "$@"
  [[ ${#ARGUMENTS[@]} -eq 0 ]] || fail "unknown argument ${ARGUMENTS[0]} (see --help)"
}

need_bucket() {
  [[ $BUCKET == gs://* ]] || fail "BUCKET is '$BUCKET': expected gs://NAME, see env.sh"
  BUCKET=${BUCKET%/}
}

show() {
  printf '%q ' "$@" >&3
  printf '\n' >&3
}

# Runs a command, or with --dry-run shows it.
run() { if [[ $DRY_RUN ]]; then show "$@"; else "$@"; fi; }

# Runs `gcloud compute tpus ...` on this project and zone, without questions.
tpu() {
  run gcloud compute tpus "$@" --zone="$ZONE" ${PROJECT:+"--project=$PROJECT"} --quiet
}

# on_vm WORKERS COMMAND...: runs a command on worker 0, or on all. ssh joins the words with spaces
# and a shell there splits them again, so they are quoted once more.
on_vm() {
  local workers=$1 command
  shift
  printf -v command '%q ' "$@"
  # A connection to a VM that was preempted ends after two minutes of silence.
  tpu tpu-vm ssh "$TPU_NAME" --worker="$workers" --command="$command" \
    --ssh-flag=-oServerAliveInterval=30 --ssh-flag=-oServerAliveCountMax=4
}

# state_of KIND FORMAT: prints the state of the VM or of the request for it, GONE if there is none;
# fails if gcloud does not answer. With --dry-run it is always GONE.
state_of() {
  local error status=0
  local words=(compute tpus "$1" describe "$TPU_NAME" "--format=$2" --zone="$ZONE")
  words+=(${PROJECT:+"--project=$PROJECT"})
  if [[ $DRY_RUN ]]; then
    show gcloud "${words[@]}"
    echo GONE
  else
    # Only what it prints to stderr is caught: a notice there is not the state.
    { error=$(gcloud "${words[@]}" 2>&1 >&4) || status=1; } 4>&1
    if [[ $status -eq 1 && $error == *NOT_FOUND* ]]; then
      echo GONE
    elif [[ $status -eq 1 ]]; then
      printf '%s\n' "$error" >&2
      return 1
    fi
  fi
}

vm_state() { state_of tpu-vm 'value(state)'; }

request_state() { state_of queued-resources 'value(state.state)'; }

# patiently COMMAND...: prints what it prints, once it succeeds; fails after MAX_OUTAGES attempts.
patiently() {
  local answer attempt=1
  until answer=$("$@"); do
    [[ $attempt -lt $MAX_OUTAGES ]] || fail "no answer from gcloud or the VM, $attempt times"
    say "no answer from gcloud or the VM: trying again in $POLL_SECONDS seconds"
    attempt=$((attempt + 1))
    sleep "$POLL_SECONDS"
  done
  printf '%s\n' "$answer"
}

is_queued() { [[ $PROVISIONING == queued* ]]; }

# The folder of this project on the VM: stores/, runs/ and jobs/ lie in it too.
VM_FOLDER=cocondenser_jax
# What of the project a VM needs.
# shellcheck disable=SC2034 # it is used in other files
PROJECT_FILES=(cocondenser_jax configs benchmarks checks tpu_scripts Makefile setup.py
  constraints.txt README.md LICENSE)

# job WORKERS ACTION NAME ...: see on_vm/job.sh.
job() {
  local workers=$1
  shift
  on_vm "$workers" bash "$VM_FOLDER/tpu_scripts/on_vm/job.sh" "$@"
}

# look_at JOB: prints the state of a job on worker 0, or of a VM that is not ready, in capitals.
look_at() {
  local vm
  vm=$(vm_state) || return
  if [[ $vm == READY ]]; then
    job 0 state "$1"
  else
    echo "$vm"
  fi
}

# wait_for JOB: waits until it has ended on worker 0; shows the end of its log, and sets `state`.
wait_for() {
  while true; do
    state=$(patiently look_at "$1")
    [[ $state == running ]] || break
    sleep "$POLL_SECONDS"
  done
  [[ $state != [A-Z]* ]] || fail "$TPU_NAME is $state"
  job 0 log "$1" 20 || true
}
