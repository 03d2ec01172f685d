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
    # Half of pip's time is bytecode of modules most of which nobody imports; Python writes that of the others.
    local pip=(python -m pip install --disable-pip-version-check --quiet --progress-bar off --no-compile
        -c "$GFLOW_ROOT/constraints.txt")
    if [ "$extras" = test ]; then
        # They need all that is pinned. pip unpacks on one core, so two of them share the pins; the last one, below,
        # resolves what is required, and installs what is missing where one of them failed.
        local base others first
        base="$(sed -n '/^# What gflow stands on/,/^$/s/^\([A-Za-z][^ ]*==[^ ]*\).*/\1/p' "$GFLOW_ROOT/constraints.txt")"
        others="$(sed -n 's/^\([A-Za-z][^ ]*==[^ ]*\).*/\1/p' "$GFLOW_ROOT/constraints.txt" | grep -vxF "$base")"
        # shellcheck disable=SC2086
        "${pip[@]}" --no-deps $base &
        first=$!
        # shellcheck disable=SC2086
        "${pip[@]}" --no-deps $others || echo "some pins are not for this Python; installing what is required"
        wait "$first" || echo "some pins are not for this Python; installing what is required"
    fi
    "${pip[@]}" setuptools && "${pip[@]}" --no-build-isolation -e "$GFLOW_ROOT[$extras]" || return 1
    rm -f "$venv"/.gflow-*.stamp    # another checkout's, or another set of pins
    echo "$want" > "$stamp"
}
