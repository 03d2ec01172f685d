# What scripts/gpu_check.sh and scripts/gpu_tests.sh need on a machine with a GPU; sourced in the checkout's root.
# It sets `python`, PYTHONPATH and the caches. scripts/gpu_check.sh explains the variables that it reads.

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

[ ! -d .gpu/site ] || export PYTHONPATH="$PYTHONPATH:$PWD/.gpu/site"

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
archives=("${GPU_CHECK_CODE:-$PWD/.gpu/code}"/*.tar.xz)
shopt -u nullglob
[ "${#archives[@]}" = 0 ] || "$python" -m benchmarks.gpu.carried unpack "${archives[@]}"
