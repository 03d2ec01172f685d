"""The instruction sets that code for this CPU may use: those it has, or those that `GFLOW_CPU_ISA` allows.

GFLOW_CPU_ISA=x86-64-v3    kernels for any processor with AVX2 and FMA
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path


@cache
def _processor_lines() -> tuple[str, ...]:
    """The system's description of the first processor; empty if there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(text.split("\n\n", 1)[0].splitlines())


#: instruction sets of Intel AMX, as Linux lists them, that kernels use
_AMX = frozenset({"amx_tile", "amx_bf16"})

#: that of AVX-512's dot products of bfloat16 (VDPBF16PS)
_BF16 = frozenset({"avx512_bf16"})

#: Linux gives a process the tile registers of AMX when it asks for them (`arch_prctl`; Documentation/arch/x86/xstate)
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@cache
def _tiles_allowed() -> bool:
    """Whether this process may use the tile registers of AMX. The first call asks the system for them."""
    if platform.machine() != "x86_64" or not _listed() >= _AMX:
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0


def processor() -> str:
    """The processor's model and the instruction sets that this process may use."""
    kept = ("model name", "flags", "Features", "CPU")
    lines = [line for line in _processor_lines() if line.startswith(kept)]
    if _listed() >= _AMX and not _tiles_allowed():
        lines.append("without AMX")
    return "\n".join(lines) or platform.processor()


@cache
def identity() -> tuple[str, int, int]:
    """The processor's vendor, family and model (CPUID), as Linux lists them; ("", 0, 0) where it does not."""
    found = {}
    for line in _processor_lines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    try:
        return found["vendor_id"], int(found["cpu family"]), int(found["model"])
    except (KeyError, ValueError):
        return "", 0, 0


@cache
def features() -> frozenset[str]:
    """The processor's instruction sets that this process may use."""
    return _listed() if _tiles_allowed() else _listed() - _AMX


@cache
def _listed() -> frozenset[str]:
    """The processor's instruction sets."""
    for line in _processor_lines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


#: environment variable with the level that kernels are limited to
ISA = "GFLOW_CPU_ISA"

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

#: levels of x86-64 (System V ABI, which compilers name so), and the instruction sets of each as Linux lists them; the
#: last two are the fourth level, and dot products of bfloat16 or Intel AMX
LEVELS = {
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V4,
    "x86-64-v4+bf16": _V4 | _BF16,
    "x86-64-v4+amx": _V4 | _AMX,
}

#: the end of a kernel's lines that need AMX, or AVX-512's dot products of bfloat16. Where these may not be used, `true`
#: in such a line becomes `false`, and all other such lines are left out: a kernel holds a way to do without
AMX_LINE, BF16_LINE = "// AMX", "// AVX512-BF16"
#: the end of the lines that are left out where AVX-512's instructions for bfloat16 may be used
NO_BF16_LINE = "// no AVX512-BF16"


def without(kernel: str, mark: str) -> str:
    """A kernel's text without the lines that end with a mark."""
    if mark not in kernel:
        return kernel
    return "\n".join(line for line in kernel.split("\n") if mark not in line)


def limit() -> str:
    """The level that `GFLOW_CPU_ISA` limits kernels to; "" if it is not set.

    Raises:
        ValueError: its value is not a level, or this CPU does not support that level.
    """
    level = os.environ.get(ISA, "")
    if not level:
        return ""
    if level not in LEVELS:
        raise ValueError(f"{ISA}={level!r}: unknown; known: {', '.join(LEVELS)}")
    missing = LEVELS[level] - features()
    if missing:
        raise ValueError(
            f"{ISA}={level!r}: this processor lacks {', '.join(sorted(missing))}; choose a lower level"
        )
    return level


def usable() -> frozenset[str]:
    """The instruction sets that kernels may use."""
    return _of_level(limit())


def amx(level: str | None = None) -> bool:
    """Whether kernels of a level ("": without a limit) may use Intel AMX; None: of the level that is set."""
    return _of_level(limit() if level is None else level) >= _AMX


def bf16(level: str | None = None) -> bool:
    """Whether kernels of a level, as of `amx`, may use AVX-512's dot products of bfloat16."""
    return _of_level(limit() if level is None else level) >= _V4 | _BF16


def multiplies_bfloat16() -> bool:
    """Whether kernels may multiply bfloat16 values in hardware."""
    return amx() or bf16()


def _of_level(level: str) -> frozenset[str]:
    return LEVELS[level] if level else features()
