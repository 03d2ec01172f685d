"""Convolutions and their gradients as products (compiler/kernel/convolution.py): where the tensors lie, and the
choice for each."""

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
from ....sizes import WIDE, cdiv, extent
from ...choice import Choice, way_of
from .contraction import Contraction, Used, choose_product, total_configs
from .matmul import Product, choose, copy_way, kind_of_product, product_of
from .operands import Operand, stride_class, vectorized
from .tiles import Problem

_DTYPES = ("f16", "bf16", "f32", "f64")

#: channels from which on K is walked tap by tap; with fewer a block has several taps
_FEW_CHANNELS = 16
#: the same of a weight gradient's columns
_FEW_COLUMNS = 32
#: taps whose gradients a program of a depthwise convolution adds up at once
TAPS = 9
#: programs for each multiprocessor that share the positions of a depthwise weight gradient, and the most of all
_PROGRAMS, _MOST_SPLITS = 4, 512


@record
class Tensor:
    """An activation, or a weight, whose `outer` dimension is that of the output channels.

    number: among the contraction's operands and result. outer, channel, spatial: strides. extent: elements that it
    spans. even: whether it begins at a multiple of a vector.
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
        """Those of the outer dimension, of channels and of positions, in elements."""
        return (self.outer, self.channel, *self.spatial)


@record
class Convolution(Geometry):
    """A convolution's geometry, and where its three tensors lie.

    x, w, y: input, weight and output; one of them is the result.
    """

    x: Tensor
    w: Tensor
    y: Tensor

    @property
    def direct(self) -> bool:
        """Whether it is a plain product: each output reads the one input at its own position."""
        return self.pointwise and bool(self.rows_of(self.x) and self.rows_of(self.y))

    @property
    def flat(self) -> bool:
        """Whether taps and channels are one dimension of the product: with few channels."""
        few = {"convolution": _FEW_CHANNELS, "convolution_weight_grad": _FEW_COLUMNS}
        return self.cg < few.get(self.name, 0) and self.taps > 1

    @property
    def packed(self) -> TensorType | None:
        """The weight with its channels side by side, as it is copied first; None if it lies so, or as O*I, already."""
        w = self.w
        if self.name == "convolution_weight_grad" or self.flat or self.direct:
            return None
        if w.channel == 1 or w.outer == 1 or self.taps == 1:
            return None
        return TensorType((self.o, *self.kernel, self.cg), w.dtype)

    @property
    def phased(self) -> tuple[bool, ...]:
        """Along which dimensions the positions of an input gradient fall into phases, by the taps that they meet."""
        return tuple(s > 1 and d == 1 for s, d in zip(self.stride, self.dilation))

    @property
    def phases(self) -> int:
        """How many phases there are along all dimensions."""
        return prod(s for s, yes in zip(self.stride, self.phased) if yes)

    @property
    def counts(self) -> tuple[int, ...]:
        """Positions of an input gradient in each phase."""
        return tuple(
            cdiv(n, s) if yes else n for n, s, yes in zip(self.inputs, self.stride, self.phased)
        )

    @property
    def axes(self) -> tuple[bool, bool]:
        """How positions and channels follow from a tile: whether positions are rows, whether there is one image."""
        sizes = self.inputs if self.name == "convolution_input_grad" else self.outputs
        weight = self.name == "convolution_weight_grad"
        return self.last or (prod(sizes) == 1 and not weight), self.n == 1 and not self.last

    @property
    def rows_alone(self) -> bool:
        """Whether a direct convolution's tile has positions as rows and channels as columns."""
        return self.name == "convolution_weight_grad" or self.axes[0]

    def rows_of(self, t: Tensor) -> int | None:
        """The stride from one position of an activation to the next, if there is one."""
        sizes = (self.n, *(self.inputs if t is self.x else self.outputs))
        real = [(n, s) for n, s in zip(sizes, (t.outer, *t.spatial)) if n != 1]
        if not real:
            return 1
        for (_, outer), (size, inner) in pairwise(real):
            if outer != size * inner:
                return None
        return real[-1][1] or None


def convolution_of(c: Contraction) -> Convolution:
    """The geometry and tensors of a convolution or one of its gradients."""
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
    """A weight whose taps don't move along dimensions that have but one: an index that is always 0 would look as if
    addresses were no multiples of anything."""
    return replace(w, spatial=tuple(0 if k == 1 else s for k, s in zip(kernel, w.spatial)))


def packed_weight(g: Convolution) -> Tensor:
    """The weight as kernels read it: where it is copied first, the copy."""
    if g.packed is None:
        return still(g.w, g.kernel)
    dense = row_major_strides(g.packed.shape)
    return still(Tensor(-1, g.w.dtype, dense[0], dense[-1], dense[1:-1]), g.kernel)


def kind_of_convolution(c: Contraction, g: Convolution) -> str:
    """What a convolution runs as; it has no other kernel."""
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
    """The choice for a convolution that is made as a product."""
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
    """The copy of a weight whose channels don't lie side by side, wherever the two lie; None where they do."""
    if g.packed is None:
        return None
    w, nowhere = still(g.w, g.kernel), Place("arena", 0, 0)
    walk = (w.outer, *w.spatial, w.channel)
    return Copy(nowhere, walk, nowhere, row_major_strides(g.packed.shape), g.packed)


def direct_product(g: Convolution, tf32: bool, target: Target) -> Product:
    """The plain product that a direct convolution is."""
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
    """The product that a convolution is, where its operands are found by index arithmetic."""
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
    # whether channels of the activations are loaded several at a time
    channels = (g.cg, g.og) if g.groups > 1 else (g.cg,)
    whole = all(size * item % 16 == 0 for size in channels) and all(
        vectorized((t.channel,), (t.outer, *t.spatial), item) for t in (g.x, g.y)
    )
    return Problem(m, n, run * runs, batch, item, kind, moved, run, gather=not whole)


# -- depthwise


def depthwise_configs(g: Convolution) -> list[TritonConfig]:
    """Tiles of a depthwise convolution, positions by channels, with the contiguous dimension across."""
    source = g.y if g.name == "convolution_input_grad" else g.x
    last = source.channel == 1
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


def depthwise_sums(g: Convolution, result: TensorType) -> TensorType:
    """What a program adds up of the weight's gradient."""
    return TensorType(result.shape, "f64" if g.x.dtype == "f64" else "f32")


def choose_depthwise(c: Contraction, g: Convolution, target: Target) -> Choice:
    """How a depthwise convolution or one of its gradients runs; programs share the sums of a weight gradient where
    there are few channels, and keep them in scratch.
    """
    first = way_of(depthwise_configs(g)[0])
    block, pieces, scratch, then = first.block, 1, 0, []
    if c.name == "convolution_weight_grad":
        chunks = cdiv(g.taps, min(g.taps, TAPS))
        programs = cdiv(g.c, block[1]) * chunks
        positions = g.positions
        enough = _PROGRAMS * target.device.multiprocessors // programs
        pieces = max(1, min(enough, cdiv(positions, 4 * block[0]), _MOST_SPLITS))
        scratch = -(-depthwise_sums(g, c.result).nbytes * pieces // 64) * 64
        then.append(way_of(total_configs(c.result)[0]))
    return Choice("depthwise", scratch).with_ways([replace(first, pieces=pieces), *then])
