#!/usr/bin/env bash
# Runs graphs on `cuda` on a machine without a GPU: tests/cuda_standin, against a library that stands in for
# CUDA's runtime and driver. Needs gcc and a CUDA build of PyTorch, which has the headers.
#
#   GFLOW_CUDA_PYTHON=/path/to/python scripts/cuda_standin.sh [arguments of pytest]
#   GFLOW_CUDA_PYTHON=/path/to/python scripts/cuda_standin.sh --host-time    # the host's time of calls
#
# GFLOW_CUDA_PYTHON: a Python with that build, Triton, torch-mlir and pytest; else the one on the PATH.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${GFLOW_CUDA_PYTHON:-python}"
build="$(mktemp -d)"
trap 'rm -rf "$build"' EXIT

include="$("$python" - << 'END'
import sysconfig
from pathlib import Path

site = Path(sysconfig.get_path("purelib"))
found = sorted(site.glob("nvidia/*/include/cuda_runtime_api.h"))
triton = site / "triton/backends/nvidia/include"  # has what the other folder's headers include
print(f"-I{found[-1].parent} -I{triton}" if found else "")
END
)"
if [ -z "$include" ]; then
    echo "cuda_standin: $python has no CUDA build of PyTorch; name one that has in GFLOW_CUDA_PYTHON" >&2
    exit 1
fi
# shellcheck disable=SC2086
gcc -shared -fPIC -O1 $include "$root"/tests/cuda_standin/{runtime,refused}.c \
    -o "$build/libcuda.so.1"
"$python" "$root/scripts/import_view.py" "$build/view"
cd "$root"
export GFLOW_CACHE_DIR="${GFLOW_CACHE_DIR:-$build/cache}"
export PYTHONPATH="$build/view${PYTHONPATH:+:$PYTHONPATH}"
export LD_LIBRARY_PATH="$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if [ "${1:-}" = --host-time ]; then
    LD_PRELOAD="$build/libcuda.so.1" "$python" tests/cuda_standin/host_time.py
    exit
fi
LD_PRELOAD="$build/libcuda.so.1" "$python" -m pytest -q -p no:cacheprovider tests/cuda_standin "$@"
