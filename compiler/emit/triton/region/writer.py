"""The writer of a region's Triton kernel.

    position of the program · loads and elementwise ops · for each level of reductions a pass over the reduced axis
    (a loop, or the whole tile) · stores

Lines are written into scopes: the kernel's body, and its loops. A value is written into the outermost scope that
defines all dimensions that it varies along, so loop-invariant values are computed before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from gflow.compiler.kernel.description import Access, Kernel, Node
from gflow.compiler.kernel.registers import register_dtype
from gflow.compiler.kernel.selection.gpu.region.tiling import Tiling
from gflow.dialects.program import Place, TritonConfig

from ..language import dag
from ..language.expressions import loaded, pointer_type
from ..language.precision import coarse


@dataclass
class Scope:
    """The lines of one nesting level, the dimensions whose positions it defines, and its variables."""

    dims: frozenset[int]
    indent: str
    lines: list[str] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)


class Writer(dag.Frame):
    """The writer of one kernel.

    Attributes:
        k: the kernel.
        t: its tiling.
        configs: its configurations.
        pieces: the numbers of stores of partial results; each program that shares a reduction has its own address.
        chunk: the part of the looped axis that such a program processes, in elements; 0: all of it.
        stages: pipeline stages of the inner loop.
    """

    def __init__(
        self,
        k: Kernel,
        t: Tiling,
        configs: Sequence[TritonConfig],
        loads: Sequence[Place],
        stores: Sequence[Place],
        pieces: frozenset[int] = frozenset(),
        chunk: int = 0,
        stages: int = 0,
    ) -> None:
        self.k, self.t, self.configs = k, t, configs
        self.stages = stages
        self.loads, self.stores = loads, stores
        self.pieces, self.chunk = pieces, chunk
        self.parameters: dict[str, str] = {}
        self.values: dict[str, int | float | Place] = {}
        self.used: set[str] = set()
        self.number_type = "i64" if t.wide else "i32"
        self.scopes: list[Scope] = []
        self.starts: dict[str, str] = {}
        self.walks: dict[tuple[int, ...], int] = {}
        self.numbers: dict[str, dict[tuple[Any, ...], str]] = {}
        self.coarse = coarse(k)

    # -- text

    def line(self, text: str, scope: int = -1) -> None:
        """Write a line into a scope; −1: the innermost."""
        s = self.scopes[scope]
        s.lines.append(s.indent + text)

    def scope_of(self, dims: frozenset[int]) -> int:
        """The number of the outermost scope that defines positions along all of these dimensions."""
        for n in range(len(self.scopes) - 1, 0, -1):
            if self.scopes[n].dims & dims:
                return n
        return 0

    def name(self, key: Any, wanted: str, text: str, dims: frozenset[int]) -> str:
        """The variable with the value `text`, which is written once, in the outermost possible scope."""
        n = self.scope_of(dims)
        for scope in self.scopes[: n + 1]:
            if key in scope.names:
                return scope.names[key]
        self.line(f"{wanted} = {_bare(text)}", n)
        self.scopes[n].names[key] = wanted
        return wanted

    # -- parameters

    def parameter(self, name: str, kind: str, value: int | float | Place) -> str:
        """Add a parameter of the kernel and its argument; returns its name."""
        self.parameters[name] = kind
        self.values[name] = value
        return name

    def number(self, name: str, value: int) -> str:
        """Add an integer parameter; returns its name."""
        return self.parameter(name, self.number_type, value)

    def multiple(self, name: str, value: int) -> str:
        """The text of an integer, with a factor 8 or 4 as a literal if 16 does not divide it.

        Triton only knows of parameters that are multiples of 16; 24 columns can also be loaded in vectors of four.
        """
        unit = next((u for u in (8, 4) if value % u == 0), 1) if value % 16 else 1
        if unit == 1:
            return self.number(name, value)
        return f"({self.number(f'{name}_{unit}', value // unit)} * {unit})"

    def size(self, d: int) -> str:
        """The text of the size of dimension `d`, a parameter; for the columns of a tile with rows, as `multiple`."""
        if d == self.t.cols and (self.t.rows or self.t.outer):
            return self.multiple(f"n{d}", self.k.sizes[d])
        return self.number(f"n{d}", self.k.sizes[d])

    def product(self, dims: Sequence[int]) -> str:
        """The text of the product of dimensions' sizes."""
        return " * ".join(self.size(d) for d in dims) or "1"

    # -- the position of the program

    def axis(self, which: str) -> tuple[int, ...]:
        """The dimensions of an axis of the tile."""
        if which == "rows":
            return self.t.rows
        return (self.t.cols,) if self.t.cols >= 0 else ()

    def reduced(self, which: str) -> bool:
        """Whether an axis, "rows" or "cols", is reduced."""
        dims = self.axis(which)
        return bool(dims) and dims[0] in self.k.reduced

    def looped(self, which: str) -> bool:
        """Whether a program iterates over an axis, or over a run of it."""
        return self.reduced(which) or (self.t.runs and which == "rows")

    def block(self, which: str) -> str:
        """The name of the tile's size along an axis, which is a `tl.constexpr`."""
        return which.upper()

    def masked(self, which: str) -> bool:
        """Whether a tile may reach beyond the end of the axis."""
        total = prod(self.k.sizes[d] for d in self.axis(which))
        blocks = [c.constants[self.block(which)] for c in self.configs]
        return total == 0 or any(total % block for block in blocks)

    def shape(self) -> str:
        """The text of the tile's shape."""
        return "[ROWS, COLS]" if self.t.rows else "[COLS]"

    def setup(self) -> str:
        """Write the program's position; returns the expression of the grid's first size."""
        t = self.t
        pid = "tl.program_id(0)" + (".to(tl.int64)" if t.wide else "")
        grid: list[str] = []
        tiles: list[tuple[str, str]] = []
        for which in ("cols", "rows"):
            if self.axis(which) and not self.looped(which):
                total, block = self.product(self.axis(which)), self.block(which)
                tiles.append((which, f"tl.cdiv({total}, {block})"))
                grid.append(f"cdiv({total}, {block})")
        grid += [self.size(d) for d in t.outer]
        rest = "pid"
        if tiles or t.outer:
            self.line(f"pid = {pid}")
        for n, (which, count) in enumerate(tiles):
            block = self.block(which)
            if n + 1 < len(tiles) or t.outer:
                self.line(f"{which}_tiles = {count}")
                self.starts[which] = f"({rest} % {which}_tiles) * {block}"
                rest = f"({rest} // {which}_tiles)"
            else:
                self.starts[which] = f"{rest} * {block}"
        for d in reversed(t.outer[1:]):
            self.line(f"i{d} = {rest} % n{d}")
            rest = f"({rest} // n{d})"
        if t.outer:
            self.line(f"i{t.outer[0]} = {rest}")
        for which in ("rows", "cols"):
            if not self.axis(which):
                continue
            if not self.looped(which):
                self.line(f"{which}_start = {self.starts[which]}")
                self.positions(which, f"{which}_start")
            elif t.held if which == "rows" else not t.loop_cols:
                self.positions(which, "")
        return " * ".join(grid) or "1"

    def positions(self, which: str, start: str) -> None:
        """Write the positions of a tile along an axis, in the innermost scope."""
        dims, block = self.axis(which), self.block(which)
        steps = f"tl.arange(0, {block})"
        if self.t.rows:
            steps += "[None, :]" if which == "cols" else "[:, None]"
        text = f"{start} + {steps}" if start else steps
        if len(dims) == 1:
            flat = f"i{dims[0]}"
            self.line(f"{flat} = {text}")
        else:
            flat = which
            self.line(f"{flat} = {text}")
            rest = flat
            for d in reversed(dims[1:]):
                self.line(f"i{d} = {rest} % n{d}")
                self.size(d)
                rest = f"({rest} // n{d})"
            self.line(f"i{dims[0]} = {rest}")
        if self.masked(which):
            self.line(f"{which}_in = {flat} < {_bare(self.product(dims))}")

    def loop(self, which: str, body: Callable[[], None]) -> None:
        """Write a loop over all tiles along a reduced axis."""
        total, block = self.product(self.axis(which)), self.block(which)
        low, high = "0", total
        if self.chunk and which == self.t.axis:
            chunk = self.number("chunk", self.chunk)
            piece = "tl.program_id(1)" + (".to(tl.int64)" if self.t.wide else "")
            self.name("low", "low", f"{piece} * {chunk}", frozenset())
            self.name("high", "high", f"tl.minimum(low + {chunk}, {total})", frozenset())
            low, high = "low", "high"
        inner = which == "cols" or not self.t.loop_cols
        steps = f"{low}, {high}, {block}"
        many = inner and self.stages > 1
        steps = f"tl.range({steps}, num_stages={self.stages})" if many else f"range({steps})"
        head = f"for {which}_start in {steps}:"
        self.scopes.append(Scope(frozenset(self.axis(which)), self.scopes[-1].indent + "    "))
        self.positions(which, f"{which}_start")
        body()
        scope = self.scopes.pop()
        self.line(head)  # after loop-invariant lines
        self.scopes[-1].lines += scope.lines

    def loops(self, body: Callable[[], None]) -> None:
        """Write the loops over all tiles of the reduced axes."""
        if self.t.loop_rows and self.t.loop_cols:
            self.nested(body)
        elif self.t.axis:
            self.loop(self.t.axis, body)
        else:
            body()

    def nested(self, body: Callable[[], None]) -> None:
        """Write nested loops over rows and columns."""
        self.loop("rows", lambda: self.loop("cols", body))

    # -- memory

    def offset(self, strides: tuple[int, ...], without: int = -1) -> str:
        """The offset for these strides at the tile's positions, as an expression; "" for 0."""
        number = self.walks.setdefault(strides, len(self.walks))
        order = [*self.t.outer, *self.t.rows, *self.axis("cols")]
        terms = []
        for d in order:
            if not strides[d] or d == without:
                continue
            if strides[d] == 1:
                terms.append(f"i{d}")
            else:
                terms.append(f"i{d} * {self.multiple(f's{number}_{d}', strides[d])}")
        return " + ".join(terms)

    def at(self, a: Access) -> str:
        """The offset of an access, as a variable."""
        dims = frozenset(d for d, s in enumerate(a.strides) if s)
        text = self.offset(a.strides)
        if not text or text.isidentifier():
            return text
        number = self.walks[a.strides]
        return self.name(("at", a.strides), f"at{number}", text, dims)

    def mask(self, dims: frozenset[int], width: int = 0) -> str:
        """The mask of the tile's positions inside the index space, for a value that varies along `dims`; "": all are.

        width: the columns of padded rows, all of which may be accessed, so that vectors are whole; 0: not padded.
        """
        parts = [
            f"{which}_in"
            for which in ("rows", "cols")
            if dims & set(self.axis(which)) and self.masked(which)
        ]
        if width and parts[-1:] == ["cols_in"]:
            cols, number = self.t.cols, sum(p.startswith("s_to") for p in self.parameters)
            key = ("width", width)
            limit = self.known(key) or self.parameter(f"s_to{number}", self.number_type, width)
            self.scopes[0].names[key] = limit
            end = limit.removeprefix("s_to")
            parts[-1] = self.name(
                ("to", width), f"cols_to{end}", f"i{cols} < {limit}", frozenset({cols})
            )
        if len(parts) < 2:
            return "".join(parts)
        name = "inside" if "cols_in" in parts else f"inside_to{parts[-1].removeprefix('cols_to')}"
        return self.name((name, "mask"), name, " & ".join(parts), frozenset(self.k_tile()))

    def touched(self, a: Access) -> str:
        """The mask of an access."""
        dims = frozenset(d for d, s in enumerate(a.strides) if s)
        return self.mask(dims, a.width if self.t.cols >= 0 and a.strides[self.t.cols] == 1 else 0)

    def k_tile(self) -> tuple[int, ...]:
        """The dimensions of the tile."""
        return (*self.t.rows, *self.axis("cols"))

    def pointer(self, name: str, a: Access, place: Place) -> str:
        """The text of the pointers to the elements of an access. name: the name of the base pointer."""
        base = self.parameter(name, pointer_type(a.dtype), place)
        parts = [base]
        if a.offset:
            parts.append(str(a.offset))
        at = self.at(a)
        if at:
            parts.append(at)
        return " + ".join(parts)

    def load(self, slot: int) -> str:
        """The value of load `slot`, as an expression of the register type."""
        a = self.k.loads[slot]
        name = self.numbered("in", (a.operand, a.dtype))
        pointer = self.pointer(name, a, self.loads[a.operand])
        mask = self.touched(a)
        text = f"tl.load({pointer}, mask={mask})" if mask else f"tl.load({pointer})"
        return loaded(text, a.dtype)

    def store(self, n: int, value: str) -> None:
        """Write store `n` of the kernel; a partial result is stored at its program's own address."""
        a = self.k.stores[n]
        pointer = self.pointer(f"out{n}", a, self.stores[a.operand])
        if n in self.pieces:
            width = self.number("width", prod(n for n, s in zip(self.k.sizes, a.strides) if s))
            piece = "tl.program_id(1)" + (".to(tl.int64)" if self.t.wide else "")
            pointer += f" + {piece} * {width}"
        mask = self.touched(a)
        self.line(
            f"tl.store({pointer}, {value}, mask={mask})"
            if mask
            else f"tl.store({pointer}, {value})"
        )

    def write(self, stores: Sequence[int]) -> None:
        """Write stores. All values are computed before the first store, as a result may overwrite an operand."""
        values = [(n, self.value(self.k.stores[n].node)) for n in stores]
        for n, text in values:
            self.store(n, text)

    # -- values, as `dag.Frame`

    def value(self, i: int) -> str:
        """Node `i`, as a variable or a literal."""
        return dag.value(self, i)

    def known(self, key: Any) -> str | None:
        """The variable for `key` in an open scope; None if there is none."""
        return next((s.names[key] for s in self.scopes if key in s.names), None)

    def add(self, text: str, dims: frozenset[int]) -> None:
        """Write a line into the scope for values that vary along `dims`."""
        self.line(text, self.scope_of(dims))

    def position(self, slot: int) -> str:
        """The text of the linear position of index `slot`."""
        return self.offset(self.k.indices[slot])

    def fours(self, slot: int, dims: frozenset[int]) -> dag.Fours | None:
        """The groups of four elements along the columns that share a Philox block of index `slot`; None: no groups."""
        strides, cols = self.k.indices[slot], self.t.cols
        if cols < 0 or strides[cols] != 1:
            return None
        if any(s % 4 for d, s in enumerate(strides) if d != cols):
            return None
        rest = self.offset(strides, without=cols)
        block = "tl.arange(0, COLS // 4)" + ("[None, :]" if self.t.rows else "")
        if not self.reduced("cols") or self.t.loop_cols:
            block = f"cols_start // 4 + {block}"
        if not self.t.rows:
            shape = "[COLS]"
        else:
            shape = "[ROWS, COLS]" if dims & set(self.t.rows) else "[1, COLS]"
        return dag.Fours(f"({rest}) // 4 + {block}" if rest else block, shape)

    # -- the signature

    def hints(self) -> frozenset[str]:
        """The parameters for which the kernel is specialized if they are multiples of 16."""
        found = {p for p, kind in self.parameters.items() if kind.startswith("*")}
        found |= {p for p in self.parameters if p.startswith("s") or p in ("chunk", "width")}
        return frozenset(found | {f"n{d}" for d in self.axis("cols")})


def _bare(text: str) -> str:
    """An expression without outer parentheses."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and n + 1 < len(text):
            return text
    return text[1:-1]


def register(node: Node) -> str:
    """The element type that a reduction accumulates in."""
    return "i32" if node.dtype == "i1" else register_dtype(node.dtype)
