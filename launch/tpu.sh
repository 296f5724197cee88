#!/usr/bin/env bash
# A Cloud TPU slice: installs the last commit of this tree on every host of it and starts one process on each.
#
#   TPU=my-slice ZONE=us-central2-b launch/tpu.sh --config=configs/quickstart.py --workdir=/shared/runs/a
#
# JAX finds the other hosts by the TPU's metadata. The workdir must be on a file system that all hosts see, such as
# a Filestore or a mounted bucket: metrics and figures are plain files.
#
# Tested: the flags, by launch/local.sh. Not tested: on a TPU; whether runs on different numbers of chips have
# the same bits with XLA's TPU compiler.
set -euo pipefail
: "${TPU:?name of the TPU}" "${ZONE:?its zone}"
here=$(cd "$(dirname "$0")/.." && pwd)
on_all() { gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="$1"; }

[ -z "$(git -C "$here" status --porcelain)" ] || echo "$0: what is not committed is left out." >&2
archive=$(mktemp -t fedjax_het.XXXX.tar.gz)
trap 'rm -f "$archive"' EXIT
python=${PYTHON:-python3}
on_all "$python -c 'import sys; sys.exit(sys.version_info < (3, 11))'" ||
  { echo "$0: the TPU could not be asked, or its $python is older than 3.11 (PYTHON= names another)." >&2; exit 1; }
git -C "$here" archive --format=tar.gz -o "$archive" HEAD
gcloud compute tpus tpu-vm scp "$archive" "$TPU:fedjax_het.tar.gz" --zone="$ZONE" --worker=all
on_all "mkdir -p fedjax_het && rm -rf fedjax_het/fedjax_het fedjax_het/configs \
  && tar -xzf fedjax_het.tar.gz -C fedjax_het && cd fedjax_het && $python -m venv .venv && .venv/bin/pip install -q -e . 'jax[tpu]'"
flags=
(($#)) && printf -v flags ' %q' "$@"
on_all "cd fedjax_het && .venv/bin/python -m fedjax_het.run --distributed$flags"
