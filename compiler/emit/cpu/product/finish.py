"""What follows a product, on a tile that has just been summed: it is read from the stack, not from memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gflow.compiler.kernel.selection.cpu.loops import Loops
from gflow.compiler.kernel.tiles import Tiled
from gflow.dialects.program import KernelAddress, Place

from ..language.expressions import hoist, write_stores
from ..language.parameters import Plan, plan_of, structure
from ..language.writer import Writer
from ..program_builder import Builder
from .function import ITEM

#: its words, the tile, the tile's first position, how many rows and columns of it there are
_ARGUMENTS = "%w: !llvm.ptr, %tile: !llvm.ptr, %i: i64, %j: i64, %rows: i64, %columns: i64"

Words = tuple[int | Place, ...]


def finish(
    b: Builder, t: Tiled, root: int, width: int, loads: Sequence[Place], stores: Sequence[Place]
) -> tuple[KernelAddress, Words]:
    """Add the function that computes what follows a product on a tile, and give its address and words.

    Args:
        root: the number of the product's result among the kernel's operands.
        width: columns of a tile.
        loads, stores: places by operand and result number; the root's is not read.
    """
    k = t.kernel
    last = len(k.sizes) - 1
    p = plan_of(k, Loops("pointwise", tuple(range(last)), (), last, False, False, t.lanes))
    key = (
        structure(k, p),
        t.rows,
        width,
        next(i for i, a in enumerate(k.loads) if a.operand == root),
    )
    name = f"finish_{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
    if name not in b.kernels:
        w = _write(t, p, root, width)
        b.kernels[name] = f"  llvm.func @{name}({_ARGUMENTS}) {{\n{w.text()}\n    llvm.return\n  }}"
        b.externals |= w.externals
    words: list[int | Place] = []
    for word in p.words:
        if word.kind == "load":
            access = k.loads[word.value]
            words.append(0 if access.operand == root else loads[access.operand])
        elif word.kind == "store":
            words.append(stores[k.stores[word.value].operand])
        else:
            words.append(word.bits())
    return KernelAddress(name), tuple(words)


def _write(t: Tiled, p: Plan, root: int, width: int) -> Writer:
    k = t.kernel
    w = Writer(k, p)
    rows, columns = tuple(range(t.rows)), tuple(range(t.rows, len(k.sizes)))
    slot = next(i for i, a in enumerate(k.loads) if a.operand == root)
    nodes = [i for i, n in enumerate(k.nodes) if n.op == "load" and n.slot == slot]
    end = w.add("%j", "%columns")
    last = columns[-1]

    def row(r: str) -> None:
        w.set_position(rows, w.add("%i", r))
        line = w(
            f"llvm.getelementptr %tile[{w.mul(r, width * ITEM)}] : (!llvm.ptr, i64) -> !llvm.ptr, i8"
        )

        def vector(_: list[str]) -> list[str]:
            flat = w.iv[last]
            w.set_position(columns, flat)
            at = w(
                f"llvm.getelementptr {line}[{w.sub(flat, '%j')}] : (!llvm.ptr, i64) -> !llvm.ptr, f32"
            )
            for i in nodes:
                w.env[i, w.lanes, w.position] = w.read(at, f"vector<{w.lanes}xf32>", 4, w.mask)
            write_stores(w, range(len(k.stores)), w.lanes)
            return []

        w.vectors("%j", end, [], vector)

    hoist(w, 0, set())
    w.repeat(w.i64(0), "%rows", row)
    return w
