"""The native steps of a program: a table of kernels and their words, run by generated code.

The words of a kernel are 64-bit numbers; those that are addresses of arguments or results are
patched when these move, all others are written once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gflow.dialects.program import KernelStep, Place, Program

from . import jit

_RUNNER = "gflow_run_steps"
#: runs steps `begin` to `end` of a table whose rows are (function, words, whether it is parallel);
#: words: table, begin, end, threads
_RUNNER_TEXT = """  llvm.func @gflow_run_steps(%w: !llvm.ptr) {
    %one = arith.constant 1 : i64
    %zero = arith.constant 0 : i32
    %table = llvm.load %w : !llvm.ptr -> !llvm.ptr
    %pb = llvm.getelementptr %w[1] : (!llvm.ptr) -> !llvm.ptr, i64
    %begin = llvm.load %pb : !llvm.ptr -> i64
    %pe = llvm.getelementptr %w[2] : (!llvm.ptr) -> !llvm.ptr, i64
    %end = llvm.load %pe : !llvm.ptr -> i64
    %pt = llvm.getelementptr %w[3] : (!llvm.ptr) -> !llvm.ptr, i64
    %threads = llvm.load %pt : !llvm.ptr -> i32
    %single = arith.constant 1 : i32
    %alone = arith.cmpi eq, %threads, %single : i32
    scf.for %i = %begin to %end step %one : i64 {
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
    llvm.return
  }"""
_PARALLEL = "  llvm.func @GOMP_parallel(!llvm.ptr, !llvm.ptr, i32, i32)"

#: the address of a place that never moves; None for arguments and results
FixedAddress = Callable[[Place], int | None]


class Segment(NamedTuple):
    """Rows of a table that run in one call: the runner's words, and their address."""

    words: np.ndarray
    address: int


class KernelTable:
    """Compiled kernels with their words. Row i is the i-th `KernelStep` of the program."""

    def __init__(self, program: Program, fixed: FixedAddress) -> None:
        """
        Raises:
            ValueError: a kernel's text is not valid MLIR.
        """
        steps = [s for s in program.steps if isinstance(s, KernelStep)]
        functions = jit.compile_kernels(
            {**program.kernels, _RUNNER: _RUNNER_TEXT},
            {**program.declarations, "GOMP_parallel": _PARALLEL},
        )
        self._runner = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions[_RUNNER])
        # never empty, so that their addresses are good
        self._words = np.zeros(1 + sum(len(s.words) for s in steps), dtype=np.int64)
        self._rows = np.zeros((1 + len(steps), 3), dtype=np.int64)
        self._patches = self._fill(steps, functions, fixed)

    def _fill(
        self, steps: Sequence[KernelStep], functions: dict[str, int], fixed: FixedAddress
    ) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
        """Write rows and words; returns (word numbers, offsets) by argument and result."""
        spots: dict[tuple[str, int], list[tuple[int, int]]] = {}
        start, at = self._words.ctypes.data, 0
        for n, step in enumerate(steps):
            self._rows[n] = (functions[step.kernel], start + 8 * at, int(step.parallel))
            for word in step.words:
                address = fixed(word) if isinstance(word, Place) else word
                if address is not None:
                    self._words[at] = address
                elif isinstance(word, Place):
                    spots.setdefault((word.space, word.index), []).append((at, word.offset))
                at += 1
        return {
            key: (np.array([w for w, _ in found]), np.array([o for _, o in found], dtype=np.int64))
            for key, found in spots.items()
        }

    def patch(self, space: str, index: int, address: int) -> None:
        """Set the address of argument or result number `index`."""
        found = self._patches.get((space, index))
        if found is not None:
            self._words[found[0]] = address + found[1]

    def segment(self, begin: int, end: int) -> Segment:
        """Rows `begin`…`end`, the end left out."""
        words = np.array([self._rows.ctypes.data, begin, end, 0], dtype=np.int64)
        return Segment(words, words.ctypes.data)

    def run(self, segment: Segment, threads: int) -> None:
        """Run the rows of a segment, the parallel ones on `threads` threads."""
        segment.words[3] = threads
        self._runner(segment.address)
