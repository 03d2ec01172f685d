"""Operands of a product that lie badly, copied so that whole vectors of them can be loaded.

[8192, 50257], rows of 50257 elements    →    scratch, rows of 50264 elements, of which the last 7 are never read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gflow.compiler.kernel.description import Access, Kernel, Node, simplify
from gflow.compiler.targets.devices import TMA
from gflow.dialects.program import Place
from gflow.dialects.types import TensorType

from ..language.grid import cdiv
from ..program_builder import Builder
from ..region.fused import launch
from ..scratch_layout import behind
from .tile_candidates import Problem, fastest

#: bytes that are loaded at once
_VECTOR = 16
#: how much longer loads of single elements take than the model of a product says, and by how much a copy must pay
_SINGLE_LOADS, _PAYS = 2.0, 1.3


@dataclass(frozen=True)
class Operand:
    """Memory seen as matrices: batch strides, then those of the two dimensions."""

    place: Place
    dtype: str
    batch: tuple[int, ...]
    rows: int
    cols: int


def vectorized(matrix: Sequence[int], others: Sequence[int], item: int) -> bool:
    """Whether 16 bytes can be loaded at a time: one stride of a matrix is 1, all others are multiples of so many."""
    if 1 not in matrix:
        return False
    rest = [s for s in matrix if s != 1]
    return all(s * item % _VECTOR == 0 for s in (*rest, *others))


def aligned(
    b: Builder, x: Operand, y: Operand, p: Problem, label: str
) -> tuple[Operand, Operand, int]:
    """Both operands, of one product, and the bytes of scratch that copies of them take.

    Only descriptors read sizes that are no multiples of a vector in whole vectors.
    """
    bad = [o for o in (x, y) if not vectorized((o.rows, o.cols), (), p.item)]
    if not bad or p.kind != "cores" or p.batch > 1 or not b.target.has(TMA):
        return x, y, 0
    d = b.target.device
    sizes = {id(x): (p.m, p.k), id(y): (p.k, p.n)}
    moved = sum(2 * p.item * sizes[id(o)][0] * sizes[id(o)][1] for o in bad)
    copies = moved / d.bandwidth + len(bad) * (d.launch + d.latency)
    good = replace(p, gather=False, ragged=True, descriptors="PERSISTENT")
    slow = _SINGLE_LOADS * fastest(replace(p, gather=True), b.target)
    if slow < _PAYS * (fastest(good, b.target) + copies):
        return x, y, 0
    found, taken = [], 0
    for o in (x, y):
        if o in bad:
            o, taken = _copied(b, o, sizes[id(o)], taken, label)
        found.append(o)
    return found[0], found[1], taken


def _copied(
    b: Builder, o: Operand, shape: tuple[int, int], taken: int, label: str
) -> tuple[Operand, int]:
    step = _VECTOR // TensorType((), o.dtype).itemsize
    rows_outside = o.rows >= o.cols
    width = cdiv(shape[1] if rows_outside else shape[0], step) * step
    strides = (width, 1) if rows_outside else (1, width)
    elements = width * (shape[0] if rows_outside else shape[1])
    size = cdiv(TensorType((elements,), o.dtype).nbytes, 64) * 64
    place = behind(b, taken, size)
    copy(b, TensorType(shape, o.dtype), o.place, (o.rows, o.cols), place, strides, label)
    return replace(o, place=place, rows=strides[0], cols=strides[1]), taken + size


def copy(
    b: Builder,
    ty: TensorType,
    source: Place,
    strides: tuple[int, ...],
    target: Place,
    target_strides: tuple[int, ...],
    label: str,
) -> None:
    """Add the launch that copies a tensor."""
    load = Access(0, ty.dtype, strides)
    store = Access(0, ty.dtype, target_strides, 0)
    node = Node("load", ty.dtype, slot=0)
    k = simplify(Kernel(ty.shape, frozenset(), [node], [load], [], [store]))
    launch(b, k, [source], [target], label)
