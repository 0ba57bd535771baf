# shellcheck shell=bash
# What the scripts share: settings, flags, --dry-run, and commands on the VM.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
given=$(export -p)
# shellcheck disable=SC1091 # each user has their own, if any
[[ ! -e $here/env.local.sh ]] || . "$here/env.local.sh"
eval "$given" # the environment is stronger
# shellcheck source=tpu_scripts/env.sh
. "$here/env.sh"
# shellcheck source=tpu_scripts/gcloud.sh
. "$here/gcloud.sh"
export DRY_RUN=${DRY_RUN:-}
exec 3>&1 # where commands are shown, also from within $(...)

fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 2
}

# find_machine: sets what is not given of the machine from its row in env.sh, and ZONES. Without a row
# all of it must be given.
find_machine() {
  local name type runtime machine devices hosts zones names='' all=1 setting
  ZONES=$ZONE
  while read -r name type runtime machine devices hosts zones; do
    [[ $name ]] || continue
    names+=", $name"
    [[ $TPU == "$name" || $TPU == "$type" ]] || continue
    ACCELERATOR_TYPE=${ACCELERATOR_TYPE:-$type}
    RUNTIME_VERSION=${RUNTIME_VERSION:-$runtime}
    MACHINE_TYPE=${MACHINE_TYPE:-$machine}
    DEVICES=${DEVICES:-$devices} HOSTS=${HOSTS:-$hosts}
    ZONE=${ZONE:-${zones%% *}} ZONES=$zones
  done <<<"$MACHINES"
  for setting in DEVICES HOSTS ZONE; do
    [[ ${!setting} ]] || all=''
  done
  [[ $MACHINE_TYPE || ($ACCELERATOR_TYPE && $RUNTIME_VERSION) ]] || all=''
  [[ $all ]] || fail "TPU is '$TPU': expected one of ${names#, }; for another give ACCELERATOR_TYPE," \
    "RUNTIME_VERSION, DEVICES, HOSTS and ZONE"
}

# Ends with one line if settings are not what the scripts can use, or do not go together.
check_settings() {
  find_machine
  read -ra CREATE_WORDS <<<"$CREATE_FLAGS"
  read -ra SSH_WORDS <<<"$SSH_FLAGS"
  [[ $DEVICES$HOSTS =~ ^[0-9]+$ ]] || fail "DEVICES is '$DEVICES', HOSTS '$HOSTS': expected numbers"
  case $PROVISIONING in
    on-demand | spot | queued | queued-spot) ;;
    *) fail "PROVISIONING is '$PROVISIONING': expected on-demand, spot, queued or queued-spot" ;;
  esac
  case $GCLOUD_API in
    tpu) ;;
    compute)
      [[ $MACHINE_TYPE != - ]] ||
        fail "Compute Engine has no $TPU: expected GCLOUD_API=tpu, or TPU=v5e-8, v5p-8 or v6e-8"
      [[ $HOSTS -eq 1 ]] || fail "HOSTS is $HOSTS: expected GCLOUD_API=tpu for more than one host"
      [[ $PROVISIONING != queued-spot ]] ||
        fail "Compute Engine has no queue for spot VMs: expected PROVISIONING=queued or spot"
      ;;
    *) fail "GCLOUD_API is '$GCLOUD_API': expected tpu or compute" ;;
  esac
  [[ -z $BUCKET || $BUCKET == gs://?* ]] || fail "BUCKET is '$BUCKET': expected gs://NAME, see env.sh"
  BUCKET=${BUCKET%/}
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
  check_settings
}

take_no_arguments() {
  take_flags "$@"
  [[ ${#ARGUMENTS[@]} -eq 0 ]] || fail "unknown argument ${ARGUMENTS[0]} (see --help)"
}

need_bucket() { [[ $BUCKET ]] || fail "BUCKET is '': expected gs://NAME, see env.sh"; }

show() {
  printf '%q ' "$@" >&3
  printf '\n' >&3
}

# Runs a command, or with --dry-run shows it.
run() { if [[ $DRY_RUN ]]; then show "$@"; else "$@"; fi; }

# on_vm WORKERS COMMAND...: runs a command on worker 0, or on all. ssh joins the words with spaces
# and a shell there splits them again, so they are quoted once more.
on_vm() {
  local workers=$1 command
  shift
  printf -v command '%q ' "$@"
  ssh_vm "$workers" "$command"
}

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

# The folder of this project on the VM: stores/, runs/ and jobs/ lie in it too.
VM_FOLDER=cocondenser_jax
PROJECT_FILES=(cocondenser_jax configs benchmarks checks tpu_scripts Makefile setup.py
  constraints.txt README.md LICENSE)

# pack FILE: writes what of the project a VM needs; of the settings none, for there may be secrets.
pack() {
  run tar -czf "$1" --exclude=__pycache__ --exclude=env.local.sh -C "$here/.." "${PROJECT_FILES[@]}"
}

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
