"""Trains a case with a graph and eagerly on the same inputs, and compares everything."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tolerance import narrowest
from torch.utils._pytree import tree_flatten, tree_map

from gflow import nn

from .case import Case

Tensor = torch.Tensor


class Train(nn.Graph):
    """One training step of a case."""

    def __init__(self, case: Case, model: torch.nn.Module, optimizer: Any) -> None:
        super().__init__()
        self.model, self.program = model, case.program
        self.add_optimizer(optimizer)

    def build(self, *inputs: Any) -> Any:
        loss, out = self.program(self.model, *inputs)
        loss.backward()
        return loss, out


class Infer(nn.Graph):
    """The forward of a case."""

    def __init__(self, case: Case, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.program = model, case.program

    def build(self, *inputs: Any) -> Any:
        return self.program(self.model, *inputs)


@dataclass
class Run:
    """Outputs of every step, then the state that is left, by name."""

    values: dict[str, Tensor] = field(default_factory=dict)
    graph: nn.Graph | None = None


def to(value: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors and models in `dtype`; integers stay."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(dtype)
    return tree_map(
        lambda x: (
            x.detach().to(dtype)
            if isinstance(x, Tensor) and x.is_floating_point()
            else copy.copy(x)
        ),
        value,
    )


def batches(case: Case, steps: int, seed: int = 1) -> list[tuple[Any, ...]]:
    torch.manual_seed(seed)
    return [case.inputs() for _ in range(steps)]


def make(case: Case, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return case.make()


def run(
    case: Case,
    base: torch.nn.Module,
    data: list[tuple[Any, ...]],
    dtype: torch.dtype,
    graph: bool,
    train: bool,
) -> Run:
    """Steps over `data` from a copy of `base`."""
    model = to(base, dtype).train(train)
    found = Run()
    optimizer = case.optimizer(model.parameters()) if train else None
    if graph:
        found.graph = Train(case, model, optimizer) if train else Infer(case, model)
    for i, inputs in enumerate(data):
        inputs = to(inputs, dtype)
        if found.graph is not None:
            result = found.graph(*inputs)
        else:
            with torch.set_grad_enabled(train):
                result = case.program(model, *inputs)
            if optimizer is not None:
                optimizer.zero_grad()
                result[0].backward()
                optimizer.step()
        _add(found, f"step {i} output", (result, inputs))
    _add(found, "", {"state": model.state_dict(), "parameters": dict(model.named_parameters())})
    if optimizer is not None:
        _add(found, "optimizer", optimizer.state_dict())
    return found


def _add(found: Run, name: str, value: Any) -> None:
    paths, _ = torch.utils._pytree.tree_flatten_with_path(value)
    for path, leaf in paths:
        if isinstance(leaf, Tensor):
            found.values[name + torch.utils._pytree.keystr(path)] = leaf.detach().clone()


@dataclass(frozen=True)
class Verdict:
    """How a graph and eager agree.

    wrong: the first value that is, or nothing.
    unstable: the first value that no two eager runs agree on either, once the parameters move by
        one unit in the last place; or nothing.
    """

    wrong: str = ""
    unstable: str = ""


def difference(
    found: Run, expected: Run, truth: Run | None, rtol: float, moved: Sequence[Run] = ()
) -> str:
    """The first value that is wrong, or nothing.

    With `truth` (the same in float64), the error may be as large as a few times eager's own;
    without, `rtol` of the largest element. moved: more eager runs, whose own errors count as well.
    """
    if list(found.values) != list(expected.values):
        return f"different values: {set(found.values) ^ set(expected.values)}"
    for name, value in found.values.items():
        want = expected.values[name]
        if value.shape != want.shape or value.dtype != want.dtype:
            return f"{name}: {value.dtype}{list(value.shape)}, eager {want.dtype}{list(want.shape)}"
        if not value.is_floating_point():
            if not torch.equal(value, want):
                return f"{name}: {int((value != want).sum())} of {value.numel()} differ"
            continue
        best = want if truth is None else truth.values[name]
        value, want, best = value.double(), want.double(), best.double()
        finite = best.isfinite()
        if not torch.equal(value[~finite].nan_to_num(7), want[~finite].nan_to_num(7)):
            return f"{name}: infinities or NaN differ"
        if not finite.any():
            continue
        scale = float(best[finite].abs().max())
        eager = [want, *(run.values[name].double() for run in moved)]
        own = max(float((x - best)[finite].abs().max()) for x in eager)
        error = float((value - best)[finite].abs().max())
        if not error <= rtol * scale + 5 * own + 0.02 * rtol:
            return f"{name}: off by {error:.3g} where values reach {scale:.3g} (eager {own:.3g})"
    return ""


def check(case: Case, dtype: torch.dtype, train: bool, steps: int = 5) -> tuple[Verdict, nn.Graph]:
    """Compare graph and eager; the verdict and the graph."""
    base, data = make(case), batches(case, steps)
    expected = run(case, base, data, dtype, False, train)
    found = run(case, base, data, dtype, True, train)
    truth = None
    if dtype != torch.float64 and torch.float64 in case.dtypes:
        truth = run(case, base, data, torch.float64, False, train)
    rtol = {torch.float64: 1e-6, torch.float32: 1e-4}.get(dtype, 2e-2)
    assert found.graph is not None
    wrong = difference(found, expected, truth, rtol)
    if not wrong:
        return Verdict(), found.graph
    unit = last_place(found.graph)
    moved = [
        run(case, shaken(to(base, dtype), unit, seed), data, dtype, False, train)
        for seed in range(_SHAKEN)
    ]
    if difference(found, expected, truth, rtol, moved):
        return Verdict(wrong=wrong), found.graph
    return Verdict(unstable=wrong), found.graph


#: eager runs with parameters moved in the last place, for values that disagree
_SHAKEN = 4


def last_place(graph: nn.Graph) -> float:
    """The unit in the last place of the narrowest float type that the traced program computes in.

    A model in float64 whose loss is computed in float32 has float32's.
    """
    return torch.finfo(narrowest(graph.ir("traced", generic=True))).eps


def shaken(model: torch.nn.Module, unit: float, seed: int) -> torch.nn.Module:
    """The model with every element of every parameter moved up or down by a relative `unit`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            sign = torch.randint(0, 2, p.shape, generator=generator).to(p.dtype) * 2 - 1
            p.mul_(1 + sign * unit)
    return model


def ops(graph: nn.Graph) -> tuple[Counter[str], Counter[str]]:
    """Ops of the graph's IR, and the ATen overloads among them that run through PyTorch."""
    text = graph.ir("traced", generic=True)
    kinds = Counter(re.findall(r'"gflow\.([\w.]+)"\(', text))
    return kinds, Counter(re.findall(r'overload = "aten\.([\w.]+)"', text))


def leaves(value: Any) -> list[Tensor]:
    return [t for t in tree_flatten(value)[0] if isinstance(t, Tensor)]
