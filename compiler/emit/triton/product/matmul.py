"""Matrix products as kernels: any strides, any number of batch dimensions, what follows on the tile.

c[b, m, n] = epilogue(sum over k of a[b, m, k] b[b, k, n])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.dimensions import merged
from gflow.compiler.targets.devices import TMA
from gflow.dialects.types import TensorType

from ..language.parameters import WIDE, Parameters, addresses, extent, term, total, wide
from ..program_builder import ALIGNMENT, Builder
from .epilogue import Epilogue, plain
from .main_loop import Frame, add, kind_of_product, tf32_allowed
from .operand_copies import Operand, aligned, vectorized
from .output_tile import COLUMN_FOURS, COLUMNS, Axis
from .split_k import SUMS, through_pytorch, zero
from .tile_candidates import Problem, best_splits


def matmul(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the launches of a product and of what follows it."""
    x, y, z = (*o.operands, *o.results)
    tx, ty, tz = (b.body.types[v] for v in (x, y, z))
    if tz.numel == 0:
        return
    if tz.dtype not in SUMS:
        through_pytorch(b, o, epilogue, _pytorch)
        return
    after = epilogue or plain(b, o)
    if tx.shape[-1] == 0:
        zero(b, o, after)
        return
    sx, sy = b.strides(x), b.strides(y)
    product(
        b,
        Operand(b.place(x), tx.dtype, sx[:-2], sx[-2], sx[-1]),
        Operand(b.place(y), ty.dtype, sy[:-2], sy[-2], sy[-1]),
        tz.shape[:-2],
        (tx.shape[-2], ty.shape[-1], tx.shape[-1]),
        tz,
        after,
        tf32=tf32_allowed(b, "matmul"),
    )


def _pytorch(b: Builder, o: Op) -> None:
    x, y, z = (b.ref(v) for v in (*o.operands, *o.results))
    b.aten(b.label(o), "aten.matmul.default", [{"t": 0}, {"t": 1}], [x, y], z)


def product(
    b: Builder,
    x: Operand,
    y: Operand,
    batch: Sequence[int],
    sizes: tuple[int, int, int],
    result: TensorType,
    after: Epilogue,
    *,
    tf32: bool,
    axes: tuple[Axis, ...] | None = None,
    splits: int | None = None,
) -> None:
    """result[batch, m, n] = sum over k of x[batch, m, k] y[batch, k, n].

    axes: how the result's positions follow from `batch`, `rows` and `cols`; row-major if None.
    """
    m, n, k = sizes
    if axes is None:
        batch, x, y, m = _rows_joined(batch, x, y, m)
    dims, xs, ys = _batch_joined(batch, x.batch, y.batch)
    count = 1
    for d in dims:
        count *= d
    kind = kind_of_product(x.dtype, m, n, tf32)
    item = TensorType((), x.dtype).itemsize
    moved = item * count * (m * k + k * n + m * n)
    problem = Problem(m, n, k, count, item, kind, moved)
    x, y, reserved = aligned(b, x, y, problem, after.label)
    even = vectorized((x.rows, x.cols), xs, item) and vectorized((y.rows, y.cols), ys, item)
    # tensor cores take tf32 only with neighbouring terms side by side
    upright = item == 2 or (x.cols == 1 and y.rows == 1)
    whole = all(o.place.offset % ALIGNMENT == 0 for o in (x, y))
    described = even and upright and whole and kind == "cores" and b.target.has(TMA)
    way: Literal["", "DESCRIPTORS", "PERSISTENT"] = ""
    if described:
        way = "DESCRIPTORS" if dims else "PERSISTENT"
    problem = replace(problem, gather=not even, ragged=reserved > 0, descriptors=way)
    if splits is None:
        splits = best_splits(problem, b.target)
    if splits > 1 and described:
        way = "DESCRIPTORS"
    params = Parameters()
    a, w = params.pointer("a", x.dtype, x.place), params.pointer("b", y.dtype, y.place)
    for name, size in (("M", m), ("N", n), ("K", k)):
        params.number(name, size)
    setup, x_at, y_at = _batches(params, dims, xs, ys)
    x_wide = extent((*dims, m, k), (*xs, x.rows, x.cols)) >= WIDE
    y_wide = extent((*dims, k, n), (*ys, y.rows, y.cols)) >= WIDE
    am, ak = params.stride("a_m", x.rows), params.stride("a_k", x.cols)
    bk, bn = params.stride("b_k", y.rows), params.stride("b_n", y.cols)
    # past the end, rows and columns are the last ones again, where a mask would cost more than that
    x_mask = y_mask = None
    if am == "1":
        x_mask, x_rows = "(rows < M)[:, None]", "rows"
    else:
        setup.append("a_rows = tl.minimum(rows, M - 1)")
        x_rows = "a_rows"
    if bn == "1":
        y_mask, y_cols = "(cols < N)[None, :]", "cols"
    else:
        setup.append("b_cols = tl.minimum(cols, N - 1)")
        y_cols = "b_cols"
    setup += [f"{p} += {total(at)}" for p, at in ((a, x_at), (w, y_at)) if at]
    x_left, x_right = term(wide(x_rows, x_wide), am), term(wide("terms", x_wide), ak)
    y_left, y_right = term(wide("terms", y_wide), bk), term(wide(y_cols, y_wide), bn)
    setup += [
        f"a_at = {addresses(a, x_left, x_right, '(BLOCK_M, BLOCK_K)')}",
        f"b_at = {addresses(w, y_left, y_right, '(BLOCK_K, BLOCK_N)')}",
    ]
    load: list[str] = ["k = step * BLOCK_K"]
    before: list[str] = []
    if described:
        x_made, x_load = _descriptor(
            "a", ("M", "K"), (am, ak), ("BLOCK_M", "BLOCK_K"), ("tile_m * BLOCK_M", "k")
        )
        y_made, y_load = _descriptor(
            "b", ("K", "N"), (bk, bn), ("BLOCK_K", "BLOCK_N"), ("k", "tile_n * BLOCK_N")
        )
        made = [f"if {way}:", f"    a_desc = {x_made}", f"    b_desc = {y_made}"]
        if way == "PERSISTENT":
            before = made
        else:
            setup += made
        load += [f"if {way}:", f"    x = {x_load}", f"    y = {y_load}"]
    x_step, y_step = (
        f" + {term(wide('k', far), s)}" if s != "0" else ""
        for far, s in ((x_wide, ak), (y_wide, bk))
    )
    load += [
        f"{'elif' if described else 'if'} TERMS_MULTIPLE % BLOCK_K == 0:",
        f"    x = tl.load(a_at{x_step}{_masked(x_mask)})",
        f"    y = tl.load(b_at{y_step}{_masked(y_mask)})",
        "else:",
        f"    x = tl.load(a_at{x_step}{_masked(x_mask, '(terms < K - k)[None, :]')})",
        f"    y = tl.load(b_at{y_step}{_masked(y_mask, '(terms < K - k)[:, None]')})",
    ]
    frame = Frame(
        "matmul", params, problem, x.dtype, result, "M", "N",
        _count(params, count), axes or _axes(count, m, n), ("rows < M", "cols < N"),
        [f"cols = {COLUMNS}"], setup, "tl.cdiv(K, BLOCK_K)", load, before,
        precision="tf32" if tf32 else "ieee", descriptors=way,
        unhinted=frozenset() if am == "1" else frozenset({"M"}),
    )  # fmt: skip
    add(b, frame, after, splits, reserved)


def _descriptor(
    name: str,
    sizes: tuple[str, str],
    strides: tuple[str, str],
    block: tuple[str, str],
    at: tuple[str, str],
) -> tuple[str, str]:
    """How a matrix's descriptor is made, and a block loaded by it; its second dimension is the contiguous one."""
    swapped = strides[1] != "1"
    if swapped:
        sizes, strides, block, at = sizes[::-1], strides[::-1], block[::-1], at[::-1]
    made = f"tl.make_tensor_descriptor({name}, [{', '.join(sizes)}], [{', '.join(strides)}], [{', '.join(block)}])"
    load = f"{name}_desc.load([{', '.join(at)}])"
    return made, f"tl.trans({load})" if swapped else load


def _masked(*masks: str | None) -> str:
    found = [m for m in masks if m]
    return f", mask={' & '.join(found)}, other=0.0" if found else ""


def _count(params: Parameters, count: int) -> str:
    return params.number("batches", count) if count > 1 else "1"


def _axes(count: int, m: int, n: int) -> tuple[Axis, ...]:
    rows = (Axis(m, "rows", 0), Axis(n, "cols", 1, COLUMN_FOURS))
    return (Axis(count, "batch", None), *rows) if count > 1 else rows


def _rows_joined(
    batch: Sequence[int], x: Operand, y: Operand, m: int
) -> tuple[tuple[int, ...], Operand, Operand, int]:
    """Batch dimensions that only `x` has and that go on with its rows, as rows."""
    sizes, xs, ys = list(batch), list(x.batch), list(y.batch)
    while sizes and (sizes[-1] == 1 or (ys[-1] == 0 and (xs[-1] == m * x.rows or m == 1))):
        size, stride = sizes.pop(), xs.pop()
        ys.pop()
        if size > 1:
            rows = stride if m == 1 else x.rows
            x = Operand(x.place, x.dtype, tuple(xs), rows, x.cols)
            m *= size
    return (
        tuple(sizes),
        Operand(x.place, x.dtype, tuple(xs), x.rows, x.cols),
        Operand(y.place, y.dtype, tuple(ys), y.rows, y.cols),
        m,
    )


def _batch_joined(
    sizes: Sequence[int], xs: Sequence[int], ys: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The batch dimensions, those that both operands walk as one joined, those of size 1 dropped."""
    found, (a, b) = merged(sizes, (xs, ys))
    return tuple(found), tuple(a), tuple(b)


def _batches(
    params: Parameters, dims: Sequence[int], xs: Sequence[int], ys: Sequence[int]
) -> tuple[list[str], list[str], list[str]]:
    """Lines that find a program's matrices, and the terms of the offsets of both operands'."""
    lines: list[str] = []
    x_at: list[str] = []
    y_at: list[str] = []
    if dims:
        lines.append("whole = batch.to(tl.int64)")
    for i in range(len(dims) - 1, -1, -1):
        at = "whole"
        if i > 0:
            size = params.number(f"batch_{i}", dims[i])
            lines += [f"batch{i} = whole % {size}", f"whole = whole // {size}"]
            at = f"batch{i}"
        x_at.append(term(at, params.stride(f"a_b{i}", xs[i])))
        y_at.append(term(at, params.stride(f"b_b{i}", ys[i])))
    return lines, [t for t in x_at if t], [t for t in y_at if t]
