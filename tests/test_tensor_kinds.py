"""Tensors whose elements are not what lies in their memory, and tensor classes that compute in their own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import gflow as flow
from gflow import nn


class _Calls(nn.Graph):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def build(self, *args: Any) -> Any:
        return self.function(*args)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _update(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


class _AddsToProducts(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result + 100 if func is torch.Tensor.mul else result


def _negative() -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 + 4j]).conj().imag


def _others() -> dict[str, torch.Tensor]:
    return {
        "negative view": _negative(),
        "zeros": torch._efficientzerotensor(2),
        "_AddsToProducts": torch.ones(2).as_subclass(_AddsToProducts),
        "TwoTensor": TwoTensor(torch.ones(2), torch.zeros(2)),
    }


@pytest.mark.parametrize("kind", _others())
def test_a_graph_refuses_what_memory_does_not_tell(kind: str) -> None:
    graph, plain = _Calls(_double), torch.ones(8).as_strided((2,), _others()[kind].stride())
    graph(plain)  # a program for what looks alike is there
    with pytest.raises(flow.GraphTraceError, match=kind):
        graph(_others()[kind])
    torch.testing.assert_close(graph(plain), plain * 2)


def test_a_graph_refuses_negative_buffers_and_constants() -> None:
    module = torch.nn.Module()
    module.register_buffer("b", _negative())
    captured = _negative()
    with pytest.raises(flow.GraphTraceError, match="negative view"):
        _Calls(lambda x: x + module.b)(torch.ones(2))
    with pytest.raises(flow.GraphTraceError, match="negative view"):
        _Calls(lambda x: x + captured)(torch.ones(2))


@pytest.mark.parametrize("through", ["gflow.compile", "torch.compile"])
def test_compiled_functions_take_negative_views(through: str) -> None:
    compiled: Any = (
        flow.compile(_update)
        if through == "gflow.compile"
        else torch.compile(_update, backend="gflow")
    )
    plain, want = torch.zeros(4)[::2], torch.zeros(4)[::2]
    torch.testing.assert_close(compiled(plain), _update(want))
    given, expected = _negative(), _negative()
    torch.testing.assert_close(compiled(given), _update(expected))
    torch.testing.assert_close(given, expected)


def test_compile_runs_tensor_classes_by_their_own_rules() -> None:
    given = torch.ones(2).as_subclass(_AddsToProducts)
    with torch.no_grad():
        got = flow.compile(lambda x: x.mul(2))(given)
    torch.testing.assert_close(torch.Tensor(got), torch.full((2,), 102.0))


def _asks(x: torch.Tensor) -> Any:
    parts = (x.real, x.imag) if x.is_conj() else (x.imag, x.real)
    return *parts, x.t().is_conj(), x[1:].resolve_conj().is_conj(), torch.view_as_real(x * 2)


def test_a_conjugate_argument_says_that_it_is() -> None:
    graph, z = _Calls(_asks), torch.randn(3, 4, dtype=torch.complex64)
    for value in (z, z.conj(), z, z.t().conj(), z.conj().resolve_conj()):
        torch.testing.assert_close(graph(value), _asks(value))


def test_updates_of_conjugate_arguments() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        x[0].mul_(2 + 1j)
        return x.imag

    z = torch.randn(3, 4, dtype=torch.complex64)
    mine, want = z.clone(), z.clone()
    torch.testing.assert_close(_Calls(update)(mine.conj()), update(want.conj()))
    torch.testing.assert_close(mine, want)


@pytest.mark.parametrize("wrap", [flow.nn.Graph.trace, flow.compile])
def test_results_that_lie_in_an_updated_conjugate(wrap: Any) -> None:
    """A view of it does not say that it is conjugate, once its value was computed."""

    def update(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        z = x.conj()
        z.mul_(2 + 1j)
        part = z[0]
        negative = torch._neg_view(y.real)
        negative.add_(1)
        x.imag.add_(1)
        return [part, z.reshape(-1), z.t(), z.mH[1], z.conj()[0], x.t(), negative[1], x.imag]

    mine, want = (
        [
            torch.complex(torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3) - 2)
            for _ in range(2)
        ]
        for _ in range(2)
    )
    for got, right in zip(wrap(update)(*mine), update(*want), strict=True):
        torch.testing.assert_close(got, right)
    torch.testing.assert_close(mine, want)


def test_conjugate_parameters_and_buffers() -> None:
    class Filter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.tensor([1 + 2j, 3 - 1j])
            self.weight = torch.nn.Parameter(weight.conj())
            self.register_buffer("seen", weight.clone().conj())
            self.register_buffer("unread", weight.clone().conj())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.weight.is_conj()
            assert self.seen.is_conj()
            with torch.no_grad():
                self.seen.add_(x)
            return (self.weight * x + self.seen).abs().sum()

    class Train(nn.Graph):
        def __init__(self, model: Filter) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.model(x)
            loss.backward()
            return loss

    mine, want, x = Filter(), Filter(), torch.tensor([1 - 1j, 2 + 5j])
    graph, optimizer = Train(mine), torch.optim.SGD(want.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = want(x)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(graph(x), loss.detach())
    torch.testing.assert_close(dict(mine.state_dict()), dict(want.state_dict()))


def test_a_program_is_for_the_conjugate_bit_of_parameters() -> None:
    module = torch.nn.Module()
    module.register_buffer("b", torch.tensor([1 + 2j]).conj())
    graph = _Calls(lambda x: (x + module.b.imag, torch.tensor(module.b.is_conj())))
    x = torch.ones(1)
    for value in (module.b, module.b.resolve_conj(), module.b):
        module.b.data = value
        want = x + module.b.imag
        torch.testing.assert_close(graph(x), (want, torch.tensor(value.is_conj())))
    real = torch.nn.Module()
    real.register_buffer("b", torch.ones(2))
    graph = _Calls(lambda x: x + real.b)
    graph(x)
    real.b.data = _negative()
    with pytest.raises(flow.GraphTraceError, match="negative view"):
        graph(x)


class _Named(torch.Tensor):
    pass


def test_classes_that_results_have_are_refused_by_graphs_and_kept_by_compile() -> None:
    given = torch.ones(2).as_subclass(_Named)
    with pytest.raises(flow.GraphTraceError, match=r"_Named; in eager, results"):
        _Calls(_double)(given)
    assert type(flow.compile(_double)(given)) is _Named


def test_results_keep_a_class_that_overrides_functions() -> None:
    weight = torch.randn(2, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.mul(2) + weight

    fast = flow.compile(function)
    for given in (torch.ones(2), torch.ones(2).as_subclass(_AddsToProducts), torch.ones(2)):
        found, wanted = fast(given), function(given)
        assert type(found) is type(wanted)
        torch.testing.assert_close(torch.Tensor(found), torch.Tensor(wanted))


def _made(x: torch.Tensor) -> torch.Tensor:
    return torch.Tensor._make_subclass(_AddsToProducts, x)


@pytest.mark.parametrize("make", [lambda x: x.as_subclass(_AddsToProducts), _AddsToProducts, _made])
def test_a_class_that_build_gives_a_tensor(make: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return make(x).mul(2) + 1

    x = torch.ones(2)
    with pytest.raises(flow.GraphTraceError, match=r"test_tensor_kinds.*build\(\) makes a .*_Adds"):
        _Calls(function)(x)
    found = flow.compile(function)(x)
    assert type(found) is _AddsToProducts
    torch.testing.assert_close(torch.Tensor(found), torch.full((2,), 103.0))


def test_the_plain_class_of_a_tensor() -> None:
    x = torch.randn(3)
    assert torch.equal(_Calls(lambda x: x.as_subclass(torch.Tensor) * 2)(x), x * 2)


def test_nested_tensors() -> None:
    given = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(flow.GraphInputError, match=r"is a nested tensor.*to_padded_tensor"):
        _Calls(_double)(given)
    found = flow.compile(_double)(given).unbind()
    torch.testing.assert_close(found, (given * 2).unbind())


class _Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor = torch.nn.Linear(2, 2), 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor if self.training else self.linear(x)


def test_modules_of_torch_jit() -> None:
    """Their attributes are not Python's: no guard would see that they change."""
    scripted = torch.jit.script(_Scripted())
    outer, x = torch.nn.Sequential(scripted), torch.randn(3, 2)
    called, forwarded = (lambda x: scripted(x) + 1), (lambda x: scripted.forward(x) + 1)
    for target in (outer, called, forwarded):
        fast = flow.compile(target)
        for factor in (2.0, 3.0):
            scripted.factor = factor
            torch.testing.assert_close(fast(x), target(x))
            found, wanted = (
                torch.autograd.grad(f(x).sum(), scripted.linear.weight) for f in (fast, target)
            )
            torch.testing.assert_close(found, wanted)
        with pytest.raises(
            flow.GraphTraceError, match=r"test_tensor_kinds.*a module of torch\.jit"
        ):
            _Calls(target)(x)
    with pytest.raises(flow.GraphTraceError, match=r"a module of torch\.jit"):
        flow.compile(scripted)


def test_an_exchange_of_memory() -> None:
    def swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.utils.swap_tensors(x, y)
        return x * 2

    x, y = torch.zeros(2), torch.ones(2)
    with pytest.raises(flow.GraphTraceError, match="swap_tensors"):
        flow.nn.Graph.trace(swap)(x, y)
    memory = x.data_ptr()
    assert flow.compile(swap)(x, y).tolist() == [2.0, 2.0]
    assert y.data_ptr() == memory


FLOAT8 = [
    getattr(torch, f"float8_{n}") for n in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
]


def _bits(tree: Any) -> Any:
    """Floats of 8 bits as bytes, which can be compared."""
    return torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda t: t.view(torch.uint8) if t.dtype in FLOAT8 else t, tree
    )


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_floats_of_8_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    """Casts, moves and updates in place run through PyTorch; what eager has no kernel for is eager's error."""

    def calls(x: torch.Tensor, held: torch.Tensor) -> Any:
        narrow = x.to(dtype)
        held.copy_(x[:2] * 3)
        parts = torch.cat([narrow, held]).t()[1:]
        return (
            narrow,
            parts,
            parts.float() * 2,
            narrow.to(torch.bfloat16),
            torch.zeros(3, dtype=dtype),
            held.float(),
        )

    torch.manual_seed(0)
    special = torch.tensor([0.0, -0.0, float("inf"), -1e9, float("nan"), 460.0, 1e-9, 61440.0])
    x, held = torch.cat([special, torch.randn(8) * 9]).view(4, 4), torch.zeros(4, 2).to(dtype).t()
    graph, mine = _Calls(calls), held.clone()
    for given in (x, x.t()):
        want, found = calls(given, held), graph(given, mine)
        torch.testing.assert_close(_bits((found, mine)), _bits((want, held)), equal_nan=True)
    flow.save(graph, tmp_path / "graph")
    loaded = flow.load(tmp_path / "graph")
    torch.testing.assert_close(_bits(list(loaded(x.t(), mine))), _bits(list(want)), equal_nan=True)
    with pytest.raises(NotImplementedError, match="not implemented for 'Float8"):
        _Calls(lambda x: x.to(dtype) + 1)(x)
    flow.save({"a": mine}, tmp_path / "tensors")
    torch.testing.assert_close(_bits(flow.load(tmp_path / "tensors")["a"]), _bits(mine))


def test_training_with_weights_rounded_to_8_bits() -> None:
    class Train(nn.Graph):
        def __init__(self, layer: torch.nn.Linear) -> None:
            super().__init__()
            self.layer = layer
            self.add_optimizer(torch.optim.SGD(layer.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.layer.weight.to(torch.float8_e4m3fn).float()
            loss = torch.nn.functional.linear(x, weight, self.layer.bias).square().mean()
            loss.backward()
            return loss

    mine, x = torch.nn.Linear(4, 3), torch.randn(5, 4)
    want = torch.nn.Linear(4, 3)
    want.load_state_dict(mine.state_dict())
    graph, optimizer = Train(mine), torch.optim.SGD(want.parameters(), lr=0.1)
    for _ in range(3):
        loss = graph(x)
        weight = want.weight.to(torch.float8_e4m3fn).float()
        expected = torch.nn.functional.linear(x, weight, want.bias).square().mean()
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(mine.state_dict(), want.state_dict())


def test_a_type_that_checkpoints_do_not_hold_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="float4_e2m1fn_x2"):
        flow.save({"a": torch.zeros(2, dtype=torch.float4_e2m1fn_x2)}, tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_class_labels_of_bytes(reduction: str, weighted: bool) -> None:
    labels, x = torch.tensor([1, 0, 255, 4], dtype=torch.uint8), torch.randn(4, 5)
    weight = torch.rand(5) if weighted else None

    def loss(x: torch.Tensor, labels: torch.Tensor) -> Any:
        x = x.clone().requires_grad_()
        found = torch.nn.functional.cross_entropy(
            x, labels, weight, ignore_index=255, reduction=reduction
        )
        return found, torch.autograd.grad(found.sum(), x)

    graph, want = _Calls(loss), loss(x, labels)
    torch.testing.assert_close(graph(x, labels), want)
    with pytest.raises(IndexError, match="Target 5 is out of bounds"):
        graph(x, torch.tensor([1, 0, 3, 5], dtype=torch.uint8))


def test_conditions_of_bytes() -> None:
    x, mask = torch.randn(3, 4), torch.tensor([[1], [0], [2]], dtype=torch.uint8)
    calls: list[Any] = [
        lambda x, mask: torch.where(mask, x, 0.0),
        lambda x, mask: torch.where(condition=mask, input=x, other=0.0),
        lambda x, mask: x.where(mask, x * 2),
    ]
    for call in calls:
        torch.testing.assert_close(_Calls(call)(x, mask), call(x, mask))
