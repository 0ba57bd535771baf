#!/usr/bin/env bash
# Runs on worker 0. corpus.sh STORE BUCKET [ARGUMENTS OF cocondenser corpus]

set -euo pipefail
store=$1 bucket=$2
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tpu_scripts/on_vm/bucket.sh
. tpu_scripts/on_vm/bucket.sh

[[ -z $bucket ]] || require_writable "$bucket"
if [[ $# -gt 0 ]]; then
  .venv/bin/cocondenser corpus --out="stores/$store" "$@"
  rm -rf "uploads/${store//[^A-Za-z0-9._-]/_}"
fi
if [[ -n $bucket ]]; then
  gcloud storage rsync --recursive "stores/$store" "$bucket/stores/$store" || {
    echo "stores/$store was not copied to $bucket: \`corpus.sh $store\` copies it again"
    exit 1
  }
fi
