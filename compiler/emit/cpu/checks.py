"""Run-time checks (`gflow.check`): a kernel of one load and one branch, after which the runner may end the run."""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.dialects.program import KernelStep, Place

from .program_builder import Builder

_NAME = "check"
#: kernel arguments: addresses of the failure flag, the found value and the report; the number of the check, from 1
_TEXT = f"""  llvm.func @{_NAME}(%w: !llvm.ptr) {{
    %flag = llvm.load %w : !llvm.ptr -> !llvm.ptr
    %bad = llvm.load %flag : !llvm.ptr -> i8
    %zero = arith.constant 0 : i8
    %failed = arith.cmpi ne, %bad, %zero : i8
    scf.if %failed {{
      %p1 = llvm.getelementptr %w[1] : (!llvm.ptr) -> !llvm.ptr, i64
      %found = llvm.load %p1 : !llvm.ptr -> !llvm.ptr
      %value = llvm.load %found : !llvm.ptr -> i64
      %p2 = llvm.getelementptr %w[2] : (!llvm.ptr) -> !llvm.ptr, i64
      %report = llvm.load %p2 : !llvm.ptr -> !llvm.ptr
      %p3 = llvm.getelementptr %w[3] : (!llvm.ptr) -> !llvm.ptr, i64
      %number = llvm.load %p3 : !llvm.ptr -> i64
      %second = llvm.getelementptr %report[1] : (!llvm.ptr) -> !llvm.ptr, i64
      llvm.store %value, %second : i64, !llvm.ptr
      llvm.store %number, %report : i64, !llvm.ptr
    }}
    llvm.return
  }}"""


def check(b: Builder, o: Op) -> None:
    """Add the step of a `gflow.check`. If the check fails, it writes a report, and no further step runs."""
    number = b.check(o)
    report = Place("status", 0, 0)
    places = [b.place(v) for v in o.operands]
    found = places[1] if len(places) > 1 else report
    b.kernels[_NAME] = _TEXT
    b.steps.append(KernelStep(_NAME, (places[0], found, report, number), False, b.label(o)))
