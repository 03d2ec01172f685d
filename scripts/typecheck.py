"""Runs mypy over the checkout under its import names.

The folders `frontend`, `dialects`, `compiler` and `runtime` are imported as `gflow` and
`gflow.*`, which mypy cannot be told. So this makes a view of links (`.typing/gflow`), checks
that, and prints the real paths.
"""

from __future__ import annotations

import re
import subprocess
import sys

from import_view import PACKAGES, ROOT, make_view

VIEW = ROOT / ".typing"
CHECKED = ("benchmarks",)


def real_path(line: str) -> str:
    line = re.sub(rf"^(\.typing/)?gflow/({'|'.join(PACKAGES)})/", r"\2/", line)
    return re.sub(r"^(\.typing/)?gflow/", "frontend/", line)


def main() -> int:
    make_view(VIEW)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary"]
    command += ["-p", "gflow", *(f"-p{name}" for name in CHECKED), *sys.argv[1:]]
    done = subprocess.run(command, cwd=VIEW, text=True, capture_output=True, check=False)
    lines = [real_path(line) for line in (done.stdout + done.stderr).splitlines()]
    errors = sum(": error:" in line for line in lines)
    print("\n".join([*lines, f"mypy: {errors} errors" if done.returncode else "mypy: no errors"]))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
