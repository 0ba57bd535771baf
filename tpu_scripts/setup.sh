#!/usr/bin/env bash
# Installs this copy of the project on all workers of the TPU VM, with Python and libtpu, gives their
# jobs WANDB_API_KEY and HF_TOKEN, and sees whether they can write to BUCKET and how many devices JAX
# has.
#
#   setup.sh
#
# Call it again after a change here. --dry-run shows the commands and runs none. All settings:
# env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_no_arguments "$@"

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
pack "$folder/project.tar.gz"
# By a builtin, into a file of this user's: no list of processes and no log shows them.
(
  umask 077
  for name in WANDB_API_KEY HF_TOKEN; do
    [[ ! ${!name} ]] || printf 'export %s=%q\n' "$name" "${!name}"
  done >"$folder/secrets.sh"
)
copy_to_vm all "$folder/project.tar.gz" "$folder/secrets.sh" ""
on_vm all mkdir -p "$VM_FOLDER"
on_vm all mv secrets.sh "$VM_FOLDER/secrets.sh"
on_vm all tar -xzf project.tar.gz -C "$VM_FOLDER"
on_vm all bash "$VM_FOLDER/tpu_scripts/on_vm/setup.sh" "$PYTHON_VERSION" "$DEVICES" "$HOSTS" \
  "$BUCKET" "$EXTRAS"
