#!/usr/bin/env bash
# Measures the TPU VM with `make bench-tpu`, and fetches what was measured.
#
#   bench.sh                       everything, to benchmarks/results/tpu.json of this copy
#   bench.sh --out=v5e.json --parts=peak,step
#
# What is not --out goes to benchmarks/accelerator.py. It runs in tmux on a VM of a single host that
# setup.sh has set up; nothing else may use its TPU meanwhile. Called again while it runs, it waits
# on. If a part fails, what the others measured is fetched.
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_flags "$@"
[[ $HOSTS -eq 1 ]] || fail "HOSTS is $HOSTS: expected a TPU of a single host"
job=bench out=$here/../benchmarks/results/tpu.json words=()
for argument in ${ARGUMENTS[@]+"${ARGUMENTS[@]}"}; do
  case $argument in
    --out=*) out=${argument#*=} ;;
    *) words+=("$argument") ;;
  esac
done

state=absent
[[ $DRY_RUN ]] || state=$(patiently look_at "$job")
[[ $state != [A-Z]* ]] || fail "$TPU_NAME is $state: see create.sh"
if [[ $state != running ]]; then
  job 0 start "$job" bash tpu_scripts/on_vm/bench.sh ${words[@]+"${words[@]}"} ||
    fail "$job was not started"
fi
[[ $DRY_RUN ]] || wait_for "$job"
# A name of its own until it is whole.
copy_from_vm "$VM_FOLDER/benchmarks/results/tpu.json" "$out.partial" ||
  fail "nothing was fetched; $job ended with status $state"
run mv "$out.partial" "$out"
[[ $DRY_RUN || $state == 0 ]] || fail "$job failed ($state); $out holds what was measured"
