# Sourced by the other scripts: makes the Python environment ready and activates it.
#
#   gflow_env EXTRAS        e.g. gflow_env examples
#
# GFLOW_VENV    environment to use (default: .venv in the checkout; created when missing)
# GFLOW_PYTHON  interpreter that creates it (default: python3.11, else python3)
# GFLOW_NO_INSTALL=1  take the environment as it is

GFLOW_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

gflow_env() {
    local extras="$1" venv="${GFLOW_VENV:-$GFLOW_ROOT/.venv}" python="${GFLOW_PYTHON:-}"
    if [ -z "$python" ]; then
        python="$(command -v python3.11 || command -v python3 || true)"
        [ -n "$python" ] || { echo "error: no python3.11 on PATH; install it or set GFLOW_PYTHON" >&2; return 1; }
    fi
    if [ ! -x "$venv/bin/python" ]; then
        say "creating $venv with $("$python" --version)"
        "$python" -m venv "$venv" || {
            echo "error: '$python -m venv' failed; on Debian and Ubuntu install python3.11-venv" >&2; return 1; }
    fi
    # shellcheck disable=SC1091
    . "$venv/bin/activate"
    [ -z "${GFLOW_NO_INSTALL:-}" ] || return 0

    # The stamp holds what the environment was installed from; nothing changed, nothing to do.
    local stamp="$venv/.gflow-$extras.stamp" want
    want="$GFLOW_ROOT $(cat "$GFLOW_ROOT"/{pyproject.toml,setup.py,constraints.txt} | sha256sum | cut -d' ' -f1)"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then return 0; fi
    say "installing gflow[$extras] into $venv (the first time takes a few minutes)"
    python -m pip install --disable-pip-version-check --quiet --progress-bar off \
        -c "$GFLOW_ROOT/constraints.txt" setuptools &&
    # Half of pip's time is bytecode of modules most of which nobody imports; Python writes that of the others.
    python -m pip install --disable-pip-version-check --quiet --progress-bar off --no-compile \
        --no-build-isolation -c "$GFLOW_ROOT/constraints.txt" -e "$GFLOW_ROOT[$extras]" || return 1
    rm -f "$venv"/.gflow-*.stamp    # another checkout's, or another set of pins
    echo "$want" > "$stamp"
}
