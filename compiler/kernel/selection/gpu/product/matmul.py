"""Matrix products on a GPU, with any strides and any number of batch dimensions.

result[b, m, n] = sum over k of x[b, m, k] y[b, k, n]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal

from gflow.compiler.targets import Target
from gflow.compiler.targets.devices import DOT_F64, TMA
from gflow.dialects.program import Place
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ....dimensions import merged
from ....movement import Copy, copying
from ....sizes import WIDE, extent
from ...choice import Choice, Way
from ..region.launches import ways_of_kernel
from .contraction import SUMS, Contraction, Used, choose_product
from .epilogue import Following
from .operands import Operand, stride_class
from .tiles import Problem, fastest

#: the factor by which unvectorized loads are slower than the model says, and the least gain of copying operands
_SINGLE_LOADS, _PAYS = 2.0, 1.3


@record
class Product:
    """A matrix product. Batch dimensions that can be merged in both operands are merged.

    Attributes:
        x, y: the operands; their `batch` has the strides of the batch dimensions.
        dims: the sizes of the batch dimensions.
        m, n, k: the sizes of each product.
        problem: the sizes for the cost model, without the epilogue.
        reserved: bytes of scratch that copies of operands take.
        summed: the operand whose sums over K its kernel computes as well, "a" (by rows) or "b" (by columns); "": none.
    """

    x: Operand
    y: Operand
    dims: tuple[int, ...]
    m: int
    n: int
    k: int
    problem: Problem
    reserved: int = 0
    summed: Literal["", "a", "b"] = ""

    @property
    def count(self) -> int:
        """The number of products in the batch."""
        return self.problem.batch

    @property
    def sums(self) -> int:
        """The number of sums of an operand."""
        return {"": 0, "a": self.m, "b": self.n}[self.summed]

    @property
    def gather(self) -> bool:
        """Whether loads of some operand cannot be vectorized."""
        return not (self.x.vectorized(self.x.batch) and self.y.vectorized(self.y.batch))

    def ragged(self, target: Target) -> bool:
        """Whether only loads by descriptors (TMA) are vectorized for both operands.

        Pointers can load padded operands in vectors, too, but must mask the padding behind K.
        """
        if self.gather:
            return False
        pairs = ((self.x, self.shape("a")), (self.y, self.shape("b")))
        behind = (self.x.cols == 1 and self.x.width) or (self.y.rows == 1 and self.y.width)
        return any(o.ragged(shape) for o, shape in pairs) or bool(behind and self.way(target))

    @property
    def wide(self) -> tuple[bool, bool]:
        """Whether offsets in each operand need 64 bits."""
        x, y = self.x, self.y
        return (
            extent((*self.dims, self.m, self.k), (*x.batch, x.rows, x.cols)) >= WIDE,
            extent((*self.dims, self.k, self.n), (*y.batch, y.rows, y.cols)) >= WIDE,
        )

    def shape(self, name: str) -> tuple[int, int]:
        """The rows and columns of operand "a" or "b"."""
        return (self.m, self.k) if name == "a" else (self.k, self.n)

    def copy_of(self, name: str) -> Copy:
        """The copy of operand "a" or "b" to padded rows, without addresses."""
        old, new = ((p.x if name == "a" else p.y) for p in (self, self.copied(name)))
        ty, nowhere = TensorType(self.shape(name), old.dtype), Place("arena", 0, 0)
        return Copy(nowhere, (old.rows, old.cols), nowhere, (new.rows, new.cols), ty)

    def copied(self, name: str) -> Product:
        """The product with operand "a" or "b" replaced by a copy whose rows are aligned to a 16-byte vector."""
        o, size = (self.x if name == "a" else self.y).padded(self.shape(name))
        found = replace(self, x=o) if name == "a" else replace(self, y=o)
        return replace(found, reserved=self.reserved + size)

    def way(self, target: Target) -> Literal["", "DESCRIPTORS", "PERSISTENT"]:
        """How tiles can be loaded by descriptors (TMA): "PERSISTENT", "DESCRIPTORS" (batches), or "" (not at all)."""
        x, y = self.x, self.y
        # tensor cores take tf32 operands from shared memory only if they are contiguous along K
        upright = self.problem.item == 2 or (x.cols == 1 and y.rows == 1)
        able = self.problem.kind == "cores" and target.has(TMA)
        if self.gather or not (upright and x.even and y.even and able):
            return ""
        # programs that sum an operand have a loop of their own
        return "DESCRIPTORS" if self.dims or self.summed else "PERSISTENT"

    def posed(self, target: Target) -> Problem:
        """The problem with the properties of the operands' loads filled in."""
        return replace(
            self.problem,
            gather=self.gather,
            ragged=self.reserved > 0 or self.ragged(target),
            descriptors=self.way(target),
        )


def kind_of_product(dtype: str, m: int, n: int, tf32: bool, target: Target) -> str:
    """What computes a product: "cores" (tensor cores), "single" (float32), "double" (float64), or "sums".

    "sums" multiplies and adds without `tl.dot`: integers, and products with one row or column.
    """
    if dtype not in ("f16", "bf16", "f32", "f64") or min(m, n) == 1:
        return "sums"
    if dtype == "f64":
        return "double" if target.has(DOT_F64) else "sums"
    return "cores" if dtype != "f32" or tf32 else "single"


def product_of(
    x: Operand, y: Operand, batch: Sequence[int], sizes: tuple[int, int, int], tf32: bool,
    target: Target, rows: bool = True,
) -> Product:  # fmt: skip
    """A batched product.

    Args:
        x, y: the operands.
        batch: the sizes of the batch dimensions.
        sizes: m, n and k.
        tf32: whether float32 products may use TF32.
        target: the target.
        rows: whether batch dimensions that only x has may be merged with its rows.
    """
    m, n, k = sizes
    if rows:
        batch, x, y, m = _rows_joined(batch, x, y, m)
    dims, xs, ys = _batch_joined(batch, x.batch, y.batch)
    count = 1
    for d in dims:
        count *= d
    kind = kind_of_product(x.dtype, m, n, tf32, target)
    moved = x.itemsize * count * (m * k + k * n + m * n)
    problem = Problem(m, n, k, count, x.itemsize, kind, moved)
    return Product(replace(x, batch=xs), replace(y, batch=ys), dims, m, n, k, problem)


def product_of_matmul(c: Contraction, tf32: bool, target: Target) -> Product:
    """A `gflow.matmul` or `gflow.scaled_matmul` as a product."""
    (tx, ty, tz), (sx, sy, _) = c.types, c.strides
    x = Operand(tx.dtype, sx[:-2], sx[-2], sx[-1], c.even[0], c.widths[0])
    y = Operand(ty.dtype, sy[:-2], sy[-2], sy[-1], c.even[1], c.widths[1])
    sizes = tx.shape[-2], ty.shape[-1], tx.shape[-1]
    found = product_of(x, y, tz.shape[:-2], sizes, tf32, target)
    if c.sums is not None:
        found = replace(found, summed="b" if c.sums.operand else "a")
    return found if c.scale < 0 else replace(found, problem=replace(found.problem, scaled=True))


def kind_of_matmul(c: Contraction) -> str:
    """The kind of kernel of a `gflow.matmul`: "product", "zero" (K = 0), "none" (empty), or "pytorch" (other types)."""
    if c.result.numel == 0:
        return "none"
    if c.result.dtype not in SUMS:
        return "pytorch"
    return "product" if c.types[0].shape[-1] else "zero"


def choose_matmul(c: Contraction, tf32: bool, target: Target, used: Used) -> Choice:
    """The choice for a `gflow.matmul` or `gflow.scaled_matmul`.

    tf32: whether float32 products may use TF32. used: the tiles of earlier products, which are chosen again where they
    are nearly as fast.
    """
    p = product_of_matmul(c, tf32, target)
    sums = None if c.sums is None else (p.summed, c.sums.following.structure())
    return choose(p, c.following, c.result, target, used, (c.name, tf32, sums))


def choose(
    p: Product,
    following: Following,
    result: TensorType,
    target: Target,
    used: Used,
    structure: Hashable,
) -> Choice:
    """The choice for a product, with copies of its operands where they pay.

    structure: a key of the kernel's source (`choose_product`), without the operands.
    """
    copies = {}
    for name in copied_operands(p, target):
        copies[name] = copy_way(p.copy_of(name), target)
        p = p.copied(name)
    x, y = p.x, p.y
    walks = [stride_class((*o.batch, o.rows, o.cols)) for o in (x, y)]
    widths = x.width > 0, y.width > 0
    known = (structure, x.dtype, y.dtype, result.dtype, p.problem.kind, *walks, p.wide, widths)
    return choose_product(
        p.posed(target), following, result, x.dtype, target, used, known, p.reserved, copies=copies, sums=p.sums,
    )  # fmt: skip


def copy_way(copy: Copy, target: Target) -> Way:
    """The launch parameters of an operand's copy."""
    return ways_of_kernel(copying(copy).k, 1, 1, target.device)[0]


def copied_operands(p: Product, target: Target) -> tuple[str, ...]:
    """The operands ("a", "b") that are copied to padded rows first, so that descriptors (TMA) can load them.

    The copies are made if the model predicts a gain of at least `_PAYS` over unvectorized loads.
    """
    problem = p.problem
    bad = tuple(name for name, o in (("a", p.x), ("b", p.y)) if not o.vectorized())
    if not bad or problem.kind != "cores" or problem.batch > 1 or not target.has(TMA):
        return ()
    d = target.device
    moved = sum(2 * problem.item * p.shape(name)[0] * p.shape(name)[1] for name in bad)
    copies = moved / d.bandwidth + len(bad) * (d.launch + d.latency)
    good = replace(problem, gather=False, ragged=True, descriptors="PERSISTENT")
    slow = _SINGLE_LOADS * fastest(replace(problem, gather=True), target)
    return bad if slow >= _PAYS * (fastest(good, target) + copies) else ()


def _rows_joined(
    batch: Sequence[int], x: Operand, y: Operand, m: int
) -> tuple[tuple[int, ...], Operand, Operand, int]:
    """Merge inner batch dimensions that only `x` has into its rows, where strides allow it."""
    sizes, xs, ys = list(batch), list(x.batch), list(y.batch)
    while sizes and (sizes[-1] == 1 or (ys[-1] == 0 and (xs[-1] == m * x.rows or m == 1))):
        size, stride = sizes.pop(), xs.pop()
        ys.pop()
        if size > 1:
            x = replace(x, rows=stride if m == 1 else x.rows)
            m *= size
    return tuple(sizes), replace(x, batch=tuple(xs)), replace(y, batch=tuple(ys)), m


def _batch_joined(
    sizes: Sequence[int], xs: Sequence[int], ys: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The batch dimensions, merged where both operands allow it, without those of size 1."""
    found, (a, b) = merged(sizes, (xs, ys))
    return tuple(found), tuple(a), tuple(b)
