#!/usr/bin/env bash
# Packs what a machine with a GPU may not have and cannot install: `expecttest`, which PyTorch's own samples need, as
# the folder .gpu/site; and MLIR's bindings: the `torch_mlir` folder of the pinned wheel
# for CPython 3.12 and later on x86-64 Linux, without its command line tool, as .gpu/torch_mlir.tar.xz (not committed).
#
#   scripts/pack_mlir.sh [FILE]
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
target="${1:-$root/.gpu/torch_mlir.tar.xz}"
version="$(sed -n 's/^torch-mlir==\([^ ]*\).*/\1/p' "$root/constraints.txt")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --abi abi3 --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_17_x86_64 -d "$work" "torch-mlir==$version"
python3 -m zipfile -e "$work"/*.whl "$work/wheel"
mkdir -p "$(dirname "$target")"
find "$work/wheel/torch_mlir" -name '*.so*' -exec strip --strip-unneeded {} +
tar -C "$work/wheel" --exclude=torch-mlir-opt -cf - torch_mlir |
    xz -T1 --x86 --lzma2=preset=9e,dict=256MiB > "$target.part"
mv "$target.part" "$target"
ls -l "$target"
python3 -m pip install --quiet --no-deps --target "$(dirname "$target")/site" --upgrade expecttest
