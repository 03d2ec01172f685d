"""The frame of every contraction: programs in an order that the second-level cache likes, a loop over the
terms, what follows on the tile, and a second kernel where the terms are split.

    tile of the result ← rows, cols          program_id(0), program_id(1) for the split
    acc = sum of tl.dot(x, y)                 the loop; its loads are the caller's
    epilogue(acc), or partial sums            → total: sum of the partial sums, epilogue
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gflow.dialects.mlir import ir
from gflow.dialects.program import Place, TritonConfig
from gflow.dialects.types import TensorType, row_major_strides

from ...ssa import Op
from .builder import NAME, Builder, Source
from .epilogue import Epilogue, stored
from .expressions import register_dtype, triton_type
from .library import source
from .parameters import WIDE, Parameters, indented
from .tile import Axis, Tile
from .tiles import Problem, best_splits, ordered, whole_terms

#: element types whose products are made here, and what they are added up in
SUMS = {
    "f16": "tl.float32", "bf16": "tl.float32", "f32": "tl.float32", "f64": "tl.float64", "i64": "tl.int64",
    "i32": "tl.int32", "i16": "tl.int32", "i8": "tl.int32", "ui8": "tl.int32",
}  # fmt: skip


@dataclass
class Frame:
    """What a contraction's kernel is made of; `setup` and `load` are its own.

    rows, cols, terms, batch: sizes of the product, by their names in the text.
    axes: of the result, over `row`, `col` and what `setup` defines. masks: as `tile.Tile`.
    setup: lines after `rows` and `cols` (index vectors of the tile), before the loop.
    count: how many steps the loop has: an expression. load: lines of one `step` that define `x` and `y`.
    cols_tiles: how many tiles across, if not cdiv(cols, BLOCK_N).
    constants: structure that the text knows as `tl.constexpr`; TERMS_MULTIPLE, a number that divides the terms of a
        run, is there, too. unhinted: sizes of which nothing follows for how memory is read.
    descriptors: whether the text knows `DESCRIPTORS`, with which tiles come by the tensor memory accelerator.
    """

    stem: str
    params: Parameters
    problem: Problem
    dtype: str
    result: TensorType
    rows: str
    cols: str
    batch: str
    axes: tuple[Axis, ...]
    masks: tuple[str | None, ...]
    setup: list[str]
    count: str
    load: list[str]
    cols_tiles: str = "tl.cdiv({cols}, BLOCK_N)"
    constants: dict[str, int] = field(default_factory=dict)
    unhinted: frozenset[str] = frozenset()
    descriptors: bool = False
    precision: Literal["ieee", "tf32"] = "ieee"


def tf32_allowed(b: Builder, what: str) -> bool:
    """Whether float32 products of this kind ("matmul", "convolution") may be made with 10 bits of mantissa: the
    function lists them in `gflow.tf32`, as PyTorch's switches were when it was traced."""
    attributes = b.function.attributes
    if "gflow.tf32" not in attributes:
        return False
    return what in [ir.StringAttr(a).value for a in ir.ArrayAttr(attributes["gflow.tf32"])]


def kind_of_product(dtype: str, m: int, n: int, tf32: bool) -> str:
    """What computes a product: "cores", "single", "double", "sums"."""
    if dtype not in ("f16", "bf16", "f32", "f64") or min(m, n) == 1:
        return "sums"
    if dtype == "f64":
        return "double"
    return "cores" if dtype != "f32" or tf32 else "single"


def add(
    b: Builder, f: Frame, epilogue: Epilogue, splits: int | None = None, reserved: int = 0
) -> None:
    """Add the launches of a contraction.

    splits: how often the terms are split; the model's choice if None. reserved: bytes of scratch that are taken.
    """
    chosen = best_splits(f.problem, b.arch) if splits is None else splits
    if chosen == 1:
        _launch(b, f, epilogue, 1)
        return
    kind = "f64" if f.dtype == "f64" else "f32" if f.dtype in _FLOATS else "i64"
    sums = TensorType(f.result.shape, kind)
    scratch = _behind(b, reserved, sums.nbytes * chosen)
    part = stored(sums, row_major_strides(sums.shape))
    to_parts = Epilogue([part], 0, [], [scratch], epilogue.label, epilogue.comment)
    _launch(b, f, to_parts, chosen)
    total(b, sums, scratch, chosen, f.result, epilogue)


def _behind(b: Builder, reserved: int, size: int) -> Place:
    """Scratch after what is taken."""
    start = b.scratch(reserved + size)
    return Place(start.space, start.index, start.offset + reserved)


_FLOATS = ("f16", "bf16", "f32")


def _launch(b: Builder, f: Frame, epilogue: Epilogue, splits: int) -> None:
    p = f.problem
    params = Parameters(dict(f.params.types), list(f.params.values))
    tile = Tile(f.axes, f.masks)
    used: set[str] = set()
    after = epilogue.emit(params, tile, "acc", used)
    split = splits > 1
    if split:
        # each split has partial sums of its own
        many = params.number("splits", splits)
        numel = params.number("numel", f.result.numel)
        far = f.result.numel * splits >= WIDE
        part = "tl.program_id(1).to(tl.int64)" if far else "tl.program_id(1)"
        after = [f"out0 += {part} * {numel}", *after]
        span = [
            f"share = tl.cdiv({f.count}, {many})",
            "first_step = tl.program_id(1) * share",
            f"last_step = tl.minimum(first_step + share, {f.count})",
        ]
        loop = "for step in range(first_step, last_step):"
    else:
        span, loop = [], f"for step in range(0, {f.count}):"
    sums = p.kind == "sums"
    acc = SUMS[f.dtype]
    block = "(BLOCK_M, BLOCK_K, BLOCK_N)" if sums else "(BLOCK_M, BLOCK_N)"
    cols_tiles = f.cols_tiles.format(cols=f.cols)
    lines = [
        f"tiles_m = tl.cdiv({f.rows}, BLOCK_M)",
        f"tiles_n = {cols_tiles}",
        "program = tl.program_id(0)",
    ]
    if f.batch != "1":
        lines += [
            "batch = program // (tiles_m * tiles_n)",
            "program = program % (tiles_m * tiles_n)",
        ]
    lines += [
        "# neighbouring programs share rows or columns",
        "band = program // (GROUP_M * tiles_n) * GROUP_M",
        "height = tl.minimum(tiles_m - band, GROUP_M)",
        "tile_m = band + program % (GROUP_M * tiles_n) % height",
        "tile_n = program % (GROUP_M * tiles_n) // height",
        "rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)",
        "terms = tl.arange(0, BLOCK_K)",
        *f.setup,
        *span,
        f"acc = tl.full({block}, 0, {acc})",
        loop,
        *indented(f.load),
        *indented(_product(f, sums, acc)),
        *(["acc = tl.sum(acc, axis=1)"] if sums else []),
        *after,
    ]  # fmt: skip
    used_tiles = b.tiles.setdefault("\n".join([f.stem, *params.types, *lines]), [])
    tiles = ordered(p, splits, b.arch, used_tiles)
    used_tiles.append(tiles[0])
    constants = {**f.constants, "TERMS_MULTIPLE": whole_terms(p, tiles[0])}
    plainly = {"GROUP_M": 8, "DESCRIPTORS": 0} if f.descriptors else {"GROUP_M": 8}
    constexprs = ["BLOCK_M", "BLOCK_N", "BLOCK_K", *plainly, *constants]
    configs = [t.config(**plainly) for t in tiles]
    if f.descriptors:
        large = [t for t in tiles if t.m >= 64 and t.n >= 32]
        configs += [t.config(GROUP_M=8, DESCRIPTORS=1) for t in large[:_BY_DESCRIPTOR]]
    grid = [
        f"cdiv({f.rows}, BLOCK_M) * {cols_tiles.replace('tl.', '')} * {f.batch}",
        *(["splits"] if split else []),
    ]
    stem = "_".join([f.stem, *(["partial"] if split else epilogue.ops)])
    add_kernel(
        b, stem, params, constexprs, lines, configs, grid, constants, epilogue, used, f.unhinted
    )


def add_kernel(
    b: Builder,
    stem: str,
    params: Parameters,
    names: list[str],
    lines: list[str],
    configs: Sequence[TritonConfig],
    grid: Sequence[str],
    constants: dict[str, int],
    epilogue: Epilogue,
    used: set[str],
    unhinted: frozenset[str] = frozenset(),
) -> None:
    """Add the launch of a kernel. names: of its `tl.constexpr` parameters. lines: its body."""
    wanted = {n for n in params.types if not _UNHINTED.match(n) and n not in unhinted}
    params, lines, grid = _factored(params, lines, grid, wanted)
    head = [*params.types, *(f"{n}: tl.constexpr" for n in names)]
    text = "\n".join([f"def {NAME}(", *indented([f"{h}," for h in head]), "):", *indented(lines)])
    made = Source(
        _short(stem), source(text + "\n", used), params.types, tuple(configs), tuple(grid), constants,
        frozenset(wanted), epilogue.comment,
    )  # fmt: skip
    b.launch(made, params.values, epilogue.label)


def _factored(
    params: Parameters, lines: list[str], grid: Sequence[str], wanted: set[str]
) -> tuple[Parameters, list[str], list[str]]:
    """Numbers that are multiples of 8 or 4, but not of 16, with that factor in the text, so that Triton knows.

    N = 24    →    N = N_by8 * 8, N_by8 = 3
    """
    found, head, grid = Parameters(), [], list(grid)
    for (name, kind), value in zip(params.types.items(), params.values, strict=True):
        factor = 1
        if name in wanted and isinstance(value, int) and value % 16 and kind in ("i32", "i64"):
            factor = next((f for f in (8, 4) if value % f == 0), 1)
        if factor == 1 or not isinstance(value, int):
            found.types[name] = kind
            found.values.append(value)
            continue
        short = f"{name}_by{factor}"
        found.types[short] = kind
        found.values.append(value // factor)
        head.append(f"{name} = {short} * {factor}")
        grid = [re.sub(rf"\b{name}\b", f"({short} * {factor})", g) for g in grid]
    return found, [*head, *lines], grid


#: numbers of which nothing follows for how memory is read
_UNHINTED = re.compile(
    r"batches|splits|phases|rows|(y_size|x_size|q_size|stride|padding|dilation|stream|batch_)\w*$"
)


def _product(f: Frame, sums: bool, acc: str) -> list[str]:
    if sums:
        return [f"acc += x.to({acc})[:, :, None] * y.to({acc})[None, :, :]"]
    if f.dtype == "f64":
        return [f"acc = tl.dot(x, y, acc, out_dtype={acc})"]
    precision = f', input_precision="{f.precision}"' if f.dtype == "f32" else ""
    return [f"acc = tl.dot(x, y, acc{precision})"]


#: configs to try that load by descriptors
_BY_DESCRIPTOR = 3

_LONGEST = 60


def _short(stem: str) -> str:
    """A readable name that isn't too long."""
    if len(stem) <= _LONGEST:
        return stem
    return f"{stem[: _LONGEST - 7]}_{hashlib.sha256(stem.encode()).hexdigest()[:6]}"


# -- sums of partial sums

#: partial sums that are loaded side by side
_AT_ONCE = 8


def _sum(names: list[str]) -> str:
    """The sum of neighbours, and so on."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    return f"({_sum(names[:half])} + {_sum(names[half:])})"


def total(
    b: Builder, part: TensorType, at: Place, splits: int, result: TensorType, epilogue: Epilogue
) -> None:
    """Add the launch that adds up `splits` dense tensors at `at`, in order, and computes what follows."""
    width = result.shape[-1] if result.rank else 1
    params = Parameters()
    params.pointer("partial", part.dtype, at)
    params.number("rows", result.numel // max(width, 1))
    params.number("width", width)
    far = result.numel * max(splits, _AT_ONCE) >= WIDE
    wide = ".to(tl.int64)" if far else ""
    tile = Tile(
        (Axis(result.numel // max(width, 1), "row", 0), Axis(width, "col", 1)),
        ("row < rows", "col < width"),
    )
    acc = triton_type(register_dtype(part.dtype))
    lines = [
        f"row = tl.program_id(0){wide} * BLOCK_M + tl.arange(0, BLOCK_M)",
        "col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)",
        f"inside = {tile.mask(frozenset({0, 1}))}",
        "at = (row * width)[:, None] + col[None, :]",
    ]
    if splits > 1:
        count, numel = params.number("splits", splits), params.number("numel", result.numel)
        lines += [
            f"acc = tl.full((BLOCK_M, BLOCK_N), 0, {acc})",
            f"for split in range(0, {count}, {_AT_ONCE}):",
        ]
        for n in range(_AT_ONCE):
            known = "inside" if n == 0 else f"inside & (split + {n} < {count})"
            place = "partial + at" if n == 0 else f"partial + (at + {n} * {numel})"
            lines.append(f"    part{n} = tl.load({place}, mask={known}, other=0)")
        lines += [
            f"    acc += {_sum([f'part{n}' for n in range(_AT_ONCE)])}",
            f"    partial += {_AT_ONCE} * {numel}",
        ]
    else:
        lines.append(f"acc = tl.load(partial + at, mask=inside, other=0).to({acc})")
    used: set[str] = set()
    lines += epilogue.emit(params, tile, "acc", used)
    across = 16 if width <= 16 else 128 if width >= 128 else 32 if width <= 32 else 64
    configs = [
        TritonConfig({"BLOCK_M": max(1, size // n), "BLOCK_N": n}, 4, 2)
        for size, n in ((512, across), (1024, across), (256, across), (512, min(512, 2 * across)))
    ]
    grid = ("cdiv(rows, BLOCK_M)", "cdiv(width, BLOCK_N)")
    stem = "_".join(["total", *epilogue.ops])
    add_kernel(b, stem, params, ["BLOCK_M", "BLOCK_N"], lines, configs, grid, {}, epilogue, used)


def zero(b: Builder, o: Op, epilogue: Epilogue) -> None:
    """Sums without terms: what follows, of zeros."""
    (r,) = o.results
    ty = b.body.types[r]
    if ty.numel == 0:
        return
    params = Parameters()
    params.number("numel", ty.numel)
    tile = Tile((Axis(ty.numel, "at", 0),), ("at < numel",))
    acc = SUMS[ty.dtype]
    used: set[str] = set()
    lines = [
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        f"acc = tl.full((BLOCK,), 0, {acc})",
        *epilogue.emit(params, tile, "acc", used),
    ]
    configs = [TritonConfig({"BLOCK": 512}, 4, 2)]
    stem = "_".join(["zero", *epilogue.ops])
    add_kernel(
        b, stem, params, ["BLOCK"], lines, configs, ["cdiv(numel, BLOCK)"], {}, epilogue, used
    )


def through_pytorch(
    b: Builder, o: Op, epilogue: Epilogue | None, call: Callable[[Builder, Op], None]
) -> None:
    """An op without a kernel here: PyTorch's, into scratch, and then what follows."""
    if epilogue is None:
        call(b, o)
        return
    (r,) = o.results
    ty = b.body.types[r]
    b.places[r] = b.scratch(ty.nbytes)
    call(b, o)
    total(b, ty, b.places[r], 1, ty, epilogue)
