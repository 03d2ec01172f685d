"""Updates in place, and what is asked of a tensor after one: copies, strides, what eager's schemas leave unsaid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

import gflow as flow

Tensor = torch.Tensor

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaps": lambda m: m.as_strided((4, 4), (8, 2)),
    "rows apart": lambda m: m.as_strided((4, 4), (6, 1), 1),
    "transposed": lambda m: m.as_strided((4, 4), (1, 4)),
    "one dimension": lambda m: m.as_strided((4,), (3,)),
}


def _contiguous(x: Tensor, y: Tensor) -> Tensor:
    x[...] = 1
    return x.contiguous().atan2_(y) + 0


def _part(x: Tensor, y: Tensor) -> Tensor:
    x[..., 1:].add_(1)
    return x.contiguous().mul_(y) + 0


def _reshape(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x.reshape(-1).mul_(2) + 0


def _format(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x.to(memory_format=torch.contiguous_format).mul_(y) + 0


def _asked(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x * (2 if x.is_contiguous() else 3) + x.stride(0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [_contiguous, _part, _reshape, _format, _asked])
def test_strides_outlive_updates(function: Callable[..., Tensor], layout: str) -> None:
    memory, y = torch.randn(40), torch.randn(4)
    other = memory.clone()
    want = function(LAYOUTS[layout](memory), y)
    torch.testing.assert_close(flow.compile(function)(LAYOUTS[layout](other), y), want)
    torch.testing.assert_close(other, memory)


def test_strides_of_results_outlive_updates() -> None:
    """A product is written into a transposed tensor that the function made."""

    def function(y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.empty_like(y.t()).copy_(y.t())
        z.addmm_(y, y)
        return z.contiguous().mul_(2), z + 0

    y = torch.randn(4, 4)
    torch.testing.assert_close(flow.compile(function)(y), function(y))


@pytest.mark.parametrize("by", ["compile", "torch.compile"])
@pytest.mark.parametrize("expand", ["expand", "expand_as", "broadcast_to"])
def test_updates_through_expansions_are_exact(expand: str, by: str) -> None:
    def function(x: Tensor) -> Tensor:
        like = torch.empty(1, 4) if expand == "expand_as" else (1, 4)
        getattr(x, expand)(like)[0, :3].copy_(torch.tensor([0.1, 0.2, 0.3]))
        return x * 2

    given = torch.tensor([1e30, math.inf, -8.4, 2.0])
    want, x = function(given.clone()), given.clone()
    torch._dynamo.reset()
    compiled = (
        flow.compile(function) if by == "compile" else torch.compile(function, backend="gflow")
    )
    assert torch.equal(compiled(x), want)
    assert torch.equal(x * 2, want)


def _expanded(x: Tensor) -> Tensor:
    x.expand(4, 3)[0].mul_(2)
    return x * 3


def _broadcast(x: Tensor) -> Tensor:
    torch.broadcast_to(x, (3,))[1:].mul_(2)
    return x * 3


def _windows(x: Tensor) -> Tensor:
    x.unfold(0, 2, 2).add_(1)
    return x * 3


def _by_strides(x: Tensor) -> Tensor:
    x.as_strided((2,), (3,)).add_(1)
    return x * 3


@pytest.mark.parametrize("function", [_expanded, _broadcast, _windows, _by_strides])
def test_updates_through_views_of_a_tensor_with_gaps(function: Callable[[Tensor], Tensor]) -> None:
    memory = torch.arange(7, dtype=torch.int8)
    torch._dynamo.reset()
    for compiled in (flow.compile(function), torch.compile(function, backend="gflow")):
        given, other = memory.clone(), memory.clone()
        want = function(other.as_strided((3,), (3,)))
        assert torch.equal(compiled(given.as_strided((3,), (3,))), want)
        assert torch.equal(given, other)


def _strides_after(x: Tensor) -> Tensor:
    x.add_(1)
    return x.as_strided((3,), (3,), 5) * 2


def _strides_before(x: Tensor) -> Tensor:
    part = x.as_strided((3,), (3,), 5)
    x.addmm_(x[:, :4], x)
    return part + 0


@pytest.mark.parametrize("function", [_strides_after, _strides_before])
def test_as_strided_and_updates_of_what_it_is_a_view_of(
    function: Callable[[Tensor], Tensor],
) -> None:
    """AOTAutograd has the dense result of another op in its place, whose memory has another order."""
    memory = torch.arange(40.0)
    other = memory.clone()
    want = function(other.as_strided((4, 6), (1, 4), 3))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="of which as_strided makes a view"):
        torch.compile(function, backend="gflow")(memory.as_strided((4, 6), (1, 4), 3))
    torch.testing.assert_close(flow.compile(function)(memory.as_strided((4, 6), (1, 4), 3)), want)
    torch.testing.assert_close(memory, other)


@pytest.mark.parametrize(
    "function", [torch.native_batch_norm, torch.ops.aten.native_batch_norm.default]
)
def test_native_batch_norm_updates_statistics(function: Callable[..., tuple[Tensor, ...]]) -> None:
    def step(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return function(x, None, None, mean, var, True, 0.5, 1e-5)[0]

    x, runs = torch.randn(6, 3), [(torch.zeros(6)[::2], torch.ones(3)) for _ in range(2)]
    torch.testing.assert_close(flow.compile(step)(x, *runs[0]), step(x, *runs[1]))
    torch.testing.assert_close(runs[0], runs[1])


_PARTS: tuple[Callable[[Tensor], Sequence[Tensor]], ...] = (
    lambda x: torch.unsafe_chunk(x, 3, -1),
    lambda x: x.unsafe_split(2, dim=1),
    lambda x: torch.unsafe_split_with_sizes(input=x, split_sizes=[2, 4], dim=1),
    lambda x: torch.ops.aten.unsafe_split_with_sizes.default(x, [1, 5], -1),
)


def test_updates_of_unsafe_parts() -> None:
    """Parts of `unsafe_chunk` and its kin share the tensor's memory, which their schemas do not say."""

    def step(x: Tensor) -> Tensor:
        for bound, parts in enumerate(_PARTS):
            first, second = parts(x)[:2]
            first.clamp_(-1 / (bound + 1), 0.5)
            second.mul_(x[:, :1] + 2)
        return x * 3

    x = torch.randn(5, 6)
    torch._dynamo.reset()
    for compiled in (flow.compile(step), torch.compile(step, backend="gflow")):
        given, other = x.clone(), x.clone()
        torch.testing.assert_close(compiled(given), step(other))
        torch.testing.assert_close(given, other)

    def loss(x: Tensor) -> Tensor:
        first, second = torch.unsafe_chunk(x * 3, 3, 1)[:2]
        return first.exp_().sum() * second.sum()

    found, want = (
        torch.autograd.grad(f(leaf), leaf)[0]
        for f in (flow.compile(loss), loss)
        for leaf in [x.double().requires_grad_()]
    )
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize(("shape", "channels"), [((7, 0), 0), ((0, 4, 3), 4), ((2, 4, 0), 4)])
def test_group_norm_of_nothing(shape: tuple[int, ...], channels: int) -> None:
    given = [torch.randn(s, requires_grad=True) for s in (shape, (channels,), (channels,))]

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.group_norm(x, 2, weight, bias)

    want = torch.autograd.grad(norm(*given).sum(), given)
    found = torch.autograd.grad(flow.compile(norm)(*given).sum(), given)
    torch.testing.assert_close(found, want, equal_nan=True)


class _Memory(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        out = (y + self.last).sum()
        self.last.copy_(y)
        return out


def test_a_history_that_a_step_leaves_is_said() -> None:
    """A graph's step ends the history of a gradient in a buffer; `gflow.compile` keeps it, as eager."""
    model = _Memory()

    class Step(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: Tensor) -> Tensor:
            loss = self.model(x)
            loss.backward()
            return loss

    with pytest.warns(UserWarning, match="last.*ends with the call"):
        Step()(torch.randn(2, 3))
    compiled = flow.compile(_Memory())
    compiled(torch.randn(2, 3)).backward()
    assert compiled.last.requires_grad


def _transposed(x: Tensor) -> Tensor:
    x.transpose_(0, 1).add_(1)
    return x[0] * 2


def _strided(x: Tensor) -> Tensor:
    x.as_strided_((4, 4), (1, 4))
    return x[0] * 2


def _other_data(x: Tensor) -> Tensor:
    x.data = torch.ones(4, 4)
    return x * 2


def _other_storage(x: Tensor) -> Tensor:
    x.set_(torch.ones(4, 4))  # type: ignore[call-overload]
    return x * 2


@pytest.mark.parametrize("function", [_transposed, _strided, _other_data, _other_storage])
def test_strides_and_memory_of_an_argument_stay(function: Callable[[Tensor], Tensor]) -> None:
    """Eager changes the tensor alone; a program would move elements, which other views of the memory show."""
    memory = torch.arange(16.0)
    with pytest.raises(
        flow.GraphTraceError, match=r"changes the strides of input|replaces the memory"
    ):
        flow.nn.Graph.trace(function)(memory.view(4, 4))
    other = memory.clone()
    torch.testing.assert_close(
        flow.compile(function)(memory.view(4, 4)), function(other.view(4, 4))
    )
    torch.testing.assert_close(memory, other)


def test_strides_that_come_back() -> None:
    def there_and_back(x: Tensor) -> Tensor:
        return x.t_().add_(torch.arange(4.0)).t_() * 2

    memory, other = torch.arange(16.0), torch.arange(16.0)
    got = flow.nn.Graph.trace(there_and_back)(memory.view(4, 4))
    torch.testing.assert_close(got, there_and_back(other.view(4, 4)))
    torch.testing.assert_close(memory, other)
