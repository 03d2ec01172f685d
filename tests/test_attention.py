"""Attention: PyTorch's calls for every device become one op, which runs as PyTorch's does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from function_trace import trace_graph
from ir_interpreter import run_module

import gflow
from gflow.compiler.driver.compile import compile_module
from gflow.compiler.targets.processors import host_level
from gflow.dialects.program import AtenStep
from gflow.lowering import escaped, lower
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import SourceLoc, TraceInput, TraceOp, TraceOutput, TraceValue

Tensor = torch.Tensor
ATEN = torch.ops.aten
FORWARD = ATEN._scaled_dot_product_flash_attention_for_cpu
BACKWARD = ATEN._scaled_dot_product_flash_attention_for_cpu_backward


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, ...]:
    """The result and, by PyTorch's own calls below autograd, the gradients."""
    bias = None
    if mask is not None:
        bias = torch.where(mask, 0.0, -torch.inf) if mask.dtype == torch.bool else mask
    y, sums = FORWARD(q, k, v, 0.0, causal, attn_mask=bias)
    return y, *BACKWARD(y * y, q, k, v, y, sums, 0.0, causal, attn_mask=bias)


CASES = {
    "plain": (None, False, 4),
    "causal": (None, True, 4),
    "grouped": (None, True, 2),
    "mask": (lambda: torch.randn(2, 1, 1, 7), False, 4),
    "rows without anyone": (lambda: torch.arange(5)[:, None] != torch.full((5, 7), 2), False, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name: str) -> None:
    make, causal, shared = CASES[name]
    mask = make() if make else None
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, shared, 7, 8), torch.randn(2, shared, 7, 8)
    graph = gflow.compile(lambda *args: attention(*args, causal))
    for ours, eager in zip(graph(q, k, v, mask), attention(q, k, v, mask, causal), strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_calls_pytorch_for_what_has_no_kernel(dtype: torch.dtype) -> None:
    q = torch.randn(2, 4, 5, 8, dtype=dtype)
    traced = trace_graph("g", lambda q: attention(q, q, q, None, True), [q], {}, {}, ())
    module = lower(traced)
    assert not escaped(module)
    steps = [s.overload for s in compile_module(module).steps if isinstance(s, AtenStep)]
    calls = [
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    ]
    assert steps == (calls if dtype == torch.float64 or not host_level() else [])


class Calls:
    """Writes a trace of ATen calls by hand; results have the shapes that the meta device says."""

    def __init__(self) -> None:
        self.trace = Trace("calls")
        self.number = 0

    def value(self, like: Tensor) -> TraceValue:
        self.number += 1
        return TraceValue(self.number, tuple(like.shape), like.dtype, tuple(like.stride()))

    def input(self, like: Tensor, name: str) -> TraceValue:
        value = self.value(like)
        self.trace.inputs.append(TraceInput(value, "input", name, None))
        return value

    def call(self, func: Any, *args: Any, **kwargs: Any) -> list[Any]:
        def meta(x: Any) -> Any:
            if isinstance(x, TraceValue):
                return torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta")
            return x

        out = func(*map(meta, args), **{key: meta(x) for key, x in kwargs.items()})
        results = [self.value(x) if isinstance(x, Tensor) else None for x in out]
        loc = SourceLoc("test.py", 1, "", "forward")
        self.trace.ops.append(TraceOp(func, args, kwargs, results, loc))
        return [x if r is None else r for x, r in zip(out, results)]

    def run(self, outputs: list[TraceValue], inputs: list[Tensor]) -> list[Tensor]:
        self.trace.outputs = [TraceOutput(v, None, f"o{i}") for i, v in enumerate(outputs)]
        module = lower(self.trace)
        assert module.operation.verify()
        assert not escaped(module)
        wanted = len(next(iter(module.body.operations)).arguments)
        return run_module(module, [*inputs, torch.tensor([7, 1])][:wanted])


def _flash(c: Calls, q: Any, k: Any, v: Any, dy: Any, p: float) -> list[Any]:
    y, sums, cq, ck, mq, mk, seed, offset, _ = c.call(
        ATEN._scaled_dot_product_flash_attention.default, q, k, v, p, True, scale=0.3
    )
    grads = c.call(
        ATEN._scaled_dot_product_flash_attention_backward.default,
        dy, q, k, v, y, sums, cq, ck, mq, mk, p, True, seed, offset, scale=0.3,
    )  # fmt: skip
    return [y, *grads]


def _efficient(c: Calls, q: Any, k: Any, v: Any, dy: Any, p: float) -> list[Any]:
    y, sums, seed, offset = c.call(
        ATEN._scaled_dot_product_efficient_attention.default,
        q,
        k,
        v,
        None,
        True,
        p,
        True,
        scale=0.3,
    )
    grads = c.call(
        ATEN._scaled_dot_product_efficient_attention_backward.default,
        dy, q, k, v, None, y, sums, seed, offset, p, [True, True, True, False], True, scale=0.3,
    )  # fmt: skip
    return [y, *grads[:3]]


def _cudnn(c: Calls, q: Any, k: Any, v: Any, dy: Any, p: float) -> list[Any]:
    y, sums, cq, ck, mq, mk, seed, offset, _ = c.call(
        ATEN._scaled_dot_product_cudnn_attention.default, q, k, v, None, True, p, True, scale=0.3
    )
    grads = c.call(
        ATEN._scaled_dot_product_cudnn_attention_backward.default,
        dy, q, k, v, y, sums, seed, offset, None, cq, ck, mq, mk, p, True, scale=0.3,
    )  # fmt: skip
    return [y, *grads]


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("kernel", [_flash, _efficient, _cudnn])
def test_calls_for_cuda(kernel: Any, dropout: float) -> None:
    """Each of PyTorch's kernels, by its forward and backward call; dropout is replayed."""
    q, k, v, dy = (torch.randn(2, 4, 6, 8) for _ in range(4))
    c = Calls()
    values = [c.input(x, n) for x, n in zip((q, k, v, dy), "qkvd")]
    found = c.run(kernel(c, *values, dropout), [q, k, v, dy])
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    if not dropout:
        y = F.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.3)
        wanted = [y, *torch.autograd.grad(y, leaves, dy)]
        for ours, eager in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, eager)
        return
    # linear in v: sum(dy · y) = sum(dv · v), if the same weights were dropped
    torch.testing.assert_close((dy * found[0]).sum(), (found[3] * v).sum())
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    assert not torch.allclose(found[0], plain)


def test_heads_that_are_too_wide_run_through_pytorch() -> None:
    q = torch.randn(1, 2, 6, 320)
    c = Calls()
    (value,) = [c.input(q, "q")]
    y = c.call(
        ATEN._scaled_dot_product_efficient_attention.default, value, value, value, None, True
    )
    c.trace.outputs = [TraceOutput(y[0], None, "y")]
    assert [e.overload for e in escaped(lower(c.trace))] == [
        "aten._scaled_dot_product_efficient_attention.default"
    ]


def test_keys_of_one_number_in_halves() -> None:
    """Whose scores leave the range of halves: autocast makes them dense, and PyTorch's kernel adds up in float32."""
    torch.manual_seed(0)
    q, v = 3000 * torch.randn(1, 2, 3, 8), torch.randn(1, 2, 9, 8)
    k = torch.tensor([40.0, -30.0]).as_strided((1, 2, 9, 8), (0, 1, 0, 0))

    class Attends(gflow.nn.Graph):
        def build(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, key=k, value=v)

    graph = Attends()
    graph.config.enable_amp(True, dtype=torch.float16)
    with torch.autocast("cpu", torch.float16):
        wanted = F.scaled_dot_product_attention(q, k, v)
    assert wanted.isfinite().all()
    torch.testing.assert_close(graph(q, k, v).float(), wanted.float(), rtol=2e-3, atol=2e-3)


def test_rows_that_overlap() -> None:
    """PyTorch's kernel hands queries, keys and values to BLAS as matrices, which ends with an error that it ignores
    where rows overlap: what it gives is memory that nothing wrote."""
    memory = torch.randn(200)
    queries = memory.as_strided((2, 2, 8, 4), (64, 1, 1, 1))
    keys = memory[50:].as_strided((2, 2, 7, 4), (9, 5, 0, 1))
    graph = gflow.compile(lambda *args: attention(*args, None, False))
    expected = attention(queries.contiguous(), keys.contiguous(), keys.contiguous(), None, False)
    for ours, eager in zip(graph(queries, keys, keys), expected, strict=True):
        torch.testing.assert_close(ours, eager)


def test_keys_that_are_updated_beside_queries_of_one_number() -> None:
    """Eager takes such attention apart, and its backward keeps scaled copies of queries and keys."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        y = F.scaled_dot_product_attention(q.expand(2, 3, 5, 4), k, value=v)
        k.copy_(v)
        return torch.autograd.grad(y.square().sum(), q)

    class Updates(gflow.nn.Graph):
        def build(self, *args: torch.Tensor) -> Any:
            return run(*args)

    q, k, v = (torch.randn(2, 3, *shape) for shape in ((1, 1), (7, 4), (7, 4)))
    q.requires_grad_()
    torch.testing.assert_close(Updates()(q, k.clone(), v), run(q, k.clone(), v))


def test_one_position_beside_infinite_scores() -> None:
    """A row whose scores are all -inf has weights of 0, as in PyTorch's kernel."""

    class Attend(gflow.nn.Graph):
        def build(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v)

    for keys in (1, 5):
        q, k, v = (torch.rand(2, 3, n, 4) for n in (1, keys, keys))
        q[0, 1, 0, 2] = -float("inf")
        expected = F.scaled_dot_product_attention(q, k, v)
        assert not expected.isnan().any()
        torch.testing.assert_close(Attend()(q, k, v), expected)


def test_scores_beyond_float16_under_mixed_precision() -> None:
    """Scores are added up in float32, also of one position."""

    class Attend(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.config.enable_amp(dtype=torch.float16)

        def build(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v)

    q, k, v = (torch.full((1, 2, n, 1), x) for n, x in ((1, 300.0), (3, -400.0), (3, 1.5)))
    with torch.no_grad():
        torch.testing.assert_close(Attend()(q, k, v).float(), torch.full((1, 2, 1, 1), 1.5))
