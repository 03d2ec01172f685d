#!/usr/bin/env bash
# Tests of gflow on a GPU, in parallel: graphs on `cuda` beside eager on the CPU (tests/cuda_standin, tests/gpu), and,
# through copies of the CPU's memory (tests/gpu_mirror.py), the tests of kernels, PyTorch's samples of its ops, and
# random programs. Needs what scripts/gpu_check.sh needs, pytest, pytest-xdist and hypothesis.
#
#   scripts/gpu_tests.sh OUT SECONDS [PART…]     logs go to OUT; what is not done after SECONDS is ended
#
# parts: graphs kernels op_db programs numerics (default: graphs kernels). They run side by side, two processes each: a
# GPU takes turns with processes, and eighteen of them got hardly anything done. The last lines of each log are printed.
set -euo pipefail
cd "$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
out="$1" seconds="$2"
shift 2
parts=("${@:-}")
[ -n "${parts[0]}" ] || parts=(graphs kernels)
mkdir -p "$out"
. scripts/gpu_env.sh
jobs=2
export PYTHONPATH="$PWD/tests:$PYTHONPATH" OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
test=("$python" -m pytest -p no:cacheprovider -p tell_failures --tb=short -W ignore)

graphs() {
    timeout --foreground -k 5 -s INT "$seconds" "${test[@]}" -n "$jobs" tests/cuda_standin tests/gpu
}
kernels() {
    mapfile -t files < <(grep -lE 'InterpreterDevice|triton_interpreter|"interpreter"' tests/test_*.py |
        grep -vE 'test_(hip|gpu_check|random_programs|cuda_executable|cuda_tuning|races|checks)\.py')
    GPU_MIRROR=1 timeout --foreground -k 5 -s INT "$seconds" "${test[@]}" -n "$jobs" -p gpu_mirror "${files[@]}"
}
op_db() {
    local shares="$jobs" n
    for n in $(seq 0 "$((shares - 1))"); do
        GPU_MIRROR=1 timeout --foreground -k 5 -s INT "$seconds" "$python" scripts/op_db_report.py --engine gpu --share "$n/$shares" \
            --sweep float32-gradient:1 --sweep bfloat16-forward:1 --sweep int64-forward:1 --progress \
            --out "$out/op_db_$n.md" &
    done
    wait
}
programs() {
    GPU_MIRROR=1 timeout --foreground -k 5 -s INT "$seconds" "$python" scripts/fuzz_programs.py --target cuda:90 --shrink 0 \
        --count 4000 --seed "${GPU_TESTS_SEED:-60010000}" --jobs "$jobs" --out "$out/programs"
}

numerics() { # of small graphs whose kernels were raced
    timeout --foreground -k 5 -s INT "$((seconds + 10))" "$python" -m benchmarks gpu --sections numerics,models \
        --json "$out/numerics.json" --minutes "$((seconds / 60)).$((seconds % 60 * 10 / 60))"
}

set -m  # each part is a process group, so that nothing of it stays on the GPU
groups=()
for part in "${parts[@]}"; do
    "$part" > "$out/$part.log" 2>&1 &
    groups+=("$!")
done
wait
for group in "${groups[@]}"; do
    kill -KILL -- "-$group" 2> /dev/null || true
done
for part in "${parts[@]}"; do
    echo "== $part"
    grep -E "^(FAILED|ERROR)" "$out/$part.log" | sort -u | head -n 40 | cut -c 1-220 || true
    tail -n 6 "$out/$part.log" | cut -c 1-300
done
