"""The machine that machine code was compiled for, and whether the code runs on this one."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

from gflow.dialects.program.processor import usable


def description(runner: str) -> dict[str, Any]:
    """A description of this machine, stored with machine code. runner: the text of the code that calls the kernels."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "features": sorted(usable()),
        "runner": hashlib.sha256(runner.encode()).hexdigest(),
    }


def runs(described: dict[str, Any], runner: str) -> bool:
    """Whether code for the described machine runs on this one."""
    here = description(runner)
    same = all(described.get(k) == here[k] for k in ("system", "machine", "runner"))
    return same and bool(usable()) and set(described.get("features", ())) <= usable()
