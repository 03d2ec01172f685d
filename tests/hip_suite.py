"""A plugin of pytest: after each test, what it compiled for CUDA is compiled for AMD's GPUs as well.

python -m pytest -p hip_suite test_triton_fused.py      in tests/
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.emit.triton import build
from gflow.compiler.emit.triton.toolchain.compile import compile_kernels, key_of
from gflow.compiler.targets import Target, parse_target
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import Program, TritonKernel

TARGET = parse_target("hip:gfx942")
SELECT = f"builtin.module(func.func(gflow-select-kernels{{target={TARGET}}},gflow-plan-memory))"
_known: set[str] = set()


@pytest.fixture(autouse=True)
def compile_for_amd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kernels: dict[str, TritonKernel] = {}
    build_for = build.build_program

    def both(function: func.FuncOp, target: Target) -> Program:
        found = build_for(function, target)
        with function.operation.context:
            module = ir.Module.parse(str(function.operation.parent))
            run_pipeline(module, SELECT)
            for again in module.body.operations:
                kernels.update(build_for(again, TARGET).triton)
        return found

    monkeypatch.setattr(build, "build_program", both)
    yield
    new = [k for name, k in kernels.items() if name not in _known]
    _known.update(kernels)
    code = compile_kernels([(k, 0) for k in new], TARGET.arch)
    assert all(code[key_of(k.name, 0)].shared <= TARGET.device.shared_memory for k in new)
