#!/usr/bin/env bash
# Fuzzes gflow-opt with mutations of the lit tests, longer than the tests do.
#
#   scripts/fuzz.sh --minutes 30 --seed 7     finds go to fuzz-finds/ (--keep DIR)
#
# The exit status is 3 when anything was found.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
gflow_env test
cd "$GFLOW_ROOT"
exec python -m tests.fuzz_opt --keep fuzz-finds "$@"
