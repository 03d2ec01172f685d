"""Traces: functional ops, locations, roles, mutation, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from function_trace import trace_graph
from torch import nn
from trace_interpreter import apply_aliases

from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import values_in
from gflow.tracing.program.interpreter import run_trace


def trace(build: Callable[..., Any], *args: Any, **modules: nn.Module) -> Trace:
    return trace_graph("test", build, args, {}, modules)


def train(build: Callable[..., Any], *args: Any, **modules: nn.Module) -> Trace:
    parameters = [p for m in modules.values() for p in m.parameters()]
    return trace_graph("test", build, args, {}, modules, [torch.optim.SGD(parameters, lr=0.1)])


def call(traced: Trace, *args: torch.Tensor) -> list[torch.Tensor]:
    given = iter(args)
    inputs = [next(given) if i.tensor is None else i.tensor for i in traced.inputs]
    results = run_trace(traced, inputs)
    apply_aliases(traced, inputs, results)
    return [r for r, o in zip(results, traced.outputs) if o.alias is None]


def names(traced: Trace) -> list[str]:
    return [str(op.func) for op in traced.ops]


def test_every_value_is_assigned_once_before_use() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    traced = train(lambda x: model(x).sum().backward(), torch.randn(2, 3, 5, 5), model=model)
    known = {i.value for i in traced.inputs}
    for op in traced.ops:
        assert set(values_in((op.args, op.kwargs))) <= known
        results = {r for r in op.results if r is not None}
        assert not results & known
        known |= results
        assert not any(a.alias_info and a.alias_info.is_write for a in op.func._schema.arguments)
    assert {o.value for o in traced.outputs} <= known


def test_roles_and_names() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    traced = train(lambda x: model(x).sum().backward(), torch.randn(2, 3), net=model)
    found = {(i.role, i.name) for i in traced.inputs}
    assert ("input", "x") in found
    assert ("parameter", "net.0.weight") in found
    assert ("buffer", "net.1.running_mean") in found
    assert ("scalar", "optimizer.0.group0.lr") in found
    updated = {traced.inputs[o.alias].name for o in traced.outputs if o.alias is not None}
    assert {"net.0.weight", "net.1.running_mean", "net.1.num_batches_tracked"} <= updated


def test_big_ops_stay_whole() -> None:
    attention = F.scaled_dot_product_attention

    def build(x: torch.Tensor, image: torch.Tensor) -> Any:
        y = F.layer_norm(x, (8,)).softmax(-1)
        z = F.batch_norm(F.conv2d(image, image), None, None, training=True)
        q = x.view(1, 1, 4, 8)
        return y, z, F.dropout(x, 0.5), attention(q, q, q)

    found = names(trace(build, torch.randn(4, 8), torch.randn(2, 2, 3, 3)))
    for expected in (
        "aten.native_layer_norm.default",
        "aten._softmax.default",
        "aten.convolution.default",
        "aten._native_batch_norm_legit.no_stats",
        "aten.native_dropout.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
    ):
        assert expected in found


def test_locations() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x).tanh()  # the line

    model = nn.ModuleDict({"block": Block()})
    line = Block.forward.__code__.co_firstlineno + 1
    traced = train(lambda x: model["block"](x).sum().backward(), torch.randn(2, 3), model=model)
    by_name = {str(op.func): op.loc for op in traced.ops}
    forward = by_name["aten.tanh.default"]
    assert (forward.file, forward.line, forward.module) == (__file__, line, "model.block")
    backward = by_name["aten.tanh_backward.default"]
    assert (backward.line, backward.module, backward.phase) == (line, "model.block", "backward")
    assert by_name["aten.addmm.default"].module == "model.block.fc"
    weight_gradient = [op for op in traced.ops if str(op.func) == "aten.mm.default"]
    assert {op.loc.module for op in weight_gradient} == {"model.block.fc"}
    assert {op.loc.phase for op in traced.ops} == {"forward", "backward", "optimizer"}


def test_tracing_leaves_everything_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    tensors = list(model.parameters())
    train(lambda x: model(x).sum().backward(), torch.randn(2, 3), model=model)
    assert all(p is q for p, q in zip(model.parameters(), tensors))
    assert all(p.grad is None and p.requires_grad for p in tensors)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key])
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"
    assert isinstance(torch.ones(2) + 1, torch.Tensor)


def test_a_failed_trace_restores_the_modules() -> None:
    model = nn.Linear(3, 3)
    weight = model.weight

    def build(x: torch.Tensor) -> torch.Tensor:
        model(x)
        raise KeyError("stop")

    with pytest.raises(KeyError):
        trace(build, torch.randn(2, 3), model=model)
    assert model.weight is weight
    assert torch.equal(model(torch.zeros(1, 3))[0], model.bias)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x.view(-1).add_(1).view(3, 4) + x,
        lambda x: x.clone().t().mul_(2),
        lambda x: x.clone().index_fill_(0, torch.tensor([0, 2]), 5.0),
        lambda x: torch.zeros(3, 4).copy_(x)[1:].relu_(),
        lambda x: torch.cat([x, x.detach() * 2, torch.ones(1, 4)]),
        lambda x: (x.chunk(2, 1), x.sum(0), {"a": x.topk(2).values}),
        lambda x: torch.where(x > 0, x, torch.tensor(float("nan"))),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.masked_fill(x < 0, float("-inf")).softmax(-1),
        lambda x: F.pad(x, (1, 1)).unfold(1, 2, 2).contiguous(),
        lambda x: (
            torch._foreach_add([x, x * 2], 1.5, alpha=1)
            if False
            else torch._foreach_mul([x, x * 2], 1.5)
        ),
        lambda x: torch._foreach_norm([x, x * 2]),
    ],
)
def test_mutation_and_views(build: Callable[..., Any]) -> None:
    x = torch.randn(3, 4)
    expected = torch.utils._pytree.tree_leaves(build(x.clone()))
    found = call(trace(build, x.clone()), x.clone())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_autograd_runs_as_it_is() -> None:
    """Custom functions, hooks, autograd.grad and double backward."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return 7 * grad * ctx.saved_tensors[0] ** 2

    def build(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        y = Cube.apply(x)
        y.register_hook(lambda g: g * 2)
        (first,) = torch.autograd.grad((y * x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first, second

    x = torch.randn(4)
    for a, b in zip(call(trace(build, x), x), build(x), strict=True):
        torch.testing.assert_close(a, b.detach())


def test_captured_tensors_are_live() -> None:
    outside = torch.ones(3)
    traced = trace(lambda x: x + outside.view(3), torch.zeros(3))
    assert [i.role for i in traced.inputs] == ["input", "constant"]
    assert traced.inputs[1].tensor is outside
    outside.fill_(5)
    assert torch.equal(call(traced, torch.zeros(3))[0], torch.full((3,), 5.0))


def test_captured_tensor_can_be_updated() -> None:
    counter = torch.zeros(())

    def build(x: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return x * counter

    traced = trace(build, torch.ones(2))
    assert counter == 0
    call(traced, torch.ones(2))
    assert torch.equal(call(traced, torch.ones(2))[0], torch.full((2,), 2.0))
    assert counter == 2


def test_rebound_buffer_is_updated_in_place() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))
            self.last: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = 0.5 * self.mean + 0.5 * x
            self.last = x
            return x - self.mean

    model = Average()
    buffer = model.mean
    traced = trace(lambda x: model(x), torch.ones(2), model=model)
    call(traced, torch.ones(2))
    assert model.mean is buffer
    assert model.last is None
    assert torch.equal(buffer, torch.full((2,), 0.5))


def test_shared_parameters_are_one_argument() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    traced = train(lambda x: model(x).sum().backward(), torch.randn(2, 3), model=model)
    weights = [i.name for i in traced.inputs if i.name.endswith("weight")]
    assert weights == ["model.0.weight"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(4),
        lambda: nn.BatchNorm2d(4, affine=False),
        lambda: nn.BatchNorm2d(4, track_running_stats=False),
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        lambda: nn.GroupNorm(2, 4),
    ],
)
def test_norms(make: Callable[[], nn.Module], training: bool) -> None:
    model, other = make().train(training), make().train(training)
    x = torch.randn(3, 4, 5, 5)
    traced = trace(lambda x: model(x), x, model=model)
    for _ in range(2):
        torch.testing.assert_close(call(traced, x)[0], other(x).detach())
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "model",
    [
        nn.LSTM(4, 5, num_layers=2, batch_first=True),
        nn.GRU(4, 5),
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0),
        nn.Conv1d(3, 4, 3, padding="same"),
        nn.Embedding(10, 4),
    ],
    ids=lambda m: type(m).__name__,
)
def test_modules(model: nn.Module) -> None:
    x = torch.randint(10, (2, 3)) if isinstance(model, nn.Embedding) else torch.randn(2, 3, 4)
    args = (x, x, x) if isinstance(model, nn.MultiheadAttention) else (x,)
    expected = torch.utils._pytree.tree_leaves(model(*args))
    found = call(trace(lambda *a: model(*a), *args, model=model), *args)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-4, atol=1e-5)


def test_text() -> None:
    text = str(trace(lambda x: x + 1, torch.ones(2)))
    assert "aten.add.Tensor" in text
    assert "input x" in text


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 5), (2, 3, 4, 5), (0, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_rules_agree_with_pytorch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from gflow.tracing.dispatch.shapes.shape_rules import RULES

    aten = torch.ops.aten
    x = torch.rand(shape).to(dtype)
    inputs = [x]
    if x.ndim == 4:
        inputs.append(x.contiguous(memory_format=torch.channels_last))
    for x in inputs:
        for func, (_, rule) in RULES.items():
            if "batch_norm" in str(func):
                if x.ndim < 2 or x.numel() == 0:
                    continue
                c = torch.rand(x.shape[1]).to(dtype)
                args: list[Any] = [x, c, c, c, c, True, 0.1, 1e-5]
                if func is aten.native_batch_norm_backward.default:
                    args = [x, x, c, c, c, c, c, True, 1e-5, [True, True, True]]
            elif "nll_loss" in str(func):
                if x.ndim > 2 or x.numel() == 0:
                    continue
                labels = torch.zeros(x.shape[:-1], dtype=torch.uint8)
                args = [x, labels, None, 1, -100]
                if "backward" in str(func):
                    args = [x.sum(), *args, torch.ones((), dtype=dtype)]
            else:
                names = [a.name for a in func._schema.arguments]
                tensors = sum("Tensor" in str(a.type) for a in func._schema.arguments)
                args = [x] * tensors
                if "reduction" in names:
                    numbers = {"reduction": 1, "beta": 1.0, "delta": 1.0}
                    args += [numbers[name] for name in names if name in numbers]
                elif "hardtanh" in str(func):
                    args += [0.0, 6.0]
                elif names[-1] in ("threshold", "weight", "exponent"):
                    args.append(0.5)
            found = rule(tuple(args), {})
            if found is None:
                continue
            out = func(*args)
            out = out if isinstance(out, tuple) else (out,)
            expected = [(o.shape, o.stride(), o.dtype, o.device) for o in out]
            assert found == expected, func
