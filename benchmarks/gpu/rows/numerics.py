"""Each family of ops and some models against eager PyTorch, both against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.graphs import for_setting, gradients, graph_of
from benchmarks.gpu.record import Row
from benchmarks.gpu.rows.exactness import compare, double
from benchmarks.gpu.rows.families import FAMILIES, Family
from benchmarks.gpu.setting import Setting

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def rows(setting: Setting) -> Iterator[tuple[str, Callable[[], Row]]]:
    """A row for each family and element type."""
    for family in FAMILIES:
        for name, dtype in DTYPES.items():
            if not family.integers or dtype == torch.float32:
                label = f"{family.name} {'int64' if family.integers else name}"
                yield label, partial(check, setting, family, dtype)


def check(setting: Setting, family: Family, dtype: torch.dtype) -> dict[str, Any]:
    """Forward and gradients of a family in one element type."""
    random = setting.generator(len(family.name))

    def make(*shape: int, kind: str = "normal", bound: int = 0) -> Tensor:
        where = setting.where
        if kind == "index":
            return torch.randint(0, bound, shape, generator=random, device=where)
        values = torch.randn(shape, generator=random, device=where, dtype=torch.float64)
        if kind == "mask":
            return values > -1.0
        if kind == "distinct":  # in halves, too: where two are equal, either may come first
            values = values.argsort(-1).double() - shape[-1] // 2
        return (values.abs() + 0.1 if kind == "positive" else values).to(dtype)

    inputs = family.inputs(make, 1 if setting.small else 8)
    shapes = [t.shape for t in _results(family.function, inputs)]
    weights = [make(*shape) for shape in shapes]

    def whole(*values: Tensor) -> list[Tensor]:
        count = len(inputs)
        return gradients(family.function, values[:count], values[count:])

    exact = whole(*(double(t) for t in [*inputs, *weights]))
    eager = whole(*inputs, *weights)
    graph = graph_of(setting, whole)
    for _ in range(3):  # step by step, while a CUDA graph is made, and from it
        found = [t.clone() for t in graph(*inputs, *weights)]
    setting.sync()
    return {**compare(found, eager, exact), "aten": through_aten(graph)}


def _results(function: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    from benchmarks.gpu.graphs import tensors_of

    with torch.no_grad():
        return [t for t in tensors_of(function(*inputs)) if t.is_floating_point()]


def through_aten(graph: Any) -> list[str]:
    """The ATen overloads that a graph's program calls, once each."""
    steps = graph.program().steps if callable(getattr(graph, "program", None)) else _steps(graph)
    return sorted({s.overload for s in steps if type(s).__name__ == "AtenStep"})


def _steps(graph: Any) -> Sequence[Any]:
    return graph._state.latest.compiled.program.steps


def models(setting: Setting) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Three training steps of small models: losses and parameters beside eager's."""
    for name, make in _models(setting).items():
        yield f"training {name}", partial(train, setting, make)


def _models(
    setting: Setting,
) -> dict[str, Callable[[], tuple[torch.nn.Module, Callable[[], Tensor]]]]:
    from benchmarks.workloads.networks import MLP, Decoder, ResidualBlock

    n, where = setting.size(16, 3), setting.where

    def pictures() -> Tensor:
        return torch.randn(n, 3, setting.size(32, 8), setting.size(32, 8), device=where)

    def convnet() -> torch.nn.Module:
        layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU6()]
        return torch.nn.Sequential(*layers, ResidualBlock(8, 16, 2))

    def decoder() -> torch.nn.Module:
        wide = setting.size(128, 32)
        return Decoder(depth=setting.size(4, 1), width=wide, heads=2, vocabulary=61, context=17)

    return {
        "MLP": lambda: (MLP((20, 33, 10)), lambda: torch.randn(n, 20, device=where)),
        "convnet": lambda: (convnet(), pictures),
        "decoder": lambda: (decoder(), lambda: torch.randint(61, (n, 17), device=where)),
    }


def train(
    setting: Setting, make: Callable[[], tuple[torch.nn.Module, Callable[[], Tensor]]]
) -> dict[str, Any]:
    import copy

    torch.manual_seed(0)
    model, batch = make()
    model = model.to(setting.where)
    wide = copy.deepcopy(model).double()
    eager = copy.deepcopy(model)
    batches = [batch() for _ in range(3)]
    graph = _training_graph(setting, model)
    mine = [graph(x).detach().clone() for x in batches]
    setting.sync()
    others = []
    for module in (eager, wide):
        optimizer = _optimizer(module)
        losses = []
        for x in batches:
            optimizer.zero_grad()
            loss = _loss(module, double(x) if module is wide else x)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        others.append([*losses, *(p.detach() for p in module.state_dict().values())])
    mine += [p.detach() for p in model.state_dict().values()]
    found = compare(mine, others[0], others[1])
    # rounding grows over steps; what a wrong kernel does is orders of magnitude larger
    found["ok"] = found.get("error_gflow", 1.0) <= max(10 * found.get("error_eager", 0.0), 1e-5)
    return {**found, "aten": through_aten(graph)}


def _loss(model: torch.nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def _training_graph(setting: Setting, model: torch.nn.Module) -> Any:
    import gflow

    class Training(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(_optimizer(model))

        def build(self, x: Tensor) -> Tensor:
            loss = _loss(self.model, x)
            loss.backward()
            return loss

    return for_setting(setting, Training())
