#!/usr/bin/env bash
# Installs what is needed and runs every check: format, lint, types, pytest, lit.
#
#   scripts/test.sh           everything but long sweeps
#   scripts/test.sh --fast    the quick check: tests of the files in `quick`, without those marked slow
#   scripts/test.sh --all     with the sweeps (more seeds, more element types)
#
# Every check runs even when an earlier one fails. The last line is pytest's own summary;
# the exit status is non-zero when anything failed.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
gflow_env test || exit 1
cd "$GFLOW_ROOT"
unset PYTHONDONTWRITEBYTECODE # hundreds of processes that tests start share what one has parsed

# a few files of each part: dialect, tracing and lowering, passes, code and its plan, running, graphs, GPUs, command lines
quick=(
    dialect lit trace lowering constants fusion schedule select_kernels codegen_plan cpu_loops
    verify_plan frames executable_calls bound_call graph graph_values training state_dict config signatures tracebacks
    attention cuda_executable triton_rows triton_access targets pipeline_schedules opt printing report oneflow_surface layout
)
marks=(-m "not sweep")
if [ "${1:-}" = "--fast" ]; then
    quick=("${quick[@]/#/tests/test_}")
    marks=(-m "not slow and not sweep" "${quick[@]/%/.py}")
fi
[ "${1:-}" = "--all" ] && marks=()
failed=()

check() { # check NAME COMMAND...
    local name="$1" start=$SECONDS
    shift
    say "$name"
    if "$@"; then
        echo "-- $name: passed ($((SECONDS - start)) s)"
    else
        failed+=("$name")
        echo "-- $name: FAILED ($((SECONDS - start)) s)"
    fi
}

# three tests look at drawings in a real browser; without one they are skipped, and say so
browser() {
    command -v chromium chromium-browser google-chrome > /dev/null && return 0
    [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || return 0
    say "installing chromium"
    timeout 240 sh -c 'apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium' \
        > /dev/null 2>&1 || echo "no chromium: the tests that need a browser are skipped"
}
browser &
browser=$!

check "ruff format" ruff format --check .
check "ruff lint" ruff check .
log="$(mktemp)"
types="$(mktemp)"
trap 'rm -f "$log" "$types"' EXIT

# beside pytest, whose workers sometimes wait for each other's processes
python scripts/typecheck.py > "$types" 2>&1 &
typecheck=$!
finish_types() {
    wait "$typecheck"
    local status=$?
    cat "$types"
    return $status
}

wait "$browser" # its tests would be skipped
# a worker more than cores, since tests wait for processes that they start; a file's tests share what they set up, so
# they stay together, and files of long tests come first (tests/order.py)
run_pytest() {
    python -m pytest -n "$(($(nproc) + 1))" --dist loadfile --no-loadscope-reorder --durations=10 "${marks[@]}" 2>&1 |
        tee "$log"
}
check "pytest" run_pytest
check "types" finish_types

say "summary"
if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
else
    echo "all checks passed ($SECONDS s)"
fi
grep -E '^(=+ )?([0-9]+ [a-z]+(, )?)+.* in [0-9.]+s' "$log" | tail -1
[ ${#failed[@]} -eq 0 ]
