"""Ops that only move or make elements: copies between places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gflow.compiler.emit.movement import concatenation, counting, reversal
from gflow.compiler.emit.placement import shifted
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.description import Access, Kernel, Node, simplify
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import Place
from gflow.dialects.types import TensorType

from ..program_builder import Builder
from ..region.fused import launch, readable


def write(
    b: Builder,
    o: Op,
    target: Place,
    ty: TensorType,
    strides: Sequence[int],
    nodes: list[Node],
    source: tuple[Place, Sequence[int]] | None = None,
    indices: Sequence[tuple[int, ...]] = (),
) -> None:
    """A kernel that writes the last node over the whole of `target`.

    source: the place and strides of the one load, if any. indices: the walks of index nodes.
    """
    loads = [] if source is None else [Access(0, ty.dtype, tuple(source[1]))]
    store = Access(0, ty.dtype, tuple(strides), len(nodes) - 1)
    k = Kernel(ty.shape, frozenset(), nodes, loads, list(indices), [store])
    comment: Callable[[], str] = lambda: readable(o.op)  # noqa: E731
    launch(b, simplify(k), [] if source is None else [source[0]], [target], b.label(o), comment)


def copy(
    b: Builder,
    o: Op,
    source: Place,
    source_strides: Sequence[int],
    target: Place,
    target_strides: Sequence[int],
    ty: TensorType,
) -> None:
    """Copy a tensor of type `ty` between two places. A stride of 0 repeats an element."""
    nodes = [Node("load", ty.dtype, slot=0)]
    write(b, o, target, ty, target_strides, nodes, (source, source_strides))


def fill(b: Builder, o: Op, value: float | int | bool, target: Place, ty: TensorType) -> None:
    """Write `value` to a whole dense tensor."""
    flat = TensorType((ty.numel,), ty.dtype)
    write(b, o, target, flat, (1,), [Node("const", ty.dtype, attrs={"value": value})])


def iota(b: Builder, o: Op) -> None:
    (r,) = o.results
    nodes, walk = counting(b, o)
    write(b, o, b.place(r), b.body.types[r], b.strides(r), nodes, indices=[walk])


def pad(b: Builder, o: Op) -> None:
    """The padding value everywhere, then the operand inside."""
    x, value = o.operands
    (r,) = o.results
    low = read(OPS["pad"], o.op.attributes)["low"]
    ty, strides, place = b.body.types[r], b.strides(r), b.place(r)
    copy(b, o, b.place(value), (0,) * ty.rank, place, strides, ty)
    inner = shifted(place, sum(a * s for a, s in zip(low, strides)), ty)
    copy(b, o, b.place(x), b.strides(x), inner, strides, b.body.types[x])


def concatenate(b: Builder, o: Op) -> None:
    for part in concatenation(b, o):
        copy(b, o, *part)


def reverse(b: Builder, o: Op) -> None:
    for part in reversal(b, o):
        copy(b, o, *part)
