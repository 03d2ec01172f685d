"""Epilogues on register tiles: the function that a product kernel calls on each tile, which is on the stack."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gflow.compiler.kernel.selection.cpu.loops import Loops
from gflow.compiler.kernel.tiles import Tiled
from gflow.dialects.program import KernelAddress, Place
from gflow.dialects.types import HALVES

from ..language.expressions import hoist, write_stores
from ..language.parameters import Plan, plan_of, structure
from ..language.scalars import round_half
from ..language.writer import Writer
from ..program_builder import Builder
from .function import ITEM

#: its arguments: the array of words, the tile, the tile's first row and column, its number of rows and columns
_ARGUMENTS = "%w: !llvm.ptr, %tile: !llvm.ptr, %i: i64, %j: i64, %rows: i64, %columns: i64"

Words = tuple[int | Place, ...]


def finish(
    b: Builder, t: Tiled, root: int, width: int, loads: Sequence[Place], stores: Sequence[Place]
) -> tuple[KernelAddress, Words]:
    """Add the function that computes an epilogue on a tile, and return its address and words.

    Args:
        b: the builder.
        t: the epilogue.
        root: the number of the product's result among the kernel's operands.
        width: the columns of a tile.
        loads, stores: addresses by number of operand and result; that of `root` is not used.
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
    hoist(w, 0, set())

    def row(r: str) -> str:
        """Set the writer's position to a row of the tile."""
        w.set_position(rows, w.add("%i", r))
        offset = w.mul(r, width * ITEM)
        return w(f"llvm.getelementptr %tile[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")

    def write(at: str) -> None:
        for i in nodes:
            x, dtype = w.read(at, f"vector<{w.lanes}xf32>", 4, w.mask), k.nodes[i].dtype
            rounded = dtype in HALVES  # the product's result has this type
            w.env[i, w.lanes, w.position] = round_half(w, x, dtype, w.lanes) if rounded else x
        write_stores(w, range(len(k.stores)), w.lanes)

    def some(r: str) -> None:
        line = row(r)

        def vector(_: list[str]) -> list[str]:
            flat = w.iv[last]
            w.set_position(columns, flat)
            offset = w.sub(flat, "%j")
            write(w(f"llvm.getelementptr {line}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, f32"))
            return []

        w.vectors("%j", end, [], vector)

    def whole() -> list[str]:
        """All columns of a complete tile, so that values that depend on columns only are computed once."""
        beside = range(width // w.lanes)
        positions = []
        for w.position in beside:
            w.set_position(columns, w.add("%j", w.position * w.lanes))
            positions.append({d: w.iv[d] for d in columns})
            hoist(w, 0, set(columns), w.lanes)

        def each(r: str) -> None:
            line = row(r)
            for w.position in beside:
                w.iv |= positions[w.position]
                offset = w.position * w.lanes
                write(w(f"llvm.getelementptr {line}[{offset}] : (!llvm.ptr) -> !llvm.ptr, f32"))

        w.repeat(w.i64(0), "%rows", each)
        return []

    full = w(f"arith.cmpi eq, %columns, {w.i64(width)} : i64")
    w.when(full, [], whole)
    w.position = 0
    left = w(f"arith.select {full}, {w.i64(0)}, %rows : i64")
    w.repeat(w.i64(0), left, some)
    return w
