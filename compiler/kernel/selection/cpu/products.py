"""Contractions in float32 on a CPU: gflow's own kernels, the BLAS or PyTorch, and their scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from gflow.compiler.targets.processors import Processor
from gflow.dialects.extents import Count, Piece, at_most, longest, varies
from gflow.dialects.ops.packed import strip_of
from gflow.dialects.records import record
from gflow.dialects.types import NO_KERNELS, TensorType

from ....ir.errors import CannotLower
from ...blocks import ITEM, Problem
from ...contest import Contest
from ...convolution import ROLES, packed_geometry
from ...movement import zeros
from ..choice import Choice, Way
from ..choice import blocked as choice_of_blocks
from .batches import BLAS_DTYPES, ManyRuns, batch_steps
from .blocking import blocks_of, contiguous, cut, halves_are_faster, own_is_faster
from .contraction import Contraction, up
from .convolutions.direct import direct_of, gradient_of
from .convolutions.patches import (
    kind_of_patches,
    patches_of,
    product_of,
    rows_with,
    sizes_of,
    weight_copy,
)
from .convolutions.winograd import reads_weight, winograd_gradient_of, winograd_of
from .loops import way_of_loops
from .sharing import At, of_product, of_windows, sharing
from .strips import strips_of

NONE = Choice("none")


@record
class Products:
    """Selects the kernels of contractions in float32.

    Attributes:
        threads: the most threads that run a kernel.
        blas: whether kernels may call the BLAS.
        processor: the row of the processor table that gflow's own products are blocked for; None: no such products.
        won: by key of a timed comparison, whether gflow's own kernel was faster. The cost model decides the others.
        direct: whether convolutions may read windows in place, instead of patches.
        winograd: whether those of 3×3 kernels may run by Winograd's algorithm instead.
        asked: output: the products that both gflow's own kernel and the BLAS support: the key of the comparison, and
            whether the choice is gflow's own kernel.
    """

    threads: int
    blas: bool
    processor: Processor | None = None
    won: Mapping[Contest, bool] = field(default_factory=dict)
    direct: bool = True
    winograd: bool = True
    asked: list[tuple[Contest, bool]] = field(default_factory=list)

    def choose(self, c: Contraction, exact: bool = False) -> tuple[Choice, Count | None]:
        """The choice for a contraction, and the rows of its first chunk; None: all rows at once.

        exact: its operands, which are float32, hold bfloat16 values.
        """
        types, strides, rows, tiled, name = c.types, c.strides, c.rows, c.tiled, c.name
        if name == "matmul":
            found = self._matmul(c, exact)
            return found, rows.pieces(found.rows)[0][1] if rows and found.rows else None
        g, result, w = c.geometry, c.result, ROLES[name][1]
        kind = kind_of_patches(g, types, strides, self.blas)
        if kind in ("pytorch", "zero"):
            zero = (way_of_loops(zeros(result, strides[2])),) if kind == "zero" else ()
            return Choice(kind, c.floating, then=zero), None
        direct = None
        if kind == "patches" and not (exact and self.processor and self.processor.amx):
            direct = self._by_winograd(c) or self.direct_convolution(c)
        if direct is not None:
            return direct, None
        given = (g, types[w], strides[w], result)
        taken = kind == "patches"
        made = patches_of(*given, None if tiled else rows, self.threads, own=taken)
        whole = all(isinstance(count, int) and not varies(count) for _, count in made.pieces)
        cut = None
        if kind == "patches" and (whole or name != "convolution_weight_grad"):
            order = "lanes" if name == "convolution_weight_grad" else "k"
            columns = "k" if name == "convolution" else "lanes"
            contest = Contest(product_of(g, made).most(), order, columns)
            time = of_product(1, *sizes_of(g, made.pieces[0][1]))
            cut = self.blocked(kind, contest, time, exact)
        if taken and cut is None:
            tiled, made = False, patches_of(*given, rows, self.threads)
        scratch = made.scratch + (cut.scratch if cut else 0)
        if tiled and cut and cut.tile[2] < g.taps * g.cg and rows is not None and rows.floating:
            scratch += up(longest(made.pieces) * rows.width * result.itemsize)
        own_kernel = cut or Choice(kind)
        if kind == "depthwise":
            own_kernel = Choice(kind, **sharing(of_windows(g.positions, g.taps, g.c)))
        found = replace(own_kernel, scratch=scratch, rows=made.length)
        if made.copy:
            way = way_of_loops(weight_copy(g, types[w], strides[w]))
            found = replace(found, copies=("weight",), then=(way,))
        if made.patches:
            time = of_windows(rows_with(g, made.pieces[0][1]), g.taps, g.cg)
            found = replace(found, patches="stored", then=(*found.then, Way(**sharing(time))))
        elif made.gathered:
            found = replace(found, patches="gathered")
        if not made.length or name == "convolution_weight_grad" or not (rows and rows.granule):
            return found, None
        return found, rows_with(g, made.pieces[0][1])

    def direct_convolution(self, c: Contraction, precision: str = "") -> Choice | None:
        """The choice for a convolution that reads windows in place, if it is faster than by patches."""
        if self.processor is None or not self.direct:
            return None
        g, w = c.geometry, ROLES[c.name][1]
        types, strides, floating = c.types, c.strides, 0 if c.tiled else c.floating
        shared = sharing(of_product(1, g.positions, g.o, g.taps * g.c))
        if g.name == "convolution_weight_grad":
            blocks = gradient_of(self.processor, g, types[w], strides[w], self.threads, precision)
            if blocks is None:
                return None
            scratch = floating + sum(blocks.scratch(g.taps, g.c, g.o))
            return Choice(
                "direct", scratch, tile=blocks.tile, block=(blocks.beside,), precision=precision, **shared
            )  # fmt: skip
        made = direct_of(self.processor, g, types[w], strides[w], self.threads, precision)
        if made is None:
            return None
        walk = g.walk
        scratch = floating + made.b_bytes
        scratch += self.threads * sum(made.scratch(g.taps, walk.channels))
        return Choice(
            "direct", scratch, tile=made.tile, block=(made.rows, made.across, made.columns),
            walk="positions" if made.by_position else "images", precision=precision, **shared,
        )  # fmt: skip

    def _by_winograd(self, c: Contraction) -> Choice | None:
        """The choice for a convolution by Winograd's algorithm, if it is faster than in place."""
        p, g, w = self.processor, c.geometry, ROLES[c.name][1]
        if p is None or not (self.direct and self.winograd):
            return None
        if not reads_weight(g, c.types[w], c.strides[w]):
            return None
        floating = 0 if c.tiled else c.floating
        shared = sharing(of_product(1, g.positions, g.o, g.taps * g.c))
        if g.name == "convolution_weight_grad":
            gradient = winograd_gradient_of(p, g, self.threads)
            if gradient is None:
                return None
            half, _, each = gradient.scratch(g)
            block = (gradient.tiles, gradient.rows, gradient.beside)
            scratch = c.floating + 2 * half + self.threads * each
            return Choice("winograd", scratch, tile=gradient.tile, block=block, **shared)
        made = winograd_of(p, g, self.threads)
        if made is None:
            return None
        scratch = floating + sum(made.scratch(g.walk)[:2]) + self.threads * made.each(g.walk)
        return Choice("winograd", scratch, tile=made.tile, block=(made.tiles,), **shared)

    def packed(self, c: Contraction) -> Choice:
        """The choice for a product with a packed weight."""
        types, weight = c.types, c.types[1]
        if c.result.numel == 0:
            return NONE
        g = packed_geometry(c.root, types)
        k = g.taps * g.cg
        product, width = Problem(g.positions, g.o, k).most(), strip_of(weight, k)
        made = None
        if self.processor is not None:
            read = min(at_most(types[0].nbytes), ITEM * product.rows * k)
            given = (product, width, read, self.threads, g.depthwise)
            made = strips_of(self.processor, *given)
        if made is None:
            raise CannotLower(
                f"there are no tiles for a weight that is packed in strips of {width} columns; pack it again for this "
                "processor (gflow-pack-weights)"
            )
        scratch = self.threads * sum(made.scratch(g.taps, g.c))
        if not c.tiled:
            scratch += c.floating
        block = (made.rows, made.across)
        shared = sharing(of_product(1, g.positions, g.o, k))
        return Choice("packed", scratch, tile=made.tile, block=block, **shared)

    def _matmul(self, c: Contraction, exact: bool) -> Choice:
        (x, _, z), strides, rows, tiled = c.types, c.strides, c.rows, c.tiled
        if z.numel == 0:
            return NONE
        parts: list[tuple[int, Count]] = [(0, z.shape[-2])]
        scratch = length = 0
        if rows is not None:
            batched = z.numel != z.shape[-2] * z.shape[-1]
            if not batched:
                length = rows.length(x.shape[-1])
                parts = rows.pieces(length)
            if rows.floating:
                scratch = up((rows.rows if batched else longest(parts)) * rows.width * z.itemsize)
        if x.shape[-1] == 0 and z.dtype not in NO_KERNELS:
            count = parts[0][1]
            size = count.like if isinstance(count, Piece) else count
            made = TensorType((*z.shape[:-2], size, z.shape[-1]), z.dtype)
            return Choice(
                "zero", scratch, rows=length, then=(way_of_loops(zeros(made, strides[2])),)
            )
        kind = self._product_kind(z, strides)
        if kind == "blas" or not self.blas:
            if tiled:
                parts = [(0, z.shape[-2])]
            own = self._panels(x, z, strides, parts, exact)
            if own is not None and tiled:
                waits = own.tile[2] < x.shape[-1]
                return replace(own, scratch=own.scratch + (c.floating if waits else 0))
            if own is not None:
                return replace(own, scratch=own.scratch + scratch, rows=length)
        return Choice(kind, scratch, rows=length)

    def _panels(
        self,
        x: TensorType,
        z: TensorType,
        strides: Sequence[tuple[int, ...]],
        parts: Sequence[tuple[int, Count]],
        exact: bool,
    ) -> Choice | None:
        """gflow's own kernel for a matmul, if it is faster than the BLAS. parts: the chunks of its rows."""
        if z.dtype != "f32":
            return None
        try:
            runs = batch_steps(z.shape[:-2], [s[:-2] for s in strides])
        except ManyRuns:
            return None
        batch, (n, k) = runs[0][0], (z.shape[-1], x.shape[-1])
        one = parts[0][1]
        whole = one if len(parts) == 1 and isinstance(one, int) else longest(parts)
        product = Problem(whole, n, k, batch).most()
        a = "k" if strides[0][-1] == 1 or k == 1 else "lanes"
        b = contiguous(strides[1][-2], strides[1][-1], k == 1)
        time = of_product(batch, parts[0][1], n, k)
        return self.blocked("panels", Contest(product, a, b), time, exact)

    def blocked(
        self, kind: str, contest: Contest, nanoseconds: Callable[[At], float], exact: bool = False
    ) -> Choice | None:
        """gflow's own kernel, if it is faster than the BLAS.

        Args:
            kind: of the kernel, if it packs blocks of B.
            contest: the product.
            nanoseconds: its time on one thread.
            exact: the values are bfloat16 values.
        """
        p, product = self.processor, contest.product
        if p is None:
            return None
        if exact and halves_are_faster(p, product):
            made = blocks_of(p, product, self.threads, True)
            return choice_of_blocks(kind, made, self.threads, sharing(nanoseconds))
        if self.blas:
            own = self.won.get(contest)
            if own is None:
                own = own_is_faster(p, product, self.threads)
            self.asked.append((contest, own))
            if not own:
                return None
        if kind == "patches":
            made = blocks_of(p, product, self.threads)
        else:
            made = cut(p, contest, self.threads)
        return choice_of_blocks(
            kind if made.packed else "rows", made, self.threads, sharing(nanoseconds)
        )

    def _product_kind(self, z: TensorType, strides: Sequence[tuple[int, ...]]) -> str:
        if not self.blas or z.dtype not in BLAS_DTYPES:
            return "pytorch"
        try:
            batch_steps(z.shape[:-2], [s[:-2] for s in strides])
        except ManyRuns:
            return "pytorch"
        return "blas"
