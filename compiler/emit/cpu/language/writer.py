"""The writer of a region's kernel: arguments, loop positions, scopes, loops.

Other modules write the contents: `expressions` (values), `memory` (loads and stores), `reductions` (accumulators), and
one module for each loop structure (`pointwise`, `row`, `column`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from gflow.compiler.kernel.description import Kernel

from .code import Body, Carried, Code
from .parameters import Plan

T = TypeVar("T")


class Writer(Code):
    """The writer of one kernel.

    Attributes:
        env: SSA names by (node, lanes, unroll position), in nested scopes; position -1: shared by all positions.
        iv: the current position, by dimension.
        mask: the mask of the lanes inside the index space; None if all are.
        position: the unroll position that is being written: one of the vectors side by side.
        phase: the pass over the reduced dimensions that is being written, from 1.
        varying: the nodes that vary along the vectorized dimension.
        turned: for each transposed load, the address of its transposed block.
    """

    def __init__(self, k: Kernel, p: Plan) -> None:
        super().__init__()
        self.k, self.p = k, p
        self.lanes = p.lanes
        self.env: dict[tuple[int, int, int], str] = {}
        self.iv: dict[int, str] = {}
        self.mask: str | None = None
        self.position = 0
        self.phase = 0
        self.turned: dict[int, str] = {}
        self.varying = _varying(k, p)
        types = {"int": "i64", "float": "f64"}
        self.words = [
            self.load_word(i, types.get(w.kind, "!llvm.ptr")) for i, w in enumerate(p.words)
        ]

    # -- words and numbers

    def word(self, *key: object) -> str:
        """The value of an argument, by its key in `Plan.index`."""
        return self.words[self.p.index[key]]

    def size(self, d: int) -> str:
        """The size of dimension `d` as an i64."""
        return self.word("size", d)

    def linear(self, name: str, i: int, strides: tuple[int, ...]) -> str | None:
        """The sum of position times stride over all dimensions, in elements; None for 0."""
        total = None
        for d, stride in enumerate(strides):
            if not stride:
                continue
            term = self.iv[d]
            if stride != 1:
                term = self.mul(term, self.word(name, i, d))
            total = term if total is None else self.add(total, term)
        return total

    def product(self, dims: Iterable[int]) -> str:
        """The product of the sizes of `dims` as an i64; 1 without dimensions."""
        total = None
        for d in dims:
            total = self.size(d) if total is None else self.mul(total, self.size(d))
        return total or self.i64(1)

    # -- scopes and loops

    def scoped(self, body: Callable[[], T]) -> T:
        """Call `body` in a scope of its own: values that it defines are not visible afterwards."""
        env, iv, mask = dict(self.env), dict(self.iv), self.mask
        result = body()
        self.env, self.iv, self.mask = env, iv, mask
        return result

    def walk(self, low: str, high: str, step: str, inits: Carried, body: Body) -> list[str]:
        """A loop with carried values whose body has a scope of its own."""

        def inner(iv: str, carried: list[str]) -> list[str]:
            return self.scoped(lambda: body(iv, carried))

        return self.loop(low, high, step, inits, inner)

    def repeat(self, low: str, high: str, body: Callable[[str], None], step: str = "") -> None:
        """A loop without carried values."""

        def run(iv: str, _: list[str]) -> list[str]:
            body(iv)
            return []

        self.walk(low, high, step or self.i64(1), [], run)

    def when(self, condition: str, inits: Carried, body: Callable[[], list[str]]) -> list[str]:
        """The values of `body` if `condition` holds, otherwise the initial ones (`scf.if`)."""
        types = ", ".join(ty for _, ty in inits)
        result = self.fresh("r") if inits else ""
        head = f"{result}:{len(inits)} = " if inits else ""
        self.line(f"{head}scf.if {condition}{f' -> ({types})' if inits else ''} {{")

        with self.indented():
            values = self.scoped(body)
            if inits:
                self.line(f"scf.yield {', '.join(values)} : {types}")
        if inits:
            self.line("} else {")
            self.line(f"  scf.yield {', '.join(v for v, _ in inits)} : {types}")
        self.line("}")
        return [f"{result}#{n}" for n in range(len(inits))]

    def vectors(
        self, low: str, high: str, inits: Carried, body: Callable[[list[str]], list[str]]
    ) -> list[str]:
        """A loop over whole vectors from low to high, then one masked vector for the rest unless `whole` is set."""
        n, d = self.i64(self.lanes), self.p.vector

        def full(iv: str, carried: list[str]) -> list[str]:
            self.iv[d] = iv
            return body(carried)

        if self.p.whole:
            return self.walk(low, high, n, inits, full)
        rest = self.binary("remsi", self.sub(high, low), n)
        end = self.sub(high, rest)
        carried = self.walk(low, end, n, inits, full)

        def tail() -> list[str]:
            self.iv[d] = end
            self.mask = self.first_lanes(rest, self.lanes)
            return body(carried)

        more = self(f"arith.cmpi sgt, {rest}, {self.i64(0)} : i64")
        return self.when(more, [(c, ty) for c, (_, ty) in zip(carried, inits)], tail)

    def nest(
        self,
        dims: tuple[int, ...],
        inits: Carried,
        inside: Callable[[list[str]], list[str]],
        bounds: tuple[str, str] | None = None,
    ) -> list[str]:
        """Nested loops over `dims`, outermost first, with carried values. bounds: limits of the outermost loop."""
        if not dims:
            return inside([v for v, _ in inits])
        low, high = bounds or (self.i64(0), self.size(dims[0]))
        types = [ty for _, ty in inits]

        def step(iv: str, carried: list[str]) -> list[str]:
            self.iv[dims[0]] = iv
            return self.nest(dims[1:], list(zip(carried, types)), inside)

        return self.walk(low, high, self.i64(1), inits, step)

    def set_position(self, dims: tuple[int, ...], flat: str) -> None:
        """Set the positions along `dims` from a flat row-major index over them."""
        for d in reversed(dims[1:]):
            flat, self.iv[d] = self.split(flat, self.size(d))
        if dims:
            self.iv[dims[0]] = flat


def _varying(k: Kernel, p: Plan) -> set[int]:
    """The nodes that vary along the vectorized dimension; in a "column" kernel, reductions vary along it, too."""
    found: set[int] = set()
    for i, node in enumerate(k.nodes):
        kept_vector = node.op == "reduce" and p.mode == "column"
        if p.vector in node.dims or kept_vector or any(a in found for a in node.args):
            if node.op == "reduce" and p.mode == "row":
                continue
            found.add(i)
    return found
