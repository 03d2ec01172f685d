"""The steps of a convolution: im2col and matrix products, or a depthwise kernel.

It supports channels-last float32, and depthwise convolutions in one or two spatial dimensions; others are ATen calls.

    forward         rows = im2col(x)           y  = rows Wᵀ
    input gradient  rows = dy W                dx = im2colᵀ(rows)
    weight gradient rows = im2col(x)           dW = dyᵀ rows

The rows (patches) are computed in chunks that stay in the cache. For a 1×1 kernel with stride 1 the activation itself
is the matrix.
"""

from __future__ import annotations

from math import prod

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.blocks import BF16, ITEM
from gflow.compiler.kernel.convolution import ROLES, Geometry, geometry
from gflow.compiler.kernel.selection.cpu.convolutions.patches import (
    Patches,
    kind_of_patches,
    patches_of,
    reads_halves,
    rows_with,
    weight_copy,
)
from gflow.dialects.extents import Count, at_most, longest
from gflow.dialects.program import KernelAddress, KernelStep, Place
from gflow.dialects.types import row_major_strides

from ...program_builder import Builder
from .. import gemm, own
from ..epilogue import Epilogue
from ..gemm import Matrix
from ..panels import WINDOWS
from . import depthwise, kernels
from .patches import sizes


def native(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the steps of a convolution op and of its epilogue.

    Raises:
        CannotLower: the chosen kernel does not support the convolution.
    """
    values = (*o.operands, *o.results)
    types, strides = [b.body.types[v] for v in values], [b.strides(v) for v in values]
    g = geometry(o.name, o.op, types)
    kind = kind_of_patches(g, types, strides, b.blas)
    b.choice.check(b.choice.kind == kind, f"is not for a convolution whose kind is {kind}")
    if kind == "zero":
        _zero(b, o, epilogue)
        return
    rows = None if epilogue is None else epilogue.made
    x, w, y = ROLES[o.name]
    tiled = epilogue is not None and epilogue.tiled is not None
    if tiled and (b.choice.tile or kind == "depthwise"):
        rows = None  # the epilogue runs on tiles, and needs no complete rows
    given = b.choice.rows, "weight" in b.choice.copies
    gathered = b.choice.patches == "gathered"
    b.choice.check(not gathered or bool(b.choice.tile), "gathers patches for a call of the BLAS")
    made = patches_of(g, types[w], strides[w], types[2], rows, b.threads, *given, gathered)
    right = made.gathered == gathered and bool(made.patches) == (b.choice.patches == "stored")
    b.choice.check(right, "makes patches that the convolution does not have")
    conv = _Convolution(b, o, g, (values[x], values[w], values[y]), made, epilogue)
    getattr(conv, "depthwise" if kind == "depthwise" else o.name)()


def _zero(b: Builder, o: Op, epilogue: Epilogue | None) -> None:
    """Add the steps of a convolution with K = 0: zeros, and the epilogue."""
    (r,) = o.results
    ty = b.body.types[r]
    if ty.numel == 0:
        return
    if epilogue is None:
        b.zero(b.place(r), ty, b.strides(r), b.label(o))
        return
    target = epilogue.target(0, b.scratch(ty.nbytes, epilogue.place is None))
    b.zero(target, ty, row_major_strides(ty.shape), b.label(o))
    epilogue.run(0, epilogue.rows, target)


def _operand(matrix: Matrix, item: int) -> own.Operand:
    found = own.Operand(matrix.place, max(matrix.leading, 1), 1, 0, item)
    return found.transposed if matrix.transposed else found


class _Output:
    """The address to which a convolution writes its result in chunks of rows, and the epilogue on each chunk."""

    def __init__(self, conv: _Convolution) -> None:
        (r,) = conv.o.results
        self.type = conv.b.body.types[r]
        self.epilogue = conv.epilogue
        self.first = 0  # the number of the row at `place`
        self.place = Place("arena", 0, 0)
        if self.epilogue is None:
            self.place = conv.b.place(r)
        elif self.epilogue.place is not None:
            self.place = self.epilogue.place
        elif conv.tiled is None:
            self.place = conv.take_scratch(conv.made.rows)
        elif (
            conv.blocks is not None and conv.blocks.tile[2] < conv.k
        ):  # for sums between blocks of K
            row = self.type.shape[-1] * self.type.itemsize
            self.place = conv.take_scratch(longest(conv.made.pieces) * row)
        self.floating = self.epilogue is not None and self.epilogue.place is None
        self.tiled = conv.tiled is not None

    def at(self, row: int, column: int = 0) -> Place:
        """The address of an element."""
        row -= self.first
        offset = (row * self.type.shape[-1] + column) * self.type.itemsize
        return Place(self.place.space, self.place.index, self.place.offset + offset)

    def begin(self, first: int) -> None:
        """Begin a chunk whose first row is `first`."""
        if (
            self.floating
            and self.epilogue is not None
            and (self.tiled or self.epilogue.made.granule)
        ):
            self.first = first

    def done(self, first: int, count: Count, last: bool) -> None:
        """Add the epilogue's step after a chunk is complete. last: whether it is the last chunk."""
        if self.epilogue is None or self.tiled:
            return
        if self.epilogue.made.granule:
            self.epilogue.run(first, count, self.at(first))
        elif last:
            self.epilogue.run(0, self.epilogue.rows, self.at(0))


class _Convolution:
    """The steps of one convolution op.

    x, w, y: the value numbers of input, weight and output; the op's own result is one of them.
    """

    def __init__(
        self,
        b: Builder,
        o: Op,
        g: Geometry,
        values: tuple[int, int, int],
        made: Patches,
        epilogue: Epilogue | None = None,
    ) -> None:
        self.made = made
        self.b, self.o, self.g, self.epilogue = b, o, g, epilogue
        self.x, self.w, self.y = (
            Place("arena", 0, 0) if v in o.results and epilogue is not None else b.place(v)
            for v in values
        )
        self.w_value = values[1]
        self.label = b.label(o)
        self.k = g.taps * g.cg
        self.scratch = 0
        self.blocks = b.choice.blocks() if b.choice.tile else None
        #: bytes of an element of an operand
        self.item = b.body.types[o.operands[0]].itemsize
        sound = self.item == ITEM or (b.choice.precision == BF16 and reads_halves(g))
        b.choice.check(sound, "reads bfloat16 operands of a convolution that needs float32")
        #: the epilogue, if product kernels call it on each tile
        self.tiled = epilogue
        if not (self.blocks or g.depthwise) or epilogue is None or epilogue.tiled is None:
            self.tiled = None
        if self.blocks is not None:
            self.panels = self.take_scratch(self.blocks.scratch(b.threads))

    # -- steps

    def take_scratch(self, size: int) -> Place:
        """Allocate bytes of the op's scratch."""
        place = Place("arena", 0, self.b.arena + self.scratch)
        self.scratch += -(-at_most(size) // 64) * 64
        self.b.scratch_bytes = max(self.b.scratch_bytes, self.scratch)
        return place

    def run(self, name: str, *more: Count | Place, **words: Count | Place | KernelAddress) -> None:
        text, externals, names = kernels.kernel(name)
        self.b.kernels[name] = text
        self.b.externals |= externals
        given = sizes(self.g) | words
        taken = (*(given[n] for n in names), *more)
        if self.g.depthwise:
            parallel, from_size = self.b.choice.shared()
        else:
            parallel, from_size = self.b.way(self.b.choice.before_epilogue - 1).shared()
        self.b.steps.append(KernelStep(name, taken, parallel, self.label, from_size=from_size))

    def product(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        m: Count,
        n: Count,
        k: Count,
        add: bool = False,
        first: int = 0,
    ) -> None:
        """Add a matrix product. first: the number of its first row, for an epilogue on tiles."""
        if self.blocks is not None:
            operands = (_operand(a, self.item), _operand(b, self.item), _operand(c, ITEM))
            finish = None if self.tiled is None else self.tiled.finish(self.blocks.tile[1])
            given, windows = sizes(self.g), None
            if self.made.gathered:
                windows = {name: given[name] for name in WINDOWS}
            own.product(
                self.b,
                self.blocks,
                operands,
                (m, n, k),
                self.panels,
                self.label,
                self.b.choice.shared(),
                add=add,
                finish=finish,
                first=first,
                windows=windows,
            )
            return
        name = self.b.gemm("f32")
        self.b.steps.append(
            KernelStep(name, gemm.product(a, b, c, m, n, k, add), False, self.label)
        )

    def at(self, place: Place, elements: int) -> Place:
        return Place(place.space, place.index, place.offset + ITEM * elements)

    def operand(self, place: Place, elements: int) -> Place:
        """The address of an element of an operand, which may have bfloat16 values."""
        return Place(place.space, place.index, place.offset + self.item * elements)

    def weight(self) -> Place:
        """The address of the weight, or of its copy, as [o, taps · cg] or in the order of PyTorch's weights."""
        if not self.made.copy:
            return self.w
        copy = self.take_scratch(self.made.copy)
        self._copy(self.w, copy, self.b.strides(self.w_value))
        return copy

    def _copy(self, source: Place, target: Place, strides: tuple[int, ...]) -> None:
        """Add the copy of the weight, or of its gradient. strides: of the weight."""
        self.b.choice.check(self.b.choice.copies == ("weight",), "copies no weight")
        k = weight_copy(self.g, self.b.body.types[self.w_value], strides)
        self.b.launch(k, [source], [target], self.label, way=self.b.way(0))

    def rows(self) -> Place:
        """The address of the patches' scratch."""
        return self.take_scratch(self.made.patches) if self.made.patches else Place("arena", 0, 0)

    # -- im2col and matrix products

    def convolution(self) -> None:
        g = self.g
        pieces, weight, rows = self.made.pieces, self.weight(), self.rows()
        pack = "pack_patches_channel_major" if self.made.channel_major else "pack_patches"
        out = _Output(self)
        for first, count in pieces:
            out.begin(first)
            for i in range(g.groups):
                x = self.at(self.x, i * g.cg)
                if g.pointwise:
                    a = Matrix(self.at(x, first * g.c), g.c)
                elif self.made.gathered:
                    a = Matrix(x, 0)
                else:
                    self.run(pack, x=x, rows=rows, first=first, count=count, cg=g.cg)
                    a = Matrix(rows, self.k)
                w = Matrix(self.at(weight, i * g.og * self.k), self.k, True)
                y = Matrix(out.at(first, i * g.og), g.o)
                self.product(a, w, y, count, g.og, self.k, first=first)
            out.done(first, count, (first, count) == pieces[-1])

    def convolution_input_grad(self) -> None:
        g = self.g
        pieces, weight, rows = self.made.pieces, self.weight(), self.rows()
        inputs_each, outputs_each = prod(g.inputs), prod(g.outputs)
        unpack = "add_patches_channel_major" if self.made.channel_major else "add_patches"
        out = _Output(self)
        for first, count in pieces:
            inputs = rows_with(g, count)
            begin = first if g.pointwise else first // outputs_each * inputs_each
            out.begin(begin)
            for i in range(g.groups):
                w = Matrix(self.at(weight, i * g.og * self.k), self.k)
                dy = Matrix(self.at(self.y, first * g.o + i * g.og), g.o)
                if g.pointwise:
                    dx = Matrix(out.at(first, i * g.cg), g.c)
                    self.product(dy, w, dx, count, g.cg, g.og)
                    continue
                self.product(dy, w, Matrix(rows, self.k), count, self.k, g.og)
                # the kernel counts images from the address that it gets
                target = out.at(0, i * g.cg)
                image = first // outputs_each
                self.run(unpack, x=target, rows=rows, first=image, count=inputs, cg=g.cg)
            out.done(begin, inputs, (first, count) == pieces[-1])

    def convolution_weight_grad(self) -> None:
        g = self.g
        pieces, rows = self.made.pieces, self.rows()
        every = self.b.body.types[self.w_value].numel // max(g.cg, 1)
        out = _Output(self)
        for i in range(g.groups):
            dw = Matrix(self.at(out.at(0), i * g.og * self.k), self.k)
            for first, count in pieces:
                x = self.operand(self.x, i * g.cg)
                if not g.pointwise:
                    self.run("pack_patches", x=x, rows=rows, first=first, count=count, cg=g.cg)
                patches = Matrix(x, g.c) if g.pointwise else Matrix(rows, self.k)
                dy = Matrix(self.operand(self.y, first * g.o + i * g.og), g.o, True)
                self.product(dy, patches, dw, g.og, self.k, count, add=first > 0)
        out.done(0, every, True)

    # -- depthwise

    def depthwise(self) -> None:
        """Add the steps of a depthwise convolution."""
        b = self.b
        own = b.strides(self.w_value)
        k = self.take_scratch(self.made.copy) if self.made.copy else self.w
        backward = self.o.name == "convolution_weight_grad"
        if self.made.copy and not backward:
            self._copy(self.w, k, own)
        if self.tiled is not None:
            address, words = self.tiled.finish(depthwise.WIDTH)
            self.run("depthwise_tiles", *words, x=self.x, k=k, finish=address)
            return
        out = _Output(self)
        if backward:
            partial = self.take_scratch(self.made.partial)
            self.run("depthwise_weight_grad", x=self.x, y=self.y, k=k, partial=partial)
            self._copy(k, out.at(0), own)
        elif self.o.name == "convolution":
            self.run("depthwise", x=self.x, k=k, y=out.at(0))
        else:
            self.run("depthwise_input_grad", x=out.at(0), k=k, y=self.y)
        result = b.body.types[self.o.results[0]]
        out.done(0, result.numel // max(result.shape[-1], 1), True)
