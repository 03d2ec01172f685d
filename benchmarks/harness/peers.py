"""The same work done by each peer: a function without arguments that does one step.

eager        PyTorch as it is
compile      torch.compile, default mode, over forward and loss; the optimizer's step is eager
compile-opt  the same, and the optimizer's step compiled too
gflow        one nn.Graph over forward, backward and update
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.workloads.items import Work, loss_of

Step = Callable[[], "Tensor | tuple[Tensor, ...]"]

PEERS = ("eager", "compile", "compile-opt", "gflow")


def import_libraries(peer: str) -> None:
    """What the peer would import at its first call, so that memory is not charged for it."""
    importlib.import_module("torch._dynamo")  # every optimizer imports it, eager ones too
    if peer == "gflow":
        for name in ("gflow", "gflow.dialects", "gflow.compiler", "gflow.runtime"):
            package = importlib.import_module(name)
            for found in pkgutil.walk_packages(package.__path__, name + "."):
                importlib.import_module(found.name)
    elif peer != "eager":
        importlib.import_module("torch._inductor.compile_fx")


def make_step(peer: str, work: Work) -> Step:
    if peer == "gflow":
        return gflow_step(work)[0]
    if work.optimizer is not None:
        return _training(peer, work)
    if work.gradients:
        return _gradients(peer, work)
    return _forward(peer, work)


def _compiled(peer: str, function: Callable) -> Callable:
    return function if peer == "eager" else torch.compile(function)


def _training(peer: str, work: Work) -> Step:
    optimizer = work.optimizer
    assert optimizer is not None
    *inputs, target = work.inputs
    loss_fn = _compiled(peer, lambda *args: loss_of(work.module(*args[:-1]), args[-1]))
    update = torch.compile(optimizer.step) if peer == "compile-opt" else optimizer.step

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(*inputs, target)
        loss.backward()
        update()
        return loss.detach()

    return step


def _gradients(peer: str, work: Work) -> Step:
    *inputs, gradient = work.inputs
    wanted = [inputs[0].requires_grad_(), *work.module.parameters()]
    forward = _compiled(peer, work.module)
    return lambda: torch.autograd.grad(forward(*inputs), wanted, gradient)


def _forward(peer: str, work: Work) -> Step:
    forward = _compiled(peer, work.module)

    def step() -> Tensor:
        with torch.no_grad():
            return forward(*work.inputs)

    return step


def gflow_step(work: Work) -> tuple[Step, object]:
    """The step, and its graph."""
    import gflow as flow

    class TrainGraph(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = work.module
            assert work.optimizer is not None
            self.add_optimizer(work.optimizer)

        def build(self, *args: Tensor) -> Tensor:
            loss = loss_of(self.model(*args[:-1]), args[-1])
            loss.backward()
            return loss

    class GradientGraph(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = work.module

        def build(self, *args: Tensor) -> tuple[Tensor, ...]:
            *inputs, gradient = args
            with torch.enable_grad():
                x = inputs[0].detach().requires_grad_()
                y = self.model(x, *inputs[1:])
                return torch.autograd.grad(y, [x, *self.model.parameters()], gradient)

    class ForwardGraph(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = work.module

        def build(self, *args: Tensor) -> Tensor:
            return self.model(*args)

    if work.optimizer is not None:
        graph = TrainGraph()
    else:
        graph = GradientGraph() if work.gradients else ForwardGraph()
    return lambda: graph(*work.inputs), graph
