#!/usr/bin/env bash
# Builds a token store on the TPU VM, in stores/NAME, and copies it to the bucket.
#
#   corpus.sh wiki --corpus=articles.jsonl.xz --tokenizer=bert-base-uncased --max_length=128
#   corpus.sh wiki --corpus=gs://bucket/articles --tokenizer=gs://bucket/tokenizer
#   corpus.sh wiki                               only copies the existing store
#
# What follows the name goes to `cocondenser corpus` on worker 0. A corpus or tokenizer that is a
# file or folder here, or in a bucket, is copied to the VM first; others (hf:, tfds:, names on the
# hub) are fetched by the VM. What was copied is deleted there once the store is complete. It runs in
# tmux: after a lost connection, see status.sh.
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_flags "$@"
need_name "the store's name"
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
    copy_to_vm 0 "$from" "$VM_FOLDER/$folder/" >&2 ||
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

# size_of VALUE: prints how many KiB a file or folder has, here or in a bucket; 0 for others.
size_of() {
  if [[ $1 == gs://* ]]; then
    run gcloud storage du --summarize "$1" | awk '{ print int($1 / 1024) }'
  elif [[ -e $1 ]]; then
    du -sk "$1" | awk '{ print $1 }'
  else
    echo 0
  fi
}

# The upload and its store, with a margin: 1.3 bytes a byte of text, 3 if it is compressed.
kib=0
for argument in "${ARGUMENTS[@]:1}"; do
  [[ $argument == --corpus=* ]] || continue
  corpus_kib=$(size_of "${argument#*=}") || fail "no answer about ${argument#*=}"
  case $argument in
    *.gz | *.xz | *.zst) kib=$((kib + 4 * ${corpus_kib:-0})) ;;
    *) kib=$((kib + 2 * ${corpus_kib:-0})) ;;
  esac
done
[[ $kib -eq 0 ]] || on_vm 0 bash "$VM_FOLDER/tpu_scripts/on_vm/room.sh" "$kib" "$store's text and store" ||
  fail "$store was not copied to $TPU_NAME"

words=()
for argument in "${ARGUMENTS[@]:1}"; do
  case $argument in
    --corpus=*) argument=--corpus=$(put_on_vm corpus "${argument#*=}") ;;
    --tokenizer=*) argument=--tokenizer=$(put_on_vm tokenizer "${argument#*=}") ;;
  esac
  words+=("$argument")
done
job 0 start "$job" bash tpu_scripts/on_vm/corpus.sh "$store" "$BUCKET" \
  ${words[@]+"${words[@]}"} || fail "$job was not started"
[[ ! $DRY_RUN ]] || exit 0

wait_for "$job"
[[ $state == 0 ]] || fail "$job failed ($state)"
