"""Products of our own as steps: the words of `blocked`, and the functions that these name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.blocks import Blocks
from gflow.compiler.kernel.selection.cpu.blocking import PIECE, SWEEPS, SWEPT, contiguous
from gflow.dialects.extents import Count, at_most
from gflow.dialects.program import KernelAddress, KernelStep, Place, Step
from gflow.dialects.records import record

from . import blocked, dots, panels, sweep, tile
from .finish import Words
from .function import ITEM, LANES

_NAME = "product"


class Steps(Protocol):
    """What steps are added to, with the functions that they run."""

    kernels: dict[str, str]
    externals: set[str]
    steps: list[Step]


@record
class Operand:
    """A matrix in memory: where its first element is, and elements between its rows, its columns, and the matrices of a
    batch."""

    place: Place
    row: int
    column: int
    each: int = 0

    @property
    def transposed(self) -> Operand:
        """The operand with rows and columns exchanged; nothing moves."""
        return Operand(self.place, self.column, self.row, self.each)


def product(
    b: Steps,
    blocks: Blocks,
    operands: tuple[Operand, Operand, Operand],
    sizes: tuple[Count, Count, Count],
    scratch: Place,
    label: str,
    shared: tuple[bool, int],
    *,
    batch: int = 1,
    add: bool = False,
    finish: tuple[KernelAddress, Words] | None = None,
    first: int = 0,
    windows: Mapping[str, int] | None = None,
) -> None:
    """Add the step C = A B, or C += A B.

    Args:
        operands: A, B and C; of A and B rows or columns are neighbours in memory, of C columns.
        sizes: rows and columns of C, and K.
        scratch: `blocks.scratch` bytes.
        shared: whether all threads run it, and of a program with a size from which one on.
        finish: what follows on each tile, whose result is then not C: C holds sums between blocks of K.
        first: the number of C's first row, for what follows, and for windows.
        windows: of a convolution, whose A is a channels-last activation: the words `WINDOWS` by name.

    Raises:
        CannotLower: the product cannot be cut so.
    """
    x, y, z = operands
    m, n, k = sizes
    height, width, kc = blocks.tile
    a = "k" if x.column == 1 or at_most_one(k) else "lanes"
    c = "lanes" if y.column == 1 or at_most_one(n) else "k"
    direct = blocked.PACKED
    if not blocks.packed:
        by_columns = contiguous(y.row, y.column, at_most_one(k)) == "lanes"
        direct = blocked.COLUMNS if by_columns else blocked.DOTS
        if a != "k" if direct == blocked.DOTS else c != "lanes":
            raise CannotLower("a product of few rows reads operands that do not lie side by side")
    sweeps = direct == blocked.COLUMNS and height in SWEEPS
    if sweeps and (width != PIECE or blocks.across > SWEPT):
        raise CannotLower(
            f"products of {height} rows have strips of {SWEPT} columns in pieces of {PIECE}"
        )
    strip = blocks.across if sweeps else width
    numbers: dict[str, int | Count | Place | KernelAddress] = {
        "a": x.place, "b": y.place, "c": z.place, "scratch": scratch,
        "gathers": int(windows is not None),
        **{f"window_{name}": windows[name] if windows else 0 for name in panels.WINDOWS},
        "pack_a": _gather(b, height) if windows else 0 if direct == blocked.DOTS else _pack(b, height, a),
        "pack_b": 0 if direct else _pack(b, width, c),
        "tile": _tile(b, height, strip, direct),
        "finish": 0 if finish is None else finish[0],
        "m": m, "n": n, "k": k,
        "am": ITEM * x.row, "ak": ITEM * x.column, "bk": ITEM * y.row, "bn": ITEM * y.column, "cm": ITEM * z.row,
        "batch": batch, "sa": ITEM * x.each, "sb": ITEM * y.each, "sc": ITEM * z.each, "add": int(add),
        "mr": height, "nr": strip, "kc": kc, "mc": blocks.rows, "nc": blocks.columns, "cols": blocks.across,
        "alone": int(blocks.apart), "direct": direct,
        "a_bytes": blocks.a_bytes, "b_bytes": blocks.b_bytes, "each": blocks.each if blocks.apart else 0,
        "first": first,
    }  # fmt: skip
    words = [numbers[name] for name in blocked.WORDS]
    if finish is not None:
        words += finish[1]
    if _NAME not in b.kernels:
        b.kernels[_NAME] = blocked.function(_NAME)
        b.externals |= set(blocked.EXTERNALS)
    parallel, from_size = shared
    b.steps.append(
        KernelStep(_NAME, tuple(words), parallel, label, True, from_size=from_size)  # type: ignore[arg-type]
    )


def at_most_count(count: Count) -> int:
    """The greatest value of a number that may vary."""
    return at_most(count) if isinstance(count, int) else count.limit


def at_most_one(count: Count) -> bool:
    """Whether a count is 1 or less at every size."""
    return at_most_count(count) <= 1


def _pack(b: Steps, width: int, order: str) -> KernelAddress:
    name = f"pack_{width}_{order}"
    if name not in b.kernels:
        b.kernels[name] = panels.pack(name, width, order)
    return KernelAddress(name)


#: by how operands are read
_STEMS = {blocked.PACKED: "tile", blocked.COLUMNS: "tile_columns", blocked.DOTS: "tile_dots"}


def _gather(b: Steps, width: int) -> KernelAddress:
    name = f"pack_{width}_windows"
    if name not in b.kernels:
        b.kernels[name] = panels.gather(name, width)
    return KernelAddress(name)


def _tile(b: Steps, rows: int, width: int, direct: int) -> KernelAddress:
    if direct == blocked.COLUMNS and rows in SWEEPS:
        name = f"sweep_{rows}"
        if name not in b.kernels:
            b.kernels[name] = sweep.sweep(name, rows)
        return KernelAddress(name)
    stem = _STEMS[direct]
    if direct == blocked.COLUMNS and tile.reads_both(width // LANES):
        stem = _STEMS[blocked.PACKED]
    name = f"{stem}_{rows}x{width}"
    if name in b.kernels:
        return KernelAddress(name)
    if direct != blocked.DOTS:
        b.kernels[name] = tile.tile(name, rows, width // LANES, direct == blocked.PACKED)
    elif rows in dots.ROWS and width == dots.STRIP:
        b.kernels[name] = dots.dots(name, rows)
    else:
        raise CannotLower(f"there are no tiles of {rows} x {width} dot products")
    return KernelAddress(name)
