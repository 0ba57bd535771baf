#!/usr/bin/env bash
# Commands that outlive the connection: in tmux, with a log.
#
#   job.sh start NAME COMMAND...   starts it; fails if it is running
#   job.sh state NAME              prints absent, running, lost, or its exit status
#   job.sh log NAME LINES          prints the end of its log
#   job.sh list                    prints name, state and last line of each
#
# jobs/NAME/ holds the log and, at the end, the exit status.

set -euo pipefail
self=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/job.sh
cd "$(dirname "$self")/../.."

state() {
  local folder=jobs/$1
  if [[ ! -d $folder ]]; then
    echo absent
  elif [[ -f $folder/status ]]; then
    cat "$folder/status"
  elif tmux has-session -t "=$(session "$1")" 2>/dev/null; then
    echo running
  elif [[ -f $folder/status ]]; then
    cat "$folder/status" # it ended since the first look
  else
    echo lost # the machine was restarted
  fi
}

# Some characters have a meaning in tmux.
session() { printf '%s' "${1//[^A-Za-z0-9_-]/_}"; }

action=$1 name=${2:-}
case $action in
  start)
    if [[ $(state "$name") == running ]]; then
      echo "$name is already running" >&2
      exit 2
    fi
    mkdir -p "jobs/$name"
    rm -f "jobs/$name/status"
    tmux new-session -d -s "$(session "$name")" bash "$self" work "${@:2}"
    ;;
  work)
    exec >>"jobs/$name/log" 2>&1
    # shellcheck disable=SC1091 # WANDB_API_KEY and HF_TOKEN, where setup.sh was given them
    [[ ! -e secrets.sh ]] || . ./secrets.sh
    status=0
    "${@:3}" || status=$?
    echo "$status" >"jobs/$name/status.partial"
    mv "jobs/$name/status.partial" "jobs/$name/status"
    ;;
  state) state "$name" ;;
  log) tail -n "$3" "jobs/$name/log" ;;
  list)
    for folder in jobs/*/; do
      [[ -d $folder ]] || continue
      name=$(basename "$folder")
      printf '%s  %s: %s  %s\n' "$(hostname)" "$name" "$(state "$name")" \
        "$(tail -n 1 "$folder/log" 2>/dev/null)"
    done
    ;;
esac
