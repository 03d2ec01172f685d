"""The epilogue of a contraction on a GPU: its registers and the length of its code."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import lcm, prod

from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType, row_major_strides, type_of

from .....ir.views import Row
from ....description import (
    APART,
    Access,
    Kernel,
    Node,
    describe,
    describe_apart,
    simplify,
    with_rows,
)
from ....sizes import power_of_two
from ..region.block_sizes import covers
from .operands import stride_class

#: ops that cost more need registers for intermediate values
_COSTLY = 4
#: ops that cost more have much code for each element: exponentials and functions of them, but not roots
_LONG = 8
#: 32-bit words of a vector along the columns, for each element of the tile: a thread has few rows
_VECTOR = 0.25
#: the same in the tall tiles of an epilogue that reduces columns, in which a thread has many rows
_TALL_VECTOR = 0.06
#: 32-bit words of intermediate values of a costly function, and of a random number
_FUNCTION, _RANDOM = 2, 6
#: the same of exponentials of runs, which replace their argument
_RUNS = 0.75
#: the same where columns are summed: that of kernels of batch norms, as they were compiled
_SUMMED = 0.25


@dataclass
class Following:
    """The epilogue of a contraction.

    Attributes:
        kernels: kernels that read the contraction's result as operand number `operands`, and store results.
        operands: the number of the fused op's operands.
    """

    kernels: list[Kernel]
    operands: int

    def live(self) -> float:
        """An estimate of the registers (32-bit words) for each element of a tile, besides the accumulator."""
        words = 0.0
        for k in self.kernels:
            loads = {
                a.operand: a for a in k.loads if a.operand != self.operands and covers(k, a.strides)
            }
            words += sum(_words(a.dtype) for a in loads.values())
            vectors = {
                a.operand for a in k.loads if a.strides[-1:] > (0,) and not covers(k, a.strides)
            }
            reduces = any(n.op == "reduce" for n in k.nodes)
            words += (_TALL_VECTOR if reduces else _VECTOR) * len(vectors)
            costly = (n for n in k.nodes if n.op in OPS and OPS[n.op].cost > _COSTLY)
            words += any(not reduces or n.dims & k.reduced for n in costly) * _FUNCTION
            words += any(n.op == "random" for n in k.nodes) * _RANDOM
            words += any(n.op == "softmax_runs" for n in k.nodes) * _RUNS
            words += reduces * _SUMMED
            if any(_single(k, a) for a in (*loads.values(), *whole_stores(k))):
                words += 1
        stores = [_words(s.dtype) for k in self.kernels for s in whole_stores(k)]
        return words + sum(stores) - max(stores, default=0.0)

    def run(self) -> int:
        """The rows over which it sums columns (`gflow.partial_sums`, `whole`): a tile has a multiple of them; 1: no
        sums."""
        runs = (n.attrs["run"] for k in self.kernels for n in k.nodes if n.op == "partial_sums")
        return lcm(self.whole(), *runs)

    def whole(self) -> int:
        """The rows of a tile that has whole columns, where the epilogue reduces them, a power of two; 1: it reduces
        none."""
        columns = (
            prod(k.sizes[d] for d in k.reduced)
            for k in self.kernels
            if any(n.op == "reduce" for n in k.nodes)
        )
        return power_of_two(max(columns, default=1))

    def run_of_columns(self) -> int:
        """The columns of a run of `gflow.softmax_runs`: each piece of a tile has a multiple of them; 1: no runs."""
        runs = (n.attrs["run"] for k in self.kernels for n in k.nodes if n.op == "softmax_runs")
        return lcm(*runs)

    def costly(self) -> bool:
        """Whether it has much code for each element of a thread, and so takes long to compile."""
        return any(
            n.op == "random" or (n.op in OPS and OPS[n.op].cost > _LONG)
            for k in self.kernels
            for n in k.nodes
        )

    def widest(self) -> int:
        """The bytes of the widest element that is stored."""
        stores = [TensorType((), s.dtype).itemsize for k in self.kernels for s in whole_stores(k)]
        return max(stores, default=0)

    def single(self, columns: int) -> bool:
        """Whether rows of `columns` elements are stored without alignment: not a multiple of 8, and not padded."""
        return columns % 8 > 0 and not all(a.width for k in self.kernels for a in whole_stores(k))

    def structure(self) -> Hashable:
        """A key of the epilogue's source: without sizes, and with strides only as 0, 1 or other."""
        names: dict[int, int] = {self.operands: -1}
        return tuple(_structure(k, names) for k in self.kernels)


def whole_stores(k: Kernel) -> list[Access]:
    """The stores of a value for each element of the result."""
    return [s for s in k.stores if k.nodes[s.node].op not in APART and not of_columns(k, s)]


def of_columns(k: Kernel, s: Access) -> bool:
    """Whether a store has one number for each column, in an epilogue that reduces columns."""
    reduces = any(n.op == "reduce" for n in k.nodes)
    return reduces and not any(s.strides[d] for d in k.reduced)


def _structure(k: Kernel, names: dict[int, int]) -> Hashable:
    nodes = tuple(
        (
            n.op,
            n.dtype,
            n.args,
            n.slot,
            *(str(v) for a, v in n.attrs.items() if a not in ("stream", "row")),
        )
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
    """The registers (32-bit words) of an element."""
    return max(2, TensorType((), dtype).itemsize) / 4


def _single(k: Kernel, a: Access) -> bool:
    """Whether an access isn't vectorized, so that each element has its own address."""
    odd = any(s > 1 and s % 8 for s in a.strides)
    return covers(k, a.strides) and (odd or a.strides[-1:] > (1,))


def stored(
    ty: TensorType,
    strides: tuple[int, ...],
    operand: int = 0,
    number: int = 0,
    rows: Sequence[Row | None] = (),
) -> Kernel:
    """A kernel that copies a contraction's row-major result to result `number`.

    Args:
        ty: the type of the contraction's result.
        strides: the strides of result `number`, in elements.
        operand: the number of the contraction's result among the operands.
        number: the number of the result.
        rows: for each result, its padded row, or None.
    """
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
    apart: ir.Value | None = None,
) -> tuple[list[Kernel], list[Kernel]]:
    """The kernels of a fused op's epilogue, and those after the sums of an operand.

    Args:
        fused: the fused op.
        root: its contraction.
        ty: the type of the contraction's result.
        inputs, outputs: the strides of operands and results, in elements.
        rows: for each operand, and for each result, its padded row, or None.
        apart: the sums of an operand (`ir.fused.operand_sum`); None without.
    """
    sums: list[Kernel] = []
    if apart is None:
        k = describe(fused, inputs, outputs)
    else:
        k, of_sums = describe_apart(fused, apart, inputs, outputs)
        sums += [of_sums] if of_sums.stores else []
    k = with_rows(k, *rows)
    kernels = [k] if k.stores else []
    yielded = root.block.operations[-1].operation.operands
    for n, v in enumerate(yielded):
        if v == root.results[0]:
            kernels.append(stored(ty, outputs[n], len(inputs), n, rows[1]))
        elif apart is not None and v == apart:
            sums.append(stored(type_of(apart), outputs[n], len(inputs), n))
    return kernels, sums
