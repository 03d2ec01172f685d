"""Matrix products with any strides and any number of batch dimensions, and their epilogues.

c[b, m, n] = epilogue(sum over k of a[b, m, k] b[b, k, n])
"""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.gpu.product.contraction import Contraction
from gflow.compiler.kernel.selection.gpu.product.matmul import (
    Product,
    kind_of_matmul,
    product_of_matmul,
)
from gflow.compiler.kernel.sizes import WIDE
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import Place
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ..language.expressions import triton_type
from ..language.parameters import Parameters, addresses, term, total, wide
from ..program_builder import Builder
from .epilogue import Epilogue
from .main_loop import Frame, add
from .operand_copies import copied
from .output_tile import COLUMN_FOURS, COLUMNS, Axis
from .split_k import through_pytorch, zero


def matmul(b: Builder, o: Op, c: Contraction, after: Epilogue, choice: Choice) -> None:
    """Add the launches of a matmul and of its epilogue."""
    kind = kind_of_matmul(c)
    choice.check(choice.kind in (kind, "pytorch"), f"is not for a product whose kind is {kind}")
    if choice.kind == "pytorch":
        through_pytorch(b, o, after, _pytorch)
    elif kind == "zero":
        zero(b, o, after)
    else:
        tf32 = takes_tf32(b, c.types[0].dtype)
        places = [b.place(v) for v in c.operands]
        found = product_of_matmul(c, tf32, b.target)
        product(b, found, places, c.result, after, choice, tf32=tf32, scale=_scale(b, c))


@record
class Scale:
    """The scale of a product's first operand: a matrix of float32 with a row for each run of the operand's rows or
    columns.

    Attributes:
        place: its address.
        run: the rows or columns in a run.
        along: what is cut into runs, "rows" or "columns".
        wide: whether offsets in it need 64 bits.
    """

    place: Place
    run: int
    along: str
    wide: bool


def _scale(b: Builder, c: Contraction) -> Scale | None:
    if c.scale < 0:
        return None
    attrs = read(OPS[c.name], c.op.attributes)
    wide = b.body.types[c.scale].numel >= WIDE
    return Scale(b.place(c.scale), attrs["run"], attrs["along"], wide)


def _scaled(scale: Scale, params: Parameters, dtype: str) -> list[str]:
    """Lines that multiply the block `x` by its scale: one vector for each block that lies within a run."""
    at = params.pointer("scale", "f32", scale.place)
    _rows, along_k = ("rows", "k + offs_k")
    if scale.along == "columns":
        within, number = "BLOCK_K", "k // RUN"
        vector, inside, spread = "rows", "rows < M", "[:, None]"
        each = f"({wide(f'({along_k}) // RUN', scale.wide)} * M)[None, :] + rows[:, None]"
        number = f"{wide(number, scale.wide)} * M"
    else:
        within, number = "BLOCK_M", "tile_m * BLOCK_M // RUN"
        vector, inside, spread = along_k, "offs_k < K - k", "[None, :]"
        each = f"({wide('rows // RUN', scale.wide)} * K)[:, None] + ({along_k})[None, :]"
        number = f"{wide(f'({number})', scale.wide)} * K"
    known = "(rows < M)[:, None] & (offs_k < K - k)[None, :]"
    return [
        f"if RUN % {within} == 0:",
        f"    s = tl.load({at} + {number} + {vector}, mask={inside}, other=0.0){spread}",
        "else:",
        f"    s = tl.load({at} + {each}, mask={known}, other=0.0)",
        f"x = (x * s).to({dtype})",
    ]


def takes_tf32(b: Builder, dtype: str) -> bool:
    """Whether the kernel chosen for the op computes float32 products in TF32."""
    precision = b.precision(b.choice, dtype)
    b.choice.check(precision != "tf32x3", "has a precision that its products do not support")
    return precision == "tf32"


def _pytorch(b: Builder, o: Op) -> None:
    x, y, z = (b.ref(v) for v in (*o.operands, *o.results))
    b.aten(b.label(o), "aten.matmul.default", [{"t": 0}, {"t": 1}], [x, y], z)


def product(
    b: Builder,
    p: Product,
    places: Sequence[Place],
    result: TensorType,
    after: Epilogue,
    choice: Choice,
    *,
    tf32: bool,
    axes: tuple[Axis, ...] | None = None,
    scale: Scale | None = None,
) -> None:
    """Add the launches of a product.

    Args:
        b: the builder.
        p: the product.
        places: the addresses of its operands.
        result: the type of its result.
        after: its epilogue.
        choice: the kernel that was chosen.
        tf32: whether float32 products use TF32.
        axes: the dimensions of the result, as expressions over `batch`, `rows` and `cols`; None: row-major.
        scale: what the first operand is multiplied by; None: nothing.
    """
    p, places = copied(b, p, places, choice, after.label)
    x, y, dims, m, n, k = p.x, p.y, p.dims, p.m, p.n, p.k
    problem, way = p.posed(b.target), p.way(b.target)
    if way and (choice.split_k > 1 or b.held is not None):
        way = "DESCRIPTORS"
    params = Parameters()
    a, w = (params.pointer(n, o.dtype, at) for n, o, at in zip("ab", (x, y), places))
    for name, size in (("M", m), ("N", n), ("K", k)):
        params.number(name, size)
    setup, x_at, y_at = _batches(params, dims, x.batch, y.batch)
    x_wide, y_wide = p.wide
    am, ak = params.stride("a_m", x.rows), params.stride("a_k", x.cols)
    bk, bn = params.stride("b_k", y.rows), params.stride("b_n", y.cols)
    # beyond the end, rows and columns are clamped, which costs less than a mask
    x_mask = y_mask = None
    a_to, b_to = (
        params.number(f"{n}_to", o.width) if o.width else "" for n, o in zip("ab", (x, y))
    )
    if am == "1":
        x_mask, x_rows = f"(rows < {a_to or 'M'})[:, None]", "rows"
    else:
        setup.append("a_rows = tl.minimum(rows, M - 1)")
        x_rows = "a_rows"
    if bn == "1":
        y_mask, y_cols = f"(cols < {b_to or 'N'})[None, :]", "cols"
    else:
        setup.append("b_cols = tl.minimum(cols, N - 1)")
        y_cols = "b_cols"
    setup += [f"{base} += {total(at)}" for base, at in ((a, x_at), (w, y_at)) if at]
    x_left, x_right = term(wide(x_rows, x_wide), am), term(wide("offs_k", x_wide), ak)
    y_left, y_right = term(wide("offs_k", y_wide), bk), term(wide(y_cols, y_wide), bn)
    setup += [
        f"a_at = {addresses(a, x_left, x_right, '(BLOCK_M, BLOCK_K)')}",
        f"b_at = {addresses(w, y_left, y_right, '(BLOCK_K, BLOCK_N)')}",
    ]
    load: list[str] = ["k = step * BLOCK_K"]
    before: list[str] = []
    rest: tuple[list[str], list[str]] | None = None
    if way:
        x_made, x_load = _descriptor(
            "a", ("M", "K"), (am, ak), ("BLOCK_M", "BLOCK_K"), ("tile_m * BLOCK_M", "k")
        )
        y_made, y_load = _descriptor(
            "b", ("K", "N"), (bk, bn), ("BLOCK_K", "BLOCK_N"), ("k", "tile_n * BLOCK_N")
        )
        made = [f"if {way}:", f"    a_desc = {x_made}", f"    b_desc = {y_made}"]
        if way == "PERSISTENT":
            before = made
            rest_made, rest_load = _descriptor(
                "b", ("K", "N"), (bk, bn), ("BLOCK_K", "REST"), ("k", "tile_n * BLOCK_N + BLOCK_N"), "rest"
            )  # fmt: skip
            rest = [f"rest_desc = {rest_made}"], [f"y_rest = {rest_load}"]
        else:
            setup += made
        load += [f"if {way}:", f"    x = {x_load}", f"    y = {y_load}"]
    x_step, y_step = (
        f" + {term(wide('k', far), s)}" if s != "0" else ""
        for far, s in ((x_wide, ak), (y_wide, bk))
    )
    load += [
        f"{'elif' if way else 'if'} K_MULTIPLE % BLOCK_K == 0:",
        f"    x = tl.load(a_at{x_step}{_masked(x_mask)})",
        f"    y = tl.load(b_at{y_step}{_masked(y_mask)})",
        "else:",
        *_last("x", "a_at" + x_step, x_mask, "[None, :]", a_to if ak == "1" else ""),
        *_last("y", "b_at" + y_step, y_mask, "[:, None]", b_to if bk == "1" else ""),
    ]
    if scale is not None:
        load += _scaled(scale, params, triton_type(x.dtype))
    frame = Frame(
        "matmul" if scale is None else "scaled_matmul", params, problem, x.dtype, result, "M", "N",
        _count(params, p.count), axes or _axes(p.count, m, n), ("rows < M", "cols < N"),
        [f"cols = {COLUMNS}"], setup, "tl.cdiv(K, BLOCK_K)", load, before,
        precision="tf32" if tf32 else "ieee", descriptors=way, constants={} if scale is None else {"RUN": scale.run},
        without_divisibility=frozenset() if am == "1" else frozenset({"M"}), rest=rest,
    )  # fmt: skip
    add(b, frame, after, choice, p.reserved)


def _descriptor(
    name: str,
    sizes: tuple[str, str],
    strides: tuple[str, str],
    block: tuple[str, str],
    at: tuple[str, str],
    stem: str = "",
) -> tuple[str, str]:
    """The texts that create a matrix's descriptor (TMA) and load a block by it; the second dimension is contiguous.

    stem: of the descriptor's name; "": that of the matrix.
    """
    swapped = strides[1] != "1"
    if swapped:
        sizes, strides, block, at = sizes[::-1], strides[::-1], block[::-1], at[::-1]
    made = f"tl.make_tensor_descriptor({name}, [{', '.join(sizes)}], [{', '.join(strides)}], [{', '.join(block)}])"
    load = f"{stem or name}_desc.load([{', '.join(at)}])"
    return made, f"tl.trans({load})" if swapped else load


def _last(name: str, at: str, mask: str | None, along: str, to: str) -> list[str]:
    """Lines that load a block that may reach beyond K.

    along: how a vector along K is broadcast over the block. to: the elements of a padded row that may be read, as text;
    "": no more than K. Elements behind K are replaced by zeros, since the padding may contain NaN.
    """
    inside = f"(offs_k < K - k){along}"
    read = f"(offs_k < {to} - k){along}" if to else inside
    lines = [f"    {name} = tl.load({at}{_masked(mask, read)})"]
    return [*lines, f"    {name} = tl.where({inside}, {name}, 0.0)"] if to else lines


def _masked(*masks: str | None) -> str:
    found = [m for m in masks if m]
    return f", mask={' & '.join(found)}, other=0.0" if found else ""


def _count(params: Parameters, count: int) -> str:
    return params.number("batches", count) if count > 1 else "1"


def _axes(count: int, m: int, n: int) -> tuple[Axis, ...]:
    rows = (
        Axis(m, "rows", 0, tile="tile_m"),
        Axis(n, "cols", 1, COLUMN_FOURS, first="tile_n * BLOCK_N"),
    )
    return (Axis(count, "batch", None), *rows) if count > 1 else rows


def _batches(
    params: Parameters, dims: Sequence[int], xs: Sequence[int], ys: Sequence[int]
) -> tuple[list[str], list[str], list[str]]:
    """Lines that compute a program's position in the batch, and the terms of both operands' offsets."""
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
