"""The common structure of contraction kernels: order of programs, loop over K, epilogue, split-K.

Programs are ordered for the L2 cache. With split-K, a second kernel adds the partial sums and computes the epilogue.

    tile of the result ← rows, cols          program_id(0); program_id(1) is the part of K
    acc = sum of tl.dot(x, y)                 the loop over K; the caller provides its loads
    epilogue(acc), or partial sums            → second kernel: sum of the partial sums, epilogue
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.gpu.product.contraction import (
    SUMS,
    partial_sums,
    scratch_of_parts,
    tile_of,
    with_following,
)
from gflow.compiler.kernel.selection.gpu.product.epilogue import stored
from gflow.compiler.kernel.selection.gpu.product.tiles import (
    Problem,
    divisor_of_k,
    neighbours,
    widths,
)
from gflow.compiler.kernel.selection.gpu.product.tiles import Tile as Chosen
from gflow.compiler.kernel.sizes import WIDE
from gflow.dialects.types import TensorType, row_major_strides

from ..language.expressions import triton_type
from ..language.parameters import Parameters, indented
from ..language.signature import add_kernel
from ..program_builder import Builder
from .epilogue import AfterSums, Epilogue
from .operand_sums import after_sums, summed
from .output_tile import Axis, Tile
from .split_k import total


@dataclass
class Frame:
    """The text of a contraction's kernel that is specific to it.

    The product has M rows, N columns, and K, the size of the reduction dimension. The loop goes over K in steps of
    BLOCK_K.

    Attributes:
        rows, cols, batch: M, N and the number of products, as texts.
        axes: the dimensions of the result, with index expressions over `row`, `col` and variables of `columns` and
            `setup`.
        masks: the masks of rows and columns (`output_tile.Tile`).
        columns: lines that define variables along columns; they are repeated for each part of a tile's columns.
        setup: lines after `rows`, `offs_k` (positions along K) and `columns`, before the loop.
        before: lines before those that compute the tile of the program.
        count: the number of steps of the loop, as an expression.
        load: lines of one `step` that define the blocks `x` and `y`.
        cols_tiles: the number of tiles along columns, if it isn't cdiv(cols, BLOCK_N).
        constants: values of `tl.constexpr` parameters. K_MULTIPLE, a divisor of K, is added to them.
        without_divisibility: sizes for which Triton is not told that they are multiples of 16, since no address
            depends on them.
        descriptors: the constant that switches loads to TMA: "DESCRIPTORS", or "PERSISTENT", the number of persistent
            programs; "" where there is no TMA.
        rest: lines that make the descriptor of the REST further columns of a tile, and that load their block `y_rest`;
            None: tiles have BLOCK_N columns.
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
    columns: list[str]
    setup: list[str]
    count: str
    load: list[str]
    before: list[str] = field(default_factory=list)
    cols_tiles: str = "tl.cdiv({cols}, BLOCK_N)"
    constants: dict[str, int] = field(default_factory=dict)
    without_divisibility: frozenset[str] = frozenset()
    descriptors: Literal["", "DESCRIPTORS", "PERSISTENT"] = ""
    precision: Literal["ieee", "tf32"] = "ieee"
    rest: tuple[list[str], list[str]] | None = None


def add(b: Builder, f: Frame, epilogue: Epilogue, choice: Choice, reserved: int = 0) -> None:
    """Add the launches of a contraction. reserved: bytes at the start of the scratch that are in use."""
    tile = tile_of(choice)
    splits = choice.split_k
    choice.check(splits >= 1, "splits K into 0 parts")
    choice.check(
        f.problem.kind == "sums" or min(choice.tile) >= 16, "has a tile below 16 x 16 x 16"
    )
    choice.check(tile.parts == 1 or 16 * tile.parts <= tile.n, "has parts of fewer than 16 columns")
    run = epilogue.run_of_columns()
    choice.check(
        tile.n // tile.parts % run == 0, f"has parts whose columns are no multiple of {run}"
    )
    choice.check(run == 1 or splits == 1, "splits K where the epilogue has maxima of runs")
    choice.check(
        f.rest is not None or not widths(tile.n)[1], "has a tile whose columns are no power of two"
    )
    way = f.descriptors or "pointers"
    choice.check(
        not tile.descriptors or way != "pointers",
        "loads an operand by descriptors that they cannot read",
    )
    choice.check(
        not choice.persistent or way == "PERSISTENT",
        "is persistent where each program has one tile",
    )
    if splits == 1:
        run = epilogue.run()
        choice.check(tile.m % run == 0, f"has a tile whose rows are no multiple of {run}")
        _launch(b, f, epilogue, 1, tile)
        return
    sums = partial_sums(f.result, f.dtype)
    s = epilogue.sums
    scratch = b.scratch(
        reserved + scratch_of_parts(f.result, f.dtype, splits, 0 if s is None else s.count)
    )
    scratch = scratch._replace(offset=scratch.offset + reserved)
    behind = scratch._replace(offset=scratch.offset + splits * sums.nbytes)
    part = stored(sums, row_major_strides(sums.shape))
    to_parts = Epilogue([part], 0, [], [scratch], epilogue.label, epilogue.comment)
    if s is not None:
        own = stored(TensorType((s.count,), "f32"), (1,), number=1)
        stores = Epilogue([own], 0, [], [scratch, behind], epilogue.label)
        to_parts.sums = AfterSums(s.operand, s.count, stores)
    _launch(b, f, to_parts, splits, tile)
    total(b, sums, scratch, splits, f.result, epilogue, behind)


def _launch(b: Builder, f: Frame, epilogue: Epilogue, splits: int, chosen: Chosen) -> None:
    p = f.problem
    params = Parameters(dict(f.params.types), list(f.params.values))
    used: set[str] = set()
    split = splits > 1
    sums = p.kind == "sums"
    model = with_following(p, epilogue, splits)
    tiles = [chosen, *neighbours(chosen, model, b.target)]
    whole = sums or not (model.live or f.descriptors == "PERSISTENT")
    numbers: dict[str, dict[tuple[Any, ...], str]] = {}
    s = epilogue.sums
    of_sums = [] if s is None else after_sums(s, params, used, numbers, (f.rows, f.cols))
    after = _after(f, epilogue, params, used, whole, numbers)
    span, loop = [], f"for step in range(0, {f.count}):"
    if split:
        # each part of K has its own partial sums
        many = params.number("splits", splits)
        numel = params.number("numel", f.result.numel)
        far = f.result.numel * splits >= WIDE
        part = "tl.program_id(1).to(tl.int64)" if far else "tl.program_id(1)"
        after = [f"out0 += {part} * {numel}", *after]
        if s is not None:
            of_sums = [f"out1 += {part} * {params.number('sums_numel', s.count)}", *of_sums]
        span = [
            f"share = tl.cdiv({f.count}, {many})",
            "first_step = tl.program_id(1) * share",
            f"last_step = tl.minimum(first_step + share, {f.count})",
        ]
        loop = "for step in range(first_step, last_step):"
    acc = triton_type(SUMS[f.dtype])
    block = "(BLOCK_M, BLOCK_K, BLOCK_N)" if sums else "(BLOCK_M, BLOCK_N)"
    cols_tiles = f.cols_tiles.format(cols=f.cols)
    step, made, start = [*f.load, *_product(f, sums, acc)], f.before, []
    if f.rest is not None:
        rest_made, rest_load = f.rest
        start = ["if REST:", f"    acc_rest = tl.full((BLOCK_M, REST), 0, {acc})"]
        made = [*made, "if REST:", *indented(rest_made)]
        step = [*f.load, "if REST:", *indented(rest_load), *_product(f, sums, acc)]
        step += ["if REST:", *indented(_product(f, sums, acc, "_rest"))]
    loops = [loop, *indented(step)]
    tile = [
        *_place(f),
        *f.columns,
        *f.setup,
        *span,
        f"acc = tl.full({block}, 0, {acc})",
        *start,
        *(loops if s is None else summed(s, loop, step, of_sums, triton_type(f.dtype))),
        *(["acc = tl.sum(acc, axis=1)"] if sums else []),
        *after,
    ]  # fmt: skip
    if f.rest is not None:
        cols_tiles = cols_tiles.replace("BLOCK_N", "(BLOCK_N + REST)")
        tile = [line.replace("tile_n * BLOCK_N", "tile_n * (BLOCK_N + REST)") for line in tile]
    lines = [f"tiles_m = tl.cdiv({f.rows}, BLOCK_M)", f"tiles_n = {cols_tiles}", *made]
    lines += (
        _walk(f, tile) if f.descriptors == "PERSISTENT" else ["program = tl.program_id(0)", *tile]
    )
    b.way(precise=True)  # the tile
    constants = {**f.constants, "K_MULTIPLE": divisor_of_k(p, tiles[0])}
    configs = []
    for t in tiles:
        more = {"GROUP_M": 8}
        if f.descriptors:
            more[f.descriptors] = t.descriptors
        if f.rest is not None:
            more["REST"] = widths(t.n)[1]
        if not whole:
            more["PARTS"] = t.parts
        configs.append(t.config(**more))
    constexprs = [*configs[0].constants, *constants]
    count = f"cdiv({f.rows}, BLOCK_M) * {cols_tiles.replace('tl.', '')} * {f.batch}"
    if f.descriptors == "PERSISTENT":
        count = f"min({count}, PERSISTENT or {count})"
    grid = [count, *(["splits"] if split else [])]
    stem = "_".join([f.stem, *(["partial"] if split else epilogue.ops)])
    add_kernel(
        b,
        stem,
        params,
        constexprs,
        lines,
        configs,
        grid,
        constants,
        epilogue,
        used,
        f.without_divisibility,
    )


def _place(f: Frame) -> list[str]:
    """Lines that compute a program's tile."""
    lines = []
    if f.batch != "1":
        lines += [
            "batch = program // (tiles_m * tiles_n)",
            "program = program % (tiles_m * tiles_n)",
        ]
    return [
        *lines,
        "# neighbouring programs share rows or columns",
        "band = program // (GROUP_M * tiles_n) * GROUP_M",
        "height = tl.minimum(tiles_m - band, GROUP_M)",
        "tile_m = band + program % (GROUP_M * tiles_n) % height",
        "tile_n = program % (GROUP_M * tiles_n) // height",
        "rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)",
        "offs_k = tl.arange(0, BLOCK_K)",
    ]


def _walk(f: Frame, tile: Sequence[str]) -> list[str]:
    """Lines of the loop over a program's tiles: a single tile, or a persistent loop, which prefetches the next tile."""
    return [
        f"tl.assume({f.count} > 0)",  # otherwise the compiler duplicates the epilogue
        "last = tl.program_id(0) + 1",
        "stride = 1",
        "if PERSISTENT:",
        "    last = tiles_m * tiles_n",
        "    stride = tl.num_programs(0)",
        "for program in tl.range(tl.program_id(0), last, stride, flatten=PERSISTENT > 0):",
        *indented(tile),
    ]


def _after(
    f: Frame,
    epilogue: Epilogue,
    params: Parameters,
    used: set[str],
    whole: bool,
    numbers: dict[str, dict[tuple[Any, ...], str]],
) -> list[str]:
    """Lines of the epilogue: on the whole tile, or on one part of its columns after the other, to save registers. REST
    further columns are parts of their own."""
    if whole:
        axes = f.axes if f.problem.kind != "sums" else tuple(replace(a, fours=None) for a in f.axes)
        return epilogue.emit(params, Tile(axes, f.masks), "acc", used, numbers)
    used.add("gf_columns")
    width, piece = "BLOCK_N // PARTS", ["piece = gf_columns(acc, part, PARTS)"]
    if f.rest is not None:
        width = "(BLOCK_N + REST) // PARTS"
        piece = [
            f"if part * ({width}) < BLOCK_N:",
            f"    piece = gf_columns(acc, part, BLOCK_N // ({width}))",
            "else:",
            f"    piece = gf_columns(acc_rest, part - BLOCK_N // ({width}), REST // ({width}))",
        ]

    def of_part(text: str) -> str:
        for count in ("BLOCK_N", "BLOCK_N // 4"):
            own = count.replace("BLOCK_N", f"({width})") if "//" in count else width
            text = text.replace(f"tl.arange(0, {count})", f"part * ({own}) + tl.arange(0, {own})")
        return text

    columns = [of_part(line) for line in f.columns]
    axes = tuple(
        replace(
            a, fours=a.fours and of_part(a.fours), first=a.first and f"{a.first} + part * ({width})"
        )
        for a in f.axes
    )
    tile = Tile(axes, f.masks, width)
    return [
        "for part in tl.static_range(PARTS):",
        *indented(
            [
                *columns,
                *piece,
                *epilogue.emit(params, tile, "piece", used, numbers),
            ]
        ),
    ]


def _product(f: Frame, sums: bool, acc: str, of: str = "") -> list[str]:
    """Lines that add a step's product to the accumulator. of: "_rest", for the further columns of a tile."""
    if sums:
        return [f"acc += x.to({acc})[:, :, None] * y.to({acc})[None, :, :]"]
    if f.dtype == "f64":
        return [f"acc{of} = tl.dot(x, y{of}, acc{of}, out_dtype={acc})"]
    precision = f', input_precision="{f.precision}"' if f.dtype == "f32" else ""
    return [f"acc{of} = tl.dot(x, y{of}, acc{of}{precision})"]
