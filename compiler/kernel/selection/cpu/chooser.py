"""Kernel selection on a CPU: the kernel of each op, and its scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from gflow.compiler.targets.processors import ANY, Processor
from gflow.dialects.amp import amp_of
from gflow.dialects.attributes import read
from gflow.dialects.extents import Count, Piece, at_most, longest, typical, varies
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.distribution import SHARD, START
from gflow.dialects.ops.packed import strip_of
from gflow.dialects.ops.structure import CHECK, ENGINE
from gflow.dialects.records import record
from gflow.dialects.types import (
    HALVES,
    NO_KERNELS,
    TensorType,
    is_row_major,
    row_major_strides,
    type_of,
)

from ....ir.errors import CannotLower
from ....ir.fused import CONTRACTIONS, root_of, root_operands
from ....ir.ssa import Op
from ....memory.liveness import Lives
from ...blocks import BF16, ITEM, Problem
from ...contest import Contest
from ...convolution import ROLES, Geometry, geometry, packed_geometry
from ...description import Descriptions, Kernel
from ...movement import converting, zeros
from ...tiles import rounding, rounding_rows, tiles_of
from ..choice import Choice, Way, blocked
from .attention import NEEDED, attention_of
from .batches import BLAS_DTYPES, ManyRuns, batch_steps
from .blocking import blocks_of, contiguous, cut, halves_are_faster, own_is_faster
from .direct import direct_of, gradient_of, reads_pairs
from .loops import choice_of_loops, runs, scratch_of, way_of_loops
from .other_ops import CHOOSERS
from .patches import (
    kind_of_patches,
    patches_of,
    product_of,
    reads_halves,
    rows_with,
    sizes_of,
    weight_copy,
    widened_strides,
)
from .rows import MOST_PIECES, Rows, granule_of
from .sharing import At, of_product, of_windows, sharing
from .strips import strips_of

#: the fewest rows of a half-precision product that are widened at a time; each chunk packs B again
_LEAST_ROWS = 128

#: keys times channels from which on PyTorch's attention in bfloat16 is faster with AMX (Emerald Rapids: 512 × 64 takes
#: 0.77 to 0.9 of its time, 768 × 64 and 512 × 128 1.3 of it)
_LONG = 1 << 15

KERNEL, PYTORCH, NONE = Choice("kernel"), Choice("pytorch"), Choice("none")

#: ops that only programs for GPUs have (gflow-split-softmax)
_OF_GPUS = frozenset({"put", "scaled_matmul", "softmax_runs"})


@record
class Chooser:
    """Selects the kernel of each op of a function.

    Attributes:
        lives: layouts, places and live ranges of the function's values.
        describe: describes its regions.
        threads: the most threads that run a kernel.
        blas: whether kernels may call the BLAS.
        processor: the row of the processor table that gflow's own products are blocked for; None: no such products.
        won: by key of a timed comparison, whether gflow's own kernel was faster. The cost model decides the others.
        direct: whether convolutions may read windows in place, instead of patches.
        asked: output: the products that both gflow's own kernel and the BLAS support: the key of the comparison, and
            whether the choice is gflow's own kernel.
    """

    lives: Lives
    describe: Descriptions
    threads: int
    blas: bool
    processor: Processor | None = None
    won: Mapping[Contest, bool] = field(default_factory=dict)
    direct: bool = True
    asked: list[tuple[Contest, bool]] = field(default_factory=list)

    def __call__(self, o: Op) -> Choice:
        """The choice for an op.

        Raises:
            CannotLower: there is no CPU kernel for it.
        """
        root = root_of(o.op) if o.name == "fused" else None
        inner = () if root is None else o.op.regions[0].blocks[0].operations
        if {o.name, *(p.operation.name.removeprefix("gflow.") for p in inner)} & _OF_GPUS:
            raise CannotLower(
                f"{', '.join(sorted(_OF_GPUS))} have no CPU code: {o.name} {o.op.location}"
            )
        if root is not None:
            return self._contraction(o, root)
        if o.name == "fused":
            k = self._describe(o)
            if any(access.dtype in NO_KERNELS for access in (*k.loads, *k.stores)):
                raise CannotLower(
                    f"there are no kernels on complex numbers or float8: {o.name} {o.op.location}"
                )
            return choice_of_loops(k, self.threads) if runs(k) else NONE
        if o.name in CONTRACTIONS:
            return self._contraction(o, o.op)
        if o.name not in OTHERS:
            raise CannotLower(f"gflow.{o.name} has no CPU code; run gflow-fuse first")
        if o.name in NEEDED and self.processor is not None:
            own = self._attention(self.processor, o)
            if own is not None:
                return own
        if o.name in NEEDED and read(OPS[o.name], o.op.attributes)["formula"]:
            raise CannotLower(
                f"gflow.{o.name} {o.op.location} is computed as two products and a softmax (formula = true), for which "
                "there is no kernel here; switch recognition off: config.enable_attention_recognition(False)"
            )
        if o.name in _CALLS:
            return self._call(o)
        if o.name in CHOOSERS:
            return CHOOSERS[o.name](o, self.lives.body, self.lives.at)
        return KERNEL if OTHERS[o.name] == "kernel" else PYTORCH

    # -- kernels

    def _describe(self, o: Op) -> Kernel:
        at = self.lives.at
        return self.describe(
            o, [at[v].strides for v in o.operands], [at[v].strides for v in o.results]
        )

    # -- contractions

    def _contraction(self, o: Op, root: ir.Operation) -> Choice:
        if root is o.op:
            return self._contracted(o, root, None, False, None)
        rows, tiled, copied, into = self._rows(o, root, type_of(root.results[0]))
        found = self._contracted(o, root, rows, tiled, copied)
        return found if found.kind == "none" else replace(found, into=into)

    def _contracted(
        self,
        o: Op,
        root: ir.Operation,
        rows: Rows | None,
        tiled: bool,
        copied: tuple[int, ...] | None,
    ) -> Choice:
        """The choice for a contraction, without the result that it is written to. Its epilogue is as of `_rows`."""
        lives, name = self.lives, root.name.removeprefix("gflow.")
        numbers = root_operands(root) if root is not o.op else [0, 1]
        values = [o.operands[n] for n in numbers]
        result = type_of(root.results[0])
        types = [*(lives.body.types[v] for v in values), result]
        strides = [lives.at[v].strides for v in values]
        alone = root is o.op
        strides.append(lives.at[o.results[0]].strides if alone else row_major_strides(result.shape))
        wide = result.dtype in HALVES and result.numel > 0
        if wide and name == "matmul" and self._in_pieces(types):
            own = _whole(result.nbytes) if rows is not None and rows.floating else 0
            if rows is None:
                tiled = rounding(result, strides[2]) is not None
            by_tiles = self._rounded_in_tiles(types, strides) if tiled else None
            if by_tiles is not None:
                return by_tiles
            piece = rows_at_a_time(types)
            wide_types = widened_shapes(types, piece)
            a, b, _ = wide_types
            then, kernel = self._after(rows, copied)
            pieces = [TensorType(w.shape, t.dtype) for w, t in zip(wide_types, types)]
            product = Problem(a.shape[0], b.shape[1], a.shape[1])
            cut = None
            converted: tuple[int, ...] = (0, 1, 2)
            if not any(map(varies, vars(product).values())):
                contest = Contest(product, "k", "lanes")
                time = of_product(1, product.rows, product.columns, product.k)
                cut = self._blocked("panels", contest, time, _exact(types))
                if cut is not None and cut.precision == BF16 and all(map(_has_unit, strides[:2])):
                    converted = (2,)  # A and B are read as they are
            then = (*_conversions(converted, pieces, [s[-2:] for s in strides], 2), *then)
            scratch = own + kernel + sum(_whole(wide_types[n].nbytes) for n in converted)
            cut = cut or Choice("blas")
            return replace(
                cut, scratch=cut.scratch + scratch, rows=piece, widened=converted, then=then
            )
        if wide and name != "matmul":
            found = self._by_pairs(name, root, types, strides, rows, tiled, copied)
            if found is not None:
                return found
        if wide:  # the whole product is widened to float32; the epilogue runs after it
            halves = _halves([*values, -1], types)
            exact = _exact(types)
            wide_types = [_float(t) for t in types]
            copies = [widened_strides(name, t, s) for t, s in zip(types, strides)]
            wide_strides = [
                copy if t.dtype in HALVES else s for t, s, copy in zip(types, strides, copies)
            ]
            own = _whole(result.nbytes) if rows is not None and rows.floating else 0
            inner, _ = self._product(name, root, wide_types, wide_strides, None, False, exact)
            if inner.precision == BF16 and name != "matmul":
                dense = all(is_row_major(t.shape, s) for t, s in zip(types[:2], strides))
                if dense and reads_halves(geometry(name, root, types)):
                    halves = (2,)
            saved = sum(_up(4 * types[n].numel) for n in halves)
            ways = _conversions(halves, types, strides, len(values), copies)
            then, kernel = self._after(rows, copied)
            scratch = own + max(saved + inner.scratch, kernel)
            first = len(inner.copies)
            then = (*inner.then[:first], *ways, *inner.then[first:], *then)
            return replace(inner, scratch=scratch, widened=halves, then=then)
        if name == "packed_product":
            inner, count = self._packed(root, types, rows, tiled), None
        else:
            inner, count = self._product(name, root, types, strides, rows, tiled)
        calls_it = tiled and (
            inner.tile or inner.kind == "depthwise"
        )  # the kernel calls the epilogue on each tile
        if inner.kind == "none" or calls_it:
            return inner
        then, kernel = self._after(rows, copied, count)
        return replace(inner, scratch=max(inner.scratch, kernel), then=(*inner.then, *then))

    def _after(
        self, rows: Rows | None, copied: tuple[int, ...] | None, count: Count | None = None
    ) -> tuple[tuple[Way, ...], int]:
        """The launches of a contraction's epilogue, and its scratch in bytes. count: rows at a time; None: all."""
        if rows is None:
            return (), 0
        after = rows.after(rows.part(rows.rows if count is None else count), copied)
        ways = tuple(map(way_of_loops, after))
        scratch = (scratch_of(way, k, self.threads) for way, k in zip(ways, after))
        return ways, max(scratch, default=0)

    def _rows(
        self, o: Op, root: ir.Operation, ty: TensorType
    ) -> tuple[Rows, bool, tuple[int, ...] | None, int]:
        """The rows of a contraction's result; whether the epilogue can run on tiles; if the result must be copied to a
        layout that isn't row-major, the strides of the copy; and `Choice.into`."""
        lives, k = self.lives, self._describe(o)
        yielded = root.block.operations[-1].operation.operands
        returned = None
        for r, v in zip(o.results, yielded):
            if v == root.results[0]:
                returned = r
        granule, floating, copied, into = granule_of(k, ty), False, None, -1
        if returned is None:
            fitting = (n for n, r in enumerate(o.results) if self._can_hold(o, r, ty))
            into = next(fitting, -1)
            floating = into < 0
        elif not is_row_major(ty.shape, lives.at[returned].strides):
            granule, floating, copied = 0, True, lives.at[returned].strides
        own = None
        if returned is not None:
            own = (o.results.index(returned), lives.at[returned].strides)
        tiled = tiles_of(o, root, k, own) is not None
        return Rows(ty, floating, granule, self.blas, k), tiled, copied, into

    def _can_hold(self, o: Op, r: int, ty: TensorType) -> bool:
        """Whether a contraction can write to the buffer of result `r`, which the epilogue then overwrites.

        The buffer must have the same type of elements and size, and must not be the buffer of an operand.
        """
        lives = self.lives
        own = lives.body.types[r]
        if own.dtype != ty.dtype or own.numel != ty.numel:
            return False
        if not is_row_major(own.shape, lives.at[r].strides):
            return False
        return all(self._memory(lives.at[v].base) != self._memory(r) for v in o.operands)

    def _memory(self, value: int) -> tuple[str, int]:
        """The buffer of a value that isn't a view, as (kind, number)."""
        lives = self.lives
        if value in lives.place:
            space, _, number = lives.place[value].partition(":")
            return space, int(number)
        if value in lives.buffer_of:
            return "buffer", lives.buffer_of[value]
        if value < len(lives.body.arguments):
            return "arg", value
        return "constant", value

    def _product(
        self,
        name: str,
        root: ir.Operation,
        types: Sequence[TensorType],
        strides: Sequence[tuple[int, ...]],
        rows: Rows | None,
        tiled: bool,
        exact: bool = False,
    ) -> tuple[Choice, Count | None]:
        """The choice for a contraction, and the rows of its first chunk; None: all rows at once.

        exact: its operands, which are float32, hold bfloat16 values.
        """
        if name == "matmul":
            found = self._matmul(types, strides, rows, tiled, exact)
            return found, rows.pieces(found.rows)[0][1] if rows and found.rows else None
        g, result, w = geometry(name, root, types), types[2], ROLES[name][1]
        kind = kind_of_patches(g, types, strides, self.blas)
        if kind in ("pytorch", "zero"):
            own = _up(result.nbytes) if rows is not None and rows.floating else 0
            zero = (way_of_loops(zeros(result, strides[2])),) if kind == "zero" else ()
            return Choice(kind, own, then=zero), None
        direct = None
        if kind == "patches" and not (exact and self.processor and self.processor.amx):
            direct = self._direct(g, types, strides, rows, tiled)
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
            cut = self._blocked(kind, contest, time, exact)
        if taken and cut is None:
            tiled, made = False, patches_of(*given, rows, self.threads)
        scratch = made.scratch + (cut.scratch if cut else 0)
        if tiled and cut and cut.tile[2] < g.taps * g.cg and rows is not None and rows.floating:
            scratch += _up(longest(made.pieces) * rows.width * result.itemsize)
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

    def _by_pairs(
        self,
        name: str,
        root: ir.Operation,
        types: Sequence[TensorType],
        strides: Sequence[tuple[int, ...]],
        rows: Rows | None,
        tiled: bool,
        copied: tuple[int, ...] | None,
    ) -> Choice | None:
        """The choice for a convolution that reads windows of bfloat16 values in place, and multiplies two values at a
        time by AVX-512, if it is faster than by patches. Its epilogue is as of `_rows`."""
        g, result = geometry(name, root, types), types[2]
        p, given = self.processor, [_float(ty) for ty in types]
        if p is None or p.halves is None or p.amx is not None or not reads_pairs(g, types[:2]):
            return None
        if kind_of_patches(g, given, strides, self.blas) != "patches":
            return None
        gradient = name == "convolution_weight_grad"
        if not (gradient or tiled) and rounding_rows(result) is None:
            return None
        found = self._direct(g, types, strides, None if gradient else rows, tiled, BF16)
        if found is None or (tiled and not gradient):
            return found
        then, kernel = self._after(rows, copied)
        if not gradient:
            return replace(found, scratch=max(found.scratch, kernel), then=then)
        # sums of blocks are added in float32
        own = _up(result.nbytes) if rows is not None and rows.floating else 0
        scratch = own + max(found.scratch + _up(4 * result.numel), kernel)
        wide = [widened_strides(name, t, s) for t, s in zip(types, strides)]
        then = (*_conversions((2,), types, strides, 2, wide), *then)
        return replace(found, scratch=scratch, widened=(2,), then=then)

    def _direct(
        self,
        g: Geometry,
        types: Sequence[TensorType],
        strides: Sequence[tuple[int, ...]],
        rows: Rows | None,
        tiled: bool,
        precision: str = "",
    ) -> Choice | None:
        """The choice for a convolution that reads windows in place, if it is faster than by patches."""
        w = ROLES[g.name][1]
        if self.processor is None or not self.direct:
            return None
        floating = _up(types[2].nbytes) if rows is not None and rows.floating and not tiled else 0
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

    def _packed(
        self, root: ir.Operation, types: Sequence[TensorType], rows: Rows | None, tiled: bool
    ) -> Choice:
        """The choice for a product with a packed weight."""
        _, weight, result = types
        if result.numel == 0:
            return NONE
        g = packed_geometry(root, types)
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
        if rows is not None and rows.floating and not tiled:
            scratch += _up(result.nbytes)
        block = (made.rows, made.across)
        shared = sharing(of_product(1, g.positions, g.o, k))
        return Choice("packed", scratch, tile=made.tile, block=block, **shared)

    def _matmul(
        self,
        types: Sequence[TensorType],
        strides: Sequence[tuple[int, ...]],
        rows: Rows | None,
        tiled: bool,
        exact: bool = False,
    ) -> Choice:
        x, _, z = types
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
                scratch = _up((rows.rows if batched else longest(parts)) * rows.width * z.itemsize)
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
                waits = own.tile[2] < x.shape[-1] and rows is not None and rows.floating
                return replace(own, scratch=own.scratch + (_up(z.nbytes) if waits else 0))
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
        if z.dtype != "f32" or varies(x.shape[-1]):
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
        return self._blocked("panels", Contest(product, a, b), time, exact)

    def _blocked(
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
            return blocked(kind, made, self.threads, sharing(nanoseconds))
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
        return blocked(kind if made.packed else "rows", made, self.threads, sharing(nanoseconds))

    def _product_kind(self, z: TensorType, strides: Sequence[tuple[int, ...]]) -> str:
        if not self.blas or z.dtype not in BLAS_DTYPES:
            return "pytorch"
        try:
            batch_steps(z.shape[:-2], [s[:-2] for s in strides])
        except ManyRuns:
            return "pytorch"
        return "blas"

    # -- half precision

    def _attention(self, p: Processor, o: Op) -> Choice | None:
        """gflow's own attention, on values that are widened to float32 where they are in half precision.

        Long bfloat16 attention is faster in PyTorch's kernel where that uses AMX.
        """
        types, values = self.lives.body.types, (*o.operands, *o.results)
        if all(types[v].dtype not in HALVES for v in values):
            return attention_of(p, o, types, self.threads)
        keys = types[o.operands[NEEDED[o.name] // 3]]  # k, after q, or after dy and q
        if p.amx and keys.dtype == "bf16" and typical(keys.shape[1]) * keys.shape[3] > _LONG:
            return None
        wide = list(types)
        for v in values:
            wide[v] = _float(types[v])
        own = attention_of(p, o, wide, self.threads)
        if own is None:
            return None
        numbers, then, scratch = self._widened(o)
        return replace(own, scratch=own.scratch + scratch, widened=numbers, then=then)

    def _widened(self, o: Op) -> tuple[tuple[int, ...], tuple[Way, ...], int]:
        """The positions of an op's values in half precision, their conversions, and the bytes of the float32 copies."""
        values = (*o.operands, *o.results)
        types = [self.lives.body.types[v] for v in values]
        numbers = _halves(values, types)
        strides = [self.lives.at[v].strides for v in values]
        scratch = sum(_up(4 * types[n].numel) for n in numbers)
        return numbers, _conversions(numbers, types, strides, len(o.operands)), scratch

    def _rounded_in_tiles(
        self, types: Sequence[TensorType], strides: Sequence[tuple[int, ...]]
    ) -> Choice | None:
        """The choice for a product of bfloat16 operands whose sums over all of K are rounded on each tile.

        Between blocks of K the sums are in scratch, which is small.
        """
        (m, k), n = types[0].shape[-2:], types[2].shape[-1]
        product, p = Problem(m, n, k), self.processor
        if p is None or not _exact(types) or not all(map(_has_unit, strides[:2])):
            return None
        if any(map(varies, product.sizes)) or not halves_are_faster(p, product):
            return None
        time = of_product(1, m, n, k)
        found = self._blocked("panels", Contest(product, "k", "lanes"), time, True)
        if found is None or found.tile[2] >= k:
            return found
        sums = ITEM * m * n
        small = sums <= ANY.gathered
        return replace(found, scratch=found.scratch + _whole(sums)) if small else None

    def _in_pieces(self, types: Sequence[TensorType]) -> bool:
        """Whether a half-precision product is widened to float32 in chunks of rows."""
        (rows, inner), columns = types[0].shape[-2:], types[2].shape[-1]
        return bool(inner) and types[2].numel == rows * columns and self.blas

    def _call(self, o: Op) -> Choice:
        """The choice for an ATen call. Calls on float16 are widened to float32, since PyTorch computes float16 slowly
        on CPUs; ops whose AMP rule isn't "allow" are not."""
        values = (*o.operands, *o.results)
        types = [self.lives.body.types[v] for v in values]
        if amp_of(o.op).kind != "allow" or all(ty.dtype != "f16" for ty in types):
            return PYTORCH
        numbers, then, scratch = self._widened(o)
        return Choice("pytorch", scratch, widened=numbers, then=then)


def _exact(types: Sequence[TensorType]) -> bool:
    """Whether a contraction's operands are bfloat16 values. types: of A, B and the result."""
    return all(ty.dtype == "bf16" for ty in types[:2])


def _has_unit(strides: tuple[int, ...]) -> bool:
    """Whether the rows or the columns of a matrix are contiguous."""
    return 1 in strides[-2:]


def rows_at_a_time(types: Sequence[TensorType]) -> int:
    """The rows of a half-precision product that are widened at a time; 0: all. types: of A, B and the result."""
    (rows, inner), columns = types[0].shape[-2:], types[2].shape[-1]
    if varies(rows):
        return 0
    cached = ANY.gathered // (4 * (inner + columns))
    length = max(_LEAST_ROWS, cached, rows // MOST_PIECES)
    while rows % length == 1 and 1 < length < rows:
        length += 1  # the loops chosen for a chunk of several rows do not fit one of a single row
    return length if length < rows else 0


def widened_shapes(types: Sequence[TensorType], piece: int) -> list[TensorType]:
    """The types of the float32 copies for a half-precision product: `piece` rows of A (0: all), B, rows of the result.

    types: of A, B and the result.
    """
    (rows, inner), columns = types[0].shape[-2:], types[2].shape[-1]
    piece = piece or rows
    return [TensorType(s, "f32") for s in ((piece, inner), (inner, columns), (piece, columns))]


def _halves(values: Sequence[int], types: Sequence[TensorType]) -> tuple[int, ...]:
    """The positions of the half-precision values among `values`; of a value that stands there twice, the first."""
    first: dict[int, int] = {}
    for n, v in enumerate(values):
        first.setdefault(v, n)
    return tuple(n for n in first.values() if types[n].dtype in HALVES)


def _conversions(
    numbers: Sequence[int],
    types: Sequence[TensorType],
    strides: Sequence[tuple[int, ...]],
    operands: int,
    wide: Sequence[tuple[int, ...]] | None = None,
) -> tuple[Way, ...]:
    """The loops of conversions between half precision and float32.

    Args:
        numbers: the positions of the converted values; from `operands` on they are results, converted from float32.
        types, strides: of all values, in half precision.
        operands: how many of them are operands.
        wide: the strides of the float32 copies; None: they are row-major.
    """
    found = []
    for n in numbers:
        ty, own = types[n], strides[n]
        dense = row_major_strides(ty.shape) if wide is None else wide[n]
        if n < operands:
            k = converting(ty, own, "f32", dense)
        else:
            k = converting(_float(ty), dense, ty.dtype, own)
        found.append(way_of_loops(k))
    return tuple(found)


def _float(ty: TensorType) -> TensorType:
    return TensorType(ty.shape, "f32") if ty.dtype in HALVES else ty


def _whole(size: int) -> int:
    """`size` bytes, rounded up to a multiple of 64."""
    return -(-size // 64) * 64


def _up(size: int) -> int:
    """`size` bytes at the greatest value of dynamic dimensions, rounded up to a multiple of 64."""
    return _whole(at_most(size))


#: ATen calls that may need scratch
_CALLS = ("aten", "attention", "attention_grad")
#: the kind of kernel of ops that are neither fused nor contractions
OTHERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("iota", "pad", "concatenate", "reverse", "index_copy", "take", "quantized_matmul", CHECK),
        "kernel",
    ),
    **dict.fromkeys(_CALLS, "pytorch"),
    **dict.fromkeys(("max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad"), "pytorch"),
    **dict.fromkeys((START, SHARD, ENGINE), "pytorch"),
    **dict.fromkeys(("reduce", "gather", "index_add"), "pytorch"),
}
