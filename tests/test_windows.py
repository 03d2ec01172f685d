"""gflow-recognize-windows: masks that compare positions or documents, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ir_interpreter import run_module
from torch import Tensor

import gflow as flow
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.ir.cost import visible_pairs
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.execution.executor import programs_for
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice

T, D = 96, 16
LOW, INF = torch.finfo(torch.float32).min, float("inf")


def i() -> Tensor:
    return torch.arange(T)[:, None]


def j() -> Tensor:
    return torch.arange(T)[None]


def same(ids: Tensor) -> Tensor:
    return ids[:, None, :, None] == ids[:, None, None, :]


def near() -> Tensor:
    return (j() <= i()) & (i() - j() < 32)


def gathered(ids: Tensor) -> Tensor:
    """As transformers index numbers of packed sequences."""
    batch, q, k = torch.arange(2)[:, None, None, None], i()[None, None], j()[None, None]
    return (ids[batch, q] == ids[batch, k]) & (k <= q)


#: by name: a mask, what the op has then, and whether a mask is left
Case = tuple[Callable[[Tensor], Tensor], str, bool]
SLIDING = "window = array<i64: 31, 0>"
MASKS: dict[str, Case] = {
    "sliding": (lambda ids: near(), SLIDING, False),
    "both sides": (lambda ids: (i() - j()).abs() <= 20, "window = array<i64: 20, 20>", False),
    "triangles": (
        lambda ids: torch.ones(T, T, dtype=torch.bool).tril().triu(-31), SLIDING, False
    ),
    "added": (lambda ids: torch.where(near(), 0.0, -INF), SLIDING, False),
    "lowest": (lambda ids: torch.where(near(), 0.0, LOW), SLIDING, False),
    "filled": (
        lambda ids: torch.zeros(T, T).masked_fill(j() > i(), -INF).masked_fill(i() - j() >= 32, -INF), SLIDING, False
    ),
    "sum of two": (
        lambda ids: torch.full((T, T), -INF).triu(1) + torch.full((T, T), -INF).tril(-32), SLIDING, False
    ),
    "from the last": (lambda ids: j() <= i() - 5, f"window = array<i64: {T - 1}, -5>", False),
    "documents": (lambda ids: same(ids) & near(), SLIDING, False),
    "gathered": (gathered, "causal = true", False),
    "hidden": (lambda ids: ~(~same(ids) | (j() > i()) | (j() < i() - 31)), SLIDING, False),
    "keys too": (lambda ids: near() & (ids != 1)[:, None, None], SLIDING, True),
    "linear bias": (lambda ids: torch.where(near(), (j() - i()) * 0.1, -INF), SLIDING, True),
}  # fmt: skip
#: masks that stay: a prefix that all see, documents in which a position may see nothing, a value that is read on 2^40
#: paths
LEFT: dict[str, Callable[[Tensor], Tensor]] = {
    "prefix": lambda ids: (j() <= i()) | (j() < 10),
    "lowest, documents": lambda ids: torch.where(same(ids) & near(), 0.0, LOW),
    "every second": lambda ids: (i() - j()) % 2 == 0,
    "many paths": lambda ids: many_paths(),
}


def many_paths() -> Tensor:
    bias = torch.where(near(), 0.0, 1.0)
    for _ in range(40):
        bias = bias + bias
    return bias * 2.0**-40


def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return (y.detach(), *torch.autograd.grad((y * w).sum(), (q, k, v)))


class Graph(flow.nn.Graph):
    def __init__(self, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mask = mask

    def build(self, q: Tensor, k: Tensor, v: Tensor, w: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        return (*attend(q, k, v, w, self.mask(ids)), ids)


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    given = [torch.randn(2, 1, T, D, requires_grad=n < 3) for n in range(4)]
    return [*given, (torch.arange(T) // 40).expand(2, T).contiguous()]


def check(mask: Callable[[Tensor], Tensor]) -> list[str]:
    """The IR after the pass gives eager's result and gradients. Returns its lines with an attention."""
    args, graph = inputs(), Graph(mask)
    wanted = attend(*args[:4], mask(args[4]))
    graph(*args)
    with make_context():
        module = ir.Module.parse(graph.ir("traced", generic=True))
        passes = "gflow-simplify,cse,gflow-recognize-windows,gflow-simplify"
        run_pipeline(module, f"builtin.module(func.func({passes}))")
        found = run_module(module, [a.detach() for a in args])
        text = str(module)
    for ours, theirs in zip(found, wanted):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    return [line for line in text.splitlines() if '"gflow.attention' in line]


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    mask, wanted, masked = MASKS[name]
    lines = check(mask)
    assert len(lines) == 2
    assert all(wanted in line for line in lines)
    assert all(("x96x96x" in line or "x1x96xi1" in line) == masked for line in lines)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_as_it_is(name: str) -> None:
    assert not any("window" in line or "x96xi64" in line for line in check(LEFT[name]))


def test_on_a_gpu() -> None:
    """By Triton's interpreter; no kernel makes a mask."""
    mask, args = MASKS["documents"][0], inputs()
    graph = Graph(mask)
    graph(*args)
    plan: Any = graph._state.latest
    (program,) = programs_for(plan.trace, plan.compiled.options, "cuda:90", code=False)
    found = Executable(program, InterpreterDevice())([a.detach() for a in args])
    for ours, theirs in zip(found, attend(*args[:4], mask(args[4]))):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert "x96x96x" not in program.ir


@pytest.mark.parametrize("left", [None, -3, 0, 2, 50])
@pytest.mark.parametrize("right", [None, -2, 0, 4, 50])
def test_visible_pairs(left: int | None, right: int | None) -> None:
    """What costs count, beside a mask."""
    for rows, keys in ((7, 7), (5, 9), (9, 4)):
        apart = torch.arange(keys) - torch.arange(rows)[:, None]
        seen = torch.ones(rows, keys, dtype=torch.bool)
        seen &= apart <= right if right is not None else seen
        seen &= apart >= -left if left is not None else seen
        assert visible_pairs(rows, keys, left, right) == int(seen.sum())
