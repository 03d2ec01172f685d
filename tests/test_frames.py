"""Calls of many sizes: what is kept for each (`gflow.runtime.frames`), and which steps threads share at which size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gflow
from gflow.compiler.kernel.selection.cpu.sharing import of_product, shared_from
from gflow.dialects.extents import Symbol, size_of_program
from gflow.dialects.program import KernelStep
from gflow.runtime import executable


class Attend(gflow.nn.Graph):
    """Native steps around a call of PyTorch's, and results of two shapes."""

    def build(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return attend(x, w)


def attend(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    q = (x @ w).unflatten(-1, (2, 4)).transpose(1, 2)
    y = F.scaled_dot_product_attention(q, q * 2, q + 1)
    return y.transpose(1, 2).flatten(-2).sin(), y.sum(2)


def largest() -> Tensor:
    return gflow.dynamic_dim(torch.randn(2, 40, 8), 1, min=1, max=40)


@pytest.mark.parametrize(("frames", "small"), [(256, 1 << 26), (2, 0), (3, 2000)])
def test_sizes_in_turn(monkeypatch: pytest.MonkeyPatch, frames: int, small: int) -> None:
    """Also where numbers and buffers of sizes are dropped, arguments move, and results are kept."""
    monkeypatch.setattr(executable, "_FRAMES", frames)
    monkeypatch.setattr(executable, "_SMALL", small)
    monkeypatch.setattr(executable, "_HELD", small)
    graph, w = Attend(), torch.randn(8, 8)
    graph(largest(), w)
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    run = plan.compiled.run
    held = []
    for n in (3, 17, 3, 40, 1, 17, 17, 3, 5, 40, 1):
        x = torch.randn(2, n, 8)
        if n == 5:
            run.close()  # gives back the arena, whose next block lies elsewhere
            w = w.clone()
        held.append((graph(x, w), attend(x, w)))
        assert len(run._frames) <= frames
    for found, wanted in held:
        torch.testing.assert_close(found, wanted)
    assert len(graph._state.plans) == 1


def test_buffers_of_results_do_not_add_up_over_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of one shape has one buffer for all sizes; those of others are dropped beyond a limit."""
    monkeypatch.setattr(executable, "_SMALL", 0)
    graph, w = Attend(), torch.randn(8, 8)
    graph(largest(), w)
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    run, addresses = plan.compiled.run, set()
    for n in (3, 40, 17, 39, 3, 40, 38):
        addresses.add(graph(torch.randn(2, n, 8), w)[1].data_ptr())
        held = sum(f.result_bytes for f in run._frames.values() if f.pools)
        assert held <= 2 * run._frame.result_bytes or len(run._pooled) == 1
    assert len(addresses) == 1
    assert sum(bool(f.pools) for f in run._frames.values()) == len(run._pooled)


@pytest.mark.parametrize("way", ["gflow.compile", "torch.compile"])
def test_saved_values_of_all_sizes_share_a_buffer(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It grows to the largest size. Results of the caller's have storages of their own size."""
    runs = list[executable.Executable]()
    made = executable.Executable.__init__

    def noted(self: executable.Executable, *args: object, **more: object) -> None:
        made(self, *args, **more)  # type: ignore[arg-type]
        runs.append(self)

    monkeypatch.setattr(executable.Executable, "__init__", noted)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Sigmoid()
    )
    compiled = (
        gflow.compile(model)
        if way == "gflow.compile"
        else torch.compile(model, backend="gflow", dynamic=True)
    )

    def gradient(run: object, *xs: Tensor) -> list[Tensor]:
        results = [run(x) for x in xs]  # type: ignore[operator]
        assert all(r.untyped_storage().nbytes() == r.nbytes for r in results)
        return [*torch.autograd.grad(sum(r.square().sum() for r in results), model.parameters())]

    for n in (3, 5, 4, 40, 9, 33, 40):
        x, other = torch.randn(n, 8), torch.randn(2 * n, 8)
        torch.testing.assert_close(gradient(compiled, x, other), gradient(model, x, other))
    shared = [run for run in runs if run.program.size is not None and (run.inner or run.joined)]
    assert shared
    for run in shared:
        for i, pool in run._shared.values():
            held = sum(b.storage.nbytes() for b in pool.buffers)
            if i in run.inner:
                assert held <= 4 * 8 * (40 + 80)
            if i in run.joined:  # all of them
                assert held <= len(run.joined) * 4 * 8 * (40 + 80)


def test_a_call_that_was_given_up_leaves_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, w = Attend(), torch.randn(8, 8)
    graph(largest(), w)
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    frame = type(plan.compiled.run._frame)
    place, given_up = frame.place, []

    def interrupted(self: object, args: list[Tensor], results: list[Tensor]) -> None:
        place(self, args, results)  # type: ignore[arg-type]
        given_up.append(1)
        raise KeyboardInterrupt

    for n in (6, 7):
        graph(torch.randn(2, n, 8), w)
    monkeypatch.setattr(frame, "place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph(torch.randn(2, 7, 8), w)
    monkeypatch.setattr(frame, "place", place)
    assert given_up
    for n in (6, 7):
        x = torch.randn(2, n, 8)
        torch.testing.assert_close(graph(x, w), attend(x, w))


def test_threads_share_what_takes_longer_than_starting_them() -> None:
    assert shared_from(of_product(1, 64, 64, 64)) == (False, 0)
    assert shared_from(of_product(1, 1024, 1024, 1024)) == (True, 0)
    symbol = Symbol("n", 1, 4096)
    with size_of_program(symbol):
        shared, least = shared_from(of_product(1, symbol.stand_in, 64, 64))
        assert shared
        assert 64 < least < 4096
        assert shared_from(of_product(1, 8, 64, 64)) == (False, 0)
        cost = of_product(1, 3 * symbol.stand_in, 64, 64)
        assert shared_from(cost)[1] == -(-least // 3)


def test_steps_are_shared_from_a_size_on() -> None:
    class Double(gflow.nn.Graph):
        def build(self, x: Tensor) -> Tensor:
            return x.sin() * 2

    graph = Double()
    x = gflow.dynamic_dim(torch.randn(1 << 12, 64), 0, min=1, max=1 << 12)
    assert torch.equal(graph(x), graph(x.clone()))
    (plan,) = [p for plans in graph._state.plans.values() for p in plans]
    run = plan.compiled.run
    (step,) = [s for s in run.program.steps if isinstance(s, KernelStep)]
    assert step.parallel
    assert 1 < step.from_size < 1 << 12
    for n in (1, step.from_size - 1, step.from_size, 1 << 12):
        part = x[:n].clone()
        torch.testing.assert_close(graph(part), part.sin() * 2)
        assert run._frame._code._rows[0, 2] == (n >= step.from_size)
