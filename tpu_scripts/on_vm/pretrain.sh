#!/usr/bin/env bash
# Runs on each worker, as a job. pretrain.sh RUN BUCKET HOSTS SAVE_SECONDS ARGUMENT...
#
# A checkpoint in the bucket is one object, BUCKET/runs/RUN/<step>.tar: the run folder with this
# checkpoint alone. An object is complete or absent, so a VM that is preempted in the middle leaves
# nothing half-written. Only host 0 writes checkpoints; the others have nothing to save.
#
# Status 0 means that the run is at its last step, 143 that a SIGTERM stopped it and it has saved, and
# 2 that the same command would fail again; after any other it is started again, too.

set -euo pipefail
run=$1 bucket=$2 hosts=$3 save_seconds=$4
shift 4
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tpu_scripts/on_vm/bucket.sh
. tpu_scripts/on_vm/bucket.sh
job=jobs/pretrain-$run
saved=$job/saved # an empty file for each step in the bucket that this job saw here
mkdir -p "$saved" runs stores
log_name=$(date +%Y%m%d-%H%M%S)-$(hostname).log

stop() {
  echo "pretrain.sh: $2"
  exit "$1"
}

# Ends the job if the disk cannot hold the stores that are fetched, and a run of BERT-base: three
# checkpoints, a fourth in the making, and the archive of one, of 1.5 GB each.
require_room() {
  local argument folder bytes=0 kib=7500000
  [[ ! -d runs/$run ]] || kib=0
  for argument in "$@"; do
    [[ $argument == --config.data.store=* ]] || continue
    while read -r folder; do
      [[ ! -d $folder ]] || continue
      bytes=$(gcloud storage du --summarize "$bucket/$folder") || stop 1 "$bucket/$folder is not there, or the bucket did not answer"
      kib=$((kib + ${bytes%% *} / 1024))
    done < <(named_stores "${argument#*=}")
  done
  bash tpu_scripts/on_vm/room.sh "$kib" "the stores and the run"
}

# fetch_store FOLDER: from the bucket, unless it is here. It is fetched twice if it is not whole.
fetch_store() {
  local attempt
  [[ ! -d $1 ]] || return 0
  for attempt in first second; do
    mkdir -p "$1.partial"
    gcloud storage rsync --recursive "$bucket/$1" "$1.partial" || stop 1 "$1 was not fetched"
    if .venv/bin/cocondenser verify --store="$1.partial"; then
      mv "$1.partial" "$1"
      return
    fi
    echo "the $attempt copy of $bucket/$1 is not whole"
    rm -r "$1.partial"
  done
  stop 2 "$bucket/$1 is not whole: build it again, or copy it again with \`corpus.sh ${1#stores/}\`"
}

# named_stores VALUE: prints the folders in a data.store such as stores/wikipedia,2*stores/books.
# Those elsewhere stay where they are.
named_stores() {
  local folder folders
  IFS=, read -ra folders <<<"$1"
  for folder in "${folders[@]}"; do
    [[ ! $folder =~ ^[0-9.]+\*(.+)$ ]] || folder=${BASH_REMATCH[1]}
    [[ $folder != stores/* ]] || echo "$folder"
  done
}

fetch_stores() {
  local folder folders
  mapfile -t folders < <(named_stores "$1")
  for folder in ${folders[@]+"${folders[@]}"}; do
    fetch_store "$folder"
  done
}

# is_whole FOLDER: whether a checkpoint has checksums, and every file has its own.
is_whole() {
  .venv/bin/python -c 'import sys
from pathlib import Path
from cocondenser_jax.files.runs import require_intact
require_intact(Path(sys.argv[1]))' "$1"
}

# fetch_run FOLDER: the newest whole checkpoint in the bucket, unless there is a run here. One that
# is not whole is fetched twice. Without an answer from the bucket the job ends: to take an older
# one, or none, would repeat what was computed.
fetch_run() {
  local steps step attempt
  [[ ! -d $1 ]] || return 0
  steps=$(gcloud storage ls "$bucket/$1/**" | sed -n 's|.*/\([0-9]*\)\.tar$|\1|p' | sort -nr) ||
    stop 1 "cannot list $bucket/$1"
  for step in $steps; do
    for attempt in first second; do
      echo "fetching step $step of $1"
      gcloud storage cp "$bucket/$1/$step.tar" "$job/fetched.tar" ||
        stop 1 "$bucket/$1/$step.tar was not fetched"
      rm -rf "$1.partial"
      mkdir -p "$1.partial"
      if tar -xf "$job/fetched.tar" -C "$1.partial" && is_whole "$1.partial/checkpoints/$step"; then
        rm "$job/fetched.tar"
        mv "$1.partial" "$1"
        [[ $1 != "runs/$run" ]] || touch "$saved/$step"
        return
      fi
      echo "the $attempt copy of step $step is not whole"
    done
  done
  [[ -z $steps ]] || stop 2 "no checkpoint in $bucket/$1 is whole"
}

# Prints the newest step of the run, or nothing. A checkpoint is renamed when it is complete.
newest_step() {
  [[ -d runs/$run/checkpoints ]] || return 0
  find "runs/$run/checkpoints" -maxdepth 1 -name '[0-9]*' -not -name '*[^0-9]*' -printf '%f\n' |
    sort -n | tail -n 1
}

# Copies the newest checkpoint to the bucket.
save_newest() {
  local step archive=$job/saved.tar
  step=$(newest_step)
  [[ -n $step && ! -e $saved/$step ]] || return 0
  # Status 1: a file grew meanwhile, as the metrics do; resuming cuts them back to the checkpoint.
  tar -cf "$archive" -C "runs/$run" --exclude=./checkpoints . ||
    [[ $? -eq 1 ]] || return
  tar -rf "$archive" -C "runs/$run" "./checkpoints/$step" || return
  gcloud storage cp "$archive" "$bucket/runs/$run/$step.tar" || return
  rm "$archive"
  touch "$saved/$step"
}

# Copies the log and the newest checkpoint to the bucket, and removes there what pretrain removed
# here: it does so after the newest checkpoint is whole, so perhaps after that was copied. The newest
# copy stays: while it was made, pretrain may have removed what it is of.
save() {
  local mark step newest
  gcloud storage cp "$job/log" "$bucket/runs/$run/logs/$log_name" || return
  save_newest || return
  newest=$(find "$saved" -name '[0-9]*' -printf '%f\n' | sort -n | tail -n 1)
  for mark in "$saved"/[0-9]*; do
    step=${mark##*/}
    [[ -e $mark && $step != "$newest" && ! -d runs/$run/checkpoints/$step ]] || continue
    # An old checkpoint that stays in the bucket does no harm; the next save tries again.
    gcloud storage rm "$bucket/runs/$run/$step.tar" && rm "$mark"
  done
  return 0
}

require_writable "$bucket"
require_room "$@"
for argument in "$@"; do
  case $argument in
    --config.data.store=*) fetch_stores "${argument#*=}" ;;
    --config.warm_start=runs/*) fetch_run "${argument#*=}" ;;
  esac
done
fetch_run "runs/$run"

export JAX_COMPILATION_CACHE_DIR=$PWD/compiled # a run that restarts compiles nothing
several=()
[[ $hosts -eq 1 ]] || several=(--coordinator=auto)
.venv/bin/cocondenser pretrain --workdir="runs/$run" ${several[@]+"${several[@]}"} "$@" &
training=$!
unsaved=0 # saves in a row that failed
while kill -0 "$training" 2>/dev/null; do
  sleep "$save_seconds"
  if save; then
    unsaved=0
    continue
  fi
  unsaved=$((unsaved + 1))
  if [[ $unsaved -eq 5 ]]; then
    echo "saving failed five times in a row: stopping the run"
    kill -TERM "$training" 2>/dev/null || true
    break
  fi
  echo "saving failed; trying again in $save_seconds seconds"
done
status=0
wait "$training" || status=$?
if ! save; then
  [[ $status -eq 2 ]] || status=1
  echo "pretrain.sh: the newest checkpoint was not copied to $bucket"
  require_writable "$bucket" || [[ $? -ne 2 ]] || status=2
fi
exit "$status"
