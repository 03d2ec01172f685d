"""Writes the CHECK lines of lit tests from what gflow-opt prints now; read the diff, then commit.

    python scripts/update_lit_checks.py lit_tests/simplify/*.mlir

Works on files whose RUN line is `%gflow-opt %s FLAGS | FileCheck %s`. The lines stand in front of
each function: its label, then its operations one after the other, with values named.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

_RUN = re.compile(r"// RUN: %gflow-opt %s (.*?) *\| *FileCheck %s")
_FUNCTION = re.compile(r"^ *func\.func @([\w.$-]+)")


def checks(text: str) -> dict[str, list[str]]:
    """CHECK lines for every function of the printed module."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    defined: set[str] = set()
    for line in text.splitlines():
        match = _FUNCTION.match(line)
        if match:
            current = found.setdefault(match.group(1), [f"// CHECK-LABEL: func.func @{match[1]}("])
            defined = set()
            continue
        body = line.strip()
        if current is None or not body or body in ("}", "module {"):
            continue
        if body.startswith("// -----"):
            current = None
            continue

        def name(m: re.Match[str], defined: set[str] = defined) -> str:
            value = f"v{m.group(1)}"
            return f"%[[{value}]]" if value in defined else f"%{m.group(1)}"

        def define(m: re.Match[str], defined: set[str] = defined) -> str:
            defined.add(f"v{m.group(1)}")
            return f"%[[v{m.group(1)}:.+]]"

        body = body.replace("[[", r"{{\[\[}}")
        left, equals, right = body.partition(" = ")
        if equals and left.startswith("%") and "(" not in left:
            right = re.sub(r"%(\d+)", name, right)
            left = re.sub(r"%(\d+)", define, left)
            body = f"{left} = {right}"
        else:
            body = re.sub(r"%(\d+)", name, body)
        current.append(f"// CHECK-NEXT:   {body}")
    return found


def update(path: Path) -> None:
    lines = [s for s in path.read_text().splitlines() if not s.startswith("// CHECK")]
    run = _RUN.search("\n".join(lines))
    if run is None:
        raise SystemExit(f"{path}: no RUN line of the form `%gflow-opt %s FLAGS | FileCheck %s`")
    tool = f"{sys.executable} -m gflow.compiler.tools.opt"
    command = f"{tool} {path} {run.group(1).replace('%gflow-opt', tool)}"
    done = subprocess.run(command, shell=True, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path}: {done.stderr}")
    found = checks(done.stdout)
    out: list[str] = []
    for line in lines:
        match = _FUNCTION.match(line)
        if match:
            out += found.get(match.group(1), [])
        out.append(line)
    path.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="+", type=Path)
    for file in parser.parse_args().file:
        update(file)
