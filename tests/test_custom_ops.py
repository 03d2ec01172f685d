"""Custom ops that write into their arguments, through all ways of compiling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gflow
from gflow.dialects.aten.calls import AtenError, find_overload


@torch.library.custom_op("gflow_test_writes::add_scaled", mutates_args={"x"})
def add_scaled(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    """Adds to x; gives twice what x is then."""
    x.add_(y * scale)
    return x * 2


@add_scaled.register_fake
def _(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("gflow_test_writes::grow", mutates_args={"xs", "zeroed"})
def grow(xs: list[Tensor], zeroed: Tensor | None = None) -> None:
    """Multiplies tensors, each by another number."""
    for k, x in enumerate(xs):
        x.mul_(k + 2)
    if zeroed is not None:
        zeroed.zero_()


_LIBRARY = torch.library.Library("gflow_test_writes", "FRAGMENT")
_LIBRARY.define("count(Tensor(a!) x, *, int by=1) -> Tensor(a!)")
_LIBRARY.impl("count", lambda x, *, by=1: x.add_(by), "CPU")
_LIBRARY.impl("count", lambda x, *, by=1: x, "Meta")


def result_and_argument(x: Tensor) -> Tensor:
    return add_scaled(x, x * 2, scale=3.0) + x


def list_and_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    grow([x, y])
    grow([y.t()[:2]])
    grow([], zeroed=x[:, 1])
    return x, y


def result_that_is_the_argument(x: Tensor) -> Tensor:
    y = torch.ops.gflow_test_writes.count(x, by=2)
    return y.mul_(2) + x


def one_of_a_tensor_twice(x: Tensor) -> Tensor:
    add_scaled(x, x)
    return x * 1


PROGRAMS = [result_and_argument, list_and_view, result_that_is_the_argument]


@pytest.mark.parametrize("program", [*PROGRAMS, one_of_a_tensor_twice])
def test_compile(program):
    run = gflow.compile(program)
    for start in (1.0, 2.0):
        given, own = (torch.arange(9.0).reshape(3, 3) + start for _ in range(2))
        torch.testing.assert_close(run(own), program(given))
        torch.testing.assert_close(own, given)


def test_buffers_and_gradients():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3, 3))
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            grow([self.count.add_(1)])
            return self.linear(x + self.count)

    torch.manual_seed(0)
    model, eager = Counted(), Counted()
    eager.load_state_dict(model.state_dict())
    run = gflow.compile(model)
    for _ in range(3):
        x = torch.randn(3, 3)
        out, want = run(x), eager(x)
        out.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(model.count, eager.count)
        torch.testing.assert_close(model.linear.weight.grad, eager.linear.weight.grad)


class _Graph(gflow.nn.Graph):
    def __init__(self, program):
        super().__init__()
        self.program = program

    def build(self, x: Tensor):
        return self.program(x)


def test_refused_where_memory_is_shared():
    with pytest.raises(gflow.GraphTraceError, match=r"test_custom_ops.py:\d+.*shares memory"):
        _Graph(one_of_a_tensor_twice)(torch.ones(3))


def test_refused_without_a_backward():
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(gflow.GraphTraceError, match="no backward"), torch.enable_grad():
        _Graph(lambda x: add_scaled(x, weight))(torch.ones(3))


def test_saved(tmp_path):
    graph, x = _Graph(result_and_argument), torch.ones(3)
    want = graph(x)
    gflow.save(graph, tmp_path / "saved")
    again = torch.ones(3)
    torch.testing.assert_close(gflow.load(tmp_path / "saved")(again), want)
    torch.testing.assert_close(again, x)


def test_unknown_ops():
    for name in ("of_4_none_op", "of_x_none_op", "other"):
        with pytest.raises(AtenError, match="no such overload"):
            find_overload(f"gflow_written.{name}.default")


def test_ops_that_programs_do_not_call(caplog):
    """PyTorch's internal ones: an error with the line, and outside of graphs a call through PyTorch."""
    # start-up: of Inductor
    from torch._inductor.test_operators import realize

    def doubled(x: Tensor) -> Tensor:
        return realize(x * 2) * 2

    class Doubled(gflow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return doubled(x)

    x = torch.randn(3)
    with pytest.raises(
        RuntimeError, match=r"_inductor_test.realize.default.* outside of the graph"
    ):
        Doubled()(x)
    for run in (gflow.compile(doubled), torch.compile(doubled, backend="gflow")):
        assert torch.equal(run(x), doubled(x))
    assert "_inductor_test.realize" in caplog.text
