# shellcheck shell=bash disable=SC2034
# Settings of all scripts here. The environment overrides each (ZONE=... create.sh), and so does
# env.local.sh beside this file, where settings stay: lines such as BUCKET=gs://my-bucket. The
# environment is stronger.

TPU_NAME=${TPU_NAME:-cocondenser} # of the VM, and of its queued request
PROJECT=${PROJECT:-}              # empty: gcloud's own

# tpu: the Cloud TPU API. compute: Compute Engine. README.md says which to use for what.
GCLOUD_API=${GCLOUD_API:-tpu}

# on-demand; spot: cheaper, may be preempted at any time; queued, queued-spot: wait for one.
PROVISIONING=${PROVISIONING:-on-demand}

# The machine is a row of this table. Devices are what JAX sees, over all hosts (VMs, or "workers").
# From Google's pages on regions and zones, runtime versions and machine types, November 2026.
#
# TPU    ACCELERATOR_TYPE  RUNTIME_VERSION      MACHINE_TYPE      DEVICES  HOSTS  zones
MACHINES="
  v2-8   v2-8              tpu-ubuntu2204-base  -                 8        1      us-central1-b us-central1-c europe-west4-a asia-east1-c
  v3-8   v3-8              tpu-ubuntu2204-base  -                 8        1      europe-west4-a us-central1-a us-central1-b
  v3-32  v3-32             tpu-ubuntu2204-base  -                 32       4      europe-west4-a
  v4-8   v4-8              tpu-ubuntu2204-base  -                 4        1      us-central2-b
  v4-32  v4-32             tpu-ubuntu2204-base  -                 16       4      us-central2-b
  v5e-8  v5litepod-8       v2-alpha-tpuv5-lite  ct5lp-hightpu-8t  8        1      us-west4-a us-central1-a us-south1-a us-west1-c europe-west4-b
  v5p-8  v5p-8             v2-alpha-tpuv5       ct5p-hightpu-4t   4        1      us-east5-a us-central1-a europe-west4-b
  v6e-8  v6e-8             v2-alpha-tpuv6e      ct6e-standard-8t  8        1      us-east5-a us-east5-b us-central1-b us-east1-d europe-west4-a
"
TPU=${TPU:-${ACCELERATOR_TYPE:-v3-8}}
# Each may be given beside the row, or all in place of one. ZONE is the first of the row's.
ACCELERATOR_TYPE=${ACCELERATOR_TYPE:-}
RUNTIME_VERSION=${RUNTIME_VERSION:-}
MACHINE_TYPE=${MACHINE_TYPE:-} # of Compute Engine, in place of type and runtime version
DEVICES=${DEVICES:-}
HOSTS=${HOSTS:-}
ZONE=${ZONE:-}

# More flags of gcloud where it creates the VM (--network=... --service-account=... --labels=...),
# and where it connects to it (--tunnel-through-iap or --internal-ip). Without spaces in a value.
CREATE_FLAGS=${CREATE_FLAGS:-}
SSH_FLAGS=${SSH_FLAGS:-}
BOOT_DISK_GB=${BOOT_DISK_GB:-200} # on Compute Engine; by the Cloud TPU API it has 100 GiB
IMAGE_FAMILY=${IMAGE_FAMILY:-ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e} # on Compute Engine

# What outlives the VM: BUCKET/stores/NAME and BUCKET/runs/NAME.
BUCKET=${BUCKET:-} # gs://NAME or gs://NAME/FOLDER, in the region of the zone

PYTHON_VERSION=${PYTHON_VERSION:-3.11} # installed on the VM, whose own may be too old for JAX
EXTRAS=${EXTRAS:-pretrain,tfds,tpu,tensorboard} # of this project; `retrieval` to start from a .bin
POLL_SECONDS=${POLL_SECONDS:-60}       # between two checks of the VM
SAVE_SECONDS=${SAVE_SECONDS:-60}       # between two checks for a new checkpoint, on the VM
MAX_FAILURES=${MAX_FAILURES:-5}        # of a run on a VM that is still there; no preemptions
MAX_OUTAGES=${MAX_OUTAGES:-60}         # in a row: questions to gcloud without an answer, VMs not created

# Given to the jobs on the VM, in a file that only its user can read; never printed.
WANDB_API_KEY=${WANDB_API_KEY:-}
HF_TOKEN=${HF_TOKEN:-}
