"""Scans, sorts and top-k of short rows as Triton kernels, under the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from function_trace import trace_graph

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.dialects.program import AtenStep, Program
from gflow.lowering import lower
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice

Tensor = torch.Tensor


def compiled(build: Callable[..., Any], x: Tensor) -> Program:
    traced = trace_graph("g", build, [x], {}, {}, ())
    return compile_module(lower(traced), CompileOptions(target="cuda:90"))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = (torch.randn(*shape) * 3).round()
    if dtype == torch.float32:
        x.view(-1)[0], x.view(-1)[3], x.view(-1)[5] = torch.nan, -0.0, torch.inf
    return x.to(dtype)


CASES: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "cumsum": (lambda x: x.cumsum(1), torch.randn(3, 37, 2)),
    "cumsum of integers": (lambda x: x.cumsum(-1), torch.randint(2, (4, 9))),
    "cumsum of halves": (lambda x: x.cumsum(-1), torch.randn(3, 5).bfloat16()),
    "cumprod": (lambda x: x.cumprod(0), torch.rand(7, 3) + 0.5),
    "sort": (lambda x: torch.sort(x, stable=True, dim=-1), numbers(5, 11)),
    "sort down": (lambda x: torch.sort(x, stable=True, dim=0, descending=True), numbers(13, 2)),
    "sort of integers": (lambda x: torch.sort(x, stable=True), numbers(40, dtype=torch.int32)),
    "topk": (lambda x: x.topk(2), torch.randn(6, 8)),
    "smallest": (lambda x: x.t().topk(3, largest=False), torch.randn(9, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_numerics(name: str) -> None:
    build, x = CASES[name]
    program = compiled(lambda x: tuple(r) if isinstance(r := build(x), tuple) else r, x)
    assert not any(isinstance(s, AtenStep) for s in program.steps)
    ours = Executable(program, InterpreterDevice())([x])
    eager = build(x)
    for a, e in zip(ours, eager if isinstance(eager, tuple) else (eager,), strict=True):
        torch.testing.assert_close(a, e, equal_nan=True, check_stride=False)


def test_long_rows_run_through_pytorch() -> None:
    program = compiled(lambda x: x.topk(3)[0], torch.randn(2, 5000))
    assert any(isinstance(s, AtenStep) for s in program.steps)
