#!/usr/bin/env bash
# Installs this copy of the project on all workers of the TPU VM, with Python and libtpu, and counts
# the devices that JAX sees.
#
#   setup.sh
#
# Call it again after a change here. --dry-run shows the commands and runs none. All settings:
# env.sh.

set -euo pipefail
# shellcheck source=tpu_scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
take_no_arguments "$@"

archive=$(mktemp -d)/$VM_FOLDER.tar.gz
trap 'rm -r "${archive%/*}"' EXIT
run tar -czf "$archive" --exclude=__pycache__ -C "$here/.." "${PROJECT_FILES[@]}"
tpu tpu-vm scp "$archive" "$TPU_NAME:" --worker=all
on_vm all mkdir -p "$VM_FOLDER"
on_vm all tar -xzf "$VM_FOLDER.tar.gz" -C "$VM_FOLDER"
on_vm all bash "$VM_FOLDER/tpu_scripts/on_vm/setup.sh" "$PYTHON_VERSION" "$DEVICES" "$HOSTS"
