"""take, gather, index_add, index_copy and put.

An index out of range reads 0, and writes or adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.emit import aten_ops
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.registers import register_dtype
from gflow.compiler.kernel.selection.gpu.other_blocks import (
    ORDERED,
    gather_configs,
    index_add_configs,
    index_copy_configs,
    piece_configs,
    put_configs,
    take_configs,
)
from gflow.compiler.kernel.selection.gpu.other_ops import (
    index_add_fits,
    ordered_indices,
    piece_of,
    piece_sums,
)
from gflow.compiler.kernel.sizes import WIDE, extent, power_of_two
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import AtenStep, Place, TensorRef, TritonConfig

from ..language import device_functions
from ..language.expressions import triton_type
from ..language.index_arithmetic import offsets
from ..language.parameters import Parameters, indented, is_wide
from ..program_builder import Builder, Source
from . import movement


def _kernel(
    b: Builder, stem: str, p: Parameters, body: list[str], model: Sequence[TritonConfig],
    grid: str, label: str, constants: dict[str, int] | None = None,
) -> None:  # fmt: skip
    """Add the launch of a kernel with the lines `body`. model: its configurations."""
    configs = b.ways(model)
    names = [*(constants or {}), *configs[0].constants]
    signature = ", ".join([*p.types, *(f"{n}: tl.constexpr" for n in names)])
    text = "\n".join([f"def KERNEL({signature}):", *indented(body)])
    text = device_functions.source(text + "\n", ())
    source = Source(stem, text, p.types, configs, (grid,), constants or {})
    b.launch(source, p.values, label)


def _wide(b: Builder, *values: int) -> bool:
    return any(is_wide(b, v) for v in values)


def take(b: Builder, o: Op) -> None:
    """Add the launch of a `gflow.take`: rows of the result are slices of x."""
    x, index = o.operands
    (r,) = o.results
    dim = read(OPS["take"], o.op.attributes)["dim"]
    types, at = b.body.types, b.strides(x)
    shape = types[x].shape
    count = types[index].numel
    outer, inner = shape[:dim], shape[dim + 1 :]
    rows, columns = prod(outer) * count, prod(inner)
    if rows * columns == 0:
        return
    p = Parameters()
    p.pointer("x", types[x].dtype, b.place(x))
    p.pointer("index", types[index].dtype, b.place(index))
    p.pointer("out", types[r].dtype, b.place(r))
    p.number("rows", rows)
    p.number("columns", columns)
    p.number("count", count)
    p.number("size", shape[dim])
    step = p.stride("x_step", at[dim])
    walk = b.strides(index)[0] if types[index].rank == 1 else 1
    walk_text = p.stride("index_step", walk)
    i64 = ".to(tl.int64)" if _wide(b, x, r) else ""
    lines = [
        "# a tile of slices and their elements",
        "across = tl.cdiv(columns, COLS)",
        "row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)",
        "col = tl.program_id(0) % across * COLS + tl.arange(0, COLS)",
    ]
    number = "row"
    if prod(outer) > 1:
        lines += ["number = row % count", "outer = row // count"]
        number = "number"
    lines.append(f"at = tl.load(index + {number} * {walk_text}, mask=row < rows, other=0)")
    lines += ["inside = (row < rows) & (at >= 0) & (at < size)"]
    (low,) = offsets(p, "outer", "outer", outer, [at[:dim]], lines)
    (high,) = offsets(p, "col", "col", inner, [at[dim + 1 :]], lines)
    index_type = "at" if i64 else "at.to(tl.int32)"
    lines += [
        f"where = {index_type} * {step} + {low}" if low != "0" else f"where = {index_type} * {step}",
        f"where = where[:, None] + ({high})[None, :]" if high != "0" else "where = where[:, None] + col[None, :] * 0",
        "value = tl.load(x + where, mask=inside[:, None] & (col < columns)[None, :], other=0)",
        f"target = row[:, None]{i64} * columns + col[None, :]",
        "tl.store(out + target, value, mask=(row < rows)[:, None] & (col < columns)[None, :])",
    ]  # fmt: skip
    model = take_configs(o, b.body)
    _kernel(b, "take", p, lines, model, "cdiv(rows, ROWS) * cdiv(columns, COLS)", b.label(o))


def gather(b: Builder, o: Op) -> None:
    """Add the launch of a `gflow.gather`, element by element."""
    x, index = o.operands
    (r,) = o.results
    dim = read(OPS["gather"], o.op.attributes)["dim"]
    types = b.body.types
    shape, numel = types[r].shape, types[r].numel
    if not numel:
        return
    p = Parameters()
    p.pointer("x", types[x].dtype, b.place(x))
    p.pointer("index", types[index].dtype, b.place(index))
    p.pointer("out", types[r].dtype, b.place(r))
    p.number("numel", numel)
    size, stride = (types[x].shape[dim], b.strides(x)[dim]) if types[x].rank else (1, 0)
    p.number("size", size)
    step = p.stride("x_step", stride)
    walk = tuple(0 if d == dim else s for d, s in enumerate(b.strides(x)))
    wide = _wide(b, x, index, r)
    start = "tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)"
    lines = [f"e = {start} * BLOCK + tl.arange(0, BLOCK)"]
    base, place = offsets(p, "i", "e", shape, [walk, b.strides(index)], lines)
    at = "at" if wide else "at.to(tl.int32)"
    if place == "0":  # a single index
        place = "e * 0"
    lines += [
        f"at = tl.load(index + {place}, mask=e < numel, other=0)",
        "inside = (e < numel) & (at >= 0) & (at < size)",
        f"value = tl.load(x + {base} + {at} * {step}, mask=inside, other=0)",
        "tl.store(out + e, value, mask=e < numel)",
    ]
    model = gather_configs(o, b.body)
    _kernel(b, "gather", p, lines, model, "cdiv(numel, BLOCK)", b.label(o))


def index_add(b: Builder, o: Op) -> None:
    """Add the launches of a `gflow.index_add`, without atomics, so that results are deterministic.

    The indices are sorted first. Then each row of the result adds its slices in order. If there are many indices,
    pieces of equal ones are summed by other programs before, so that no program iterates over a long run.
    """
    x, index, source = o.operands
    (r,) = o.results
    dim = read(OPS["index_add"], o.op.attributes)["dim"]
    types = b.body.types
    shape, at = types[x].shape, b.strides(x)
    outer, inner = shape[:dim], shape[dim + 1 :]
    count, size, columns, batches = types[index].numel, shape[dim], prod(inner), prod(outer)
    if b.choice.kind == "pytorch":
        aten_ops.index_add(b, o)
        return
    b.choice.check(b.choice.kind == "kernel", "is not for sums by index")
    b.choice.check(index_add_fits(o, b.body, b.at), "is not for such strides or types")
    keys, places, at_pieces = _ordered(b, o, index, count)
    i64 = ".to(tl.int64)" if _wide(b, r, source) or extent(shape, at) >= WIDE else ""
    total = triton_type(register_dtype(types[x].dtype))
    piece, in_place = piece_of(count), b.place(r) == b.place(x)
    if piece:
        _sum_pieces(b, o, keys, places, at_pieces, batches, columns, i64)
    p = Parameters()
    p.pointer("x", types[x].dtype, b.place(x))
    p.pointer("keys", keys.type.dtype, keys.place)
    p.pointer("places", places.type.dtype, places.place)
    p.pointer("source", types[source].dtype, b.place(source))
    p.pointer("out", types[r].dtype, b.place(r))
    for name, value in (
        ("rows", size),
        ("columns", columns),
        ("count", count),
        ("batches", batches),
    ):
        p.number(name, value)
    p.number("half", power_of_two(count + 1) // 2 if count else 0)
    if piece:
        p.pointer("sums", piece_sums(o, b.body).dtype, at_pieces)
        p.number("pieces", count // piece)
    lines: list[str] = []
    row_step = p.stride("x_step", at[dim])
    (low,) = offsets(p, "outer", "batch", outer, [at[:dim]], lines)
    (high,) = offsets(p, "inner", "col[None, :]", inner, [at[dim + 1 :]], lines)
    assert not lines
    body = [
        "# a tile of the result",
        "across = tl.cdiv(columns, COLS)",
        "down = tl.cdiv(rows, ROWS)",
        f"batch = (tl.program_id(0) // (across * down)){i64}",
        "row = tl.program_id(0) // across % down * ROWS + tl.arange(0, ROWS)",
        "col = tl.program_id(0) % across * COLS + tl.arange(0, COLS)",
        "# where each row's indices begin and end in the sorted ones",
        "first = tl.zeros([ROWS], tl.int32)",
        "last = tl.zeros([ROWS], tl.int32)",
        "step = half",
        "while step > 0:",
        "    key = tl.load(keys + first + step - 1, mask=first + step <= count, other=rows)",
        "    first = tl.where((first + step <= count) & (key < row), first + step, first)",
        "    key = tl.load(keys + last + step - 1, mask=last + step <= count, other=rows)",
        "    last = tl.where((last + step <= count) & (key <= row), last + step, last)",
        "    step = step // 2",
        f"touched = {'first < last' if in_place else 'row < rows'}",
        f"total = tl.zeros([ROWS, COLS], {total})",
        *(_ADD_PIECES if piece else ()),
        "length = tl.where(row < rows, last - first, 0)",
        "for k in range(0, tl.max(length, 0), DEPTH):",
        "    k_th = k + tl.arange(0, DEPTH)[None, :]",
        "    mine = k_th < length[:, None]",
        *(["    k_th += tl.where(k_th < head[:, None], 0, summed[:, None])"] if piece else ()),
        "    k_th += first[:, None]",
        "    place = tl.load(places + k_th, mask=mine, other=0)",
        f"    at = (batch * count + place{i64}) * columns",
        "    inside = mine[:, :, None] & (col < columns)[None, None, :]",
        "    value = tl.load(source + at[:, :, None] + col[None, None, :], mask=inside, other=0)",
        f"    total += tl.sum(value.to({total}), 1)",
        "inside = touched[:, None] & (col < columns)[None, :]",
        f"where = row[:, None]{i64} * {row_step} + {low} + {high} + tl.zeros([ROWS, COLS], tl.int32)",
        f"total += tl.load(x + where, mask=inside, other=0).to({total})",
        f"target = (batch * rows + row[:, None]{i64}) * columns + col[None, :]",
        f"tl.store(out + target, total.to({triton_type(types[r].dtype)}), mask=inside)",
    ]  # fmt: skip
    grid = "cdiv(rows, ROWS) * cdiv(columns, COLS) * batches"
    constants = {"PIECE": piece} if piece else None
    _kernel(b, "index_add", p, body, index_add_configs(o, b.body), grid, b.label(o), constants)


#: the complete pieces of each row's run are already summed; the slices before and after them remain
_ADD_PIECES = (
    "# whole pieces of a run",
    "begin = tl.cdiv(first, PIECE)",
    "count_whole = tl.where(row < rows, tl.maximum(last // PIECE - begin, 0), 0)",
    "head = begin * PIECE - first",
    "summed = count_whole * PIECE",
    "for k in range(0, tl.max(count_whole, 0), DEPTH):",
    "    k_th = k + tl.arange(0, DEPTH)[None, :]",
    "    inside = (k_th < count_whole[:, None])[:, :, None] & (col < columns)[None, None, :]",
    "    at = (batch * pieces + begin[:, None] + k_th) * columns",
    "    total += tl.sum(tl.load(sums + at[:, :, None] + col[None, None, :], mask=inside, other=0), 1)",
    "last -= summed",
)


def _sum_pieces(
    b: Builder, o: Op, keys: TensorRef, places: TensorRef, to: Place, batches: int, columns: int, i64: str
) -> None:  # fmt: skip
    """Add the launch that sums the slices of those pieces of the sorted indices whose indices are all equal."""
    _, index, source = o.operands
    types, count = b.body.types, b.body.types[index].numel
    sums = piece_sums(o, b.body)
    p = Parameters()
    p.pointer("keys", keys.type.dtype, keys.place)
    p.pointer("places", places.type.dtype, places.place)
    p.pointer("source", types[source].dtype, b.place(source))
    p.pointer("sums", sums.dtype, to)
    for name, value in (("columns", columns), ("count", count), ("batches", batches)):
        p.number(name, value)
    p.number("pieces", count // piece_of(count))
    total = triton_type(sums.dtype)
    lines = [
        "across = tl.cdiv(columns, COLS)",
        f"batch = (tl.program_id(0) // (across * pieces)){i64}",
        "piece = tl.program_id(0) // across % pieces",
        "col = tl.program_id(0) % across * COLS + tl.arange(0, COLS)",
        "if tl.load(keys + piece * PIECE) == tl.load(keys + piece * PIECE + PIECE - 1):",
        f"    total = tl.zeros([COLS], {total})",
        "    for k in range(0, PIECE, DEPTH):",
        "        place = tl.load(places + piece * PIECE + k + tl.arange(0, DEPTH))",
        f"        at = (batch * count + place{i64}) * columns",
        "        value = tl.load(source + at[:, None] + col[None, :], mask=(col < columns)[None, :], other=0)",
        f"        total += tl.sum(value.to({total}), 0)",
        "    tl.store(sums + (batch * pieces + piece) * columns + col, total, mask=col < columns)",
    ]
    grid = "cdiv(columns, COLS) * pieces * batches"
    constants = {"PIECE": piece_of(count)}
    _kernel(b, "index_add_pieces", p, lines, piece_configs(o, b.body), grid, b.label(o), constants)


def index_copy(b: Builder, o: Op) -> None:
    """Add the launches of a `gflow.index_copy`: a copy of x unless it works in place, then the slices.

    For equal indices only the last slice is written, so each element is written once, and results are deterministic.
    """
    x, index, source = o.operands
    (r,) = o.results
    dim = read(OPS["index_copy"], o.op.attributes)["dim"]
    types, to, of = b.body.types, b.strides(r), b.strides(source)
    movement.move(b, o)
    shape, count = types[x].shape, types[index].numel
    outer, inner = shape[:dim], shape[dim + 1 :]
    if types[source].numel == 0:
        return
    p = Parameters()
    p.pointer("index", types[index].dtype, b.place(index))
    p.pointer("source", types[source].dtype, b.place(source))
    p.pointer("out", types[r].dtype, b.place(r))
    p.number("rows", prod(outer) * count)
    p.number("columns", prod(inner))
    p.number("count", count)
    p.number("size", shape[dim])
    walk = p.stride("index_step", b.strides(index)[0])
    to_step, of_step = p.stride("to_step", to[dim]), p.stride("of_step", of[dim])
    i64 = ".to(tl.int64)" if _wide(b, r, source) else ""
    lines = [
        "# a tile of slices and their elements",
        "across = tl.cdiv(columns, COLS)",
        f"row = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)){i64}",
        f"col = (tl.program_id(0) % across * COLS + tl.arange(0, COLS)){i64}",
        "number = row % count",
        "outer = row // count",
        f"at = tl.load(index + number * {walk}, mask=row < rows, other=-1)",
        "# equal indices that come later",
        "later = tl.zeros([ROWS], tl.int32)",
        "for start in range(0, count, DEPTH):",
        "    other = start + tl.arange(0, DEPTH)",
        f"    other_at = tl.load(index + other * {walk}, mask=other < count, other=-1)",
        "    same = (other_at[None, :] == at[:, None]) & (other[None, :] > number[:, None])",
        "    later += tl.sum(same.to(tl.int32), 1)",
        "inside = (row < rows) & (at >= 0) & (at < size) & (later == 0)",
    ]
    to_low, of_low = offsets(p, "outer", "outer", outer, [to[:dim], of[:dim]], lines)
    to_high, of_high = offsets(p, "col", "col", inner, [to[dim + 1 :], of[dim + 1 :]], lines)
    index_type = "at" if i64 else "at.to(tl.int32)"
    mask = "inside[:, None] & (col < columns)[None, :]"
    lines += [
        f"to = {index_type} * {to_step} + {to_low}",
        f"of = number * {of_step} + {of_low}",
        f"to_col = {to_high} + col * 0",
        f"of_col = {of_high} + col * 0",
        f"value = tl.load(source + of[:, None] + of_col[None, :], mask={mask}, other=0)",
        f"tl.store(out + to[:, None] + to_col[None, :], value, mask={mask})",
    ]
    model = index_copy_configs(o, b.body)
    _kernel(b, "index_copy", p, lines, model, "cdiv(rows, ROWS) * cdiv(columns, COLS)", b.label(o))


def _ordered(b: Builder, o: Op, index: int, count: int) -> tuple[TensorRef, TensorRef, Place]:
    """Add the stable sort of the indices. Returns the sorted indices, their positions before sorting, and the address
    after them, for sums of pieces."""
    ty = b.body.types[index]
    own, place = ordered_indices(ty)
    second = -(-own.nbytes // 64) * 64
    third = second + -(-place.nbytes // 64) * 64
    begin = b.scratch(third + piece_sums(o, b.body).nbytes)
    behind = begin._replace(offset=begin.offset + second)
    keys, places = TensorRef(begin, own, (1,)), TensorRef(behind, place, (1,))
    rest = begin._replace(offset=begin.offset + third)
    if not count:
        return keys, places, rest
    step = b.strides(index)[0] if ty.rank == 1 else 1
    if place.dtype == "i64":
        given = TensorRef(b.place(index), own, (step,))
        call = '[[{"t": 0}], {"stable": true, "dim": 0}]'
        b.steps.append(AtenStep("aten.sort.stable", call, (given,), (keys, places), b.label(o)))
        return keys, places, rest
    p = Parameters()
    p.pointer("index", ty.dtype, b.place(index))
    p.pointer("keys", "i32", keys.place)
    p.pointer("places", "i32", places.place)
    p.number("count", count)
    walk = p.stride("index_step", step)
    lines = [
        "# how many indices come before each of a block of them",
        "own = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        f"key = tl.load(index + own * {walk}, mask=own < count, other=0).to(tl.int32)",
        "before = tl.zeros([ROWS], tl.int32)",
        "for start in range(0, count, COLS):",
        "    other = start + tl.arange(0, COLS)",
        f"    other_key = tl.load(index + other * {walk}, mask=other < count, other=0).to(tl.int32)",
        "    less = other_key[None, :] < key[:, None]",
        "    earlier = (other_key[None, :] == key[:, None]) & (other[None, :] < own[:, None])",
        "    before += tl.sum(((less | earlier) & (other < count)[None, :]).to(tl.int32), 1)",
        "tl.store(keys + before, key, mask=own < count)",
        "tl.store(places + before, own, mask=own < count)",
    ]
    _kernel(b, "order", p, lines, ORDERED, "cdiv(count, ROWS)", b.label(o))
    return keys, places, rest


def put(b: Builder, o: Op) -> None:
    """Add the launch of a `gflow.put`: single elements if it works in place, otherwise all of them.

    Raises:
        CannotLower: another kind of kernel is chosen.
    """
    x, index, source = o.operands
    (r,) = o.results
    types = b.body.types
    rows, columns = types[x].shape
    b.choice.check(b.choice.kind in ("kernel", "none"), "is not for elements by index")
    if rows * columns == 0:
        return
    p = Parameters()
    in_place = b.place(x) == b.place(r)
    if not in_place:
        p.pointer("x", types[x].dtype, b.place(x))
    p.pointer("index", types[index].dtype, b.place(index))
    p.pointer("source", types[source].dtype, b.place(source))
    p.pointer("out", types[r].dtype, b.place(r))
    p.number("rows", rows)
    p.number("columns", columns)
    i64 = ".to(tl.int64)" if _wide(b, x, r) else ""
    to_row, to_col = (p.stride(f"to_{n}", s) for n, s in zip(("row", "col"), b.strides(r)))
    walk, step = (
        p.stride(f"{n}_step", b.strides(v)[0]) for n, v in (("index", index), ("source", source))
    )
    lines = [
        f"row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)){i64}",
        "known = row < rows",
        f"at = tl.load(index + row * {walk}, mask=known, other=-1)",
        f"value = tl.load(source + row * {step}, mask=known)",
    ]
    if in_place:
        at = "at" if i64 else "at.to(tl.int32)"
        lines.append(
            f"tl.store(out + row * {to_row} + {at} * {to_col}, value, mask=known & (at >= 0) & (at < columns))"
        )
    else:
        of_row, of_col = (p.stride(f"of_{n}", s) for n, s in zip(("row", "col"), b.strides(x)))
        lines += [
            "for start in range(0, columns, COLS):",
            f"    col = (start + tl.arange(0, COLS)){i64}",
            "    inside = known[:, None] & (col < columns)[None, :]",
            f"    old = tl.load(x + (row * {of_row})[:, None] + (col * {of_col})[None, :], mask=inside)",
            "    new = tl.where(col[None, :] == at[:, None], value[:, None], old)",
            f"    tl.store(out + (row * {to_row})[:, None] + (col * {to_col})[None, :], new, mask=inside)",
        ]
    _kernel(b, "put", p, lines, put_configs(o, b.body), "cdiv(rows, ROWS)", b.label(o))
