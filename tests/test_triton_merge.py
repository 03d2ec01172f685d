"""Neighbouring pointwise kernels share launches: parameter updates under Triton's interpreter, and counted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from function_trace import trace_graph
from torch import nn

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pipelines import PipelineOptions
from gflow.dialects.program import LaunchStep, Program
from gflow.lowering import lower
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice
from gflow.tracing.data.trace import Trace

Tensor = torch.Tensor

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
}


def step_of(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor
) -> Callable[[Tensor], Tensor]:
    """A training step, after one in eager mode."""

    def build(x: Tensor) -> Tensor:
        loss = (net(x) ** 2).sum()
        loss.backward()
        return loss

    build(x)
    optimizer.step()
    optimizer.zero_grad()
    return build


def compiled(
    net: nn.Module, optimizer: torch.optim.Optimizer, build: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Trace, Program]:
    traced = trace_graph("g", build, [x], {}, {"net": net}, [optimizer])
    passes = PipelineOptions(multi_tensor_update=True)
    return traced, compile_module(lower(traced), CompileOptions(target="cuda:90", passes=passes))


def merged(program: Program) -> list[str]:
    steps = [s for s in program.steps if isinstance(s, LaunchStep)]
    return [s.kernel for s in steps if s.kernel.startswith("merged")]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_match_eager(name: str) -> None:
    """Tensors of many sizes, some of which fill their last tile."""
    torch.manual_seed(0)
    sizes = [16, 32, 33, 64, 7]
    net = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
    optimizer = OPTIMIZERS[name](net.parameters())
    x = torch.randn(4, 16)
    build = step_of(net, optimizer, x)
    traced, program = compiled(net, optimizer, build, x)
    assert merged(program)
    args = [x if i.tensor is None else i.tensor.detach().clone() for i in traced.inputs]
    Executable(program, InterpreterDevice())(args)
    build(x)
    optimizer.step()
    updated = {i.name: a for i, a in zip(traced.inputs, args)}
    for key, parameter in net.named_parameters():
        torch.testing.assert_close(updated[f"net.{key}"], parameter.detach(), rtol=1e-4, atol=1e-6)


def test_few_launches_for_many_parameters() -> None:
    net = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(64)))
    optimizer = OPTIMIZERS["AdamW"](net.parameters())
    x = torch.randn(2, 8)
    _, program = compiled(net, optimizer, step_of(net, optimizer, x), x)
    names = merged(program)
    assert len({n for n in names if "add" in n}) == 1  # the parameters' own
    assert len(names) <= 3
    small = [s for s in program.steps if isinstance(s, LaunchStep) and "optimizer" in s.label]
    assert len(small) <= 12  # numbers that all of them share
