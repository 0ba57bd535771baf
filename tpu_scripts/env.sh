# shellcheck shell=bash disable=SC2034
# Settings of all scripts here. The environment overrides each: ZONE=... create.sh

TPU_NAME=${TPU_NAME:-cocondenser} # of the VM, and of its queued request
PROJECT=${PROJECT:-}              # empty: gcloud's own
ZONE=${ZONE:-europe-west4-a}

# on-demand; spot: cheaper, may be preempted at any time; queued, queued-spot: wait for one.
PROVISIONING=${PROVISIONING:-on-demand}

# The machine. Others: v4-8 with tpu-ubuntu2204-base and 4 devices, v5litepod-8 with
# v2-alpha-tpuv5-lite, v5p-8 with v2-alpha-tpuv5 and 4 devices, v6e-8 with v2-alpha-tpuv6e.
ACCELERATOR_TYPE=${ACCELERATOR_TYPE:-v3-8}
RUNTIME_VERSION=${RUNTIME_VERSION:-tpu-ubuntu2204-base}
DEVICES=${DEVICES:-8} # that JAX must see, over all hosts
HOSTS=${HOSTS:-1}     # VMs, or "workers", of the TPU: 4 of a v3-32

# What outlives the VM: BUCKET/stores/NAME and BUCKET/runs/NAME.
BUCKET=${BUCKET:-} # gs://NAME or gs://NAME/FOLDER, in the region of the zone

PYTHON_VERSION=${PYTHON_VERSION:-3.11} # installed on the VM, whose own may be too old for JAX
POLL_SECONDS=${POLL_SECONDS:-60}       # between two checks of the VM
SAVE_SECONDS=${SAVE_SECONDS:-60}       # between two checks for a new checkpoint, on the VM
MAX_FAILURES=${MAX_FAILURES:-5}        # of a run on a VM that is still there; no preemptions
MAX_OUTAGES=${MAX_OUTAGES:-60}         # in a row: questions to gcloud without an answer, VMs not created
