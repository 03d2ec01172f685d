#!/usr/bin/env bash
# The check of gflow on a GPU: numerics against eager and float64, bandwidth, products, whole training
# steps beside torch.compile, compute-sanitizer where it is installed. Needs this checkout, a Python with a
# CUDA build of PyTorch (and Triton, which comes with it), and MLIR's bindings (`torch-mlir`). Nothing is
# installed: the checkout is used as it is.
#
#   scripts/gpu_check.sh                       everything, within 8 minutes
#   scripts/gpu_check.sh --sections numerics   a part; --help lists the options
#
# GPU_CHECK_PYTHON  the interpreter (default: the first of python3, python with a PyTorch that finds a GPU)
# GPU_CHECK_MLIR    an archive with a `torch_mlir` folder, for machines without that package
#                   (default: .gpu/torch_mlir.tar.xz in the checkout; scripts/pack_mlir.sh makes it)
# GPU_CHECK_OUT     where the JSON and the table go (default: benchmarks/results)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

python="${GPU_CHECK_PYTHON:-}"
if [ -z "$python" ]; then
    for candidate in python3 python; do
        if command -v "$candidate" > /dev/null &&
            "$candidate" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then
            python="$candidate"
            break
        fi
    done
fi
[ -n "$python" ] || { echo "error: no python with a PyTorch that finds a GPU; set GPU_CHECK_PYTHON" >&2; exit 2; }

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$python" scripts/import_view.py "$work/view"
export PYTHONPATH="$work/view${PYTHONPATH:+:$PYTHONPATH}"

if ! "$python" -c 'import torch_mlir' 2> /dev/null; then
    archive="${GPU_CHECK_MLIR:-.gpu/torch_mlir.tar.xz}"
    [ -f "$archive" ] || {
        echo "error: $python has no torch_mlir, and $archive is not there; scripts/pack_mlir.sh makes it" >&2; exit 2; }
    mkdir "$work/mlir"
    "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' \
        "$archive" "$work/mlir"
    export PYTHONPATH="$work/mlir:$PYTHONPATH"
    "$python" -c 'import torch_mlir' || { echo "error: torch_mlir of $archive does not load" >&2; exit 2; }
fi

# caches of its own: first calls are first calls
export GFLOW_CACHE_DIR="$work/gflow" TORCHINDUCTOR_CACHE_DIR="$work/inductor" TRITON_CACHE_DIR="$work/triton"
out="${GPU_CHECK_OUT:-$root/benchmarks/results}"
mkdir -p "$out"
name="$("$python" -c 'import datetime, torch; print("gpu_" + "".join(
    c if c.isalnum() else "_" for c in torch.cuda.get_device_name().lower()) + f"_{datetime.date.today()}")')"
status=0
"$python" -m benchmarks gpu --json "$out/$name.json" "$@" || status=$?
exit "$status"
