"""What machine code that was compiled before needs of the machine that it is loaded on."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _processor_lines() -> tuple[str, ...]:
    """What the system says of the first processor; nothing where it doesn't."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(text.split("\n\n", 1)[0].splitlines())


def processor() -> str:
    """The processor's model and its instruction sets."""
    kept = ("model name", "flags", "Features", "CPU")
    lines = [line for line in _processor_lines() if line.startswith(kept)]
    return "\n".join(lines) or platform.processor()


@cache
def features() -> frozenset[str]:
    """The processor's instruction sets."""
    for line in _processor_lines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def description(runner: str) -> dict[str, Any]:
    """This machine, to be kept with machine code. runner: the text of the code that calls it."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "features": sorted(features()),
        "runner": hashlib.sha256(runner.encode()).hexdigest(),
    }


def runs(described: dict[str, Any], runner: str) -> bool:
    """Whether code for the described machine runs on this one."""
    here = description(runner)
    same = all(described.get(k) == here[k] for k in ("system", "machine", "runner"))
    return same and bool(features()) and set(described.get("features", ())) <= features()
