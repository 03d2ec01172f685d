"""Writes beside reads of the same memory, `out=` that changes what it writes to, and results without a gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gflow as flow
from gflow.errors import GraphTraceError

ROWS = torch.tensor([1, 2, 0, 3])
GRID = ROWS.expand(4, 4)
#: reads what it writes in another order; most of these raise in eager, too, and the others give what the order makes
SHARED: dict[str, Callable[[Tensor], object]] = {
    "scatter": lambda x: x.scatter_(0, GRID, x.t()),
    "scatter_add": lambda x: x.scatter_add_(0, GRID, x),
    "index_add": lambda x: x.index_add_(0, ROWS[:2], x[1:3]),
    "index_copy": lambda x: x.index_copy_(0, ROWS, x),
    "index_put": lambda x: x.index_put_((ROWS,), x),
    "assigned": lambda x: x.__setitem__(ROWS[:2], x[1:3]),
    "put": lambda x: x.put_(ROWS, x[0]),
    "masked_scatter": lambda x: x.masked_scatter_(torch.eye(4) > 0, x[1:]),
    "addmm": lambda x: x.addmm_(x, x),
    "product": lambda x: torch.mm(x, x, out=x),
    "gather": lambda x: torch.gather(x, 0, GRID, out=x),
    "joined": lambda x: torch.cat([x[2:], x[:2]], out=x),
    "sum": lambda x: torch.sum(x, 0, out=x[0]),
    "largest": lambda x: torch.amax(x, 0, out=x[0]),
    "linear": lambda x: torch._C._nn.linear(x, x + 1, out=x),
    "outs": lambda x: torch.max(x, 0, out=(x[0], torch.empty(4, dtype=torch.int64))),
}
#: reads all before it writes, or other elements
APART: dict[str, Callable[[Tensor], object]] = {
    "filled by an element": lambda x: x.masked_fill_(x > 0.5, x[0, 0]),
    "assigned an element": lambda x: x.__setitem__(x > 0.5, x[0, 0]),
    "exponents": lambda x: x.ldexp_(x[0]),
    "other rows": lambda x: x[:2].index_add_(0, ROWS[2:3], x[3:]),
    "rows exchanged": lambda x: x.__setitem__([0, 1], x[[1, 0]]),
    "product of others": lambda x: torch.mv(x[1:].t(), x[0, 1:].clone(), out=x[0]),
    "triangle": lambda x: torch.tril(x, out=x),
    "running sum": lambda x: torch.cumsum(x, 0, out=x),
    "sum with a product": lambda x: torch.addmm(
        x, ROWS[:4, None] + x.new_ones(4, 1), x.new_ones(1, 4), out=x
    ),
}


def graph(function: Callable[[Tensor], object]) -> flow.nn.Graph:
    class Program(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            function(x)
            return x + 0

    return Program()


@pytest.mark.parametrize("name", SHARED)
def test_operands_that_share_elements_with_what_is_written_are_refused(name: str) -> None:
    with pytest.raises(GraphTraceError, match=r"clone\(\)"):
        graph(SHARED[name])(torch.rand(4, 4))


@pytest.mark.parametrize("name", APART)
def test_operands_that_are_read_before_are_not(name: str) -> None:
    x = torch.rand(4, 4)
    mine = x.clone()
    APART[name](x)
    out = graph(APART[name])(mine)
    torch.testing.assert_close(mine, x)
    torch.testing.assert_close(out, x)


def test_where_a_view_begins_is_not_what_an_equal_shape_had() -> None:
    """Shapes of views are remembered: here first of one at the start of its memory."""
    graph(lambda x: x[1:].clone().t().mul_(2))(torch.rand(4, 4))
    test_operands_that_are_read_before_are_not("product of others")


def test_out_that_would_be_resized() -> None:
    def write(x: Tensor) -> None:
        small = x[0, :2].clone()
        torch.add(x, 1, out=small)

    with pytest.raises(GraphTraceError, match="resize"):
        graph(write)(torch.rand(4, 4))


def test_out_that_requires_a_gradient() -> None:
    with pytest.raises(GraphTraceError, match="requires a gradient"):
        graph(lambda x: torch.eq(x, 1, out=x.exp()))(torch.rand(4, 4).requires_grad_())


def _by_out(x: Tensor, rank: Tensor, normed: Tensor, sides: Tensor) -> list[Tensor]:
    """Kernels of which some make new tensors where their operands are traced."""
    empty = torch.empty(0, dtype=torch.int64)
    given = torch.linalg.matrix_rank(x, out=rank)
    torch.linalg.matrix_rank(x[None], out=empty)
    statistics = torch.zeros(4), torch.ones(4)
    torch.native_batch_norm(
        x, None, None, *statistics, True, 0.1, 1e-5, out=(normed, sides[::2], sides[1::2])
    )
    largest = torch.max(x, 0, out=(sides[4:], torch.empty(0, dtype=torch.int64)))
    parts = [torch.empty(0) for _ in range(3)] + [torch.ones(7)[::2]]
    assert torch.unbind_copy(x, out=parts) is None
    halves = (torch.empty(0), torch.ones(4, 2).t()[:, :4].t())
    torch.split_with_sizes_copy(x, [2, 2], 1, out=halves)
    kept = [normed.reshape(-1), sides * 1, *parts, *halves]
    return [given, rank + 1, empty, *kept, *largest, *statistics]


@pytest.mark.parametrize("frontend", ["graph", "compile", "dynamo"])
def test_what_out_names_takes_the_result(frontend: str) -> None:
    def arguments() -> list[Tensor]:
        rank = torch.ones(3, dtype=torch.int64)[1]
        return [torch.arange(16.0).view(4, 4) % 5, rank, torch.ones(4, 4).t(), torch.zeros(8)]

    torch._dynamo.reset()
    function = {
        "graph": flow.nn.Graph.trace,
        "compile": functools.partial(flow.compile, fullgraph=True),
        "dynamo": functools.partial(torch.compile, backend="gflow"),
    }[frontend](_by_out)
    mine, others = arguments(), arguments()
    torch.testing.assert_close(function(*mine), _by_out(*others))
    torch.testing.assert_close(mine, others)
    assert mine[1] == 4


def results(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    changed = x.softmax(0)
    changed.i0_()
    return x.exp(), changed, x.heaviside(x)


def test_results_without_a_gradient_raise_in_the_backward_that_they_take_part_in() -> None:
    """The saved value of one was updated, and the other has no formula: eager says so in the backward."""
    x = torch.randn(4, requires_grad=True)
    compiled = flow.compile(results)
    compiled(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        compiled(x)[1].sum().backward()
    exponential, _, steps = compiled(x)
    with pytest.raises(RuntimeError, match="heaviside is not implemented"):
        (exponential + steps).sum().backward()


def test_what_is_left_to_dynamo_and_refused_there_is_named() -> None:
    def update(x: Tensor, y: Tensor) -> Tensor:
        torch.sqrt(y, out=x[:, 0])
        return x * y.sum()

    x, y = torch.rand(4, 4), torch.rand(4)
    w = torch.rand(4, 4, requires_grad=True)
    with pytest.raises(flow.errors.GraphError, match="non-contiguous"):
        flow.compile(lambda x, y: update(x, y) * w, fullgraph=True)(x, y)


@pytest.mark.parametrize("order", [1, 2, 3, float("inf")])
def test_norm_of_one_element_stays_in_range(order: float) -> None:
    """As PyTorch, which takes the absolute value where each sum has one term."""
    x = torch.tensor([[3e30], [-1e-30], [0.0]])

    class Norms(flow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return torch.linalg.vector_norm(x, order, dim=1)

    torch.testing.assert_close(Norms()(x), x.abs()[:, 0], rtol=0, atol=0)
