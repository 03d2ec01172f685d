"""Further launches of contractions: sums of split-K's partial sums, products with K = 0, ATen calls with epilogues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.registers import register_dtype
from gflow.compiler.kernel.selection.gpu.product.contraction import SUMS, ZERO, total_configs
from gflow.compiler.kernel.sizes import WIDE
from gflow.dialects.program import Place
from gflow.dialects.types import TensorType

from ..language.expressions import triton_type
from ..language.parameters import Parameters
from ..language.signature import add_kernel
from ..program_builder import Builder
from .epilogue import Epilogue
from .operand_sums import total_of_parts
from .output_tile import Axis, Tile

#: the partial sums that are loaded at a time
_AT_ONCE = 8


def _sum(names: list[str]) -> str:
    """The text of a pairwise sum."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    return f"({_sum(names[:half])} + {_sum(names[half:])})"


def total(
    b: Builder,
    part: TensorType,
    at: Place,
    splits: int,
    result: TensorType,
    epilogue: Epilogue,
    of_sums: Place | None = None,
) -> None:
    """Add the launch that adds `splits` dense tensors at `at` in a fixed order, and computes the epilogue.

    of_sums: the partial sums of an operand, if the epilogue has any.
    """
    width = result.shape[-1] if result.rank else 1
    params = Parameters()
    params.pointer("partial", part.dtype, at)
    params.number("rows", result.numel // max(width, 1))
    params.number("width", width)
    far = result.numel * max(splits, _AT_ONCE) >= WIDE
    wide = ".to(tl.int64)" if far else ""
    fours = "tl.program_id(1) * BLOCK_N // 4 + tl.arange(0, BLOCK_N // 4)"
    tile = Tile(
        (
            Axis(result.numel // max(width, 1), "row", 0, tile="tl.program_id(0)"),
            Axis(width, "col", 1, fours),
        ),
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
    numbers: dict[str, dict[tuple[Any, ...], str]] = {}
    if epilogue.sums is not None and of_sums is not None:
        params.pointer("of_sums", "f32", of_sums)
        lines += total_of_parts(epilogue.sums, params, used, numbers)
    lines += epilogue.emit(params, tile, "acc", used, numbers)
    run = epilogue.run()
    configs = b.ways(total_configs(result, run))
    b.choice.check(
        all(c.constants["BLOCK_M"] % run == 0 for c in configs),
        f"adds partial sums up in blocks whose rows are no multiple of {run}",
    )
    grid = ("cdiv(rows, BLOCK_M)", "cdiv(width, BLOCK_N)")
    stem = "_".join(["total", *epilogue.ops])
    add_kernel(b, stem, params, ["BLOCK_M", "BLOCK_N"], lines, configs, grid, {}, epilogue, used)


def zero(b: Builder, o: Op, epilogue: Epilogue) -> None:
    """Add the launch of a product with K = 0: the epilogue of zeros."""
    (r,) = o.results
    ty = b.body.types[r]
    params = Parameters()
    params.number("numel", ty.numel)
    tile = Tile((Axis(ty.numel, "at", 0),), ("at < numel",))
    acc = triton_type(SUMS[ty.dtype])
    used: set[str] = set()
    lines = [
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        f"acc = tl.full((BLOCK,), 0, {acc})",
        *epilogue.emit(params, tile, "acc", used),
    ]
    configs = b.ways(ZERO)
    stem = "_".join(["zero", *epilogue.ops])
    add_kernel(
        b, stem, params, ["BLOCK"], lines, configs, ["cdiv(numel, BLOCK)"], {}, epilogue, used
    )


def through_pytorch(
    b: Builder, o: Op, epilogue: Epilogue, call: Callable[[Builder, Op], None]
) -> None:
    """Add the ATen call of a contraction without a Triton kernel; with an epilogue, its result is in scratch."""
    (r,) = o.results
    if r in b.places:
        call(b, o)
        return
    ty = b.body.types[r]
    b.places[r] = b.scratch(ty.nbytes)
    call(b, o)
    total(b, ty, b.places[r], 1, ty, epilogue)
