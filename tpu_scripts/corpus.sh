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
job=corpus-$store

# put_on_vm KIND VALUE: prints what VALUE is called on the VM. Bash does not end a $(...) at a
# command that fails, and would build the store from half of its source: hence each `|| fail`.
put_on_vm() {
  local folder=uploads/${store//[^A-Za-z0-9._-]/_}/$1 from=$2
  if [[ $from == gs://* ]]; then
    on_vm 0 mkdir -p "$VM_FOLDER/$folder" >&2 || fail "no answer from $TPU_NAME"
    on_vm 0 gcloud storage cp --recursive "$from" "$VM_FOLDER/$folder/" >&2 ||
      fail "$from was not copied to $TPU_NAME"
  elif [[ -e $from ]]; then
    on_vm 0 mkdir -p "$VM_FOLDER/$folder" >&2 || fail "no answer from $TPU_NAME"
    tpu tpu-vm scp "$from" "$TPU_NAME:$VM_FOLDER/$folder/" --recurse --worker=0 >&2 ||
      fail "$from was not copied to $TPU_NAME"
  else
    printf '%s' "$from" && return
  fi
  printf '%s/%s' "$folder" "$(basename "$from")"
}

# Asked before anything is copied: a job that runs reads its source.
if [[ ! $DRY_RUN ]]; then
  state=$(patiently look_at "$job")
  [[ $state != running ]] || fail "$job is already running: see status.sh"
  [[ $state != [A-Z]* ]] || fail "$TPU_NAME is $state: see create.sh"
fi

words=()
for argument in "${ARGUMENTS[@]:1}"; do
  case $argument in
    --source=*) argument=--source=$(put_on_vm source "${argument#*=}") ;;
    --tokenizer=*) argument=--tokenizer=$(put_on_vm tokenizer "${argument#*=}") ;;
  esac
  words+=("$argument")
done
job 0 start "$job" bash tpu_scripts/on_vm/corpus.sh "$store" "$BUCKET" \
  ${words[@]+"${words[@]}"} || fail "$job was not started"
[[ ! $DRY_RUN ]] || exit 0

wait_for "$job"
[[ $state == 0 ]] || fail "$job failed ($state)"
