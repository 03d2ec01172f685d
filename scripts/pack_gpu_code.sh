#!/usr/bin/env bash
# Compiles here, without a GPU, the kernels that the GPU check runs, so that a device's time is not spent on
# that: .gpu/code/gpu_code_N.tar.xz, which scripts/gpu_check.sh unpacks (not committed).
#
#   GPU_CODE_PYTHON=/path/to/python scripts/pack_gpu_code.sh TARGET CALL…
#   GPU_CODE_PYTHON=… scripts/pack_gpu_code.sh cuda:90 products gpt2 resnet
#
# GPU_CODE_PYTHON  a Python with the versions of PyTorch and Triton of the machine that has the GPU, and torch-mlir.
#                  Machine code of another version of Triton is of no use there (default: python3).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
python="${GPU_CODE_PYTHON:-python3}"
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
target="$1"
shift
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$python" scripts/import_view.py "$work/view"
export PYTHONPATH="$work/view${PYTHONPATH:+:$PYTHONPATH}"
export GFLOW_CACHE=1 GFLOW_CACHE_DIR="$work/cache" GFLOW_KEY_FILE="$work/key/key"
status=0
for call in "$@"; do
    "$python" -m benchmarks gpu --compile "$target" --call "$call" || status=$?
done
"$python" -m benchmarks.gpu.carried pack .gpu/code
exit "$status"
