#!/usr/bin/env bash
# Builds a token store on the TPU VM, in stores/NAME, and copies it to the bucket.
#
#   corpus.sh wiki --source=articles.jsonl.xz --tokenizer=bert-base-uncased --max_tokens=128
#   corpus.sh wiki --source=gs://bucket/articles --tokenizer=gs://bucket/tokenizer
#   corpus.sh wiki                               only copies the existing store
#
# What follows the name goes to `cocondenser corpus` on worker 0. A source or tokenizer that is a
# file or folder here, or in a bucket, is copied to the VM first; others (hf:, tfds:, names on the
# hub) are fetched by the VM. It runs in tmux there: after a lost connection, see status.sh.
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_flags "$@"
need_name "the store's name"
[[ -z $BUCKET ]] || need_bucket
store=${ARGUMENTS[0]}

# put_on_vm KIND VALUE: prints what VALUE is called on the VM.
put_on_vm() {
  local folder=uploads/$1 from=$2
  if [[ $from == gs://* ]]; then
    on_vm 0 mkdir -p "$VM_FOLDER/$folder" >&2
    on_vm 0 gcloud storage cp --recursive "$from" "$VM_FOLDER/$folder/" >&2
  elif [[ -e $from ]]; then
    on_vm 0 mkdir -p "$VM_FOLDER/$folder" >&2
    tpu tpu-vm scp "$from" "$TPU_NAME:$VM_FOLDER/$folder/" --recurse --worker=0 >&2
  else
    printf '%s' "$from" && return
  fi
  printf '%s/%s' "$folder" "$(basename "$from")"
}

words=()
for argument in "${ARGUMENTS[@]:1}"; do
  case $argument in
    --source=*) argument=--source=$(put_on_vm source "${argument#*=}") ;;
    --tokenizer=*) argument=--tokenizer=$(put_on_vm tokenizer "${argument#*=}") ;;
  esac
  words+=("$argument")
done
job 0 start "corpus-$store" \
  bash tpu_scripts/on_vm/corpus.sh "$store" "$BUCKET" ${words[@]+"${words[@]}"}
[[ ! $DRY_RUN ]] || exit 0

while state=$(job 0 state "corpus-$store" || echo running) && [[ $state == running ]]; do
  vm=$(vm_state || echo READY) # no answer is not yet a lost VM
  [[ $vm == READY ]] || fail "$TPU_NAME is $vm"
  sleep "$POLL_SECONDS"
done
job 0 log "corpus-$store" 20 || true
[[ $state == 0 ]] || fail "the store was not built ($state)"
