"""Tensors that are not row-major: updated in place, through views of every kind, and read by others; beside eager.

Compared are the results, the tensors that were updated, and the memory between their elements.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import gflow as flow
from gflow import nn

Tensor = torch.Tensor

#: how a 6 × 8 matrix lies: strides and offset
LAYOUTS = {
    "dense": ((8, 1), 0),
    "transposed": ((1, 6), 0),
    "sliced": ((20, 2), 3),
    "gaps": ((11, 1), 5),
    "transposed with gaps": ((2, 13), 1),
}

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda y: y,
    "unfold": lambda y: y.unfold(0, 3, 3),
    "unfold of columns": lambda y: y.unfold(-1, 2, 3),
    "diagonal": lambda y: y.diagonal(1, 1, 0),
    "select": lambda y: y.select(1, 2),
    "last row": lambda y: y[-1],
    "narrow": lambda y: y.narrow(1, 2, 3),
    "steps": lambda y: y[1::2, ::3],
    "T": lambda y: y.T,
    "mT": lambda y: y.mT,
    "movedim": lambda y: y.movedim(0, 1)[2],
    "reshape": lambda y: y.reshape(-1),
    "chunk": lambda y: y.chunk(2, 1)[1],
    "split": lambda y: y.split([2, 4], 0)[1],
    "views of views": lambda y: y.t()[1:].t()[::2],
    "unsqueeze": lambda y: y.unsqueeze(1)[:, 0, 1:3],
    "unflatten": lambda y: y.unflatten(0, (2, 3))[1],
    "permute": lambda y: y[:, :, None].permute(2, 1, 0),
    "detach": lambda y: y.detach(),
    "unbind": lambda y: y.unbind(1)[4],
    "hsplit": lambda y: torch.hsplit(y, 2)[0],
    "tensor_split": lambda y: torch.tensor_split(y, 3, 1)[1],
    "flip": lambda y: y.flip(0),
    "view_as": lambda y: y.unsqueeze(0).view_as(y[None]),
}

UPDATES: list[Callable[[Tensor], Any]] = [
    lambda v: v.zero_(),
    lambda v: v.add_(1),
    lambda v: v.mul_(v.sum() * 0.1),
    lambda v: v.copy_(torch.arange(v.numel(), dtype=v.dtype).reshape(v.shape)),
]

READERS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x @ x.t(),
    lambda x: x.reshape(-1) * 1,
    lambda x: x.flatten()[torch.tensor([1, 5, 9])],
    lambda x: F.conv1d(x[None], torch.ones(2, 6, 3)),
    lambda x: x.cumsum(1),
    lambda x: x.sort(0)[0],
    lambda x: F.max_pool1d(x[None], 2),
    lambda x: x.roll(1),
    lambda x: x.repeat_interleave(2),
    lambda x: x.argmax(),
    lambda x: F.group_norm(x.reshape(1, 4, -1), 2),
    lambda x: F.layer_norm(x.reshape(4, -1), [12]),
    lambda x: x.softmax(-1),
    lambda x: torch.cat([x, x.flip(1)], 1),
    lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None] + 1, x[None, None]),
]


def graph_of(function: Callable[..., Any]) -> nn.Graph:
    class Given(nn.Graph):
        def build(self, *args: Any) -> Any:
            return function(*args)

    return Given()


def torch_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="gflow")


FRONTENDS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "graph": graph_of,
    "compile": flow.compile,
    "torch.compile": torch_compiled,
}


def memory(seed: int = 1) -> Tensor:
    return torch.randn(400, generator=torch.Generator().manual_seed(seed))


def compare(
    frontend: str, function: Callable[..., Any], place: Callable[[Tensor], list[Tensor]], note: str
) -> None:
    """`place` gives the arguments, in a memory of which every number is compared."""
    mine, other = memory(), memory()
    wanted = function(*place(other))
    found = FRONTENDS[frontend](function)(*place(mine))
    for n, (a, b) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=f"{note}: result {n}")
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4, msg=f"{note}: memory")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_through_views(layout: str) -> None:
    """Of an input, and of what is computed of it."""
    strides, offset = LAYOUTS[layout]
    for n, (name, view) in enumerate(VIEWS.items()):
        if (n + len(layout)) % 2:
            continue  # half of them in each layout
        update, read = UPDATES[n % len(UPDATES)], READERS[n % len(READERS)]
        inside = n % 3 == 0
        if inside:
            read = READERS[(n + 5) % len(READERS)]

        def function(x: Tensor) -> tuple[Tensor, ...]:
            y = x * 1 if inside else x  # noqa: B023
            v = view(y)  # noqa: B023
            update(v)  # noqa: B023
            return read(y), v * 2  # noqa: B023

        compare("graph", function, lambda m: [m.as_strided((6, 8), strides, offset)], name)


@pytest.mark.parametrize("layout", ["transposed", "sliced"])
def test_readers_of_what_was_updated(layout: str) -> None:
    strides, offset = LAYOUTS[layout]

    def function(x: Tensor) -> list[Tensor]:
        x.mul_(0.5).add_(1)
        return [read(x) for read in READERS]

    for frontend in FRONTENDS:
        compare(frontend, function, lambda m: [m.as_strided((6, 8), strides, offset)], frontend)
    for n, read in enumerate(
        READERS
    ):  # each alone: what several need dense is not updated in place

        def one(x: Tensor) -> list[Tensor]:
            x.mul_(0.5).add_(1)
            return [read(x)]  # noqa: B023

        compare("graph", one, lambda m: [m.as_strided((6, 8), strides, offset)], f"reader {n}")


def test_an_update_through_a_transpose_leaves_the_strides_of_its_base() -> None:
    """By ops whose result is row-major, however their operand lies."""
    rows = torch.tensor([1, 0, 1])
    updates: list[Callable[[Tensor], Tensor]] = [
        lambda v: v.cumsum_(0),
        lambda v: v.index_add_(0, rows, torch.ones(3, *v.shape[1:])),
        lambda v: v.scatter_reduce_(0, rows[None].expand(v.shape[0], 3)[:2], v[:2, :3] * 2, "amax"),
        lambda v: v.masked_scatter_(v > 2, torch.arange(100.0)),
        lambda v: v[1:].clamp_(2, 7),
    ]

    def function(x: Tensor) -> list[Tensor]:
        results = []
        for update in updates:
            base = (x * 2).contiguous()
            update(base.t())
            flat = base.view(-1)
            flat.mul_(2)
            same = base.contiguous()
            same.add_(1)
            results += [base.t().reshape(-1), base @ base.t(), flat, base.reshape(-1)]
        return results

    x = torch.arange(12.0).view(4, 3)
    for got, right in zip(nn.Graph.trace(function)(x), function(x), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("strides", [(24, 6, 1), (160, 48, 3), (1, 4, 16)])
def test_an_updated_view_has_the_strides_of_its_base(strides: tuple[int, int, int]) -> None:
    """Right after the update: `reshape` and `linear` go by them."""
    weight = torch.ones(3, 6)

    def function(x: Tensor) -> list[Tensor]:
        results = []
        for view in (
            x.transpose(0, 0),
            x.permute(0, 1, 2),
            x[:, ::2],
            x.transpose(0, 1),
            x.detach(),
        ):
            view.mul_(0.5)
            results += [view.reshape(-1, 6), F.linear(view, weight), view.flatten(1)]
        return results

    shape = (4, 4, 6)
    mine, want = (torch.arange(1000.0).as_strided(shape, strides) for _ in range(2))
    for got, right in zip(nn.Graph.trace(function)(mine), function(want), strict=True):
        torch.testing.assert_close(got, right)
    assert torch.equal(mine, want)


def test_channels_last() -> None:
    def function(x: Tensor, w: Tensor) -> list[Tensor]:
        x.relu_()
        y = F.conv2d(x, w, padding=1)
        y[:, 1:] *= 2
        return [y, x.mean((2, 3)), F.avg_pool2d(x, 2), x.flatten(1)]

    def place(m: Tensor) -> list[Tensor]:
        return [
            m.as_strided((2, 3, 4, 4), (48, 1, 12, 3)),
            m.as_strided((3, 3, 3, 3), (27, 1, 9, 3), 200),
        ]

    for frontend in FRONTENDS:
        compare(frontend, function, place, frontend)


def test_a_cache_of_keys_that_is_transposed() -> None:
    def function(cache: Tensor, q: Tensor, k: Tensor) -> list[Tensor]:
        cache[:, :, 2] = k
        cache[:, :, 3].add_(k)
        scores = (q.unsqueeze(2) @ cache.transpose(-1, -2)).softmax(-1)
        return [scores @ cache]

    def place(m: Tensor) -> list[Tensor]:
        return [
            m.as_strided((2, 3, 5, 4), (60, 4, 12, 1)),
            m.as_strided((2, 3, 4), (12, 4, 1), 200),
            m.as_strided((2, 3, 4), (12, 1, 3), 300),
        ]

    for frontend in FRONTENDS:
        compare(frontend, function, place, frontend)


def test_windows_of_every_size() -> None:
    """PyTorch's own functionalization writes zeros between windows."""
    refused = 0
    for n, size, step in ((5, 3, 3), (8, 2, 3), (9, 2, 4), (8, 4, 4), (7, 5, 3), (7, 3, 2)):
        for dim in (0, 1) if n == 8 else (n % 2,):

            def function(x: Tensor) -> list[Tensor]:
                v = x.unfold(dim, size, step)  # noqa: B023
                v.add_(1)
                v[0].mul_(2)
                x[1] += 1
                return [v * 1, x * 1]

            if step < size <= n - step:
                with pytest.raises(flow.GraphTraceError, match="one in memory"):
                    graph_of(function)(torch.randn(n, n))
                refused += 1
                continue
            for frontend in ("graph", "torch.compile") if dim == 0 else ("graph",):
                note = f"{frontend} {n} {size} {step} {dim}"
                compare(frontend, function, lambda m: [m.as_strided((n, n), (1, n))], note)  # noqa: B023
    assert refused == 1

    def read_only(x: Tensor) -> list[Tensor]:
        windows = x.unfold(1, 2, 3)
        x.add_(1)
        return [windows * 2]

    compare("graph", read_only, lambda m: [m.as_strided((6, 8), (20, 2), 3)], "read only")


def test_what_cannot_be_updated_is_refused() -> None:
    """An expanded tensor, as eager refuses it; memory of a tensor with gaps, after an update."""

    def expanded(x: Tensor) -> Tensor:
        y = x.sum(0, keepdim=True).expand(6, 8)
        y += 1
        return y

    def cut(x: Tensor) -> Tensor:
        x.add_(1)
        return torch.as_strided(x, (3, 2), (20, 2)) * 1

    x = memory().as_strided((6, 8), (20, 2))
    for function, what in (
        (expanded, "are one in memory"),
        (cut, "as_strided on a non-dense tensor"),
    ):
        with pytest.raises(flow.GraphTraceError, match=rf"test_strides\.py:\d+.*{what}"):
            graph_of(function)(x)
    before = graph_of(lambda x: torch.as_strided(x * 1, (3, 2), (8, 1)) + 1)
    torch.testing.assert_close(before(x), (x * 1).contiguous()[:3, :2] + 1)


def test_windows_in_training() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        y.unfold(0, 2, 3).mul_(3)
        return (y * y).sum()

    x, w = torch.randn(8, 4), torch.randn(8, 4)
    mine, other = (torch.nn.Parameter(w.clone()) for _ in range(2))

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.ParameterList([mine])
            self.add_optimizer(torch.optim.SGD([mine], 0.1))

        def build(self, x: Tensor) -> Tensor:
            value = loss(x, mine)
            value.backward()
            return value

    torch.testing.assert_close(Step()(x), loss(x, other))
    loss(x, other).backward()
    torch.optim.SGD([other], 0.1).step()
    torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_results_lie_as_they_should(frontend: str) -> None:
    """gflow's own are row-major; TorchDynamo is promised what PyTorch gives."""

    def function(x: Tensor) -> list[Tensor]:
        return [x + 1, x.t() * 2, x[:, ::2] - 1, (x + 1).t()]

    x = memory().as_strided((6, 8), (1, 6))
    wanted, found = function(x), FRONTENDS[frontend](function)(x)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
        if frontend == "torch.compile":
            assert a.stride() == b.stride()


def test_tensors_between_each_other() -> None:
    """Columns of one matrix share no element, wherever they lie; others that do are refused."""

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        x.add_(y)
        return [x @ y.t()]

    for strides, offsets in (
        ((13, 2), (0, 1)),
        ((16, 1), (0, 8)),
        ((16, 1), (8, 0)),
        ((2, 12), (0, 1)),
    ):

        def place(m: Tensor) -> list[Tensor]:
            return [m.as_strided((6, 6), strides, offset) for offset in offsets]  # noqa: B023

        compare("graph", function, place, f"{strides}")
    m = memory()
    with pytest.raises(flow.GraphInputError, match="shares memory"):
        graph_of(function)(m.as_strided((6, 6), (13, 2)), m.as_strided((6, 6), (13, 2), 2))


class Model(torch.nn.Module):
    """Parameters and buffers in many layouts, all updated in a step."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.turned = torch.nn.Parameter(torch.randn(8, 6, generator=g).t())
        self.sliced = torch.nn.Parameter(torch.randn(8, 20, generator=g)[:, ::2])
        self.conv = torch.nn.Conv2d(3, 5, 3, padding=1).to(memory_format=torch.channels_last)
        with torch.no_grad():
            for p in self.conv.parameters():
                p.copy_(torch.randn(p.shape, generator=g) * 0.1)
        self.register_buffer("mean_of_w", torch.zeros(8, 6).t())
        self.register_buffer("cache", torch.zeros(2, 4, 3, 5).transpose(1, 2))
        self.norm = torch.nn.BatchNorm1d(8)
        statistics = torch.stack([torch.zeros(8), torch.ones(8)], 1)
        self.norm.running_mean, self.norm.running_var = statistics.unbind(1)

    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        h = x @ self.turned
        self.mean_of_w.mul_(0.9).add_(self.turned.detach(), alpha=0.1)
        h = self.norm(h) + x @ self.mean_of_w
        h = torch.tanh(h @ self.sliced)
        self.cache[:, :, 1].add_(h[:2, :3, None].detach().expand(2, 3, 5))
        seen = (self.cache @ self.cache.transpose(-1, -2)).sum()
        y = self.conv(image).mean((2, 3))
        return h.sum(1).mean() + y.pow(2).mean() + seen * 0.01 * h.mean()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
}
SWITCHES: dict[str, Callable[[Any], None]] = {
    "": lambda config: None,
    "multi-tensor": lambda config: config.enable_multi_tensor_update(),
    "budget": lambda config: config.set_memory_budget(0.97),
    "amp": lambda config: config.enable_amp(dtype=torch.bfloat16),
}


@pytest.mark.parametrize(
    ("optimizer", "switch"),
    [*((name, "") for name in OPTIMIZERS), *(("adam", s) for s in SWITCHES if s)],
)
def test_training(optimizer: str, switch: str) -> None:
    mine, other = Model(), Model()
    ours, theirs = (OPTIMIZERS[optimizer](m.parameters()) for m in (mine, other))

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = mine
            self.add_optimizer(ours)
            SWITCHES[switch](self.config)

        def build(self, x: Tensor, image: Tensor) -> Tensor:
            loss = self.model(x, image)
            loss.backward()
            return loss

    step, g = Step(), torch.Generator().manual_seed(3)
    tolerance = {"rtol": 0.05, "atol": 0.05} if switch == "amp" else {"rtol": 1e-3, "atol": 1e-4}
    for _ in range(4):
        x = torch.randn(7, 6, generator=g)
        image = torch.randn(2, 3, 6, 6, generator=g).to(memory_format=torch.channels_last)
        theirs.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=switch == "amp"):
            wanted = other(x, image)
        wanted.backward()
        theirs.step()
        torch.testing.assert_close(step(x, image), wanted, check_dtype=False, **tolerance)
    state, reference = mine.state_dict(), other.state_dict()
    for name in reference:
        torch.testing.assert_close(state[name], reference[name], **tolerance)
        assert state[name].stride() == reference[name].stride(), name


def test_buffers_whose_elements_share_memory(tmp_path: Any) -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            double = {"dtype": torch.float64}
            self.register_buffer("mask", torch.arange(8, **double).expand(6, 8))
            self.register_buffer("windows", torch.arange(9, **double).unfold(0, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.mask) @ x.t() @ self.windows

    model = Masked()

    class Run(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def build(self, x: Tensor) -> Tensor:
            return self.model(x)

    graph, x = Run(), torch.randn(6, 8, dtype=torch.float64)
    torch.testing.assert_close(graph(x), model(x))
    flow.save(graph, tmp_path / "graph")
    torch.testing.assert_close(flow.load(tmp_path / "graph")(x), model(x))

    class Writes(nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return x.add_(1)

    with pytest.raises(flow.GraphTraceError, match="elements are one in memory"):
        Writes()(torch.zeros(8).expand(6, 8))
    assert copy.copy(model) is not model


@pytest.mark.parametrize("seed", range(12))
def test_reading_in_parts_what_is_written_is_refused_as_by_torch(seed: int) -> None:
    choose = random.Random(seed)
    count = choose.randint(1, 3)
    to, source = choose.randint(0, 6 - count), choose.randint(0, 6 - count)
    how, flat = choose.randint(0, 2), choose.random() < 0.5

    def update(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if flat else x
        if how == 0:
            y[to : to + count].mul_(y[source : source + count])
        elif how == 1:
            y[to : to + count] = y[source : source + count]
        else:
            y[to : to + count].copy_(y[source : source + count])
        return y + 1

    def outcome(function: Any) -> torch.Tensor | None:
        try:
            return function(torch.arange(24.0).view(6, 4))
        except (RuntimeError, flow.GraphTraceError):
            return None

    theirs, ours = outcome(update), outcome(nn.Graph.trace(update))
    assert (theirs is None) == (ours is None)
    if theirs is not None and ours is not None:
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_medians_of_elements_in_one_place(name: str) -> None:
    """PyTorch's kernel gives something else for a constant or an expanded tensor than for a copy of it."""

    def function(x: Tensor) -> Any:
        constant = torch.full((8, 8), -1.0)
        repeated = (x * 2).expand(8, 8)
        median = getattr(torch, name)
        return median(constant, -1)[0] * x, median(repeated, -1)[0], median(repeated)

    x = torch.randn(8, 1)
    first, second, third = graph_of(function)(x)
    assert torch.equal(first, -x.expand(8, 8).t().contiguous().t())
    assert torch.equal(second, x[:, 0] * 2)
    assert torch.equal(third, getattr(torch, name)((x * 2).expand(8, 8).contiguous()))


def test_calls_that_take_row_major_operands_only() -> None:
    x = torch.randn(3, 5)
    assert torch.allclose(graph_of(lambda x: F.pdist(x.t() * 1.0))(x), F.pdist(x.t().contiguous()))


def test_bags_of_rows_that_lie_anyhow() -> None:
    """PyTorch's kernel gives results of other shapes by the strides of its operands."""
    at, starts = torch.tensor([1, 0, 2, 1]), torch.tensor([0, 2])

    def function(x: Tensor) -> list[Tensor]:
        results = []
        for rows in (x, x.t(), (x * 2).t(), x.bfloat16(), x.bfloat16().t(), x.double()):
            taken = rows.detach().requires_grad_()
            even = torch.ones(4, dtype=rows.dtype)
            bags = [F.embedding_bag(at, taken, starts, mode=m) for m in ("sum", "mean", "max")]
            bags.append(F.embedding_bag(at, taken, starts, mode="sum", padding_idx=1))
            for weights in (even, torch.arange(8.0, dtype=rows.dtype)[::2]):
                bags.append(
                    F.embedding_bag(at, taken, starts, mode="sum", per_sample_weights=weights)
                )
            loss = torch.stack(bags).square().sum()
            results += [loss.detach(), *torch.autograd.grad(loss, taken)]
            with torch.no_grad():
                results.append(F.embedding_bag(at, rows, starts, mode="sum"))
        return results

    x = torch.arange(16.0).view(4, 4) / 4
    for got, right in zip(nn.Graph.trace(function)(x), function(x), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("strides", [(1, 2, 4, 1), (6, 1, 3, 1)])
def test_attention_of_queries_that_overlap(strides: Any, dtype: torch.dtype) -> None:
    """PyTorch's kernel writes its result to other places than those that it gives, and leaves some as they were."""
    q = torch.randn(35, dtype=dtype).as_strided((2, 2, 2, 3), strides)
    k = torch.randn(2, 2, 3, 3, dtype=dtype)

    @flow.compile
    def attend(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k)

    torch.testing.assert_close(attend(q, k), F.scaled_dot_product_attention(q.contiguous(), k, k))
