"""argmax and argmin.

Each lane of a tile keeps the extremum of its elements and its position; then the lanes are compared. Of equal elements
the first wins, and NaN wins over all numbers, as in PyTorch. If there are few long rows, several programs share each,
and a second launch compares their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.compiler.emit import aten_ops
from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.gpu.other_blocks import compared_configs
from gflow.compiler.kernel.selection.gpu.other_ops import position_sums
from gflow.compiler.kernel.sizes import cdiv
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import Place, TritonConfig
from gflow.dialects.types import FLOATS

from ..language import device_functions
from ..language.expressions import triton_type
from ..language.index_arithmetic import offsets
from ..language.parameters import Parameters, indented, is_wide, term
from ..program_builder import NAME, Builder, Source


def position(b: Builder, o: Op) -> None:
    """Add the launches of argmax or argmin, the reductions that do not run in region kernels."""
    attrs = read(OPS["reduce"], o.op.attributes)
    choice = b.choice
    if choice.kind == "pytorch":
        aten_ops.position(b, o)
        return
    choice.check(choice.kind == "argmax" and len(choice.block) == 2, "is not for a position")
    (dim,) = attrs["dims"]
    Search(b, o, attrs["kind"] == "argmax", dim, choice).launch()


def _worst(dtype: str, largest: bool) -> str:
    """The initial value: no element is worse."""
    if dtype in FLOATS:
        return f'{"-" if largest else ""}float("inf")'
    bits = int(dtype.lstrip("ui"))
    if dtype == "i1" or dtype.startswith("u"):
        return "0" if largest else str((1 << bits) - 1)
    return str(-(1 << (bits - 1)) if largest else (1 << (bits - 1)) - 1)


def _most(dtype: str) -> int:
    """The greatest position of an integer type."""
    return (1 << (int(dtype[1:]) - 1)) - 1


class Search:
    """The launches of one op. found: the register type of compared elements. place: the type of positions."""

    def __init__(self, b: Builder, o: Op, largest: bool, dim: int, choice: Choice) -> None:
        self.b, self.o, self.largest, self.dim = b, o, largest, dim
        (self.x,), (self.r,) = o.operands, o.results
        ty = b.body.types[self.x]
        self.length = ty.shape[dim]
        self.others = (*ty.shape[:dim], *ty.shape[dim + 1 :])
        self.rows = prod(self.others)
        self.pieces = choice.pieces
        self.sums = position_sums(ty, dim, self.pieces)
        self.found, self.place = (s.dtype for s in self.sums)
        self.worst = _worst(ty.dtype, largest)
        self.found_by = b.ways([TritonConfig({"ROWS": 1, "COLS": 1})])[:1]

    def launch(self) -> None:
        """Add the launches."""
        if self.pieces == 1:
            self._search(None)
            return
        values, places = self.sums
        first = self.b.scratch(values.nbytes + places.nbytes + 64)
        second = first._replace(offset=first.offset + -(-values.nbytes // 64) * 64)
        self._search((first, second))
        self._compare(first, second)

    def _search(self, partial: tuple[Place, Place] | None) -> None:
        """Add the launch that finds the extremum of each row, or of each piece of it (`partial`)."""
        b, p = self.b, Parameters()
        p.pointer("x", b.body.types[self.x].dtype, b.place(self.x))
        if partial is None:
            p.pointer("out", "i64", b.place(self.r))
        else:
            p.pointer("values", self.found, partial[0])
            p.pointer("places", self.place, partial[1])
        p.number("rows", self.rows)
        p.number("n", self.length)
        at = b.strides(self.x)
        step = p.stride("step", at[self.dim])
        wide = is_wide(b, self.x) or self.place == "i64"
        start = "tl.program_id(0)" + (".to(tl.int64)" if wide else "")
        lines = [f"row = {start} * ROWS + tl.arange(0, ROWS)", "row_ok = row < rows"]
        walks = [(*at[: self.dim], *at[self.dim + 1 :]), b.strides(self.r)]
        base, target = offsets(p, "row", "row", self.others, walks, lines)
        low, high = "0", "n"
        if partial is not None:
            p.number("share", -(-cdiv(self.length, self.pieces) // 16) * 16)
            p.number("pieces", self.pieces)
            low, high = "low", "high"
            piece = "tl.program_id(1)" + (f".to({triton_type('i64')})" if wide else "")
            lines += [f"low = {piece} * share", "high = tl.minimum(low + share, n)"]
        kind, place = triton_type(self.found), triton_type(self.place)
        lines += [
            f"base = ({base} + tl.zeros([ROWS], tl.int32))[:, None]",
            f"col = tl.arange(0, COLS)[None, :]{'.to(tl.int64)' if self.place == 'i64' else ''}",
            f"best = tl.full([ROWS, COLS], {self.worst}, {kind})",
            f"place = tl.zeros([ROWS, COLS], {place}) + {f'{low} + ' if low != '0' else ''}col",
            f"for start in range({low}, {high}, COLS):",
        ]
        where = f"x + base + {term('at', step) or 'at * 0'}"
        value = f"tl.load({where}, mask=row_ok[:, None] & (at < {high}), other={self.worst})"
        if self.found != b.body.types[self.x].dtype:
            value += f".to({kind})"
        sign = ">" if self.largest else "<"
        better = f"value {sign} best"
        if self.found in FLOATS:
            better = f"({better}) | ((value != value) & (best == best))"
        lines += indented([
            "at = start + col",
            f"value = {value}",
            f"better = {better}",
            "best = tl.where(better, value, best)",
            "place = tl.where(better, at, place)",
        ])  # fmt: skip
        lines += self._lanes()
        if partial is None:
            where = "tl.arange(0, ROWS)" if target == "0" else target  # the position in one row
            lines.append(f"tl.store(out + {where}, found.to(tl.int64), mask=row_ok)")
            self._add(p, lines, self.found_by, ("cdiv(rows, ROWS)",), "")
            return
        lines += [
            "where = row * pieces + tl.program_id(1)",
            "tl.store(values + where, top, mask=row_ok)",
            "tl.store(places + where, found, mask=row_ok)",
        ]
        self._add(p, lines, self.found_by, ("cdiv(rows, ROWS)", "pieces"), "_partial")

    def _compare(self, values: Place, places: Place) -> None:
        """Add the launch that compares the results of the pieces of each row."""
        b, p = self.b, Parameters()
        p.pointer("values", self.found, values)
        p.pointer("places", self.place, places)
        p.pointer("out", "i64", b.place(self.r))
        p.number("rows", self.rows)
        p.number("pieces", self.pieces)
        lines = ["row = tl.program_id(0)"]
        (target,) = offsets(p, "row", "row", self.others, [b.strides(self.r)], lines)
        lines += [
            "col = tl.arange(0, COLS)[None, :]",
            f"best = tl.load(values + row * pieces + col, mask=col < pieces, other={self.worst})",
            f"place = tl.load(places + row * pieces + col, mask=col < pieces, other={_most(self.place)})",
            *self._lanes(),
            f"tl.store(out + {target} + tl.arange(0, 1), found.to(tl.int64))",
        ]
        ways = b.ways(compared_configs(self.pieces))
        holds = ways[0].constants["COLS"] >= self.pieces
        b.choice.check(holds, f"needs a block that holds {self.pieces} pieces")
        self._add(p, lines, ways, ("rows",), "")

    def _lanes(self) -> list[str]:
        """Lines that reduce the results of lanes to `found` (the position) and, for pieces, `top` (the extremum)."""
        extreme, missing = "max" if self.largest else "min", self.found in FLOATS
        lines = []
        if missing:
            lines.append("missing = best != best")
            lines.append(f"top = tl.{extreme}(tl.where(missing, {self.worst}, best), 1)")
            lines.append("nan = tl.max(missing.to(tl.int32), 1) != 0")
            lines.append("chosen = tl.where(nan[:, None], missing, best == top[:, None])")
        else:
            lines.append(f"top = tl.{extreme}(best, 1)")
            lines.append("chosen = best == top[:, None]")
        lines.append(f"found = tl.min(tl.where(chosen, place, {_most(self.place)}), 1)")
        if missing and self.pieces > 1:
            lines.append('top = tl.where(nan, float("nan"), top)')
        return lines

    def _add(
        self,
        p: Parameters,
        lines: list[str],
        ways: Sequence[TritonConfig],
        grid: tuple[str, ...],
        stem: str,
    ) -> None:
        names = [*p.types, *(f"{n}: tl.constexpr" for n in ways[0].constants)]
        text = "\n".join([f"def {NAME}({', '.join(names)}):", *indented(lines)]) + "\n"
        name = ("argmax" if self.largest else "argmin") + stem
        source = Source(name, device_functions.source(text, ()), p.types, tuple(ways), grid, {})
        self.b.launch(source, p.values, self.b.label(self.o))
