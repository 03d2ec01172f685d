"""The step of gflow's own matrix product: the arguments of `blocked`, and the functions that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.blocks import AMX_LANES, BF16, PARTS, Blocks
from gflow.compiler.kernel.selection.cpu.blocking import PIECE, SWEEPS, SWEPT, contiguous
from gflow.dialects.extents import Count, at_most
from gflow.dialects.program import KernelAddress, KernelStep, Place, Step
from gflow.dialects.records import record

from . import blocked, dots, panels, sweep, tile
from .bfloat16 import panels as bfloat16_panels
from .bfloat16 import tile as bfloat16_tile
from .finish import Words
from .function import ITEM, LANES

_NAME = "product"


class Steps(Protocol):
    """The steps of a program, the texts of functions by name, and the external functions that they call."""

    kernels: dict[str, str]
    externals: set[str]
    steps: list[Step]


@record
class Operand:
    """A batch of matrices in memory. Strides are in elements.

    Attributes:
        place: the address of the first element.
        row, column: the strides from row to row and from column to column.
        each: the stride from matrix to matrix.
        item: bytes of an element: 4, or 2 for bfloat16 (A and B of products in "bf16").
    """

    place: Place
    row: int
    column: int
    each: int = 0
    item: int = ITEM

    @property
    def transposed(self) -> Operand:
        """A view of the operand with rows and columns exchanged."""
        return Operand(self.place, self.column, self.row, self.each, self.item)


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
        b: the steps that it is added to.
        blocks: its blocking.
        operands: A, B and C. Rows or columns of A and B are contiguous, and so are columns of C.
        sizes: rows and columns of C, and K.
        scratch: the address of `blocks.scratch` bytes.
        label: for messages and profiles.
        shared: whether all threads run it, and the least dynamic size at which they do (`Way.shared`).
        batch: the number of products.
        add: whether the product is added to C.
        finish: the epilogue on each tile. C then only holds sums between blocks of K.
        first: the number of C's first row, for the epilogue and for patches.
        windows: for a convolution, whose A is a channels-last activation: the arguments `WINDOWS` by name.

    Raises:
        CannotLower: the product does not support the blocking.
    """
    x, y, z = operands
    m, n, k = sizes
    if x.item != y.item or (x.item != ITEM and blocks.precision != BF16):
        raise CannotLower("only products in bf16 have operands of bfloat16")
    height, width, kc = blocks.tile
    a = "k" if x.column == 1 or at_most_one(k) else "lanes"
    c = "lanes" if y.column == 1 or at_most_one(n) else "k"
    direct = blocked.PACKED
    if not blocks.packed:
        by_columns = contiguous(y.row, y.column, at_most_one(k)) == "lanes"
        direct = blocked.COLUMNS if by_columns else blocked.DOTS
        if a != "k" if direct == blocked.DOTS else c != "lanes":
            raise CannotLower("a product of few rows does not support the strides of its operands")
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
        **_functions(b, blocks, (a, c), direct, windows is not None, strip, x.item),
        "finish": 0 if finish is None else finish[0],
        "m": m, "n": n, "k": k,
        "am": x.item * x.row, "ak": x.item * x.column,
        "bk": y.item * y.row, "bn": y.item * y.column, "cm": ITEM * z.row,
        "batch": batch, "sa": x.item * x.each, "sb": y.item * y.each, "sc": ITEM * z.each, "add": int(add),
        "mr": height, "nr": strip, "kc": kc, "mc": blocks.rows, "nc": blocks.columns, "cols": blocks.across,
        "alone": int(blocks.apart), "direct": direct,
        "a_bytes": blocks.a_bytes, "b_bytes": blocks.b_bytes, "each": blocks.each if blocks.apart else 0,
        "first": first, "item": blocks.item, "tail": blocks.tail,
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
    """The greatest value of a number that may depend on a dynamic dimension."""
    return at_most(count) if isinstance(count, int) else count.limit


def at_most_one(count: Count) -> bool:
    """Whether a count is at most 1 at every size of the dynamic dimension."""
    return at_most_count(count) <= 1


def _functions(
    b: Steps,
    blocks: Blocks,
    orders: tuple[str, str],
    direct: int,
    gathers: bool,
    strip: int,
    item: int,
) -> dict[str, int | KernelAddress]:
    """The functions that pack A and B and compute a tile. orders: the contiguous dimensions of A and B."""
    (height, width, _), (a, c) = blocks.tile, orders
    if parts := PARTS.get(blocks.precision):
        if (height, width) != (AMX_LANES, AMX_LANES) or direct != blocked.PACKED:
            raise CannotLower(
                f"products from bfloat16 values have packed tiles of {AMX_LANES} x {AMX_LANES}"
            )
        stem = f"pack_amx_{parts}_{item}"
        gathered = (
            _added(b, f"{stem}_windows", bfloat16_panels.gather, parts, item) if gathers else None
        )
        return {
            "pack_a": gathered
            or _added(b, f"{stem}_a_{a}", bfloat16_panels.pack, a, "a", parts, item),
            "pack_b": _added(b, f"{stem}_b_{c}", bfloat16_panels.pack, c, "b", parts, item),
            "tile": _added(b, f"tile_amx_{parts}", bfloat16_tile.tile, parts),
            "enter": _added(b, "enter_amx", bfloat16_tile.enter),
            "leave": _added(b, "leave_amx", bfloat16_tile.leave),
        }
    return {
        "pack_a": _gather(b, height) if gathers else 0 if direct == blocked.DOTS else _pack(b, height, a),
        "pack_b": 0 if direct else _pack(b, width, c),
        "tile": _tile(b, height, strip, direct), "enter": 0, "leave": 0,
    }  # fmt: skip


def _added(b: Steps, name: str, text: Callable[..., str], *arguments: str | int) -> KernelAddress:
    """The address of a function, which is added if it is not there."""
    if name not in b.kernels:
        b.kernels[name] = text(name, *arguments)
    return KernelAddress(name)


def _pack(b: Steps, width: int, order: str) -> KernelAddress:
    name = f"pack_{width}_{order}"
    if name not in b.kernels:
        b.kernels[name] = panels.pack(name, width, order)
    return KernelAddress(name)


#: the functions of tiles, by how operands are read
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
