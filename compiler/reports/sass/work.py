"""The resources of an instruction: its pipe, the cycles that it occupies, and the latency of its result."""

from __future__ import annotations

import re
from typing import NamedTuple

from gflow.compiler.targets.pipes import Pipes

from .instructions import Instruction, is_product

#: threads of a warp
_WARP = 32
#: pipes of which each quarter of a multiprocessor has one; all quarters share those of shared and device memory
QUARTERED = ("tensor", "fma", "alu", "f64", "special", "uniform")

_FMA = frozenset(
    {"FFMA", "FMUL", "FADD", "HFMA2", "HMUL2", "HADD2", "FFMA2", "FADD2", "FMUL2", "HFMA2_MMA"}
)
#: integer multiply-adds have half the throughput of the FMA pipe
_HALF_FMA = frozenset({"IMAD", "IDP", "IMUL"})
_F64 = frozenset({"DFMA", "DADD", "DMUL", "DSETP", "DMNMX"})
_SPECIAL = frozenset({"MUFU", "POPC", "FLO", "I2F", "F2I", "F2F", "I2I", "FRND", "BREV"})
_NO_PIPE = frozenset(
    {"BRA", "BAR", "DEPBAR", "WARPGROUP", "WARPSYNC", "LDGDEPBAR", "BSSY", "BSYNC", "EXIT", "NOP", "SYNCS", "ELECT",
     "MEMBAR", "FENCE", "CCTL", "ERRBAR", "NANOSLEEP", "UTMALDG", "UTMASTG", "UTMACMDFLUSH", "UTMACCTL", "UBLKCP",
     "S2R", "CS2R", "S2UR", "R2UR", "LDC", "ULDC", "VOTE", "VOTEU", "ARRIVES"}
)  # fmt: skip
#: the latency key of instructions without a pipe
_LATE = {
    "MEMBAR": "fence", "FENCE": "fence", "S2R": "shared", "S2UR": "shared", "LDC": "shared",
}  # fmt: skip
_LOADS = frozenset({"LDG", "LD", "LDGSTS", "LDL"})
_STORES = frozenset({"STG", "ST", "STL", "ATOMG", "ATOM", "RED"})
_ON_CHIP = frozenset({"LDS", "STS", "ATOMS"})
_MATRICES = frozenset({"LDSM", "STSM"})

_SHAPE = re.compile(r"^(\d+)x(\d+)x(\d+)$")
#: M, N and K of a single warp's product, as in its modifier
_WARP_SHAPES = {
    "16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4), "16832": (16, 8, 32), "884": (8, 8, 4),
    "8816": (8, 8, 16), "16864": (16, 8, 64), "8832": (8, 8, 32),
}  # fmt: skip
_BYTE_TYPES = frozenset({"S8", "U8", "E4M3", "E5M2"})


class Work(NamedTuple):
    """The resources of one instruction of one warp.

    pipe: one of `QUARTERED` or `SHARED`, "" for none. cycles: how long the instruction occupies that pipe. bytes: read
    from or written to device memory. late: the latency of the result, a key of `Pipes.latencies`."""

    pipe: str
    cycles: float = 0.0
    bytes: int = 0
    late: str = ""


def work_of(i: Instruction, pipes: Pipes) -> Work:
    """The resources of an instruction of one warp."""
    kind, each = i.kind, pipes.quarters * _WARP
    if is_product(i):
        return Work("tensor", _product(i, pipes))
    if kind in _NO_PIPE:
        return Work("", late=_LATE.get(kind, ""))
    if kind in _LOADS or kind in _STORES:
        return Work("memory", 0.0, _WARP * i.width, "memory" if kind in _LOADS else "")
    if kind in _ON_CHIP:
        return Work("shared", max(1.0, _WARP * i.width / pipes.shared), late="shared")
    if kind in _MATRICES:
        count = next((int(m) for m in reversed(i.modifiers) if m in ("2", "4")), 1)
        return Work("shared", 128 * count / pipes.shared, late="shared")
    if kind in ("SHFL", "REDUX"):
        return Work("shared", 1.0, late="shuffle")
    if kind in _SPECIAL:
        return Work("special", each / pipes.special, late="special")
    if kind in _FMA:
        return Work("fma", each / pipes.fma)
    if kind in _HALF_FMA:
        return Work("fma", max(each / pipes.fma, each / pipes.alu))
    if kind in _F64:
        return Work("f64", each / pipes.f64)
    if kind.startswith("U"):
        return Work("uniform", 1.0)
    return Work("alu", each / pipes.alu)


def _product(i: Instruction, pipes: Pipes) -> float:
    """Cycles for which a product occupies a quarter's tensor core.

    A warp group's product of 64 rows is divided among four warps. Reading its operands from shared memory can take
    longer than the product itself; the larger number counts.
    """
    halves = 2.0 * 16  # operations of the terms that 32 bytes hold
    for modifier in i.modifiers:
        if found := _SHAPE.match(modifier):
            rows, columns = int(found[1]), int(found[2])
            given = i.operands.split(
                ","
            )  # the sum, then what is multiplied: registers or "gdesc[…]"
            from_shared = rows if "gdesc" in given[1] else 0
            operands = 32.0 * (columns + from_shared)
            return max(halves * rows * columns / pipes.tensor, operands / pipes.shared)
    m, n, k = next((_WARP_SHAPES[x] for x in i.modifiers if x in _WARP_SHAPES), (16, 8, 16))
    if i.kind == "DMMA":
        return 2.0 * m * n * k * pipes.quarters / (4 * pipes.f64)
    size = 1 if _BYTE_TYPES & set(i.modifiers) else 4 if "TF32" in i.modifiers else 2
    return m * n * k * size * pipes.quarters / (pipes.tensor * pipes.warp_products)
