#!/usr/bin/env bash
# Builds the wheel and the source distribution, installs each into a fresh environment and runs the main job there.
#
#   scripts/release.sh                      both, with the interpreter at hand; they are left in dist/
#   scripts/release.sh python3.12 2.12.*    with another interpreter, and another PyTorch than 2.13
#
# RELEASE_KINDS="wheel" installs one of them alone. Nothing is uploaded.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${1:-python3}"
torch="torch==${2:-2.13.*}"
kinds="${RELEASE_KINDS:-wheel sdist}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # spinning threads take turns for minutes on a busy machine
quiet=(--disable-pip-version-check --quiet --progress-bar off)
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

say "building with $("$python" --version)"
"$python" -m venv "$work/build"
"$work/build/bin/python" -m pip install "${quiet[@]}" "setuptools>=77" wheel
# a copy without what was built before, so that nothing stale is packed
git -C "$root" archive HEAD | tar -x -C "$(mkdir -p "$work/source" && echo "$work/source")"
mkdir -p "$root/dist"
(cd "$work/source" && "$work/build/bin/python" - "$root/dist" <<'PY'
import sys
from setuptools import build_meta

target = sys.argv[1]  # setuptools changes sys.argv
for build in (build_meta.build_wheel, build_meta.build_sdist):
    print(build(target))
PY
) | grep -E '\.(whl|gz)$'

for kind in $kinds; do
    [ "$kind" = wheel ] && pattern="*.whl" || pattern="*.tar.gz"
    file="$(ls -t "$root"/dist/$pattern | head -1)"
    say "$(basename "$file") in a fresh environment, with $torch"
    env="$work/$kind"
    "$python" -m venv "$env"
    "$env/bin/python" -m pip install "${quiet[@]}" "$file[examples]" "$torch"
    cd "$work"
    "$env/bin/python" -c "import gflow, torch; print('gflow', gflow.__version__, 'torch', torch.__version__)"
    "$env/bin/gflow-opt" --version
    cp -r "$root/examples" "$work/examples-$kind"
    GFLOW_CACHE=0 "$env/bin/python" "$work/examples-$kind/train_mobilenet.py" --epochs 1 --no-memory --small-images
    cd "$root"
done
say "passed: $kinds, $("$python" --version), $torch"
