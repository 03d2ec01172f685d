"""The state of one kernel's text as it is written: words, loop positions, scopes, loops.

What to write is decided elsewhere: `expressions` (values), `memory` (loads and stores), `reductions`
(accumulators), and one module for each loop structure (`pointwise`, `row`, `column`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gflow.compiler.kernel.description import Kernel

from .parameters import Plan
from .ssa_text import Emitter

#: loops are written as wide as they should be: copies of their bodies would cost compile time
_KEEP_ROLLED = "{loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}"

#: (initial value, type) of a value that a loop carries
Carried = list[tuple[str, str]]


class Writer:
    """One kernel in the making.

    env: (node, lanes, unroll position) → SSA name, in nested scopes; position -1 for what all positions share.
    iv: dimension → its current position.
    mask: which lanes are real; None if all are.
    position: which of the vectors side by side is being written.
    phase: the pass over the reduced dimensions that is being written, from 1.
    varying: nodes that differ from lane to lane.
    """

    def __init__(self, k: Kernel, p: Plan) -> None:
        self.k, self.p = k, p
        self.e = Emitter()
        self.lanes = p.lanes
        self.env: dict[tuple[int, int, int], str] = {}
        self.iv: dict[int, str] = {}
        self.mask: str | None = None
        self.position = 0
        self.phase = 0
        self.varying = _varying(k, p)
        self.words = [self._load_word(i, w.kind) for i, w in enumerate(p.words)]

    # -- words and numbers

    def _load_word(self, i: int, kind: str) -> str:
        e = self.e
        at = e(f"llvm.getelementptr %w[{i}] : (!llvm.ptr) -> !llvm.ptr, i64") if i else "%w"
        ty = {"int": "i64", "float": "f64"}.get(kind, "!llvm.ptr")
        return e(f"llvm.load {at} : !llvm.ptr -> {ty}")

    def word(self, *key: object) -> str:
        return self.words[self.p.index[key]]

    def size(self, d: int) -> str:
        return self.word("size", d)

    def i64(self, value: int) -> str:
        return self.e.const(value, "i64")

    def add(self, a: str, b: str) -> str:
        return self.e(f"arith.addi {a}, {b} : i64")

    def sub(self, a: str, b: str) -> str:
        return self.e(f"arith.subi {a}, {b} : i64")

    def mul(self, a: str, b: str) -> str:
        return self.e(f"arith.muli {a}, {b} : i64")

    def at_most(self, a: str, b: str) -> str:
        return self.e(f"arith.minsi {a}, {b} : i64")

    def steps_up(self, x: str, granule: int) -> str:
        """How many granules cover `x`."""
        return self.e(f"arith.ceildivsi {x}, {self.i64(granule)} : i64")

    def linear(self, name: str, i: int, strides: tuple[int, ...]) -> str | None:
        """The sum of position times stride over all dimensions; None for 0."""
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
        total = None
        for d in dims:
            total = self.size(d) if total is None else self.mul(total, self.size(d))
        return total or self.i64(1)

    # -- scopes and loops

    def scoped(self, body: Callable[[], None]) -> None:
        """Run `body`; what it computes isn't visible after."""
        env, iv, mask = dict(self.env), dict(self.iv), self.mask
        with self.e.indented():
            body()
        self.env, self.iv, self.mask = env, iv, mask

    def loop(
        self,
        low: str,
        high: str,
        step: str,
        inits: Carried,
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """A loop that carries values; `body` gets the position and the values, and returns the new ones."""
        e, iv = self.e, self.e.fresh("i")
        names = [e.fresh("a") for _ in inits]
        types = ", ".join(ty for _, ty in inits)
        result, head, carry = "", "", ""
        if inits:
            result = e.fresh("r")
            args = ", ".join(f"{n} = {init}" for n, (init, _) in zip(names, inits))
            head, carry = f"{result}:{len(inits)} = ", f" iter_args({args}) -> ({types})"
        e.line(f"{head}scf.for {iv} = {low} to {high} step {step}{carry} : i64 {{")

        def inner() -> None:
            values = body(iv, names)
            if inits:
                e.line(f"scf.yield {', '.join(values)} : {types}")

        self.scoped(inner)
        e.line(f"}} {_KEEP_ROLLED}")
        return [f"{result}#{n}" for n in range(len(inits))]

    def repeat(self, low: str, high: str, body: Callable[[str], None], step: str = "") -> None:
        """A loop that carries nothing."""

        def run(iv: str, _: list[str]) -> list[str]:
            body(iv)
            return []

        self.loop(low, high, step or self.i64(1), [], run)

    def when(self, condition: str, inits: Carried, body: Callable[[], list[str]]) -> list[str]:
        """`body`'s values if `condition` holds, else the given ones."""
        e = self.e
        types = ", ".join(ty for _, ty in inits)
        result = e.fresh("r") if inits else ""
        head = f"{result}:{len(inits)} = " if inits else ""
        e.line(f"{head}scf.if {condition}{f' -> ({types})' if inits else ''} {{")

        def inner() -> None:
            values = body()
            if inits:
                e.line(f"scf.yield {', '.join(values)} : {types}")

        self.scoped(inner)
        if inits:
            e.line("} else {")
            e.line(f"  scf.yield {', '.join(v for v, _ in inits)} : {types}")
        e.line("}")
        return [f"{result}#{n}" for n in range(len(inits))]

    def vectors(
        self, low: str, high: str, inits: Carried, body: Callable[[list[str]], list[str]]
    ) -> list[str]:
        """Whole vectors from low to high, then (unless the plan rules it out) one masked vector for the rest."""
        e, n, d = self.e, self.i64(self.lanes), self.p.vector

        def full(iv: str, carried: list[str]) -> list[str]:
            self.iv[d] = iv
            return body(carried)

        if self.p.whole:
            return self.loop(low, high, n, inits, full)
        rest = e(f"arith.remsi {self.sub(high, low)}, {n} : i64")
        end = self.sub(high, rest)
        carried = self.loop(low, end, n, inits, full)

        def tail() -> list[str]:
            self.iv[d] = end
            self.set_mask(rest)
            return body(carried)

        more = e(f"arith.cmpi sgt, {rest}, {self.i64(0)} : i64")
        return self.when(more, [(c, ty) for c, (_, ty) in zip(carried, inits)], tail)

    def set_mask(self, count: str) -> None:
        """Only the first `count` lanes are real."""
        e, n = self.e, self.lanes
        small = e(f"arith.trunci {count} : i64 to i32")
        wide = e(f"vector.broadcast {small} : i32 to vector<{n}xi32>")
        self.mask = e(f"arith.cmpi slt, {e.steps(n, 'i32')}, {wide} : vector<{n}xi32>")

    def nest(
        self,
        dims: tuple[int, ...],
        inits: Carried,
        inside: Callable[[list[str]], list[str]],
        bounds: tuple[str, str] | None = None,
    ) -> list[str]:
        """Loops over `dims`, outermost first, that carry values; `bounds` limits the outermost."""
        if not dims:
            return inside([v for v, _ in inits])
        low, high = bounds or (self.i64(0), self.size(dims[0]))
        types = [ty for _, ty in inits]

        def step(iv: str, carried: list[str]) -> list[str]:
            self.iv[dims[0]] = iv
            return self.nest(dims[1:], list(zip(carried, types)), inside)

        return self.loop(low, high, self.i64(1), inits, step)

    # -- threads

    def thread(self, which: str) -> str:
        """ "thread_num" or "num_threads" of the running team."""
        e = self.e
        e.externals.add(f"omp_get_{which}")
        return e(f"arith.extsi {e(f'llvm.call @omp_get_{which}() : () -> i32')} : i32 to i64")

    def barrier(self) -> None:
        self.e.externals.add("GOMP_barrier")
        self.e.line("llvm.call @GOMP_barrier() : () -> ()")

    def thread_range(self, total: str, granule: int = 1) -> tuple[str, str]:
        """This thread's share of 0…total, in whole granules."""
        tid, count = self.thread("thread_num"), self.thread("num_threads")
        share = self.e(f"arith.ceildivsi {total}, {count} : i64")
        if granule > 1:
            share = self.mul(self.steps_up(share, granule), self.i64(granule))
        start = self.mul(share, tid)
        return self.at_most(start, total), self.at_most(self.add(start, share), total)

    def set_position(self, dims: tuple[int, ...], flat: str) -> None:
        """Positions along `dims` from one flat index over them, row-major."""
        e = self.e
        for d in reversed(dims[1:]):
            self.iv[d] = e(f"arith.remui {flat}, {self.size(d)} : i64")
            flat = e(f"arith.divui {flat}, {self.size(d)} : i64")
        if dims:
            self.iv[dims[0]] = flat


def _varying(k: Kernel, p: Plan) -> set[int]:
    """Nodes that differ along the vector's dimension. Where vectors run along a kept one, reductions do."""
    found: set[int] = set()
    for i, node in enumerate(k.nodes):
        kept_vector = node.op == "reduce" and p.mode == "column"
        if p.vector in node.dims or kept_vector or any(a in found for a in node.args):
            if node.op == "reduce" and p.mode == "row":
                continue
            found.add(i)
    return found
