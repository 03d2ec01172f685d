"""The native steps of a program: a table of kernels and their arguments, run by generated code.

The arguments of a kernel are 64-bit words. Words that are addresses of a call's arguments or results are patched when
these move. All others are written once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from gflow.dialects.extents import Extent, N
from gflow.dialects.program import KernelAddress, KernelGroup, KernelStep, Place, Program, Step

from ..device import FixedAddress, Part
from ..sizes import Numbers
from ..steps.host_step import HostStep
from . import jit

_RUNNER = "gflow_run_steps"
#: runs steps `begin` to `end` of a table whose rows are (function, words, whether it is parallel), up to one that
#: reports an error, and where none does sets `threads` to 0, in the same call: whether they have run can be read at
#: any moment; words: table, begin, end, threads, report. Gives the report's first word.
RUNNER_TEXT = """  llvm.func @gflow_run_steps(%w: !llvm.ptr) -> i64 {
    %one = arith.constant 1 : i64
    %zero = arith.constant 0 : i32
    %table = llvm.load %w : !llvm.ptr -> !llvm.ptr
    %pb = llvm.getelementptr %w[1] : (!llvm.ptr) -> !llvm.ptr, i64
    %begin = llvm.load %pb : !llvm.ptr -> i64
    %pe = llvm.getelementptr %w[2] : (!llvm.ptr) -> !llvm.ptr, i64
    %end = llvm.load %pe : !llvm.ptr -> i64
    %pt = llvm.getelementptr %w[3] : (!llvm.ptr) -> !llvm.ptr, i64
    %threads = llvm.load %pt : !llvm.ptr -> i32
    %pr = llvm.getelementptr %w[4] : (!llvm.ptr) -> !llvm.ptr, i64
    %report = llvm.load %pr : !llvm.ptr -> !llvm.ptr
    %single = arith.constant 1 : i32
    %none = arith.constant 0 : i64
    %alone = arith.cmpi eq, %threads, %single : i32
    scf.for %i = %begin to %end step %one : i64 {
      %failed = llvm.load %report : !llvm.ptr -> i64
      %go = arith.cmpi eq, %failed, %none : i64
      scf.if %go {
      %row = llvm.getelementptr %table[%i]
          : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.array<3 x i64>
      %function = llvm.load %row : !llvm.ptr -> !llvm.ptr
      %pw = llvm.getelementptr %row[1] : (!llvm.ptr) -> !llvm.ptr, i64
      %words = llvm.load %pw : !llvm.ptr -> !llvm.ptr
      %pp = llvm.getelementptr %row[2] : (!llvm.ptr) -> !llvm.ptr, i64
      %flag = llvm.load %pp : !llvm.ptr -> i64
      %no = arith.constant 0 : i64
      %serial = arith.cmpi eq, %flag, %no : i64
      %direct = arith.ori %serial, %alone : i1
      scf.if %direct {
        llvm.call %function(%words) : !llvm.ptr, (!llvm.ptr) -> ()
      } else {
        llvm.call @GOMP_parallel(%function, %words, %threads, %zero)
            : (!llvm.ptr, !llvm.ptr, i32, i32) -> ()
      }
      }
    }
    %result = llvm.load %report : !llvm.ptr -> i64
    %well = arith.cmpi eq, %result, %none : i64
    %wide = arith.extui %threads : i32 to i64
    %left = arith.select %well, %none, %wide : i64
    llvm.store %left, %pt : i64, !llvm.ptr
    llvm.return %result : i64
  }"""
_GROUP = "gflow_run_group"
#: runs kernels side by side on the calling thread: its share of each, and every nth of those that cannot
#: be shared; words: how many, then (function, words, whether it is shared) for each
GROUP_TEXT = """  llvm.func @gflow_run_group(%w: !llvm.ptr) {
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %count = llvm.load %w : !llvm.ptr -> i64
    %rows = llvm.getelementptr %w[1] : (!llvm.ptr) -> !llvm.ptr, i64
    %tid32 = llvm.call @omp_get_thread_num() : () -> i32
    %threads32 = llvm.call @omp_get_num_threads() : () -> i32
    %tid = arith.extsi %tid32 : i32 to i64
    %threads = arith.extsi %threads32 : i32 to i64
    scf.for %i = %zero to %count step %one : i64 {
      %row = llvm.getelementptr %rows[%i]
          : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.array<3 x i64>
      %function = llvm.load %row : !llvm.ptr -> !llvm.ptr
      %pw = llvm.getelementptr %row[1] : (!llvm.ptr) -> !llvm.ptr, i64
      %words = llvm.load %pw : !llvm.ptr -> !llvm.ptr
      %ps = llvm.getelementptr %row[2] : (!llvm.ptr) -> !llvm.ptr, i64
      %flag = llvm.load %ps : !llvm.ptr -> i64
      %shared = arith.cmpi ne, %flag, %zero : i64
      %turn = arith.remui %i, %threads : i64
      %mine = arith.cmpi eq, %turn, %tid : i64
      %run = arith.ori %shared, %mine : i1
      scf.if %run {
        llvm.call %function(%words) : !llvm.ptr, (!llvm.ptr) -> ()
      }
    }
    llvm.return
  }"""
_THREADS = {
    name: f"  llvm.func @{name}() -> i32" for name in ("omp_get_thread_num", "omp_get_num_threads")
}
_PARALLEL = "  llvm.func @GOMP_parallel(!llvm.ptr, !llvm.ptr, i32, i32)"


class Segment:
    """Rows of a table that run in one call, on PyTorch's OpenMP threads; a `Part`.

    The runner's words are the table, the first row and the one behind the last, threads, and the report.
    """

    label, torn = "a kernel", False  # a kernel has run once its segment has

    def __init__(self, table: Table, begin: int, end: int) -> None:
        self.count, self._table, self._begin = end - begin, table, begin
        kernels = table.kernels
        self._runner, self._look, self._most = kernels.runner, kernels.look, kernels.threads
        self._words = (ctypes.c_int64 * 5)(*table.addresses(begin, end))
        self._address = ctypes.addressof(self._words)

    @property
    def has_run(self) -> bool:
        """Whether the rows ran since `prepare`: the runner clears the word of the threads."""
        return not self._words[3]

    def prepare(self) -> None:
        """Set the number of threads: PyTorch's, at most what the kernels can use."""
        self._words[3] = min(torch.get_num_threads(), self._most)

    def run(self) -> None:
        """Run its rows.

        Raises:
            IndexError, RuntimeError, …: a check failed; later steps have not run.
        """
        if self._runner(self._address):
            self._look()

    def undo(self) -> None:
        """Kernels draw nothing."""

    def each(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Every step of the segment with what runs it alone."""
        for row in range(self._begin, self._begin + self.count):
            yield self._table.kernels.steps[row], partial(_run, Segment(self._table, row, row + 1))


def _run(segment: Segment) -> None:
    segment.prepare()
    segment.run()


def kernels_of(program: Program) -> tuple[dict[str, str], dict[str, str]]:
    """All functions that a program runs on, and what these call, by name: their texts."""
    kernels = {**program.kernels, _RUNNER: RUNNER_TEXT}
    declarations = {**program.declarations, "GOMP_parallel": _PARALLEL}
    if any(isinstance(s, KernelGroup) for s in program.steps):
        kernels[_GROUP] = GROUP_TEXT
        declarations |= _THREADS
    return kernels, declarations


class KernelTable:
    """The compiled kernels of a program, with what their words are; see `Loaded`. Row i of its tables is the i-th
    native step of the program."""

    def __init__(self, program: Program, fixed: FixedAddress, look: Callable[[], None]) -> None:
        """
        Args:
            fixed: of constants, and of the report of checks. look: raises what a check has reported.

        Raises:
            MLIRError: a kernel's text is not valid MLIR.
        """
        steps = [s for s in program.steps if isinstance(s, (KernelStep, KernelGroup))]
        functions = jit.compile_kernels(*kernels_of(program))
        self.steps, self.look, self.threads = steps, look, program.max_threads
        self.report = fixed(Place("status", 0, 0)) or 0
        self.runner = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(functions[_RUNNER])
        self.all = program.steps
        # never empty, so that their addresses are good
        self._words = np.zeros(1 + sum(map(_word_count, steps)), dtype=np.int64)
        self._rows = np.zeros((1 + len(steps), 3), dtype=np.int64)
        self._used = 0
        self._inner: list[tuple[int, int]] = []  # words that are the addresses of other words
        spots: dict[tuple[str, int], list[tuple[int, int | Extent]]] = {}
        varying: list[tuple[int, Extent]] = []
        for n, step in enumerate(steps):
            if isinstance(step, KernelStep):
                row = (*self._place(step, functions, fixed, spots, varying), int(step.parallel))
            else:
                row = (*self._place_group(step, functions, fixed, spots, varying), 1)
            self._rows[n] = row
        self._at = np.array([at for at, _ in varying], dtype=np.int64)
        self._numbers = Numbers([extent for _, extent in varying])
        self._first_size = np.array(
            [s.from_size if isinstance(s, KernelStep) else 0 for s in steps], dtype=np.int64
        )
        self._spots = {
            key: [(at, 0 if isinstance(o, Extent) else o) for at, o in found]
            for key, found in spots.items()
        }
        moving = [
            (key, i, offset)
            for key, found in spots.items()
            for i, (_, offset) in enumerate(found)
            if isinstance(offset, Extent)
        ]
        self._moving = [(key, i) for key, i, _ in moving]
        self._offsets = Numbers([offset for _, _, offset in moving])

    def _place(
        self,
        step: KernelStep,
        functions: dict[str, int],
        fixed: FixedAddress,
        spots: dict[tuple[str, int], list[tuple[int, int | Extent]]],
        varying: list[tuple[int, Extent]],
    ) -> tuple[int, int]:
        """Write the words of a step; returns its function and where they begin."""
        start = self._used
        for word in step.words:
            if isinstance(word, Extent):
                varying.append((self._used, word))
            elif isinstance(word, int):
                self._words[self._used] = word
            elif isinstance(word, KernelAddress):
                self._words[self._used] = functions[word.kernel]
            elif isinstance(word, Place) and (address := fixed(word)) is not None:
                self._words[self._used] = address
            elif isinstance(word, Place):
                spots.setdefault((word.space, word.index), []).append((self._used, word.offset))
            self._used += 1
        return functions[step.kernel], start

    def _place_group(
        self,
        group: KernelGroup,
        functions: dict[str, int],
        fixed: FixedAddress,
        spots: dict[tuple[str, int], list[tuple[int, int | Extent]]],
        varying: list[tuple[int, Extent]],
    ) -> tuple[int, int]:
        """The same for a group: its own words, after those of its members."""
        rows = [(*self._place(s, functions, fixed, spots, varying), s) for s in group.members]
        start = self._used
        words = [len(rows)]
        for function, at, step in rows:
            self._inner.append((start + len(words) + 1, at))
            words += [function, 0, int(step.shared)]
        self._words[start : start + len(words)] = words
        self._used += len(words)
        return functions[_GROUP], start

    def at(self, n: N) -> Table:
        """The words for a size of `n`; the functions are shared."""
        words, rows = self._words.copy(), self._rows.copy()
        first = words.ctypes.data
        for at, target in self._inner:
            words[at] = first + 8 * target
        rows[:, 1] = first + 8 * rows[:, 1]
        rows[:-1, 2] &= (n[0] * n[1] if isinstance(n, tuple) else n) >= self._first_size
        words[self._at] = self._numbers.at(n)
        spots = self._spots
        if self._moving:
            spots = {key: [*found] for key, found in spots.items()}
            for (key, i), offset in zip(self._moving, self._offsets.at(n).tolist()):
                spots[key][i] = spots[key][i][0], offset
        return Table(self, words, rows, spots)


class Table:
    """The words of kernels for one size; see `Code`."""

    def __init__(
        self,
        kernels: KernelTable,
        words: np.ndarray,
        rows: np.ndarray,
        spots: dict[tuple[str, int], list[tuple[int, int]]],
    ) -> None:
        self.kernels, self._words, self._rows, self._spots = kernels, words, rows, spots
        # one element is set faster so than through NumPy
        self._each = words.data

    def patch(self, space: str, index: int, address: int) -> None:
        """Set the address of argument or result number `index`."""
        words = self._each
        for at, offset in self._spots.get((space, index), ()):
            words[at] = address + offset

    def addresses(self, begin: int, end: int) -> tuple[int, ...]:
        """The runner's words for rows `begin`…`end`, the end left out."""
        return self._rows.ctypes.data, begin, end, 0, self.kernels.report

    def parts(self, call: Callable[[Step], HostStep]) -> Iterator[Part]:
        """Runs of native steps, and the calls between them."""
        begin = end = 0
        for step in self.kernels.all:
            if isinstance(step, (KernelStep, KernelGroup)):
                end += 1
                continue
            if begin < end:
                yield Segment(self, begin, end)
                begin = end
            yield call(step)
        if begin < end:
            yield Segment(self, begin, end)


def _word_count(step: KernelStep | KernelGroup) -> int:
    if isinstance(step, KernelStep):
        return len(step.words)
    return 1 + sum(3 + len(member.words) for member in step.members)
