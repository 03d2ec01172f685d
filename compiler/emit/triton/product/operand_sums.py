"""The sums of an operand of a product over K, computed in the product's loop over K.

    if tile_n == 0:                              the programs of the first tile of columns see each row of x once
        sums = tl.full((BLOCK_M, 16), 0, …)
        for step in …:
            …
            acc = tl.dot(x, y, acc)
            sums = tl.dot(x, ones, sums)         sixteen equal columns: the least that tensor cores compute
        …                                        the epilogue of the sums
    else:
        for step in …:
            …
            acc = tl.dot(x, y, acc)

The sums are products with ones in the accumulator's float32, so the block of the operand stays where tensor cores read
it: sums of its elements by threads would need it in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..language.parameters import Parameters, indented
from .epilogue import AfterSums
from .output_tile import Axis, Tile

Numbers = dict[str, dict[tuple[Any, ...], str]]

#: the fewest columns of a matrix that tensor cores multiply by
_COLUMNS = 16


def after_sums(
    s: AfterSums,
    params: Parameters,
    used: set[str],
    numbers: Numbers,
    sizes: tuple[str, str],
    at: tuple[str, str] = ("rows", "cols"),
) -> list[str]:
    """Lines of the epilogue of the sums, in the variable `sums`.

    numbers: as in `Epilogue.emit`. sizes: M and N, as texts. at: the variables with the indices of the tile's rows and
    columns.
    """
    index, size = at[s.operand], sizes[s.operand]
    tile = Tile((Axis(s.count, index, 0),), (f"{index} < {size}",))
    return s.epilogue.emit(params, tile, "sums", used, numbers)


def summed(
    s: AfterSums, loop: str, step: Sequence[str], after: Sequence[str], dtype: str
) -> list[str]:
    """Lines of a product's loop over K in the programs that sum an operand, and in the others.

    loop: the line that begins it. step: its lines, with the operands' blocks in `x` and `y`. after: the epilogue of the
    sums. dtype: of the operands.
    """
    length = ("BLOCK_M", "BLOCK_N")[s.operand]
    block = ("x", "tl.trans(y)")[s.operand]
    others = ("tile_n", "tile_m")[s.operand]
    first = f"tl.arange(0, {_COLUMNS})[None, :] == 0"
    return [
        f"if {others} == 0:",
        *indented(
            [
                f"sums = tl.full(({length}, {_COLUMNS}), 0, tl.float32)",
                f"ones = tl.full((BLOCK_K, {_COLUMNS}), 1, tl.float32).to({dtype})",
                loop,
                *indented([*step, f"sums = tl.dot({block}, ones, sums)"]),
                f"sums = tl.sum(tl.where({first}, sums, 0.0), 1)",
                *after,
            ]
        ),
        "else:",
        *indented([loop, *indented(step)]),
    ]


def total_of_parts(s: AfterSums, params: Parameters, used: set[str], numbers: Numbers) -> list[str]:
    """Lines of split-K's second launch that add up the partial sums at `of_sums`, and compute their epilogue."""
    sizes, at = ("rows", "width"), ("row", "col")
    index, size = at[s.operand], sizes[s.operand]
    others, length = (("1", "BLOCK_M"), ("0", "BLOCK_N"))[s.operand]
    return [
        f"if tl.program_id({others}) == 0:",
        *indented(
            [
                f"sums = tl.full(({length},), 0, tl.float32)",
                "for split in range(0, splits):",
                f"    sums += tl.load(of_sums + split * {size} + {index}, mask={index} < {size}, other=0)",
                *after_sums(s, params, used, numbers, sizes, at),
            ]
        ),
    ]
