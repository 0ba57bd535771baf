# shellcheck shell=bash
# Whether this VM may write to the bucket: before it computes for hours what it cannot save.

# require_writable BUCKET: writes and deletes an object. If the account of the VM may not, the last
# line says which role it lacks, and the status is 2; without an answer the status is 1.
require_writable() {
  local file object said account
  file=$(mktemp) object=$1/writable-$(hostname)-$$
  said=$({ gcloud storage cp "$file" "$object" && gcloud storage rm "$object"; } 2>&1) && return
  printf '%s\n' "$said"
  if [[ $said != *" 403"* && $said != *PERMISSION_DENIED* && $said != *"not have permission"* ]]; then
    echo "cannot write to $1"
    return 1
  fi
  account=$(gcloud auth list --filter=status:ACTIVE '--format=value(account)')
  echo "the VM's account may not write to $1: gcloud storage buckets add-iam-policy-binding" \
    "$(cut -d / -f 1-3 <<<"$1") --member=serviceAccount:$account --role=roles/storage.objectUser"
  return 2
}
