"""Functions whose implementation in PyTorch reads values, although the shape of the result does not depend on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import gflow as flow
from gflow import nn
from gflow.errors import GraphTraceError
from gflow.tracing.dispatch.shapes.fakes import fake_call

Tensor = torch.Tensor
MASK = torch.tensor([True, False, True, True])
MASKS = torch.tensor([[True, False, True]] * 2 + [[False, False, True]] * 2)


class Call(nn.Graph):
    """A function, and the gradients of its sum for the arguments that need one."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def build(self, *args: Tensor) -> Any:
        return _with_gradients(self.function, *args)


def _with_gradients(function: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
    found = function(*args)
    sources = [a for a in args if a.requires_grad]
    if not sources:
        return [found]
    weights = torch.arange(1.0, found.numel() + 1).reshape(found.shape)
    return [found.detach(), *torch.autograd.grad((found * weights).sum(), sources)]


def _set(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x = x * 2
    x[mask] = values
    return x


def _put_(accumulate: bool) -> Callable[..., Tensor]:
    return lambda x, mask, values: (x * 2).index_put_((mask,), values, accumulate)


def _put(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    return torch.index_put(x, (mask,), values, accumulate=True)


PUTS = {"set": _set, "in place": _put_(False), "accumulated in place": _put_(True), "put": _put}


@pytest.mark.parametrize("name", PUTS)
@pytest.mark.parametrize(
    ("mask", "shape"),
    [(MASK, (3, 3, 2)), (MASK, (3, 1, 2)), (MASK, (1, 3, 2)), (MASK, ()), (MASKS, (6, 2)), (MASKS, (2,))],
)  # fmt: skip
def test_masks_with_gradients_of_values(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    args = torch.randn(4, 3, 2, requires_grad=True), mask, torch.randn(shape, requires_grad=True)
    torch.testing.assert_close(Call(PUTS[name])(*args), _with_gradients(PUTS[name], *args))


def test_another_number_of_elements_is_an_error() -> None:
    graph, x, values = Call(_set), torch.randn(4, 3), torch.randn(3, 3, requires_grad=True)
    graph(x, MASK, values)
    with pytest.raises(RuntimeError, match=r"shape mismatch.*\n.*test_value_free.py"):
        graph(x, torch.tensor([True, False, True, False]), values)


def _weights(whole: bool, real: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, f, a: torch.cov(
        x, correction=2, fweights=f if whole else None, aweights=a if real else None
    )


def _filled(x: Tensor, index: Tensor, value: Tensor) -> Tensor:
    return torch.index_fill(x, 0, index, value)


X, TIMES = torch.randn(4, 6), torch.tensor([1, 2, 1, 3, 1, 2])
FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "combinations": (lambda x: torch.combinations(x, 3), (torch.randn(5),)),
    "combinations, repeated": (lambda x: torch.combinations(x, 2, True), (torch.randn(4),)),
    "combinations of one": (lambda x: torch.combinations(x), (torch.randn(1),)),
    "cov": (torch.cov, (X,)),
    "cov, one row": (torch.cov, (X[0],)),
    "cov, counted": (_weights(True, False), (X, TIMES, torch.rand(6))),
    "cov, weighted": (_weights(False, True), (X, TIMES, torch.rand(6))),
    "cov, both": (_weights(True, True), (X, TIMES, torch.rand(6))),
    "corrcoef": (torch.corrcoef, (X,)),
    "corrcoef, one row": (torch.corrcoef, (X[0],)),
    "index_fill": (_filled, (X, torch.tensor([3, 0, 3]), torch.tensor(2.5))),
    **{
        f"least squares, {driver}": (
            lambda a, b, driver=driver: torch.linalg.lstsq(a, b, driver=driver).solution,
            (torch.randn(2, 5, 3).double(), torch.randn(2, 5, 2).double()),
        )
        for driver in (None, "gels", "gelsy")
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_beside_eager(name: str) -> None:
    function, tensors = FUNCTIONS[name]
    if name == "cov, counted":
        args = [tensors[0].clone().requires_grad_(), *tensors[1:]]
    else:
        needs = [t.is_floating_point() for t in tensors]
        args = [t.clone().requires_grad_(n) for t, n in zip(tensors, needs)]
    torch.testing.assert_close(Call(function)(*args), _with_gradients(function, *args))


def test_weights_are_checked_at_each_call() -> None:
    graph = Call(_weights(True, True))
    graph(X, TIMES, torch.rand(6))
    for times, weights, words in (
        (-TIMES, torch.rand(6), "fweights cannot be negative"),
        (TIMES, -torch.rand(6), "aweights cannot be negative"),
        (TIMES, torch.zeros(6), "weights sum to zero"),
    ):
        with pytest.raises(RuntimeError, match=words):
            graph(X, times, weights)
        with pytest.raises(RuntimeError, match=words):
            torch.cov(X, fweights=times, aweights=weights)


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_shapes_of_least_squares(driver: str | None, dtype: torch.dtype) -> None:
    """The shape rule beside PyTorch's kernel, strides included."""
    op = torch.ops.aten.linalg_lstsq.default
    for (m, n), batch, columns in itertools.product(
        ((2, 3), (3, 3), (4, 3), (0, 3), (3, 0)), ((), (2,), (2, 5)), ((), (2,), (1,))
    ):
        if m > n and driver in ("gelsd", "gelss"):
            continue  # depends on the rank
        args = torch.randn(*batch, m, n, dtype=dtype), torch.randn(*batch, m, *columns, dtype=dtype)
        wanted = op(*args, driver=driver)
        with FakeTensorMode() as mode:
            fakes = tuple(map(mode.from_tensor, args))
            found = fake_call(mode, op, (), fakes, {"driver": driver})
        for a, b in zip(found, wanted, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            if a.numel():
                assert a.stride() == b.stride()


LENGTHS = torch.tensor([7, 6, 7]), torch.tensor([3, 1, 2])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_ctc_loss(reduction: str, tensors: bool, flat: bool) -> None:
    lengths: Any = LENGTHS if tensors else [n.tolist() for n in LENGTHS]
    labels = torch.randint(1, 5, (6,) if flat else (3, 4))

    def function(x: Tensor) -> Tensor:
        return F.ctc_loss(
            x.log_softmax(-1), labels, *lengths, reduction=reduction, zero_infinity=True
        )

    x = torch.randn(7, 3, 5, requires_grad=True)
    torch.testing.assert_close(Call(function)(x), _with_gradients(function, x))


def test_ctc_loss_of_other_lengths() -> None:
    """Lengths in tensors are no part of the program."""

    def function(x: Tensor, labels: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), labels, inputs, outputs)

    graph, labels = Call(function), torch.randint(1, 5, (3, 4))
    for inputs, outputs in (LENGTHS, (LENGTHS[0] - 1, LENGTHS[1] + 1)):
        args = torch.randn(7, 3, 5, requires_grad=True), labels, inputs, outputs
        torch.testing.assert_close(graph(*args), _with_gradients(function, *args))
    one = args[0].detach()[:, 0].requires_grad_(), labels[0, :3], torch.tensor(7), torch.tensor(3)
    torch.testing.assert_close(Call(function)(*one), _with_gradients(function, *one))
    assert len(graph.explain_recompiles()) == 1


def _parts(x: Tensor, places: Tensor) -> Tensor:
    return torch.stack([p.sum(0) for p in torch.tensor_split(x, places, dim=0)])


def _rows(x: Tensor, start: Tensor) -> Tensor:
    return torch.narrow(x, 0, start, 2) * 2


@pytest.mark.parametrize(
    ("function", "bounds"),
    [(_parts, [[1, 3], [2, 4], [1, 3]]), (_parts, [2, 3]), (_rows, [0, 3, -4])],
)
def test_bounds_in_tensors(function: Callable[..., Tensor], bounds: list[Any]) -> None:
    """A program for each of their values, which says so."""
    graph, x = Call(function), torch.randn(6, 3, requires_grad=True)
    for values in bounds:
        args = x, torch.tensor(values)
        torch.testing.assert_close(graph(*args), _with_gradients(function, *args))
    reasons = str(graph.explain_recompiles())
    assert len(graph.explain_recompiles()) == len({str(b) for b in bounds})
    assert f"which was {bounds[0]}" in reasons


def _after_next(x: Tensor, start: Tensor) -> Tensor:
    start.add_(1)
    return torch.narrow(x, 0, start, 2)


@pytest.mark.parametrize(
    "function", [_after_next, lambda x, start: torch.narrow(x, 0, start + 1, 2)]
)
def test_bounds_that_build_computes(function: Callable[..., Tensor]) -> None:
    graph, x = Call(function), torch.randn(6, 2, requires_grad=True)
    for start in (1, 3, 1):
        wanted = _with_gradients(function, x, torch.tensor(start))
        torch.testing.assert_close(graph(x, torch.tensor(start)), wanted)
    assert len(graph.explain_recompiles()) == 2
    with pytest.raises(GraphTraceError, match=r"test_value_free.py:\d+: Python asks for"):
        Call(lambda x: torch.narrow(x, 0, x.sum().long(), 2))(x)


def test_saved_programs_check_their_bounds(tmp_path: Path) -> None:
    graph, x = Call(_rows), torch.arange(12.0).reshape(6, 2)
    wanted = graph(x, torch.tensor(3))
    flow.save(graph, tmp_path / "saved")
    loaded = flow.load(tmp_path / "saved")
    torch.testing.assert_close(loaded(x, torch.tensor(3)), wanted)
    with pytest.raises(RuntimeError, match=r"for the values 3 of a tensor; trace it for others"):
        loaded(x, torch.tensor(2))


@pytest.mark.parametrize(
    "quantize",
    [
        lambda x: torch.quantize_per_tensor(x * 2, 0.1, 5, torch.quint8),
        lambda x: torch.quantize_per_channel(x * 2, torch.ones(2), torch.zeros(2), 1, torch.qint8),
        lambda x: torch.quantize_per_tensor_dynamic(x * 2, torch.qint8, False),
    ],
)
def test_quantized_tensors(quantize: Callable[[Tensor], Tensor]) -> None:
    """An error in graphs; they run in eager mode elsewhere (PyTorch's shape rules give plain tensors)."""
    x = torch.randn(3, 2)
    with pytest.raises(
        GraphTraceError, match=r"test_value_free.py:\d+: .* gives a quantized tensor"
    ):
        Call(lambda x: quantize(x).dequantize())(x)
    for run in (flow.compile, lambda f: torch.compile(f, backend="gflow")):
        torch._dynamo.reset()
        assert torch.equal(
            run(lambda x: quantize(x).dequantize() + 1)(x), quantize(x).dequantize() + 1
        )


ROWS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "alone": lambda x, i: x[i] * 2,
    "from the end": lambda x, i: x[i - 4] * 2,
    "among numbers": lambda x, i: x[1, i, ::2] * 2,
    "of the last": lambda x, i: x[..., i - 1, None] * 2,
    "two": lambda x, i: x[None, i, :, None, i - 1] * 2,
    "int8": lambda x, i: x[:, i.to(torch.int8)] * 2,
    "a row that is returned": lambda x, i: x[i].clone(),
    "a view of a value": lambda x, i: (x * 2)[i],
}
UPDATES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "the tensor": lambda x, i: (y := x * 2, row := y[i], y.add_(1), row * 1)[-1],
    "a part of it": lambda x, i: (y := x * 2, row := y[i], y[0].add_(1), row * 1)[-1],
    "the argument": lambda x, i: (row := x[i], x.add_(1), row * 1)[-1],
    "the row": lambda x, i: (y := x * 2, y[i].add_(1), y)[-1],
    "nothing, but returns it": lambda x, i: x[i],
    "nothing, but returns both": lambda x, i: (y := x * 2, y[i].view(-1)),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_by_a_value(name: str) -> None:
    graph = Call(ROWS[name])
    for i in (1, 2):
        args = torch.randn(4, 3, 3, requires_grad=True), torch.tensor(i)
        torch.testing.assert_close(graph(*args), _with_gradients(ROWS[name], *args))
    assert len(graph.explain_recompiles()) == 1


@pytest.mark.parametrize("name", UPDATES)
def test_rows_that_share_memory_in_eager(name: str) -> None:
    """A program copies the row."""
    x, i = torch.randn(4, 3), torch.tensor(1)
    compiled = flow.compile(UPDATES[name])
    with pytest.raises(GraphTraceError, match=r"test_value_free.py:\d+: .*x\[i\] by a tensor i"):
        flow.compile(UPDATES[name], fullgraph=True)(x.clone(), i)
    torch.testing.assert_close(compiled(x.clone(), i), UPDATES[name](x.clone(), i))


def test_a_row_out_of_range() -> None:
    graph = Call(ROWS["alone"])
    graph(torch.randn(4, 3), torch.tensor(3))
    for i in (4, -5):
        with pytest.raises(IndexError, match=rf"index {i} is out of bounds"):
            graph(torch.randn(4, 3), torch.tensor(i))


def test_a_trained_row() -> None:
    class Step(nn.Graph):
        def __init__(self, model: torch.nn.Embedding) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), 0.1))

        def build(self, i: Tensor) -> Tensor:
            loss = self.model.weight[i].square().sum()
            loss.backward()
            return loss

    compiled, eager = torch.nn.Embedding(4, 3), torch.nn.Embedding(4, 3)
    eager.load_state_dict(compiled.state_dict())
    graph, optimizer = Step(compiled), torch.optim.SGD(eager.parameters(), 0.1)
    for i in (1, 3):
        loss = eager.weight[torch.tensor(i)].square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(graph(torch.tensor(i)), loss.detach())
    torch.testing.assert_close(compiled.weight, eager.weight)
