"""Writing slices at indices: `gflow.index_copy`, over its operand or into a copy.

    for rows of what lies before and behind the indexed dimension    (shared among threads)
        for indices, in order
            a run of elements                                        (shared where there is one row)

A thread writes all indices of its elements in order, so that of equal ones the last counts. An index out of range,
which a `gflow.check` has refused before, writes nothing.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.blocks import LANES
from gflow.compiler.kernel.dimensions import merged
from gflow.compiler.kernel.movement import kernels
from gflow.compiler.kernel.selection.cpu.loops import runs
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import KernelStep, Place

from .language.code import Code
from .program_builder import Builder


def index_copy(b: Builder, o: Op) -> None:
    """The steps of a `gflow.index_copy`: a copy of x where the result does not lie over it, and the slices."""
    x, index, source = o.operands
    (r,) = o.results
    ty, count = b.body.types[x], b.body.types[index].numel
    copies = [m for m in kernels(b, o) if runs(m.k)]
    for m, way in zip(copies, b.ways(len(copies))):
        if (b.place(x), b.strides(x)) != (
            b.place(r),
            b.strides(r),
        ):  # the planner lets it take over
            b.launch(m.k, m.sources, [m.target], b.label(o), way=way)
    if b.body.types[source].numel == 0:
        return
    dim = read(OPS[o.name], o.op.attributes)["dim"]
    to, of = b.strides(r), b.strides(source)
    others = [d for d in range(ty.rank) if d != dim]
    sizes, (to_walk, of_walk) = merged(
        [ty.shape[d] for d in others], [[s[d] for d in others] for s in (to, of)]
    )
    dense = bool(sizes) and to_walk[-1] == of_walk[-1] == 1
    if not dense:
        sizes, to_walk, of_walk = [*sizes, 1], [*to_walk, 1], [*of_walk, 1]
    width = b.body.types[index].itemsize
    name = f"index_copy_{8 * ty.itemsize}_{8 * width}_{len(sizes) - 1}"
    if name not in b.kernels:
        b.kernels[name] = _function(name, 8 * ty.itemsize, 8 * width, len(sizes) - 1)
    b.externals |= {"omp_get_thread_num", "omp_get_num_threads"}
    places = [b.place(v) for v in (r, index, source)]
    walks = [n for rest in zip(sizes[:-1], to_walk, of_walk) for n in rest]
    words: tuple[int | Place, ...] = (
        *places, count, ty.shape[dim], b.strides(index)[0], to[dim], of[dim], sizes[-1], *walks,
    )  # fmt: skip
    parallel, from_size = b.choice.shared()
    b.steps.append(KernelStep(name, words, parallel, b.label(o), True, from_size=from_size))


@cache
def _function(name: str, bits: int, index_bits: int, rank: int) -> str:
    return _IndexCopy(bits, index_bits, rank).function(name)


class _IndexCopy(Code):
    """The function for elements and indices of so many bits, and rows of so many dimensions."""

    def __init__(self, bits: int, index_bits: int, rank: int) -> None:
        super().__init__()
        self.element, self.bytes = f"i{bits}", bits // 8
        self.index_bits = index_bits
        words = [self.load_word(i, "!llvm.ptr" if i < 3 else "i64") for i in range(9 + 3 * rank)]
        self.to, self.index, self.of, self.count, self.size = words[:5]
        self.index_step, self.to_step, self.of_step, self.run = words[5:9]
        self.walks = [tuple(words[9 + 3 * d : 12 + 3 * d]) for d in range(rank)]
        if rank:
            rows = self.mul(*(size for size, _, _ in self.walks))
            low, high = self.share(rows)
            self.loop(low, high, 1, [], lambda row, _: self._row(row, self.i64(0), self.run))
        else:
            low, high = self.share(self.run, LANES)
            self._row("", low, high)

    def _row(self, row: str, low: str, high: str) -> list[str]:
        to, of = self.i64(0), self.i64(0)
        for n, (size, to_stride, of_stride) in reversed(list(enumerate(self.walks))):
            position = row
            if n:
                row, position = self.split(row, size)
            to = self.add(to, self.mul(position, to_stride))
            of = self.add(of, self.mul(position, of_stride))
        self.loop(0, self.count, 1, [], lambda k, _: self._slice(k, to, of, low, high))
        return []

    def _slice(self, k: str, to: str, of: str, low: str, high: str) -> list[str]:
        at = self._at(self.index, self.mul(k, self.index_step), f"i{self.index_bits}")
        index = self(f"llvm.load {at} : !llvm.ptr -> i{self.index_bits}")
        if self.index_bits < 64:
            index = self(f"arith.extsi {index} : i{self.index_bits} to i64")
        self.line(f"scf.if {self.within(index, self.size)} {{")
        with self.indented():
            target = self._at(self.to, self.add(to, self.mul(index, self.to_step)), self.element)
            origin = self._at(self.of, self.add(of, self.mul(k, self.of_step)), self.element)
            whole = self.add(low, self.mul(self.binary("divui", self.sub(high, low), LANES), LANES))
            self._copies(low, whole, LANES, f"vector<{LANES}x{self.element}>", target, origin)
            self._copies(whole, high, 1, self.element, target, origin)
        self.line("}")
        return []

    def _copies(self, low: str, high: str, step: int, ty: str, target: str, origin: str) -> None:
        def copy(i: str, _: list[str]) -> list[str]:
            value = self.read(self._at(origin, i, self.element), ty, self.bytes, None)
            self.write(value, self._at(target, i, self.element), ty, self.bytes, None)
            return []

        self.loop(low, high, step, [], copy)

    def _at(self, base: str, elements: str, ty: str) -> str:
        return self(f"llvm.getelementptr {base}[{elements}] : (!llvm.ptr, i64) -> !llvm.ptr, {ty}")

    def function(self, name: str) -> str:
        return f"  llvm.func @{name}(%w: !llvm.ptr) {{\n{self.text()}\n    llvm.return\n  }}"
