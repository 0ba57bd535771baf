# shellcheck shell=bash disable=SC2153
# All calls of gcloud about the VM, twice: GCLOUD_API=tpu has Google's older Cloud TPU API, with its
# queue and all TPUs up to v6e; GCLOUD_API=compute has Compute Engine, which Google develops, with a
# single host of v5e, v5p or v6e. The scripts call the functions without a prefix.

# gcloud_here WORDS...: on this project and zone, without questions.
gcloud_here() {
  run gcloud "$@" --zone="$ZONE" ${PROJECT:+"--project=$PROJECT"} --quiet
}

create_vm() { "${GCLOUD_API}_create"; }
start_vm() { "${GCLOUD_API}_start"; }
delete_vm() { "${GCLOUD_API}_delete"; }
delete_request() { "${GCLOUD_API}_delete_request"; } # and its VM

# vm_state, request_state: of the VM and of the queued request for it. GONE if there is none.
vm_state() { "${GCLOUD_API}_state"; }
request_state() { "${GCLOUD_API}_request_state"; }

# ssh_vm WORKERS LINE: runs a line of shell on worker 0, or on all.
ssh_vm() { "${GCLOUD_API}_ssh" "$@"; }
# copy_to_vm WORKERS FILE... FOLDER, copy_from_vm FILE TARGET: FOLDER and FILE on the VM.
copy_to_vm() { "${GCLOUD_API}_copy" "$1" "${@:2:$#-2}" "$TPU_NAME:${!#}"; }
copy_from_vm() { "${GCLOUD_API}_copy" 0 "$TPU_NAME:$1" "$2"; }

# A connection to a VM that was preempted ends after two minutes of silence.
SSH_OPTIONS=(--ssh-flag=-oServerAliveInterval=30 --ssh-flag=-oServerAliveCountMax=4)

# --- The Cloud TPU API

tpu_create() {
  local size=("--accelerator-type=$ACCELERATOR_TYPE")
  [[ $PROVISIONING != *spot ]] || size+=(--spot)
  if is_queued; then
    gcloud_here compute tpus queued-resources create "$TPU_NAME" --node-id="$TPU_NAME" "${size[@]}" \
      --runtime-version="$RUNTIME_VERSION" ${CREATE_WORDS[@]+"${CREATE_WORDS[@]}"}
  else
    gcloud_here compute tpus tpu-vm create "$TPU_NAME" "${size[@]}" \
      --version="$RUNTIME_VERSION" ${CREATE_WORDS[@]+"${CREATE_WORDS[@]}"}
  fi
}

tpu_start() { gcloud_here compute tpus tpu-vm start "$TPU_NAME"; }

tpu_delete() { gcloud_here compute tpus tpu-vm delete "$TPU_NAME"; }

tpu_delete_request() { gcloud_here compute tpus queued-resources delete "$TPU_NAME" --force; }

tpu_state() { ask compute tpus tpu-vm describe "$TPU_NAME" '--format=value(state)'; }

tpu_request_state() {
  ask compute tpus queued-resources describe "$TPU_NAME" '--format=value(state.state)'
}

# Only the alpha track of these two has --tunnel-through-iap.
tpu_track() {
  TRACK=()
  [[ $SSH_FLAGS != *--tunnel-through-iap* ]] || TRACK=(alpha)
}

tpu_ssh() {
  tpu_track
  gcloud_here ${TRACK[@]+"${TRACK[@]}"} compute tpus tpu-vm ssh "$TPU_NAME" --worker="$1" \
    --command="$2" "${SSH_OPTIONS[@]}" ${SSH_WORDS[@]+"${SSH_WORDS[@]}"}
}

tpu_copy() {
  tpu_track
  gcloud_here ${TRACK[@]+"${TRACK[@]}"} compute tpus tpu-vm scp "${@:2}" --recurse --worker="$1" \
    ${SSH_WORDS[@]+"${SSH_WORDS[@]}"}
}

# --- Compute Engine

# Without --scopes a VM may only read buckets; without --boot-disk-size it has 10 GB.
compute_create() {
  local model=()
  case $PROVISIONING in
    spot) model=(--provisioning-model=SPOT --instance-termination-action=DELETE) ;;
    queued) # waits for two hours, and runs for a week, at most
      model=(--provisioning-model=FLEX_START --request-valid-for-duration=2h
        --max-run-duration=7d --instance-termination-action=DELETE)
      ;;
  esac
  gcloud_here compute instances create "$TPU_NAME" --machine-type="$MACHINE_TYPE" \
    --image-family="$IMAGE_FAMILY" --image-project=ubuntu-os-accelerator-images \
    --maintenance-policy=TERMINATE --boot-disk-size="${BOOT_DISK_GB}GB" --scopes=cloud-platform \
    ${model[@]+"${model[@]}"} ${CREATE_WORDS[@]+"${CREATE_WORDS[@]}"}
}

compute_start() { gcloud_here compute instances start "$TPU_NAME"; }

compute_delete() { gcloud_here compute instances delete "$TPU_NAME"; }

# In the words of the Cloud TPU API.
compute_state() {
  local state
  state=$(ask compute instances describe "$TPU_NAME" '--format=value(status)') || return
  case $state in
    RUNNING) echo READY ;;
    TERMINATED) echo STOPPED ;;
    *) echo "$state" ;;
  esac
}

compute_request_state() { echo GONE; } # a request is an instance that is PENDING

compute_ssh() {
  gcloud_here compute ssh "$TPU_NAME" --command="$2" "${SSH_OPTIONS[@]}" \
    ${SSH_WORDS[@]+"${SSH_WORDS[@]}"}
}

compute_copy() {
  gcloud_here compute scp "${@:2}" --recurse ${SSH_WORDS[@]+"${SSH_WORDS[@]}"}
}

# --- Of both

# ask WORDS...: prints a state, GONE if there is none of this name; fails if gcloud does not answer.
# With --dry-run it is always GONE.
ask() {
  local error status=0
  local words=("$@" "--zone=$ZONE" ${PROJECT:+"--project=$PROJECT"})
  if [[ $DRY_RUN ]]; then
    show gcloud "${words[@]}"
    echo GONE
  else
    # Only what it prints to stderr is caught: a notice there is not the state.
    { error=$(gcloud "${words[@]}" 2>&1 >&4) || status=1; } 4>&1
    if [[ $status -eq 1 && ($error == *NOT_FOUND* || $error == *"was not found"*) ]]; then
      echo GONE
    elif [[ $status -eq 1 ]]; then
      printf '%s\n' "$error" >&2
      return 1
    fi
  fi
}

is_queued() { [[ $GCLOUD_API == tpu && $PROVISIONING == queued* ]]; }

# elsewhere: prints another zone of the machine's where there is a VM of this name, or a request for
# one; nothing if there is none. Fails without an answer.
elsewhere() {
  local zone state
  for zone in $ZONES; do
    [[ $zone != "$ZONE" && ! $DRY_RUN ]] || continue
    state=$(ZONE=$zone vm_state) || return
    [[ $state != GONE ]] || state=$(ZONE=$zone request_state) || return
    [[ $state == GONE ]] || { echo "$zone" && return; }
  done
}
