"""Slices by index: `gflow.take` reads them, `gflow.index_copy` writes them in place or into a copy.

    for rows of the dimensions before and behind the indexed one     (shared among threads)
        for indices, in order
            a run of contiguous elements                             (shared among threads if there is one row)

In an `index_copy` one thread writes all slices of its elements in order of the indices, so for equal indices the last
slice counts. In a `take` threads share both rows and indices. An index out of range writes nothing; a preceding
`gflow.check` has already failed for it.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.blocks import LANES
from gflow.compiler.kernel.dimensions import Walk, walk_of
from gflow.compiler.kernel.movement import kernels
from gflow.compiler.kernel.selection.cpu.loops import runs
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import KernelStep, Place

from .. import aten_ops
from .language.code import Code
from .program_builder import Builder


def index_copy(b: Builder, o: Op) -> None:
    """Add the steps of a `gflow.index_copy`: a copy of its operand unless it works in place, then the slices."""
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
    walk = walk_of(ty.shape, dim, to, of)
    words = (count, ty.shape[dim], b.strides(index)[0], to[dim], of[dim])
    _add(b, o, "index_copy", (r, index, source), words, walk)


def take(b: Builder, o: Op) -> None:
    """Add the step of a `gflow.take`: gflow's kernel if it is chosen, otherwise a call of aten.index_select."""
    if b.choice.kind == "pytorch":
        aten_ops.take(b, o)
        return
    x, index = o.operands
    (r,) = o.results
    ty, indices = b.body.types[x], b.body.types[index]
    if b.body.types[r].numel == 0:
        return
    dim, rank = read(OPS[o.name], o.op.attributes)["dim"], indices.rank
    step = aten_ops.dense(b, index, 0, rank).strides[0]
    out = aten_ops.merged(b, r, dim, rank).strides if rank != 1 else b.strides(r)
    walk = walk_of(ty.shape, dim, out, b.strides(x))
    words = (indices.numel, ty.shape[dim], step, out[dim], b.strides(x)[dim])
    _add(b, o, "take", (r, index, x), words, walk)


def _add(
    b: Builder, o: Op, stem: str, values: tuple[int, int, int], numbers: tuple[int, ...], walk: Walk
) -> None:
    """Add the step of a kernel over slices.

    Args:
        b: the program so far.
        o: the op.
        stem: the start of the function's name.
        values: the value numbers of the written tensor, the index, and the read tensor.
        numbers: the number of indices, the size of the indexed dimension, and the strides of the index, of the written
            tensor and of the read tensor along that dimension, in elements.
        walk: the other dimensions.
    """
    to, index, _ = values
    item, width = b.body.types[to].itemsize, b.body.types[index].itemsize
    rank = len(walk.sizes) - 1
    name = f"{stem}_{8 * item}_{8 * width}_{rank}"
    if name not in b.kernels:
        b.kernels[name] = _function(name, 8 * item, 8 * width, rank, stem == "take")
    b.externals |= {"omp_get_thread_num", "omp_get_num_threads"}
    rows = [n for rest in zip(walk.sizes[:-1], walk.to, walk.of) for n in rest]
    places = [b.place(v) for v in values]
    words: tuple[int | Place, ...] = (*places, *numbers, walk.sizes[-1], *rows)
    parallel, from_size = b.choice.shared()
    b.steps.append(KernelStep(name, words, parallel, b.label(o), True, from_size=from_size))


@cache
def _function(name: str, bits: int, index_bits: int, rank: int, reads: bool) -> str:
    return _Slices(bits, index_bits, rank, reads).function(name)


class _Slices(Code):
    """The kernel function, for given bits of elements and indices, and a number of dimensions of rows.

    reads: indices say which slices are read (`take`); otherwise, which slices are written.
    """

    def __init__(self, bits: int, index_bits: int, rank: int, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.element, self.bytes = f"i{bits}", bits // 8
        self.index_bits = index_bits
        words = [self.load_word(i, "!llvm.ptr" if i < 3 else "i64") for i in range(9 + 3 * rank)]
        self.to, self.index, self.of, self.count, self.size = words[:5]
        self.index_step, self.to_step, self.of_step, self.run = words[5:9]
        self.walks = [tuple(words[9 + 3 * d : 12 + 3 * d]) for d in range(rank)]
        if reads:
            slices = self.mul(self.count, *(size for size, _, _ in self.walks))
            low, high = self.share(slices)
            self.loop(low, high, 1, [], lambda task, _: self._task(task))
        elif rank:
            rows = self.mul(*(size for size, _, _ in self.walks))
            low, high = self.share(rows)
            self.loop(low, high, 1, [], lambda row, _: self._row(row, self.i64(0), self.run))
        else:
            low, high = self.share(self.run, LANES)
            self._row("", low, high)

    def _task(self, task: str) -> list[str]:
        """Copy one slice of one row."""
        row, k = self.split(task, self.count) if self.walks else ("", task)
        to, of = self._origin(row)
        return self._slice(k, to, of, self.i64(0), self.run)

    def _row(self, row: str, low: str, high: str) -> list[str]:
        to, of = self._origin(row)
        self.loop(0, self.count, 1, [], lambda k, _: self._slice(k, to, of, low, high))
        return []

    def _origin(self, row: str) -> tuple[str, str]:
        """The offsets of a row in the written and in the read tensor."""
        to, of = self.i64(0), self.i64(0)
        for n, (size, to_stride, of_stride) in reversed(list(enumerate(self.walks))):
            position = row
            if n:
                row, position = self.split(row, size)
            to = self.add(to, self.mul(position, to_stride))
            of = self.add(of, self.mul(position, of_stride))
        return to, of

    def _slice(self, k: str, to: str, of: str, low: str, high: str) -> list[str]:
        at = self._at(self.index, self.mul(k, self.index_step), f"i{self.index_bits}")
        index = self(f"llvm.load {at} : !llvm.ptr -> i{self.index_bits}")
        if self.index_bits < 64:
            index = self(f"arith.extsi {index} : i{self.index_bits} to i64")
        self.line(f"scf.if {self.within(index, self.size)} {{")
        with self.indented():
            there, here = (k, index) if self.reads else (index, k)
            target = self._at(self.to, self.add(to, self.mul(there, self.to_step)), self.element)
            origin = self._at(self.of, self.add(of, self.mul(here, self.of_step)), self.element)
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
