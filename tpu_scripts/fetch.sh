#!/usr/bin/env bash
# Fetches a checkpoint from the bucket and converts it to a Hugging Face folder. Needs no VM.
#
#   fetch.sh cocondenser       the newest, to runs/cocondenser and runs/cocondenser-model
#   fetch.sh cocondenser --step=20000 --workdir=runs/at-20000 --out=model-20000
#
# Needs this project installed here, and `cocondenser` on the PATH.
# --dry-run shows the commands and runs none. All settings: env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_flags "$@"
need_name "the run's name"
need_bucket
run=${ARGUMENTS[0]}
step='' workdir=runs/$run out=''
for argument in "${ARGUMENTS[@]:1}"; do
  case $argument in
    --step=*) step=${argument#*=} ;;
    --workdir=*) workdir=${argument#*=} ;;
    --out=*) out=${argument#*=} ;;
    *) fail "unknown argument $argument (see --help)" ;;
  esac
done
out=${out:-$workdir-model}
for folder in "$workdir" "$out"; do
  [[ ! -e $folder ]] || fail "$folder already exists: give --workdir and --out, or remove it first"
done

if [[ -z $step && $DRY_RUN ]]; then
  show gcloud storage ls "$BUCKET/runs/$run/**"
  step=STEP
elif [[ -z $step ]]; then
  step=$(gcloud storage ls "$BUCKET/runs/$run/**" | sed -n 's|.*/\([0-9]*\)\.tar$|\1|p' |
    sort -n | tail -n 1) || fail "cannot list $BUCKET/runs/$run"
  [[ -n $step ]] || fail "$BUCKET/runs/$run holds no checkpoint yet"
fi
archive=$(mktemp -d)/$step.tar
partial=$workdir.partial # a run folder only once its checkpoint was read whole
trap 'rm -rf "${archive%/*}" "$partial"' EXIT
run gcloud storage cp "$BUCKET/runs/$run/$step.tar" "$archive" ||
  fail "$BUCKET/runs/$run/$step.tar was not copied"
run rm -rf "$partial"
run mkdir -p "$partial"
run tar -x -f "$archive" -C "$partial" || fail "$BUCKET/runs/$run/$step.tar is damaged"
run cocondenser convert --run_dir="$partial" --out="$out" ||
  fail "$BUCKET/runs/$run/$step.tar was not converted"
run mv "$partial" "$workdir"
