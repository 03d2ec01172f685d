"""What follows a contraction on the tile of its result: what it costs in registers and text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import lcm

from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType, row_major_strides

from .....ir.views import Row
from ....description import Access, Kernel, Node, describe, simplify, with_rows
from ..region.block_sizes import covers
from .operands import stride_class

#: an op that costs more has values of its own
_COSTLY = 4
#: one that costs more is long text for each element: exponentials, and what is made of them, but not roots
_LONG = 8
#: words of a vector along the columns, for each element of the tile: a thread has few rows
_VECTOR = 0.25
#: words of a costly function's values, and of a random number that is made
_FUNCTION, _RANDOM = 2, 6


@dataclass
class Following:
    """kernels: each reads the contraction's result as operand number `operands`, and stores."""

    kernels: list[Kernel]
    operands: int

    def live(self) -> float:
        """Words for each element of a tile that are in registers at once, beside the sum: an estimate."""
        words = 0.0
        for k in self.kernels:
            loads = {
                a.operand: a for a in k.loads if a.operand != self.operands and covers(k, a.strides)
            }
            words += sum(_words(a.dtype) for a in loads.values())
            vectors = {
                a.operand for a in k.loads if a.strides[-1:] > (0,) and not covers(k, a.strides)
            }
            words += _VECTOR * len(vectors)
            words += any(n.op in OPS and OPS[n.op].cost > _COSTLY for n in k.nodes) * _FUNCTION
            words += any(n.op == "random" for n in k.nodes) * _RANDOM
            if any(_single(k, a) for a in (*loads.values(), *whole_stores(k))):
                words += 1
        stores = [_words(s.dtype) for k in self.kernels for s in whole_stores(k)]
        return words + sum(stores) - max(stores, default=0.0)

    def run(self) -> int:
        """How many rows it sums: a tile has a multiple of them. 1 where it sums no columns."""
        runs = (n.attrs["run"] for k in self.kernels for n in k.nodes if n.op == "partial_sums")
        return lcm(*runs)

    def costly(self) -> bool:
        """Whether its text is long for each element that a thread has, and so takes long to compile."""
        return any(
            n.op == "random" or (n.op in OPS and OPS[n.op].cost > _LONG)
            for k in self.kernels
            for n in k.nodes
        )

    def widest(self) -> int:
        """Bytes of the largest element that is stored."""
        stores = [TensorType((), s.dtype).itemsize for k in self.kernels for s in whole_stores(k)]
        return max(stores, default=0)

    def single(self, columns: int) -> bool:
        """Whether rows of what is stored, of `columns` elements, begin anywhere."""
        return columns % 8 > 0 and not all(a.width for k in self.kernels for a in whole_stores(k))

    def structure(self) -> Hashable:
        """Equal where the code is: sizes, strides and most constants are not in it."""
        names: dict[int, int] = {self.operands: -1}
        return tuple(_structure(k, names) for k in self.kernels)


def whole_stores(k: Kernel) -> list[Access]:
    """The stores of values, without those of partial sums of columns."""
    return [s for s in k.stores if k.nodes[s.node].op != "partial_sums"]


def _structure(k: Kernel, names: dict[int, int]) -> Hashable:
    nodes = tuple(
        (n.op, n.dtype, n.args, n.slot, *(str(v) for a, v in n.attrs.items() if a != "stream"))
        for n in k.nodes
    )
    loads = tuple(
        (
            names.setdefault(a.operand, len(names)), a.dtype, a.offset, stride_class(a.strides), a.width > 0,
        )
        for a in k.loads
    )  # fmt: skip
    stores = tuple(
        (a.operand, a.dtype, a.node, stride_class(a.strides), a.width > 0) for a in k.stores
    )
    return nodes, loads, tuple(map(stride_class, k.indices)), stores


def _words(dtype: str) -> float:
    """Registers that an element waits in."""
    return max(2, TensorType((), dtype).itemsize) / 4


def _single(k: Kernel, a: Access) -> bool:
    """Whether an access goes element by element, each with an address of its own."""
    odd = any(s > 1 and s % 8 for s in a.strides)
    return covers(k, a.strides) and (odd or a.strides[-1:] > (1,))


def stored(
    ty: TensorType,
    strides: tuple[int, ...],
    operand: int = 0,
    number: int = 0,
    rows: Sequence[Row | None] = (),
) -> Kernel:
    """A kernel that copies a contraction's result (row-major) to result `number`. rows: of results, where padded."""
    dense = row_major_strides(ty.shape)
    load = Access(operand, ty.dtype, dense)
    store = Access(number, ty.dtype, strides, 0)
    k = Kernel(ty.shape, frozenset(), [Node("load", ty.dtype, slot=0)], [load], [], [store])
    return with_rows(simplify(k), (), rows)


def kernels_after(
    fused: ir.Operation,
    root: ir.Operation,
    ty: TensorType,
    inputs: Sequence[tuple[int, ...]],
    outputs: Sequence[tuple[int, ...]],
    rows: tuple[Sequence[Row | None], Sequence[Row | None]] = ((), ()),
) -> list[Kernel]:
    """What a fused op does with its contraction's result, of type `ty`. inputs, outputs: strides of its tensors.
    rows: of operands and results, where padded."""
    k = with_rows(describe(fused, inputs, outputs), *rows)
    kernels = [k] if k.stores else []
    yielded = root.block.operations[-1].operation.operands
    for n, v in enumerate(yielded):
        if v == root.results[0]:
            kernels.append(stored(ty, outputs[n], len(inputs), n, rows[1]))
    return kernels
