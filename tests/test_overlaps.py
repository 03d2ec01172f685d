"""In-place writes to parts of views whose elements are one in memory: as eager, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gflow as flow
from gflow.errors import GraphInputError, GraphTraceError

Function = Callable[[Tensor], list[Tensor]]
INF = float("inf")
#: differences of these are no numbers, or not exact
VALUES = [1e-3, INF, -1e8]


def graph(function: Function) -> Function:
    class Program(flow.nn.Graph):
        def build(self, x: Tensor) -> list[Tensor]:
            return function(x)

    return Program()


def dynamo(function: Function) -> Function:
    torch._dynamo.reset()
    return torch.compile(function, backend="gflow")


FRONTENDS = {"graph": graph, "torch.compile": dynamo}


WRITES: dict[str, Callable[[Tensor], object]] = {
    "select": lambda z: z[0].add_(1),
    "slice": lambda z: z[1:2].mul_(2),
    "assigned": lambda z: z.__setitem__((1, slice(0, 2)), 7.0),
    "assigned tensor": lambda z: z.__setitem__(2, torch.ones(1, 1, 3)),
    "diagonal": lambda z: z[:3].diagonal().add_(1),
    "augmented": lambda z: z[0].__iadd__(1),
    "out": lambda z: torch.add(z[0], 1, out=z[2]),
    "outs": lambda z: torch.sort(z[0], out=(z[1], torch.empty(3, dtype=torch.int64))),
    "inplace": lambda z: F.relu(z[0], inplace=True),
    "foreach": lambda z: torch._foreach_add_([z[0], z[2][1:]], 1.0),
    "transposed": lambda z: z.t()[:, 0].copy_(torch.ones(3)),
    "init": lambda z: nn.init.zeros_(z[3]),
    "index_put": lambda z: z[0].index_put_((torch.tensor([1]),), torch.tensor([5.0])),
    "masked": lambda z: z[0].masked_fill_(z[1] > 0, 3.0),
    "unbound": lambda z: z.unbind(0)[1].add_(1),
    "chunk": lambda z: z.chunk(4)[2].add_(1),
    "from itself": lambda z: z[0].copy_(z[1].flip(0)),
    "flat": lambda z: z[:1].view(-1)[1:].add_(1),
    "batch norm": lambda z: F.batch_norm(
        torch.arange(12.0).view(4, 3), z[0], torch.ones(3), training=True
    ),
}


def same(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("write", WRITES)
def test_part_of_an_expanded_value(write: str) -> None:
    def function(x: Tensor) -> list[Tensor]:
        y = x * 1
        z = y.expand(4, 3)
        WRITES[write](z)
        y.sub_(2)
        WRITES[write](z)
        return [z * 1, y]

    x = torch.tensor(VALUES)
    same(graph(function)(x), function(x))


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_arguments_and_windows(frontend: str) -> None:
    def function(x: Tensor) -> list[Tensor]:
        x.expand(4, 3)[0].add_(1)
        x.as_strided((2, 2), (1, 1))[1].mul_(2)
        x.unfold(0, 2, 1)[:, 0].add_(3)
        y = x.sum()
        y.expand(3)[1] = x[0]
        a, b = torch.broadcast_tensors(x * 1, torch.zeros(4, 3))
        a[3, 1:] = 5
        return [y, a * b, x * 1]

    for values in (VALUES, [1.0, 2.0, 3.0]):
        mine, other = torch.tensor(values), torch.tensor(values)
        same(FRONTENDS[frontend](function)(mine), function(other))
        same([mine], [other])


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.unfold(0, 2, 1).add_(1),
        lambda y: y.as_strided((2, 2), (1, 1)).mul_(2),
        lambda y: y.expand(2, 3).detach()[0].add_(1),
        lambda y: y.expand(2, 3).__setitem__(torch.tensor([0]), 1.0),
    ],
    ids=["windows", "strided", "detached", "by index"],
)
def test_refused(frontend: str, write: Callable[[Tensor], Tensor]) -> None:
    """Where eager's result depends on an order, or no view of the memory is to be had."""

    def function(x: Tensor) -> list[Tensor]:
        y = x * 1
        write(y)
        return [y]

    with pytest.raises(Exception, match=r"(?s)changes a .*in place.*\.clone\(\)") as raised:
        FRONTENDS[frontend](function)(torch.tensor(VALUES))
    assert "test_overlaps.py" in str(raised.value)


def test_gradients() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        z = y.expand(4, 3)
        z[0].mul_(w)
        z[2, 1:] = w.square()[:2]
        return (z * torch.arange(12.0).view(4, 3)).sum()

    x, start = torch.randn(3), torch.randn(3)
    mine, other = (nn.Parameter(start.clone()) for _ in range(2))

    class Step(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.ParameterList([mine])
            self.add_optimizer(torch.optim.SGD([mine], 0.1))

        def build(self, x: Tensor) -> Tensor:
            value = loss(x, mine)
            value.backward()
            return value

    torch.testing.assert_close(Step()(x), loss(x, other))
    loss(x, other).backward()
    torch.optim.SGD([other], 0.1).step()
    torch.testing.assert_close(mine, other)


def _views(draw: random.Random, z: Tensor) -> Tensor:
    """A few random views."""
    for _ in range(draw.randint(1, 4)):
        rank = z.dim()
        kind = draw.randrange(6)
        d = draw.randrange(rank) if rank else 0
        if kind == 0 and rank > 1:
            z = z.select(d, draw.randrange(z.shape[d]))
        elif kind == 1 and rank:
            low = draw.randrange(z.shape[d])
            z = z.narrow(d, low, draw.randint(1, z.shape[d] - low))
        elif kind == 2 and rank > 1:
            z = z.transpose(0, d)
        elif kind == 3 and rank > 1:
            z = z.diagonal()
        elif kind == 4:
            z = z.unsqueeze(0).expand(draw.randint(1, 3), *z.shape)
        elif rank and z.shape[d] > 2:
            z = z.unfold(d, 2, draw.randint(1, 2))
    return z


@pytest.mark.parametrize("seed", range(12))
def test_random_views(seed: int) -> None:
    """Each of several programs is eager's result, or refused as eager does, or since its views are not to be had."""

    def function(x: Tensor) -> list[Tensor]:
        draw = random.Random(seed)
        y, shown = x * 1, []
        for n in range(3):
            z = _views(draw, y)
            shown.append(z)
            part = _views(draw, z)
            part.copy_(torch.arange(part.numel()).view(part.shape) * 0.7 + n)
            y.mul_(1.5)
        return [y, *(z * 1 for z in shown)]

    x = torch.full((3, 4), 1e8)
    x[1] = torch.tensor([INF, -INF, 1e-8, 3.0])
    try:
        wanted = function(x)
    except RuntimeError:
        with pytest.raises((flow.GraphError, RuntimeError)):
            graph(function)(x)
        return
    try:
        found = graph(function)(x)
    except flow.GraphTraceError as error:
        found, text = [], str(error)
        assert "one in memory" in text or "no base" in text
        return
    same(found, wanted)


def test_an_offset_counts_from_where_an_input_begins() -> None:
    """`as_strided` with a storage_offset: as eager where an input begins with its memory, else an error."""
    parts = graph(lambda x: x.as_strided((2, 3), (1, 2), 3) * 1)
    x, longer = torch.randn(12), torch.randn(20)
    assert torch.equal(parts(x), x.as_strided((2, 3), (1, 2), 3))
    with pytest.raises(GraphInputError, match=r"begins 5 elements behind that; pass a copy"):
        parts(longer[5:17])
    assert torch.equal(parts(longer[:12]), longer.as_strided((2, 3), (1, 2), 3))
    with pytest.raises(GraphTraceError, match="knows nothing of what lies before"):
        graph(lambda x: x.as_strided((2, 3), (1, 2), 3) * 1)(longer[5:17])


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.clamp_(min=x[0]), lambda x: torch.clamp_(x, max=x[1:2]),
        lambda x: x[1:].lerp_(end=x[:-1], weight=0.5),
        lambda x: torch.add(x[1:], 1, out=x[:-1]), lambda x: torch.neg(x[:, 1:], out=x[:, :-1]),
        lambda x: torch.where(x[1:] > 0, x[1:], x[1:] * 0, out=x[:-1]), lambda x: torch.mul(x, x, out=x),
        lambda x: torch.mul(x, other=x[0], out=x),
    ],
)  # fmt: skip
def test_operands_that_overlap_in_parts(write: Callable[[Tensor], Tensor]) -> None:
    """By keyword and by out=, too: refused where eager refuses."""
    try:
        expected = write(torch.arange(9.0).reshape(3, 3))
    except RuntimeError:
        with pytest.raises(GraphTraceError, match=r"test_overlaps.py.*overlap in parts"):
            flow.nn.Graph.trace(write)(torch.arange(9.0).reshape(3, 3))
    else:
        assert torch.equal(flow.nn.Graph.trace(write)(torch.arange(9.0).reshape(3, 3)), expected)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: torch.mul(x[0] * 1, 2, out=x.select(0, 0).select(0, 1)),
    ],
)
def test_writes_that_functionalization_cannot_take_back(write: Callable[[Tensor], Tensor]) -> None:
    """By the line, whether PyTorch says so while tracing, or a kernel would when it runs."""

    def build(x: Tensor) -> Tensor:
        y = x * 1
        write(y)
        return y

    with pytest.raises(GraphTraceError, match=r"test_overlaps.py.*(in place|view of shape)"):
        flow.nn.Graph.trace(build)(torch.arange(9.0).reshape(3, 3))


@pytest.mark.parametrize(
    "update",
    [
        lambda x: x.mul_(0.5),
        lambda x: x[..., :-1].mul_(0.5),
        lambda x: x[:, :, :1].add_(1),
        lambda x: x.copy_(torch.ones(4)),
    ],
)
def test_the_backend_refuses_updates_of_overlapping_arguments(
    update: Callable[[Tensor], Tensor],
) -> None:
    """AOTAutograd's copy has each element once, eager's memory several elements in one place."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        update(x)
        return y + 1

    torch._dynamo.reset()
    x = torch.randn(55).as_strided((4, 4, 4), (16, 1, 1))
    with pytest.raises(Exception, match="some of its elements are one in memory"):
        torch.compile(function, backend="gflow")(x, torch.ones(2))


def test_the_backend_reads_overlapping_arguments() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        y.add_(x.sum())
        return x * 2

    torch._dynamo.reset()
    x = torch.randn(55).as_strided((4, 4, 4), (16, 1, 1))
    ours, theirs = torch.ones(2), torch.ones(2)
    found = torch.compile(function, backend="gflow")(x, ours)
    torch.testing.assert_close(found, function(x, theirs))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("alpha", [True, False])
def test_sums_of_booleans_heed_alpha(alpha: bool) -> None:
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    found = flow.compile(lambda a, b: torch.add(a, b, alpha=alpha))(a, b)
    torch.testing.assert_close(found, torch.add(a, b, alpha=alpha))


def test_a_window_of_a_product_is_written_as_a_slice() -> None:
    def build(x: Tensor) -> Tensor:
        y = x[0] @ x
        y.unfold(0, 1, 1)[2:3, 0] = 7.0
        return y * 1

    x = torch.arange(9.0).reshape(3, 3)
    assert torch.equal(flow.nn.Graph.trace(build)(x), build(x))
