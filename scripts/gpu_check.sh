#!/usr/bin/env bash
# The check of gflow on a GPU: numerics against eager and float64, bandwidth, products, whole training
# steps beside torch.compile, compute-sanitizer where it is installed. Needs this checkout, a Python with a
# CUDA build of PyTorch (and Triton, which comes with it), and MLIR's bindings (`torch-mlir`). Nothing is
# installed: the checkout is used as it is.
#
#   scripts/gpu_check.sh --call device         9 minutes: GPT-2's training, products, attention, bandwidth; then
#                                              device-rest, 2 minutes: numerics. Both take 15 minutes at most
#   scripts/gpu_check.sh --call products       the first of three prepared calls of 9 minutes each: products and
#                                              attention, checked; then gpt2, then resnet (docs/cuda.md)
#   scripts/gpu_check.sh                       everything, within 8 minutes
#   scripts/gpu_check.sh --sections numerics   a part; --help lists the options
#
# Each row is written as soon as it is there, to benchmarks/results and to GPU_CHECK_OUT.
#
# GPU_CHECK_PYTHON  the interpreter (default: the first of python3, python with a PyTorch that finds a GPU)
# GPU_CHECK_MLIR    an archive with a `torch_mlir` folder, for machines without that package
#                   (default: .gpu/torch_mlir.tar.xz in the checkout; scripts/pack_mlir.sh makes it)
# GPU_CHECK_CODE    a folder with archives of machine code that was compiled before (default: .gpu/code;
#                   scripts/pack_gpu_code.sh makes them, and each run leaves more in GPU_CHECK_OUT)
# GPU_CHECK_OUT     a folder that gets the JSON, the table, and what was compiled and chosen, too
# GPU_CHECK_RESULTS the folder for the JSON and the table (default: benchmarks/results)
# GPU_CHECK_CACHE   where caches are kept between runs (default: /tmp/gflow-gpu-check-UID)
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
[ -n "$python" ] || {
    echo "error: no python with a PyTorch that finds a GPU; set GPU_CHECK_PYTHON. What was tried:" >&2
    for candidate in python3 python; do
        echo "$candidate ($(command -v "$candidate" || echo not found)):" >&2
        "$candidate" -c 'import torch
print("  PyTorch", torch.__version__, "for CUDA", torch.version.cuda)
try:
    torch.cuda.init()
except Exception as error:
    print("  " + str(error))' 2>&1 | tail -n 2 | cut -c 1-200 >&2 || true
    done
    exit 2; }
"$python" -c 'import numpy, triton' || { echo "error: $python needs numpy and triton beside PyTorch" >&2; exit 2; }
command -v "${CC:-cc}" > /dev/null || command -v gcc > /dev/null ||
    echo "note: no C compiler, which torch.compile needs: its rows will be listed as failed" >&2

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

# caches that stay, so that the next run goes on from this one. Not in the checkout: folders that others own or may
# write are not trusted, and a checkout that was copied here may be such a one
cache="${GPU_CHECK_CACHE:-${TMPDIR:-/tmp}/gflow-gpu-check-$(id -u)}"
(umask 077 && mkdir -p "$cache/key")
export GFLOW_CACHE=1 GFLOW_CACHE_DIR="$cache/gflow" TORCHINDUCTOR_CACHE_DIR="$cache/inductor" \
    TRITON_CACHE_DIR="$cache/triton" GFLOW_KEY_FILE="$cache/key/key"
shopt -s nullglob
archives=("${GPU_CHECK_CODE:-$root/.gpu/code}"/*.tar.xz)
shopt -u nullglob
[ "${#archives[@]}" = 0 ] || "$python" -m benchmarks.gpu.carried unpack "${archives[@]}"

results="${GPU_CHECK_RESULTS:-$root/benchmarks/results}"
name="$("$python" -c 'import datetime, sys, torch
device = torch.cuda.get_device_name() if torch.cuda.is_available() else "stand-in"
print("gpu_" + "".join(c if c.isalnum() else "_" for c in device.lower()) + f"_{datetime.date.today()}")')"
call=all
previous=
for argument in "$@"; do
    [ "$previous" != --call ] || call="$argument"
    previous="$argument"
done
options=(--json "$results/${name}_$call.json")
[ -z "${GPU_CHECK_OUT:-}" ] || options+=(--json "$GPU_CHECK_OUT/${name}_$call.json" --keep "$GPU_CHECK_OUT")
status=0
"$python" -m benchmarks gpu "${options[@]}" --spent "$SECONDS" "$@" || status=$?
exit "$status"
