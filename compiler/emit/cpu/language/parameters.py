"""The arguments of a region's CPU kernel, and the key of its structure.

A kernel function takes one pointer to 64-bit words: addresses, then sizes, strides and constants. Since these numbers
are arguments, layers that differ only in sizes share one function. Kernels share a function if `structure` is equal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gflow.compiler.kernel.description import Kernel
from gflow.compiler.kernel.selection.cpu.loops import Loops
from gflow.dialects.records import record
from gflow.dialects.types import FLOATS

#: constants that are literals, which LLVM may fold
_PLAIN = (0.0, 1.0, -1.0, 2.0, 0.5)

#: the length of a block of terms that is summed in the terms' own type; the sums of blocks are added in float64
BLOCK = 16


@record
class Word:
    """A 64-bit argument: the address of an operand or result, or a number.

    kind: "load", "store" (`value` is the number of the load or store), "scratch", "int" or "float".
    """

    kind: str
    value: Any = 0

    def bits(self) -> int:
        """The 64 bits of a number, as an int; those of a float are the bits of an f64."""
        if self.kind == "float":
            return struct.unpack("<q", struct.pack("<d", float(self.value)))[0]
        return int(self.value) - (1 << 64 if int(self.value) >= 1 << 63 else 0)


@dataclass
class Plan(Loops):
    """The loop nest of a kernel, and its arguments.

    Attributes:
        words: the arguments, in order.
        index: the number of an argument by key: ("load", i), ("store", i), ("size", d), ("lstride", i, d),
            ("istride", i, d), ("sstride", i, d), ("const", node), ("scratch",), ("row",).
    """

    words: list[Word] = field(default_factory=list)
    index: dict[tuple[Any, ...], int] = field(default_factory=dict)


def plan_of(k: Kernel, loops: Loops) -> Plan:
    """The arguments of a kernel with the given loop nest."""
    p = Plan(**vars(loops))
    for key, word in _list_words(k, p):
        p.index[key] = len(p.words)
        p.words.append(word)
    return p


def stride_class(stride: int) -> str:
    """What the code depends on of a stride: "0", "1" or "n"."""
    return str(stride) if stride in (0, 1) else "n"


def is_plain(value: Any, dtype: str) -> bool:
    """Whether a constant is a literal in the code rather than an argument."""
    return (
        dtype == "i1"
        or float(value) in _PLAIN
        or value != value
        or value in (float("inf"), float("-inf"))
    )


def _list_words(k: Kernel, p: Plan) -> Iterator[tuple[tuple[Any, ...], Word]]:
    for i in range(len(k.loads)):
        yield ("load", i), Word("load", i)
    for i in range(len(k.stores)):
        yield ("store", i), Word("store", i)
    if p.scratch_rows:
        yield ("scratch",), Word("scratch", 0)
    if p.cached:
        yield ("row",), Word("int", p.scratch_width)
    for d, size in enumerate(k.sizes):
        yield ("size", d), Word("int", size)
    for name, walks in (
        ("lstride", [a.strides for a in k.loads]),
        ("istride", k.indices),
        ("sstride", [a.strides for a in k.stores]),
    ):
        for i, strides in enumerate(walks):
            for d, stride in enumerate(strides):
                if stride not in (0, 1):
                    yield (name, i, d), Word("int", stride)
    for i, node in enumerate(k.nodes):
        if node.op == "const" and not is_plain(node.attrs["value"], node.dtype):
            yield (
                ("const", i),
                Word("float" if node.dtype in FLOATS else "int", node.attrs["value"]),
            )


def structure(k: Kernel, p: Plan) -> tuple[Any, ...]:
    """A key of the kernel's code: kernels with equal keys share a function."""
    nodes = tuple(
        (
            n.op,
            n.dtype,
            n.args,
            n.slot,
            "?"
            if ("const", i) in p.index
            else tuple((a, str(v)) for a, v in sorted(n.attrs.items())),
        )
        for i, n in enumerate(k.nodes)
    )
    walks = tuple(
        (a.dtype, a.node, a.offset, tuple(stride_class(s) for s in a.strides))
        for a in [*k.loads, *k.stores]
    )
    indices = tuple(tuple(stride_class(s) for s in strides) for strides in k.indices)
    cached = tuple(sorted(p.cached.items()))
    return (nodes, walks, indices, len(k.sizes), tuple(sorted(k.reduced)), p.mode, p.outer, p.reduced, p.vector,
            p.split, p.blocked, p.lanes, p.whole, p.turned, p.unroll, p.tiled, cached)  # fmt: skip
