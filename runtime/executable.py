"""Runs a `Program`: one static arena, a flat table of kernel launches, ATen calls between them.

Everything that does not change between calls is set up once: the arena, the words of every kernel with their addresses,
tensors for ATen steps. A call patches the addresses of arguments that moved and of results, then runs the table; native
steps in a row are one call into generated code, which shares PyTorch's OpenMP threads.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch

from gflow.dialects.program import AtenStep, KernelStep, Place, Program, TensorRef

from . import jit
from .aten_step import AtenCall
from .results import ResultPool
from .tensors import DTYPES, view_bytes, view_tensor

_RUNNER = "gflow_run_steps"
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
      %row = llvm.getelementptr %table[%i] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.array<3 x i64>
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
        llvm.call @GOMP_parallel(%function, %words, %threads, %zero) : (!llvm.ptr, !llvm.ptr, i32, i32) -> ()
      }
    }
    llvm.return
  }"""
_PARALLEL = "  llvm.func @GOMP_parallel(!llvm.ptr, !llvm.ptr, i32, i32)"


class Executable:
    """A program that is ready to run.

    Calls are serialized by a lock: the arena belongs to one call at a time.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.arena = torch.empty(max(program.arena_bytes, 64), dtype=torch.uint8)
        self.constants = [
            torch.frombuffer(bytearray(c or b"\0"), dtype=torch.uint8) for c in program.constants
        ]
        self._lock = threading.Lock()
        self._pools = [
            None if r.alias is not None else ResultPool(r.type.shape, DTYPES[r.type.dtype])
            for r in program.results
        ]
        self._link()
        self._lay_out_words()
        self._plan_segments()

    # -- set-up

    def _link(self) -> None:
        """Compile the kernels; `self._functions` maps names to addresses."""
        kernels = {**self.program.kernels, _RUNNER: _RUNNER_TEXT}
        self._functions = jit.compile_kernels(
            kernels, {**self.program.declarations, "GOMP_parallel": _PARALLEL}
        )
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._functions[_RUNNER])

    def _lay_out_words(self) -> None:
        """One array for the words of all kernels; `_patches` says where each argument's and result's address goes."""
        steps = [s for s in self.program.steps if isinstance(s, KernelStep)]
        total = sum(len(s.words) for s in steps)
        self._words = np.zeros(max(total, 1), dtype=np.int64)
        self._table = np.zeros((max(len(steps), 1), 3), dtype=np.int64)
        spots: dict[tuple[str, int], list[tuple[int, int]]] = {}
        arena, base, at = self.arena.data_ptr(), self._words.ctypes.data, 0
        for n, step in enumerate(steps):
            self._table[n] = (self._functions[step.kernel], base + 8 * at, int(step.parallel))
            for word in step.words:
                if not isinstance(word, Place):
                    self._words[at] = word
                elif word.space == "arena":
                    self._words[at] = arena + word.offset
                elif word.space == "constant":
                    self._words[at] = self.constants[word.index].data_ptr() + word.offset
                else:
                    spots.setdefault((word.space, word.index), []).append((at, word.offset))
                at += 1
        self._arg_patches = self._patches("arg", len(self.program.arguments), spots)
        self._result_patches = self._patches("result", len(self.program.results), spots)
        self._addresses = [-1] * len(self.program.arguments)
        self._result_addresses = [-1] * len(self.program.results)

    def _patches(
        self, space: str, count: int, spots: dict[tuple[str, int], list[tuple[int, int]]]
    ) -> list[tuple[np.ndarray, np.ndarray] | None]:
        out: list[tuple[np.ndarray, np.ndarray] | None] = []
        for i in range(count):
            found = spots.get((space, i))
            if not found:
                out.append(None)
                continue
            where, offsets = zip(*found)
            out.append((np.array(where), np.array(offsets, dtype=np.int64)))
        return out

    def _plan_segments(self) -> None:
        """Runs of native steps as (begin, end) in the table, and ATen calls between."""
        self._segments: list[np.ndarray | AtenCall] = []
        self._moving: list[AtenCall] = []
        self._calls: list[AtenCall] = []
        row = 0
        for step in self.program.steps:
            if isinstance(step, AtenStep):
                call = AtenCall(step)
                self._segments.append(call)
                self._calls.append(call)
                if any(r.place.space in ("arg", "result") for r in call.refs()):
                    self._moving.append(call)
                else:
                    call.bind(self._locate)
                continue
            last = self._segments[-1] if self._segments else None
            if isinstance(last, np.ndarray):
                last[2] = row + 1
            else:
                self._segments.append(
                    np.array([self._table.ctypes.data, row, row + 1, 0], dtype=np.int64)
                )
            row += 1
        self._plan = [s if isinstance(s, AtenCall) else (s, s.ctypes.data) for s in self._segments]

    def _locate(self, ref: TensorRef) -> torch.Tensor:
        space, index, _ = ref.place
        if space == "arena":
            return view_bytes(self.arena, ref)
        if space == "constant":
            return view_bytes(self.constants[index], ref)
        return view_tensor(self._args[index] if space == "arg" else self._results[index], ref)

    # -- calls

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once.

        Args:
            args: the function's arguments in order, with the types and strides of `program.arguments`.

        Returns:
            The results in order; an aliased one is the argument that was updated.
        """
        with self._lock, torch.no_grad():
            results = self._bind(args)
            threads = min(torch.get_num_threads(), self.program.max_threads)
            for item in self._plan:
                if isinstance(item, AtenCall):
                    item.run()
                else:
                    words, address = item
                    words[3] = threads
                    self._run(address)
        return results

    def profile(self, args: Sequence[torch.Tensor]) -> list[tuple[KernelStep | AtenStep, float]]:
        """Run once, step by step, as a call does; returns each step and its seconds."""
        with self._lock, torch.no_grad():
            results = self._bind(args)
            threads = min(torch.get_num_threads(), self.program.max_threads)
            calls, times, row = iter(self._calls), [], 0
            for step in self.program.steps:
                start = time.perf_counter()
                if isinstance(step, AtenStep):
                    next(calls).run()
                else:
                    words = np.array([self._table.ctypes.data, row, row + 1, threads], dtype=np.int64)
                    self._run(words.ctypes.data)
                    row += 1
                times.append((step, time.perf_counter() - start))
            del results
        return times

    def _bind(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Put the addresses of arguments and of fresh results into place; returns the results."""
        moved = self._bind_arguments(args)
        results = [args[r.alias] if p is None else p.take() for r, p in zip(self.program.results, self._pools)]  # type: ignore[index]
        moved |= self._bind_results(results)
        if moved:
            self._args, self._results = args, results
            for call in self._moving:
                call.bind(self._locate)
            self._args, self._results = (), []
        return results

    def _bind_arguments(self, args: Sequence[torch.Tensor]) -> bool:
        addresses, moved = self._addresses, False
        for i, tensor in enumerate(args):
            address = tensor.data_ptr()
            if address != addresses[i]:
                moved = True
                addresses[i] = address
                patch = self._arg_patches[i]
                if patch is not None:
                    self._words[patch[0]] = address + patch[1]
        return moved

    def _bind_results(self, results: list[torch.Tensor]) -> bool:
        moved = False
        for i, (tensor, pool) in enumerate(zip(results, self._pools)):
            if pool is None:
                continue
            address = tensor.data_ptr()
            if address != self._result_addresses[i]:
                moved = True
                self._result_addresses[i] = address
                patch = self._result_patches[i]
                if patch is not None:
                    self._words[patch[0]] = address + patch[1]
        return moved
