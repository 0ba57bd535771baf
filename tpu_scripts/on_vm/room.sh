#!/usr/bin/env bash
# Runs on worker 0. room.sh KIB WHAT: status 2 and one line unless the disk has room for it.

set -euo pipefail
free=$(df -Pk "$(dirname "${BASH_SOURCE[0]}")" | awk 'END { print $4 }')
[[ $free -ge $1 ]] && exit
echo "$2 need $(($1 / 1000000 + 1)) GB of the disk, $((free / 1000000)) are free: see \"Disk\" in tpu_scripts/README.md"
exit 2
