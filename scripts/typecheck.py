"""Runs mypy over the checkout under its import names.

The folders `frontend`, `dialects`, `compiler` and `runtime` are imported as `gflow` and
`gflow.*`, which mypy cannot be told. So this makes a view of links (`.typing/gflow`), checks
that, and prints the real paths.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VIEW = ROOT / ".typing"
PACKAGES = ("dialects", "compiler", "runtime")
BESIDE = ("benchmarks",)
SEEN = ("examples",)  # imported by those, not checked themselves


def make_view() -> None:
    """Links every entry of `frontend/`, and the three other folders beside them, as `gflow`."""
    shutil.rmtree(VIEW, ignore_errors=True)
    gflow = VIEW / "gflow"
    gflow.mkdir(parents=True)
    for entry in (ROOT / "frontend").iterdir():
        if entry.suffix in (".py", ".pyi", ".typed") or (entry / "__init__.py").exists():
            (gflow / entry.name).symlink_to(entry)
    for name in PACKAGES:
        (gflow / name).symlink_to(ROOT / name)
    for name in BESIDE + SEEN:
        (VIEW / name).symlink_to(ROOT / name)


def real_path(line: str) -> str:
    line = re.sub(rf"^(\.typing/)?gflow/({'|'.join(PACKAGES)})/", r"\2/", line)
    return re.sub(r"^(\.typing/)?gflow/", "frontend/", line)


def main() -> int:
    make_view()
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary"]
    command += ["-p", "gflow", *(f"-p{name}" for name in BESIDE), *sys.argv[1:]]
    done = subprocess.run(command, cwd=VIEW, text=True, capture_output=True, check=False)
    lines = [real_path(line) for line in (done.stdout + done.stderr).splitlines()]
    errors = sum(": error:" in line for line in lines)
    print("\n".join([*lines, f"mypy: {errors} errors" if done.returncode else "mypy: no errors"]))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
