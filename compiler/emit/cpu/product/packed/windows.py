"""The table of a share's rows: for each tile of rows, the addresses that its windows read.

    entry 0      the number of taps, then the number of each row in y
    entry 1 …    a tap's number, then the address of each row's input at this tap

An entry has 1 + mr words of 64 bits. A tap that is outside the input for all rows of a tile may have no entry, since it
adds zeros. Where it is outside for some rows, these have the address of zeros. An incomplete tile repeats its last row.

Rows are numbered as they lie in memory (by image), or by position: the same position of all images is then side by
side, and rows of a tile mostly have the same taps outside. Where positions of the input are quotients, those of a
dimension with the same remainder are numbered one after another, since they have the same taps; a size that the divisor
does not divide keeps its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from ...language.code import Carried
from ..function import Function

DIMENSIONS = ("d", "h", "w")
#: arguments that exist for each spatial dimension. Position p and tap k of the kernel read position
#: (p · stride - padding + k · dilation) / divisor of the input, if that is an integer
SPATIAL = ("input", "output", "kernel", "stride", "padding", "dilation", "divisor")
#: bytes of a word
WORD = 8

#: what a loop over taps does with one
Body = Callable[[str, str, str, list[str]], list[str]]


class Windows:
    """Writes tables.

    Args:
        e: the function.
        w: its arguments by name.
        zeros: the address of zeros.
        lanes: rows whose addresses are computed side by side; at least those of a tile.
        divides: whether a divisor isn't 1.
    Attributes:
        every: whether taps that are outside for all rows have entries, too (an i1).
    """

    def __init__(
        self, e: Function, w: Mapping[str, str], zeros: str, lanes: int, divides: bool
    ) -> None:
        self.e, self.w, self.lanes, self.divides = e, w, lanes, divides
        self.every = e.const(False, "i1")
        self.type, self.floats = f"vector<{lanes}xi64>", f"vector<{lanes}xf64>"
        self.entry = e.mul(e.add(w["mr"], 1), WORD)
        #: bytes of the table of a tile
        self.size = e.mul(self.entry, e.add(w["taps"], 1))
        self.mask = e.first_lanes(w["mr"], lanes)
        self.zeros = self.wide(e(f"llvm.ptrtoint {zeros} : !llvm.ptr to i64"))
        self.start = self.wide(e(f"llvm.ptrtoint {w['x']} : !llvm.ptr to i64"))
        self.by_position = e.compare("ne", w["by_position"], 0)
        sizes = (w["images"], *(w[f"output_{d}"] for d in reversed(DIMENSIONS)))
        #: the sizes of rows' coordinates, the fastest first; the slowest one has no bound
        self.sizes = [self._divisor(e.choose(self.by_position, a, b)) for a, b in pairwise(sizes)]
        self.divisors = {d: self._divisor(w[f"divisor_{d}"]) for d in DIMENSIONS if divides}
        #: by dimension: how many positions have the same remainder, and how far they are apart
        self.alike = {d: self._alike(d) for d in self.divisors}
        step, self.steps = w["pixel"], {}
        for d in reversed(DIMENSIONS):
            self.steps[d] = step
            step = e.mul(step, w[f"input_{d}"])
        self.image = step

    def write(self, table: str, row: str, rows: str, inside: bool = False) -> None:
        """Write the table of rows row … row + rows - 1 at the address `table`.

        inside: taps that are outside for all rows have no entries, whatever `every` says.
        """
        e = self.e

        def tile(p: str) -> None:
            first = e.mul(p, self.w["mr"])
            last = e.sub(e.at_most(e.add(first, self.w["mr"]), rows), 1)
            lane = self.op("addi", e.steps(self.lanes, "i64"), self.wide(first))
            numbers = self.op("addi", self.op("minsi", lane, self.wide(last)), self.wide(row))
            every = e.const(False, "i1") if inside else self.every
            self._tile(e.at(table, e.mul(p, self.size)), numbers, every)

        e.repeat(0, e.granules(rows, self.w["mr"]), 1, tile)

    def _tile(self, table: str, numbers: str, every: str) -> None:
        e = self.e
        image, at = self.coordinates(numbers)
        number = image
        for d in DIMENSIONS:
            number = self.op("addi", self.scaled(number, self.w[f"output_{d}"]), at[d])
        self._store(table, number)

        def tap(t: str, there: str, inside: str, carried: list[str]) -> list[str]:
            count, to = carried
            mask = f"vector<{self.lanes}xi1>"
            found = e(f"arith.select {inside}, {there}, {self.zeros} : {mask}, {self.type}")
            e.line(f"llvm.store {t}, {to} : i64, !llvm.ptr")
            self._store(to, found)
            some = e(f"vector.reduction <or>, {inside} : {mask} into i1")
            one = e.choose(e(f"arith.ori {some}, {every} : i1"), 1, 0)
            return [e.add(count, one), e.at(to, e.mul(one, self.entry))]

        start = [(e.i64(0), "i64"), (e.at(table, self.entry), "!llvm.ptr")]
        count, _ = self.taps(image, at, start, tap)
        e.line(f"llvm.store {count}, {table} : i64, !llvm.ptr")

    def taps(self, image: str, at: dict[str, str], carried: Carried, body: Body) -> list[str]:
        """Write a loop over the taps of rows, and return the final values that it carries.

        Args:
            image, at: the rows' coordinates.
            carried: initial values and their types.
            body: writes a tap. It gets its number, the addresses of the rows' inputs, a mask of the rows whose inputs
                exist, and the carried values.
        """
        starts = {
            d: self.op(
                "subi", self.scaled(at[d], self.w[f"stride_{d}"]), self.wide(self.w[f"padding_{d}"])
            )
            for d in DIMENSIONS
        }
        there = self.op("addi", self.start, self.scaled(image, self.image))
        inside = self.e.const(True, f"vector<{self.lanes}xi1>")
        types = ["i64", *(ty for _, ty in carried)]

        def over(n: int, there: str, inside: str, given: list[str]) -> list[str]:
            """Loop over dimension `n` and further ones. there, inside: as far as known."""
            d = DIMENSIONS[n]

            def tap(k: str, given: list[str]) -> list[str]:
                moved = self.wide(self.e.mul(k, self.w[f"dilation_{d}"]))
                x, ok = self._position(d, self.op("addi", starts[d], moved))
                both = self.e(f"arith.andi {inside}, {ok} : vector<{self.lanes}xi1>")
                further = self.op("addi", there, self.scaled(x, self.steps[d]))
                if n < len(DIMENSIONS) - 1:
                    return over(n + 1, further, both, given)
                return [self.e.add(given[0], 1), *body(given[0], further, both, given[1:])]

            return self.e.loop(0, self.w[f"kernel_{d}"], 1, list(zip(given, types)), tap)

        return over(0, there, inside, [self.e.i64(0), *(x for x, _ in carried)])[1:]

    def _position(self, d: str, x: str) -> tuple[str, str]:
        """The input's position along a dimension, and whether it is inside."""
        e, size = self.e, self.w[f"input_{d}"]
        if not self.divides:
            return x, self._compare("ult", x, self.wide(size))
        limit = self._compare("ult", x, self.wide(e.mul(size, self.w[f"divisor_{d}"])))
        quotient, rest = self._split(x, self.divisors[d])
        whole = self._compare("eq", rest, e.const(0, self.type))
        return quotient, e(f"arith.andi {limit}, {whole} : vector<{self.lanes}xi1>")

    def coordinates(self, numbers: str) -> tuple[str, dict[str, str]]:
        """The image and the position of rows."""
        found, rest = [], numbers
        for size in self.sizes:
            rest, digit = self._split(rest, size)
            found.append(digit)
        found.append(rest)
        by_position = found[1:]
        by_image = found[:-1]
        image = self._choose(found[0], found[-1])
        found = [self._choose(a, b) for a, b in zip(by_position, by_image)]
        at = dict(zip(reversed(DIMENSIONS), found))
        for d, (count, apart) in self.alike.items():
            rest, number = self._split(at[d], count)
            at[d] = self.op("addi", self.scaled(number, apart), rest)
        return image, at

    def _alike(self, d: str) -> tuple[tuple[str, str], str]:
        e, size, by = self.e, self.w[f"output_{d}"], self.w[f"divisor_{d}"]
        whole = e.compare("eq", e.binary("remui", size, by), 0)
        apart = e.choose(whole, by, 1)
        return self._divisor(e.binary("divui", size, apart)), apart

    # -- vectors

    def wide(self, x: str) -> str:
        """A vector of equal integers."""
        return self.e(f"vector.broadcast {x} : i64 to {self.type}")

    def op(self, op: str, a: str, b: str) -> str:
        """An op of `arith` on vectors of integers."""
        return self.e(f"arith.{op} {a}, {b} : {self.type}")

    def scaled(self, x: str, by: str) -> str:
        """A vector times an integer."""
        return self.op("muli", x, self.wide(by))

    def _compare(self, predicate: str, a: str, b: str) -> str:
        return self.e(f"arith.cmpi {predicate}, {a}, {b} : {self.type}")

    def _choose(self, a: str, b: str) -> str:
        return self.e(f"arith.select {self.by_position}, {a}, {b} : {self.type}")

    def _store(self, entry: str, values: str) -> None:
        """Store the words after the first one of an entry."""
        self.e.write(values, self.e.at(entry, WORD), self.type, WORD, self.mask)

    def _divisor(self, x: str) -> tuple[str, str]:
        """A divisor as vectors of integers and of float64."""
        wide = self.wide(x)
        return wide, self.e(f"arith.sitofp {wide} : {self.type} to {self.floats}")

    def _split(self, x: str, by: tuple[str, str]) -> tuple[str, str]:
        """Quotient, rounded to zero, and remainder. Processors divide vectors of float64, which is exact up to 2⁵³."""
        e, (whole, divisor) = self.e, by
        given = e(f"arith.sitofp {x} : {self.type} to {self.floats}")
        ratio = e(f"arith.divf {given}, {divisor} : {self.floats}")
        quotient = e(f"arith.fptosi {ratio} : {self.floats} to {self.type}")
        return quotient, self.op("subi", x, self.op("muli", quotient, whole))
