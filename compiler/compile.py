"""From a module in the dialect to a program that the runtime can run."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gflow.dialects.mlir import func, ir
from gflow.dialects.program import Program

from .passmanager import run_pipeline
from .pipeline import PIPELINES, PipelineOptions


@dataclass
class CompileOptions:
    """target: "cpu". passes: switches that shape the target's pipeline. pipeline: the passes to run,
    as text, instead of the target's.

    threads: the most threads that kernels may use; all cores if 0.
    blas: whether generated code may call the BLAS that PyTorch carries; looked up if None.
    timing: seconds by phase and pass are added here.
    """

    target: str = "cpu"
    passes: PipelineOptions = field(default_factory=PipelineOptions)
    pipeline: str | None = None
    threads: int = 0
    blas: bool | None = None
    timing: dict[str, float] = field(default_factory=dict)


@cache
def host_blas() -> bool:
    """Whether the PyTorch of this process carries a BLAS with Fortran names and 32-bit integers."""
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None:
        return False
    for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "sgemm_") and hasattr(library, "dgemm_"):
            return True
    return False


def compile_module(module: ir.Module, options: CompileOptions | None = None) -> Program:
    """Run the target's pipeline on `module` (in place), and generate code for its function.

    Raises:
        PipelineError: a pass failed.
        ValueError: the target isn't known, or the module has no function.
    """
    from .codegen.cpu.build import build_program

    options = options or CompileOptions()
    if options.target not in PIPELINES:
        raise ValueError(f"unknown target '{options.target}'; known: {', '.join(PIPELINES)}")
    pipeline = options.pipeline or PIPELINES[options.target](options.passes)
    run_pipeline(module, pipeline, verify_each=False, timing=options.timing)
    start = time.perf_counter()
    threads = options.threads or os.cpu_count() or 1
    blas = host_blas() if options.blas is None else options.blas
    with module.context:
        program = build_program(_entry(module), threads=threads, blas=blas)
    options.timing["codegen"] = time.perf_counter() - start
    program.ir = module.operation.get_asm(enable_debug_info=True)
    return program


def _entry(module: ir.Module) -> func.FuncOp:
    for op in module.body.operations:
        if isinstance(op.operation.opview, func.FuncOp):
            return op.operation.opview
    raise ValueError("the module has no function")
