"""Half-precision contractions: operands are widened to float32 in scratch, and the result is rounded once.

This accumulates in float32, and uses the float32 BLAS and convolution kernels. With Intel AMX or AVX-512's dot
products, products of bfloat16 values are made as such (`precision = "bf16"`): matrix products then read their operands
without widening them, and round each tile of sums, after which the epilogue runs on it (on rows, where K is longer than
a block and the sums are large). With dot products, so do convolutions that read windows in place, and attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gflow.compiler.ir.ssa import Op
from gflow.compiler.ir.views import Layout
from gflow.compiler.kernel.blocks import BF16
from gflow.compiler.kernel.movement import converting, shifted
from gflow.compiler.kernel.selection.cpu.convolutions.patches import widened_strides
from gflow.compiler.kernel.selection.cpu.halves import widened_shapes
from gflow.dialects.ops.attention import multiplied
from gflow.dialects.program import Place
from gflow.dialects.types import HALVES, TensorType

from ..program_builder import Builder
from .epilogue import Epilogue
from .matmul import OWN, matmul, product, rounded_in_tiles

Contraction = Callable[[Builder, Op, Epilogue | None], None]


def widening(steps: Contraction) -> Contraction:
    """A function that adds the steps of a contraction, widened to float32 if its choice says so.

    steps: adds the steps of the contraction in its own type.
    """

    def run(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
        if not b.choice.widened:
            steps(b, o, epilogue)
            return
        if epilogue is None:
            _widened(b, o, lambda: steps(b, o, None))
            return
        (r,) = o.results
        ty = b.body.types[r]
        with _scratch(b) as take:
            scratch = take(ty.nbytes) if epilogue.place is None else Place("arena", 0, b.arena)
            b.places[r] = epilogue.target(0, scratch)
            _widened(b, o, lambda: steps(b, o, None))
            epilogue.run(0, epilogue.rows, b.places[r])

    return run


def widening_call(steps: Callable[[Builder, Op], None]) -> Callable[[Builder, Op], None]:
    """A function that adds the steps of an ATen call, widened to float32 if its choice says so."""

    def run(b: Builder, o: Op) -> None:
        if b.choice.widened:
            _widened(b, o, lambda: steps(b, o))
        else:
            steps(b, o)

    return run


def matmul_in_pieces(b: Builder, o: Op, epilogue: Epilogue | None) -> None:
    """Add the steps of a matmul. A half-precision matrix product is widened to float32 in chunks of rows."""
    x, y, z = (*o.operands, *o.results)
    types, label = [b.body.types[v] for v in (x, y, z)], b.label(o)
    (rows, inner), columns = types[0].shape[-2:], types[2].shape[-1]
    batched = types[2].numel != rows * columns
    if b.choice.precision == BF16 and not b.choice.widened:
        rounded_in_tiles(b, o, epilogue)
        return
    direct = b.choice.precision == BF16 and b.choice.widened == (2,)
    whole = not direct and b.choice.widened != (0, 1, 2)
    if whole or batched or b.choice.kind not in ("blas", *OWN):
        widening(matmul)(b, o, epilogue)
        return
    if not direct:
        _check_widened(b, o)
    strides = [b.strides(v)[-2:] for v in (x, y, z)]
    with _scratch(b) as take:
        if epilogue is None:
            result = b.place(z)
        else:
            own = epilogue.place is None
            scratch = take(types[2].nbytes) if own else Place("arena", 0, b.arena)
            result = epilogue.target(0, scratch)
            strides[2] = (columns, 1)
        wide = widened_shapes(types, b.choice.rows)
        piece = wide[0].shape[0]
        if direct:
            places = (b.place(x), b.place(y), result)
            _directly(b, types, strides, places, take(wide[2].nbytes), label)
            if epilogue is not None:
                epilogue.run(0, epilogue.rows, result)
            return
        at = [take(ty.nbytes) for ty in wide]
        whole_b = TensorType(wide[1].shape, types[1].dtype)
        _convert(b, 1, (b.place(y), whole_b, strides[1]), (at[1], wide[1], (columns, 1)), label)
        for first in range(0, rows, piece):
            count = min(piece, rows - first)
            a = TensorType((count, inner), types[0].dtype)
            c = TensorType((count, columns), types[2].dtype)
            a32, c32 = TensorType(a.shape, "f32"), TensorType(c.shape, "f32")
            source = shifted(b.place(x), first * strides[0][0], a)
            _convert(b, 0, (source, a, strides[0]), (at[0], a32, (inner, 1)), label)
            dense = [(inner, 1), (columns, 1), (columns, 1)]
            product(b, at, [a32, wide[1], c32], dense, label)
            target = shifted(result, first * strides[2][0], c)
            _convert(b, 2, (at[2], c32, (columns, 1)), (target, c, strides[2]), label)
        if epilogue is not None:
            epilogue.run(0, epilogue.rows, result)


def _directly(
    b: Builder,
    types: Sequence[TensorType],
    strides: Sequence[tuple[int, ...]],
    places: tuple[Place, Place, Place],
    sums: Place,
    label: str,
) -> None:
    """Add the steps of a product that reads bfloat16 operands, and rounds some rows of its float32 sums at a time.

    Args:
        b: the builder.
        types, strides, places: those of A, B and the result.
        sums: the address of the float32 sums.
        label: for messages and profiles.
    """
    (rows, inner), columns = types[0].shape[-2:], types[2].shape[-1]
    x, y, result = places
    matrix = TensorType((inner, columns), types[1].dtype)
    piece = b.choice.rows or rows
    sound = all(ty.dtype == "bf16" for ty in types) and all(1 in s for s in strides[:2])
    b.choice.check(sound, "is for contiguous rows or columns of bfloat16 operands")
    for first in range(0, rows, piece):
        count = min(piece, rows - first)
        a = TensorType((count, inner), types[0].dtype)
        c = TensorType((count, columns), types[2].dtype)
        c32 = TensorType(c.shape, "f32")
        source = shifted(x, first * strides[0][0], a)
        given = [strides[0], strides[1], (columns, 1)]
        product(b, [source, y, sums], [a, matrix, c32], given, label)
        target = shifted(result, first * strides[2][0], c)
        _convert(b, 0, (sums, c32, (columns, 1)), (target, c, strides[2]), label)


def _check_widened(b: Builder, o: Op) -> list[int]:
    """The values that are widened: all half-precision ones; in "bf16" the results alone, or those that attention does
    not read and write as they are.

    Raises:
        CannotLower: the choice widens other values.
    """
    every, numbers = (*o.operands, *o.results), b.choice.widened
    given = dict.fromkeys(every[n] for n in numbers if 0 <= n < len(every))
    halves = dict.fromkeys(v for v in every if b.body.types[v].dtype in HALVES)
    results = {v: None for v in halves if v in o.results}
    sound = given == halves
    if b.choice.precision == BF16:
        kept = [every[n] for n in multiplied(o.name, len(o.operands))]
        sound |= given == (dict.fromkeys(v for v in halves if v not in kept) if kept else results)
    b.choice.check(sound, "must widen all operands and results in half precision, or none")
    return list(given)


def _widened(b: Builder, o: Op, run: Callable[[], None]) -> None:
    """Add the steps that `run` adds, with half-precision operands and results of `o` as float32 values in scratch."""
    types, label = b.body.types, b.label(o)
    values = _check_widened(b, o)
    saved = {v: (types[v], b.place(v), b.at[v], b.places.get(v)) for v in values}
    with _scratch(b) as take:
        for n, v in enumerate(values):
            ty, place, layout, _ = saved[v]
            wide = TensorType(ty.shape, "f32")
            types[v], b.places[v] = wide, take(wide.nbytes)
            b.at[v] = Layout(v, 0, widened_strides(o.name, ty, layout.strides))
            if v not in o.results:
                _convert(b, n, (place, ty, layout.strides), _memory(b, v), label)
        run()
        for n, v in enumerate(values):
            if v in o.results:
                ty, place, layout, _ = saved[v]
                _convert(b, n, _memory(b, v), (place, ty, layout.strides), label)
    for v, (ty, _, layout, own) in saved.items():
        types[v], b.at[v] = ty, layout
        del b.places[v]
        if own is not None:
            b.places[v] = own


Memory = tuple[Place, TensorType, tuple[int, ...]]


def _memory(b: Builder, value: int) -> Memory:
    return b.place(value), b.body.types[value], b.strides(value)


def _convert(b: Builder, number: int, source: Memory, target: Memory, label: str) -> None:
    """Add the step of a copy that converts the element type. number: of the conversion in the choice."""
    (at, ty, own), (to, wanted, strides) = source, target
    way = b.way(len(b.choice.copies) + number)
    b.launch(converting(ty, own, wanted.dtype, strides), [at], [to], label, way=way)


@contextmanager
def _scratch(b: Builder) -> Iterator[Callable[[int], Place]]:
    """Inside the context, allocate scratch that stays valid over several steps; their own scratch follows it."""
    start, before = b.arena, b.scratch_bytes
    b.scratch_bytes = 0
    taken = 0

    def take(size: int) -> Place:
        nonlocal taken
        place = Place("arena", 0, b.arena)
        length = -(-size // 64) * 64
        taken += length
        b.arena += length
        return place

    try:
        yield take
    finally:
        b.arena = start
        b.scratch_bytes = max(before, taken + b.scratch_bytes)
