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
# GPU_CHECK_ERRORS  a file that gets the tracebacks of what failed
# GPU_CHECK_RESULTS the folder for the JSON and the table (default: benchmarks/results)
# GPU_CHECK_CACHE   where caches are kept between runs (default: /tmp/gflow-gpu-check-UID)
set -euo pipefail
cd "$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
. scripts/gpu_env.sh
root="$PWD"

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
