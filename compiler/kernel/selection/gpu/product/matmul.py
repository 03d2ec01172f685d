"""Products of matrices: any strides, any number of batch dimensions.

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

#: how much longer loads of single elements take than the model of a product says, and by how much a copy must pay
_SINGLE_LOADS, _PAYS = 2.0, 1.3


@record
class Product:
    """A product with the batch dimensions that both operands walk as one joined.

    dims: the batch dimensions; the operands' `batch` are their strides. reserved: bytes that copies of operands take.
    problem: without what follows.
    """

    x: Operand
    y: Operand
    dims: tuple[int, ...]
    m: int
    n: int
    k: int
    problem: Problem
    reserved: int = 0

    @property
    def count(self) -> int:
        """Matrices of the batch."""
        return self.problem.batch

    @property
    def gather(self) -> bool:
        """Whether operands are loaded element by element."""
        return not (self.x.vectorized(self.x.batch) and self.y.vectorized(self.y.batch))

    def ragged(self, target: Target) -> bool:
        """Whether only descriptors load whole vectors of both operands; of padded ones others can, too, but have to
        clear what stands behind K."""
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
        """Rows and columns of operand `a` or `b`."""
        return (self.m, self.k) if name == "a" else (self.k, self.n)

    def copy_of(self, name: str) -> Copy:
        """The copy of operand `a` or `b`, wherever the two lie."""
        old, new = ((p.x if name == "a" else p.y) for p in (self, self.copied(name)))
        ty, nowhere = TensorType(self.shape(name), old.dtype), Place("arena", 0, 0)
        return Copy(nowhere, (old.rows, old.cols), nowhere, (new.rows, new.cols), ty)

    def copied(self, name: str) -> Product:
        """With operand `a` or `b` copied to rows that begin at multiples of a vector."""
        o, size = (self.x if name == "a" else self.y).padded(self.shape(name))
        found = replace(self, x=o) if name == "a" else replace(self, y=o)
        return replace(found, reserved=self.reserved + size)

    def way(self, target: Target) -> Literal["", "DESCRIPTORS", "PERSISTENT"]:
        """The constant of the kernel with which tiles may come by descriptors; "" if they cannot."""
        x, y = self.x, self.y
        # tensor cores take tf32 only with neighbours along K side by side
        upright = self.problem.item == 2 or (x.cols == 1 and y.rows == 1)
        able = self.problem.kind == "cores" and target.has(TMA)
        if self.gather or not (upright and x.even and y.even and able):
            return ""
        return "DESCRIPTORS" if self.dims else "PERSISTENT"

    def posed(self, target: Target) -> Problem:
        """The problem with how its operands come."""
        return replace(
            self.problem,
            gather=self.gather,
            ragged=self.reserved > 0 or self.ragged(target),
            descriptors=self.way(target),
        )


def kind_of_product(dtype: str, m: int, n: int, tf32: bool, target: Target) -> str:
    """What computes a product: "cores", "single", "double", "sums"."""
    if dtype not in ("f16", "bf16", "f32", "f64") or min(m, n) == 1:
        return "sums"
    if dtype == "f64":
        return "double" if target.has(DOT_F64) else "sums"
    return "cores" if dtype != "f32" or tf32 else "single"


def product_of(
    x: Operand, y: Operand, batch: Sequence[int], sizes: tuple[int, int, int], tf32: bool,
    target: Target, rows: bool = True,
) -> Product:  # fmt: skip
    """The product of operands of a batch. rows: whether batch dimensions that go on with x's rows may become rows."""
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
    """The product that a `gflow.matmul` is."""
    (tx, ty, tz), (sx, sy, _) = c.types, c.strides
    x = Operand(tx.dtype, sx[:-2], sx[-2], sx[-1], c.even[0], c.widths[0])
    y = Operand(ty.dtype, sy[:-2], sy[-2], sy[-1], c.even[1], c.widths[1])
    return product_of(x, y, tz.shape[:-2], (tx.shape[-2], ty.shape[-1], tx.shape[-1]), tf32, target)


def kind_of_matmul(c: Contraction) -> str:
    """What a `gflow.matmul` runs as; it has no other kernel."""
    if c.result.numel == 0:
        return "none"
    if c.result.dtype not in SUMS:
        return "pytorch"
    return "product" if c.types[0].shape[-1] else "zero"


def choose_matmul(c: Contraction, tf32: bool, target: Target, used: Used) -> Choice:
    """How a product of matrices runs. tf32: whether products of float32 may take 10 bits of mantissa. used: the kernels
    that the program has already, which are taken again where they are nearly as fast.
    """
    return choose(
        product_of_matmul(c, tf32, target), c.following, c.result, target, used, ("matmul", tf32)
    )


def choose(
    p: Product,
    following: Following,
    result: TensorType,
    target: Target,
    used: Used,
    structure: Hashable,
) -> Choice:
    """The choice for a product. structure: as of `choose_product`, besides the operands."""
    copies = {}
    for name in copied_operands(p, target):
        copies[name] = copy_way(p.copy_of(name), target)
        p = p.copied(name)
    x, y = p.x, p.y
    walks = [stride_class((*o.batch, o.rows, o.cols)) for o in (x, y)]
    widths = x.width > 0, y.width > 0
    known = (structure, x.dtype, y.dtype, result.dtype, p.problem.kind, *walks, p.wide, widths)
    return choose_product(
        p.posed(target), following, result, x.dtype, target, used, known, p.reserved, copies=copies
    )


def copy_way(copy: Copy, target: Target) -> Way:
    """How a copy of an operand runs."""
    return ways_of_kernel(copying(copy).k, 1, 1, target.device)[0]


def copied_operands(p: Product, target: Target) -> tuple[str, ...]:
    """The operands that are copied first: only descriptors read sizes that are no multiples of a vector in whole
    vectors."""
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
    """Batch dimensions that only `x` has and that go on with its rows, as rows."""
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
    """The batch dimensions, those that both operands walk as one joined, those of size 1 dropped."""
    found, (a, b) = merged(sizes, (xs, ys))
    return tuple(found), tuple(a), tuple(b)
