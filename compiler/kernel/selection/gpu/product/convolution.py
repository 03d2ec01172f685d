"""Convolutions and their gradients as implicit matrix products on a GPU: layouts of the tensors, and the choices.

`compiler/kernel/convolution.py` has the geometry. The kernels compute the addresses of patches; no im2col matrix is
stored.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from gflow.compiler.targets import Target
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.program import Place, TritonConfig
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, row_major_strides

from ....convolution import ROLES, Geometry, geometry
from ....movement import Copy
from ....sizes import WIDE, cdiv, extent, power_of_two
from ...choice import Choice, way_of
from .contraction import Contraction, Used, choose_product, total_configs
from .matmul import Product, choose, copy_way, kind_of_product, product_of
from .operands import Operand, stride_class, vectorized
from .tiles import Problem

_DTYPES = ("f16", "bf16", "f32", "f64")

#: with fewer channels, a block of K covers several taps; otherwise the loop over K goes tap by tap
_FEW_CHANNELS = 16
#: the same for the columns of a weight gradient
_FEW_COLUMNS = 32
#: the taps whose gradients one program of a depthwise convolution accumulates
TAPS = 9
#: programs for each multiprocessor that share the positions of a depthwise weight gradient, and the most pieces
_PROGRAMS, _MOST_SPLITS = 4, 512
#: bytes of a sector of a cache line, and the most positions that one program sums
_SECTOR, _FEW_POSITIONS = 32, 1024


@record
class Tensor:
    """The layout of an activation or a weight. Strides are in elements.

    Attributes:
        number: its number among the contraction's operands (0, 1) and result (2); -1: a copy.
        dtype: the element type.
        outer: the stride of the batch dimension; of a weight, of the output channels.
        channel: the stride of channels; of a weight, of the input channels.
        spatial: the strides of the spatial dimensions.
        extent: the elements that it spans in memory.
        even: whether it is aligned to a 16-byte vector.
    """

    number: int
    dtype: str
    outer: int
    channel: int
    spatial: tuple[int, ...]
    extent: int = 0
    even: bool = True

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of the outer dimension, of channels and of spatial dimensions, in elements."""
        return (self.outer, self.channel, *self.spatial)


@record
class Convolution(Geometry):
    """A convolution's geometry, and the layouts of its input x, weight w and output y, one of which is the result."""

    x: Tensor
    w: Tensor
    y: Tensor

    @property
    def direct(self) -> bool:
        """Whether it is a plain matrix product: a pointwise convolution whose positions have a single stride."""
        return self.pointwise and bool(self.rows_of(self.x) and self.rows_of(self.y))

    @property
    def flat(self) -> bool:
        """Whether taps and channels are flattened into one dimension of the product, which is so with few channels."""
        few = {"convolution": _FEW_CHANNELS, "convolution_weight_grad": _FEW_COLUMNS}
        return self.cg < few.get(self.name, 0) and self.taps > 1

    @property
    def packed(self) -> TensorType | None:
        """The type of the weight's copy [o, taps…, cg]; None where the weight need not be copied.

        The weight is copied if neither its input channels nor its output channels are contiguous.
        """
        w = self.w
        if self.name == "convolution_weight_grad" or self.flat or self.direct:
            return None
        if w.channel == 1 or w.outer == 1 or self.taps == 1:
            return None
        return TensorType((self.o, *self.kernel, self.cg), w.dtype)

    @property
    def phased(self) -> tuple[bool, ...]:
        """The dimensions along which the positions of an input gradient are grouped into phases.

        With stride s, positions of equal remainder modulo s meet the same taps. Each phase is a product of its own.
        """
        return tuple(s > 1 and d == 1 for s, d in zip(self.stride, self.dilation))

    @property
    def phases(self) -> int:
        """The number of phases over all dimensions."""
        return prod(s for s, yes in zip(self.stride, self.phased) if yes)

    @property
    def counts(self) -> tuple[int, ...]:
        """The positions of an input gradient in one phase, by dimension."""
        return tuple(
            cdiv(n, s) if yes else n for n, s, yes in zip(self.inputs, self.stride, self.phased)
        )

    @property
    def axes(self) -> tuple[bool, bool]:
        """How a tile's rows and columns map to positions and channels.

        Whether positions are rows of the tile, and whether there is a single image with channels first.
        """
        sizes = self.inputs if self.name == "convolution_input_grad" else self.outputs
        weight = self.name == "convolution_weight_grad"
        return self.last or (prod(sizes) == 1 and not weight), self.n == 1 and not self.last

    @property
    def rows_alone(self) -> bool:
        """Whether a direct convolution's tile has positions as rows and channels as columns."""
        return self.name == "convolution_weight_grad" or self.axes[0]

    def rows_of(self, t: Tensor) -> int | None:
        """The stride of all positions of an activation flattened into one dimension; None if they cannot be."""
        sizes = (self.n, *(self.inputs if t is self.x else self.outputs))
        real = [(n, s) for n, s in zip(sizes, (t.outer, *t.spatial)) if n != 1]
        if not real:
            return 1
        for (_, outer), (size, inner) in pairwise(real):
            if outer != size * inner:
                return None
        return real[-1][1] or None


def convolution_of(c: Contraction) -> Convolution:
    """The geometry and layouts of a convolution or of one of its gradients."""
    g = geometry(c.name, c.op, c.types)

    def tensor(number: int) -> Tensor:
        ty, s = c.types[number], c.strides[number]
        outer, channel, spatial = conv_dims("N*C" if g.last else "NC*", ty.rank)
        walk = tuple(s[d] for d in spatial)
        return Tensor(
            number, ty.dtype, s[outer], s[channel], walk, extent(ty.shape, s), c.even[number]
        )

    x, w, y = map(tensor, ROLES[c.name])
    return Convolution(**vars(g), x=x, w=w, y=y)


def still(w: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """The weight with spatial stride 0 where the kernel has size 1.

    A stride that is only multiplied by 0 would otherwise hide from Triton that addresses are aligned.
    """
    return replace(w, spatial=tuple(0 if k == 1 else s for k, s in zip(kernel, w.spatial)))


def packed_weight(g: Convolution) -> Tensor:
    """The weight that kernels read: the copy, if it is copied first."""
    if g.packed is None:
        return still(g.w, g.kernel)
    dense = row_major_strides(g.packed.shape)
    return still(Tensor(-1, g.w.dtype, dense[0], dense[-1], dense[1:-1]), g.kernel)


def kind_of_convolution(c: Contraction, g: Convolution) -> str:
    """The kind of kernel of a convolution: "product", "depthwise", "zero", "none", or "pytorch" for other types."""
    if c.result.numel == 0:
        return "none"
    if c.result.dtype not in _DTYPES:
        return "pytorch"
    if any(t.numel == 0 for t in c.types):
        return "zero"
    return "depthwise" if g.depthwise else "product"


def choose_convolution(
    c: Contraction, g: Convolution, tf32: bool, target: Target, used: Used
) -> Choice:
    """The choice for a convolution as a matrix product.

    tf32: whether float32 products may use TF32. used: the tiles of earlier products.
    """
    if g.direct:
        structure = ("matmul", tf32) if g.groups == 1 and g.rows_alone else (c.name, g.axes, tf32)
        return choose(
            direct_product(g, tf32, target), c.following, c.result, target, used, structure
        )
    w = packed_weight(g)
    walks = (g.x.strides, g.y.strides, w.strides, g.stride, g.padding, g.dilation)
    known = (
        c.name, g.axes, g.groups > 1, g.flat, tf32, c.types[0].dtype, *map(stride_class, walks), g.x.extent >= WIDE,
        g.y.extent >= WIDE, g.phased, g.phases > 1, tuple(n > 1 for n in g.inputs), g.rows_of(g.y) is None, g.rank,
        problem_of(g, tf32, target).kind,
    )  # fmt: skip
    copy = weight_copy(g)
    reserved = 0 if copy is None else -(-copy.ty.nbytes // 64) * 64
    copies = {} if copy is None else {"b": copy_way(copy, target)}
    return choose_product(
        problem_of(g, tf32, target), c.following, c.result, g.x.dtype, target, used, known, reserved, copies
    )  # fmt: skip


def weight_copy(g: Convolution) -> Copy | None:
    """The copy of the weight to [o, taps…, cg], without addresses; None where it isn't copied."""
    if g.packed is None:
        return None
    w, nowhere = still(g.w, g.kernel), Place("arena", 0, 0)
    walk = (w.outer, *w.spatial, w.channel)
    return Copy(nowhere, walk, nowhere, row_major_strides(g.packed.shape), g.packed)


def direct_product(g: Convolution, tf32: bool, target: Target) -> Product:
    """A direct convolution (`Convolution.direct`) as a matrix product."""
    x, w, y = g.x, still(g.w, g.kernel), g.y
    positions = g.n * prod(g.inputs)
    px, py = g.rows_of(x) or 0, g.rows_of(y) or 0
    groups = (g.groups,) if g.groups > 1 else ()

    def operand(t: Tensor, group: int, rows: int, cols: int) -> Operand:
        return Operand(t.dtype, (group,) if groups else (), rows, cols, t.even)

    if g.name == "convolution":
        left = operand(x, g.cg * x.channel, px, x.channel)
        right = operand(w, g.og * w.outer, w.channel, w.outer)
        sizes = (positions, g.og, g.cg)
    elif g.name == "convolution_input_grad":
        left = operand(y, g.og * y.channel, py, y.channel)
        right = operand(w, g.og * w.outer, w.outer, w.channel)
        sizes = (positions, g.cg, g.og)
    else:
        left = operand(y, g.og * y.channel, y.channel, py)
        right = operand(x, g.cg * x.channel, px, x.channel)
        sizes = (g.og, g.cg, positions)
    return product_of(left, right, groups, sizes, tf32, target, rows=False)


def problem_of(g: Convolution, tf32: bool, target: Target) -> Problem:
    """The sizes of a convolution as an implicit matrix product, whose operands are addressed by index arithmetic."""
    match g.name:
        case "convolution":
            m, n = g.positions, g.og
            run, runs, batch = (g.cg * g.taps, 1, g.groups) if g.flat else (g.cg, g.taps, g.groups)
        case "convolution_input_grad":
            m, n, run = g.n * prod(g.counts), g.cg, g.og
            runs, batch = max(1, g.taps // g.phases), g.groups * g.phases
        case _:
            m, n = g.og, g.cg * g.taps if g.flat else g.cg
            run, runs, batch = g.positions, 1, g.groups * (1 if g.flat else g.taps)
    item = TensorType((), g.x.dtype).itemsize
    moved = item * (g.n * (g.c * prod(g.inputs) + g.o * prod(g.outputs)) + g.o * g.cg * g.taps)
    kind = kind_of_product(g.x.dtype, m, n, tf32, target)
    # whether loads are vectorized along channels of the activations
    channels = (g.cg, g.og) if g.groups > 1 else (g.cg,)
    whole = all(size * item % 16 == 0 for size in channels) and all(
        vectorized((t.channel,), (t.outer, *t.spatial), item) for t in (g.x, g.y)
    )
    return Problem(m, n, run * runs, batch, item, kind, moved, run, gather=not whole)


# -- depthwise


def depthwise_configs(g: Convolution, whole: int = 1) -> list[TritonConfig]:
    """The configurations of a depthwise convolution: tiles of positions × channels.

    whole: the positions of a tile whose columns the epilogue reduces (`Following.whole`); 1: it reduces none.
    """
    source = g.y if g.name == "convolution_input_grad" else g.x
    last = source.channel == 1
    if whole > 1:
        wide = _SECTOR // TensorType((), g.x.dtype).itemsize
        return [
            TritonConfig({"BLOCK_P": whole, "BLOCK_C": w}, min(16, max(2, whole * w // 256)), 2)
            for w in (wide, 2 * wide)
        ]
    if g.name == "convolution_weight_grad" and _alone(g):
        wide = _SECTOR // TensorType((), g.x.dtype).itemsize
        tall = min(2048 // wide, power_of_two(g.positions))
        tiles = [(tall, wide), (tall, 2 * wide)]
        return [
            TritonConfig({"BLOCK_P": n, "BLOCK_C": w}, max(1, n * w // 256), 2) for n, w in tiles
        ]
    if g.name == "convolution_weight_grad":
        wide = 64 if g.c > 32 else 32
        tiles = (
            [(1024 // wide, wide), (512 // wide, wide), (2048 // wide, wide)]
            if last
            else [(1024, 1), (512, 1), (2048, 1)]
        )
    elif last:
        wide = 128 if g.c >= 128 else 64 if g.c > 32 else 32
        tiles = [(1024 // wide, wide), (2048 // wide, wide), (512 // wide, wide), (1024 // 32, 32)]
    else:
        tiles = [(256, 1), (512, 1), (128, 4), (1024, 1)]
    found = [TritonConfig({"BLOCK_P": n, "BLOCK_C": w}, 4, 2) for n, w in tiles]
    return [c for n, c in enumerate(found) if c not in found[:n]]


def _alone(g: Convolution) -> bool:
    """Whether one program sums all positions of its channels in a weight gradient.

    With few positions it takes a few steps, with as few channels as a sector of memory has.
    """
    return g.x.channel == g.y.channel == 1 and g.positions <= _FEW_POSITIONS


def depthwise_sums(g: Convolution, result: TensorType) -> TensorType:
    """The type of the partial sums of a depthwise weight gradient."""
    return TensorType(result.shape, "f64" if g.x.dtype == "f64" else "f32")


def choose_depthwise(c: Contraction, g: Convolution, target: Target) -> Choice:
    """The choice for a depthwise convolution or one of its gradients.

    Several programs share the positions of a weight gradient where there are few channels; their partial sums are in
    scratch.
    """
    first = way_of(depthwise_configs(g, c.following.whole())[0])
    block, pieces, scratch, then = first.block, 1, 0, []
    if c.name == "convolution_weight_grad":
        if _alone(g):
            return Choice("depthwise").with_ways([first])
        chunks = cdiv(g.taps, min(g.taps, TAPS))
        programs = cdiv(g.c, block[1]) * chunks
        positions = g.positions
        enough = _PROGRAMS * target.device.multiprocessors // programs
        pieces = max(1, min(enough, cdiv(positions, 4 * block[0]), _MOST_SPLITS))
        if pieces > 1:
            scratch = -(-depthwise_sums(g, c.result).nbytes * pieces // 64) * 64
            then.append(way_of(total_configs(c.result)[0]))
    return Choice("depthwise", scratch).with_ways([replace(first, pieces=pieces), *then])
