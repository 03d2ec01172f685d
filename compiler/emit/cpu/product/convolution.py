"""Convolutions as steps: patches and GEMM, or a depthwise kernel.

Channels-last float32 in one or two spatial dimensions is done here; everything else goes to ATen.

    forward         rows = patches(x)          y  = rows W'
    input gradient  rows = dy W                dx = patches'(rows)
    weight gradient rows = patches(x)          dW = dy' rows

Patches are made in pieces that stay in the cache. A 1×1 kernel with stride 1 has none: the
activation is the matrix.
"""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.dialects.attributes import read
from gflow.dialects.extents import Count, Piece, at_most, longest, pieces
from gflow.dialects.ops import OPS
from gflow.dialects.program import KernelStep, Place
from gflow.dialects.types import TensorType, is_row_major, row_major_strides

from ..program_builder import Builder
from . import conv_kernels, gemm
from .conv_geometry import GEOMETRY, Geometry, geometry
from .epilogue import MOST_PIECES, Epilogue
from .gemm import Matrix

#: bytes of patches made at a time
_PIECE = 4 << 20


def native(b: Builder, o: Op, epilogue: Epilogue | None = None) -> bool:
    """Add the steps of a convolution op, and of what follows it; False if it has none here."""
    attrs = read(OPS[o.name], o.op.attributes)
    first, second, out = o.operands[0], o.operands[1], o.results[0]
    types = b.body.types
    if attrs["layout"] != "N*C" or types[out].dtype != "f32" or types[out].rank > 4 or not b.blas:
        return False
    x, w, y = {
        "convolution": (first, second, out),
        "convolution_input_grad": (out, second, first),
        "convolution_weight_grad": (first, out, second),
    }[o.name]
    g = geometry(o, types[x], types[w], types[y])
    if 0 in (types[x].numel, types[w].numel, types[y].numel):
        _zero(b, o, epilogue)
        return True
    dense = [is_row_major(types[v].shape, b.strides(v)) for v in (x, y)]
    depthwise = g.groups == g.c == g.o and g.groups > 1
    if not all(dense) or (g.groups > MOST_PIECES and not depthwise):
        return False
    conv = _Convolution(b, o, g, (x, w, y), epilogue)
    if depthwise:
        return conv.depthwise()
    getattr(conv, o.name)()
    return True


def _zero(b: Builder, o: Op, epilogue: Epilogue | None) -> None:
    """Sums without terms."""
    (r,) = o.results
    ty = b.body.types[r]
    if ty.numel == 0:
        return
    if epilogue is None:
        b.fill(0, b.place(r), ty, b.strides(r), b.label(o))
        return
    target = epilogue.target(0, b.scratch(ty.nbytes, epilogue.place is None))
    b.fill(0, target, ty, row_major_strides(ty.shape), b.label(o))
    epilogue.run(0, epilogue.rows, target)


class _Output:
    """Where a convolution writes its result, row by row, and what follows once rows are there.

    Args:
        most: the most rows that are made at a time.
    """

    def __init__(self, conv: _Convolution, most: int) -> None:
        (r,) = conv.o.results
        self.type = conv.b.body.types[r]
        self.epilogue = conv.epilogue
        self.first = 0  # the row that `place` is that of
        self.place = Place("arena", 0, 0)
        if self.epilogue is None:
            self.place = conv.b.place(r)
        elif self.epilogue.place is not None:
            self.place = self.epilogue.place
        else:
            rows = most if self.epilogue.granule else self.epilogue.rows
            self.place = conv.take_scratch(rows * self.type.shape[-1] * self.type.itemsize)
        self.floating = self.epilogue is not None and self.epilogue.place is None

    def at(self, row: int, column: int = 0) -> Place:
        """The address of an element."""
        row -= self.first
        offset = (row * self.type.shape[-1] + column) * self.type.itemsize
        return Place(self.place.space, self.place.index, self.place.offset + offset)

    def begin(self, first: int) -> None:
        """Rows from `first` on come next."""
        if self.floating and self.epilogue is not None and self.epilogue.granule:
            self.first = first

    def done(self, first: int, count: Count, last: bool) -> None:
        """These rows are complete, and with the last ones all."""
        if self.epilogue is None:
            return
        if self.epilogue.granule:
            self.epilogue.run(first, count, self.at(first))
        elif last:
            self.epilogue.run(0, self.epilogue.rows, self.at(0))


class _Convolution:
    """x, w, y: the value numbers of input, weight and output; the op's own result is one of them."""

    def __init__(
        self,
        b: Builder,
        o: Op,
        g: Geometry,
        values: tuple[int, int, int],
        epilogue: Epilogue | None = None,
    ) -> None:
        self.b, self.o, self.g, self.epilogue = b, o, g, epilogue
        self.x, self.w, self.y = (
            Place("arena", 0, 0) if v in o.results and epilogue is not None else b.place(v)
            for v in values
        )
        self.w_value = values[1]
        self.label = b.label(o)
        self.cg, self.og = g.c // g.groups, g.o // g.groups
        self.k = g.taps * self.cg
        self.scratch = 0

    # -- steps

    def take_scratch(self, size: int) -> Place:
        """Bytes of the scratch that the steps of this op share."""
        place = Place("arena", 0, self.b.arena + self.scratch)
        self.scratch += -(-at_most(size) // 64) * 64
        self.b.scratch_bytes = max(self.b.scratch_bytes, self.scratch)
        return place

    def run(self, name: str, **words: Count | Place) -> None:
        text, externals, names = conv_kernels.kernel(name)
        self.b.kernels[name] = text
        self.b.externals |= externals
        given = dict(zip(GEOMETRY, self.g.words())) | words
        self.b.steps.append(KernelStep(name, tuple(given[n] for n in names), True, self.label))

    def product(
        self, a: Matrix, b: Matrix, c: Matrix, m: Count, n: Count, k: Count, add: bool = False
    ) -> None:
        name = self.b.gemm("f32")
        self.b.steps.append(
            KernelStep(name, gemm.product(a, b, c, m, n, k, add), False, self.label)
        )

    def at(self, place: Place, elements: int) -> Place:
        return Place(place.space, place.index, place.offset + 4 * elements)

    # -- weights

    def weights(self, rows: int) -> tuple[Place, bool]:
        """The weight as a matrix [o, taps · cg]: its place, and whether its columns are
        channel-major (as OI*).

        PyTorch keeps weights as OI*. With few output positions (`rows`) the patches follow that
        order; with many it is cheaper to copy the weight.
        """
        g = self.g
        ty = self.b.body.types[self.w_value]
        strides = self.b.strides(self.w_value)
        if _same_order(ty.shape, strides, row_major_strides(ty.shape)):
            return self.w, False
        channel_major = (self.cg * g.taps, *_tap_strides(ty, g), g.taps)
        if at_most(rows) < g.o and _same_order(ty.shape, strides, channel_major):
            return self.w, True
        copy = self.take_scratch(4 * ty.numel)
        self.b.copy(self.w, strides, copy, row_major_strides(ty.shape), ty, self.label)
        return copy, False

    # -- patches and GEMM

    def pieces(self, positions: int, granule: int, row_bytes: int) -> list[tuple[int, Count]]:
        """Output positions in pieces (first, count) of whole granules, of about `_PIECE` bytes."""
        whole = at_most(positions) * self.g.groups // (MOST_PIECES * granule)
        length = max(1, _PIECE // max(1, row_bytes * granule), whole) * granule
        return pieces(positions, length)

    def direct_pieces(self, positions: int, terms: int) -> list[tuple[int, Count]]:
        return [(0, positions)] if self.epilogue is None else self.epilogue.pieces(terms)

    def granule(self, rows: int) -> int:
        """The least multiple of so many rows of the result that an epilogue can run on, too."""
        if self.epilogue is None or not self.epilogue.granule:
            return rows
        return self.epilogue.common(rows)

    def convolution(self) -> None:
        g = self.g
        positions = g.n * g.ho * g.wo
        weight, channel_major = self.weights(positions)
        if g.direct:
            pieces = self.direct_pieces(positions, self.k)
            rows = Place("arena", 0, 0)
        else:
            pieces = self.pieces(positions, self.granule(g.wo), 4 * self.k)
            rows = self.take_scratch(4 * self.k * longest(pieces))
        pack = "pack_patches_channel_major" if channel_major else "pack_patches"
        out = _Output(self, longest(pieces))
        for first, count in pieces:
            out.begin(first)
            for i in range(g.groups):
                x = self.at(self.x, i * self.cg)
                if g.direct:
                    a = Matrix(self.at(x, first * g.c), g.c)
                else:
                    self.run(pack, x=x, rows=rows, first=first, count=count, cg=self.cg)
                    a = Matrix(rows, self.k)
                w = Matrix(self.at(weight, i * self.og * self.k), self.k, True)
                y = Matrix(out.at(first, i * self.og), g.o)
                self.product(a, w, y, count, self.og, self.k)
            out.done(first, count, (first, count) == pieces[-1])

    def convolution_input_grad(self) -> None:
        g = self.g
        positions = g.n * g.ho * g.wo
        weight, channel_major = self.weights(positions)
        image = g.ho * g.wo
        if g.direct:
            pieces = self.direct_pieces(positions, self.og)
            rows = Place("arena", 0, 0)
        else:
            images = self.granule(g.h * g.w) // (g.h * g.w)
            pieces = self.pieces(positions, images * image, 4 * self.k)
            rows = self.take_scratch(4 * self.k * longest(pieces))
        unpack = "add_patches_channel_major" if channel_major else "add_patches"
        scale = 1 if g.direct else g.h * g.w / image
        out = _Output(self, round(longest(pieces) * scale))
        for first, count in pieces:
            begin, inputs = first, count
            if not g.direct:
                begin = first // image * g.h * g.w
                inputs = (
                    count.times(g.h * g.w, image)
                    if isinstance(count, Piece)
                    else count // image * g.h * g.w
                )
            out.begin(begin)
            for i in range(g.groups):
                w = Matrix(self.at(weight, i * self.og * self.k), self.k)
                dy = Matrix(self.at(self.y, first * g.o + i * self.og), g.o)
                if g.direct:
                    dx = Matrix(out.at(first, i * self.cg), g.c)
                    self.product(dy, w, dx, count, self.cg, self.og)
                    continue
                self.product(dy, w, Matrix(rows, self.k), count, self.k, self.og)
                # the kernel counts images from the place that it is given
                target = out.at(0, i * self.cg)
                self.run(
                    unpack, x=target, rows=rows, first=first // image, count=inputs, cg=self.cg
                )
            out.done(begin, inputs, (first, count) == pieces[-1])

    def convolution_weight_grad(self) -> None:
        g = self.g
        positions = g.n * g.ho * g.wo
        pieces: list[tuple[int, Count]] = [(0, positions)]
        if not g.direct:
            pieces = self.pieces(positions, g.wo, 4 * self.k)
        rows = Place("arena", 0, 0) if g.direct else self.take_scratch(4 * self.k * longest(pieces))
        every = self.b.body.types[self.w_value].numel // max(self.cg, 1)
        out = _Output(self, every)
        for i in range(g.groups):
            dw = Matrix(self.at(out.at(0), i * self.og * self.k), self.k)
            for first, count in pieces:
                x = self.at(self.x, i * self.cg)
                if not g.direct:
                    self.run("pack_patches", x=x, rows=rows, first=first, count=count, cg=self.cg)
                patches = Matrix(x, g.c) if g.direct else Matrix(rows, self.k)
                dy = Matrix(self.at(self.y, first * g.o + i * self.og), g.o, True)
                self.product(dy, patches, dw, self.og, self.k, count, add=first > 0)
        out.done(0, every, True)

    # -- depthwise

    def depthwise(self) -> bool:
        """One output channel for each input channel."""
        g, b = self.g, self.b
        if self.o.name == "convolution_input_grad" and (g.dh, g.dw) != (1, 1):
            return False
        ty = b.body.types[self.w_value]
        taps_first = TensorType((*ty.shape[1:-1], ty.shape[0]), ty.dtype)
        dense = row_major_strides(taps_first.shape)
        own = b.strides(self.w_value)
        weight_strides = (*own[1:-1], own[0])
        k = self.take_scratch(4 * ty.numel)
        rows = b.body.types[self.o.results[0]].numel // max(
            b.body.types[self.o.results[0]].shape[-1], 1
        )
        out = _Output(self, rows)
        if self.o.name == "convolution_weight_grad":
            partial = self.take_scratch(4 * ty.numel * b.threads)
            self.run("depthwise_weight_grad", x=self.x, y=self.y, k=k, partial=partial)
            b.copy(k, dense, out.at(0), weight_strides, taps_first, self.label)
        else:
            b.copy(self.w, weight_strides, k, dense, taps_first, self.label)
            if self.o.name == "convolution":
                self.run("depthwise", x=self.x, k=k, y=out.at(0))
            else:
                self.run("depthwise_input_grad", x=out.at(0), k=k, y=self.y)
        out.done(0, rows, True)
        return True


def _tap_strides(ty: TensorType, g: Geometry) -> tuple[int, ...]:
    return (1,) if ty.rank == 3 else (g.kw, 1)


def _same_order(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether strides agree where the size is not 1."""
    return all(x == y for size, x, y in zip(shape, a, b) if size != 1)
