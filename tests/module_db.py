"""PyTorch's own samples of its modules (`module_db`), through each way into gflow, beside eager: results, gradients of
parameters and inputs, and state after two calls, each of which uses the module twice."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from op_db_references import close
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils import _pytree as pytree

import gflow as flow
from gflow.errors import GraphError
from gflow.lowering.dtypes import LoweringError

Tensor = torch.Tensor

FRONTENDS = ("graph", "compile", "backend")
MODULES: dict[str, ModuleInfo] = {info.name: info for info in module_db}


@dataclass
class Sample:
    """A module and what it is called with."""

    text: str
    module: torch.nn.Module
    args: Any
    kwargs: Any


def samples(info: ModuleInfo, training: bool, grad: bool = True) -> Iterator[Sample]:
    """Those that eager takes."""
    torch.manual_seed(0)
    for given in info.module_inputs_func(info, "cpu", torch.float32, grad, training):
        torch.manual_seed(1)
        made, called = given.constructor_input, given.forward_input
        try:
            module = info.module_cls(*made.args, **made.kwargs).train(training)
            sample = Sample(f"{made.args} {made.kwargs}", module, called.args, called.kwargs)
            if info.is_lazy:
                with torch.no_grad():
                    module(*copy.deepcopy(called.args), **copy.deepcopy(called.kwargs))
            observed(sample, "eager")
        except Exception:
            continue
        yield sample


def _outs(found: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor)]


def _gradients(outs: Sequence[Tensor], takers: Sequence[Tensor]) -> list[Tensor | None]:
    through = [o for o in outs if o.requires_grad]
    if not through or not takers:
        return []
    seeds = [torch.linspace(-1, 2, o.numel()).view(o.shape).to(o) for o in through]
    return list(torch.autograd.grad(through, takers, seeds, allow_unused=True))


class _Step(flow.nn.Graph):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def build(self, takers: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        first = self.module(*args, **kwargs)
        outs = [*_outs(first), *_outs(self.module(*args, **kwargs))]
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        return [o.detach() for o in outs], _gradients(outs, [*parameters, *takers])


def _moved(leaf: Any, device: str) -> Any:
    if not isinstance(leaf, Tensor) or leaf.device.type == device:
        return leaf
    return leaf.detach().to(device).requires_grad_(leaf.requires_grad)


def observed(sample: Sample, frontend: str, device: str = "cpu") -> list[Tensor | None]:
    """All that two calls on a device give and leave behind, on the CPU."""
    module, args, kwargs = copy.deepcopy((sample.module, sample.args, sample.kwargs))
    module = module.to(device)
    args, kwargs = pytree.tree_map(lambda leaf: _moved(leaf, device), (args, kwargs))
    inputs = [t for t in _outs((args, kwargs)) if t.requires_grad]
    parameters = [p for p in module.parameters() if p.requires_grad]
    found: list[Tensor | None] = []
    torch.manual_seed(7)
    if frontend == "graph":
        graph = _Step(module)
        for _ in range(2):
            outs, grads = graph(inputs, *args, **kwargs)
            found += [*outs, *grads]
    else:
        run: Callable[..., Any] = module
        if frontend == "compile":
            run = flow.compile(module)
        elif frontend == "backend":
            run = torch.compile(module, backend="gflow")
        for _ in range(2):
            outs = [*_outs(run(*args, **kwargs)), *_outs(run(*args, **kwargs))]
            found += [*(o.detach() for o in outs), *_gradients(outs, [*parameters, *inputs])]
    found += [t.detach() for t in module.state_dict().values() if isinstance(t, Tensor)]
    found += [t.detach() for t in _outs((args, kwargs))]
    return [t if t is None else t.cpu() for t in found]


def problem(sample: Sample, frontend: str, device: str = "cpu") -> str:
    """What is wrong, or an empty string; "refused: …" where gflow names why it refuses."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, again = observed(sample, "eager"), observed(_other_seed(sample), "eager")
        try:
            found = observed(sample, frontend, device)
        except Exception as error:
            error = getattr(error, "inner_exception", error)
            named = isinstance(error, (GraphError, LoweringError)) and len(str(error).split()) > 3
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
            return f"refused: {text}" if named else text
    random = any(a is not None and not torch.equal(a, b) for a, b in zip(wanted, again) if b is not None)  # fmt: skip
    if len(found) != len(wanted):
        return f"{len(found)} tensors, eager {len(wanted)}"
    for n, (a, b) in enumerate(zip(found, wanted)):
        if a is None or b is None:
            rest = b if a is None else a
            if rest is not None and rest.any():
                return f"{n}: {'no' if a is None else 'a'} gradient, not so in eager mode"
        elif (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{n}: {a.dtype}{[*a.shape]}, eager {b.dtype}{[*b.shape]}"
        elif not random and not (good := close(a, b)).all():
            at = tuple((~good).nonzero()[0].tolist())
            return f"{n} of {len(found)}: {int((~good).sum())} of {a.numel()}, {a[at].item()}, eager {b[at].item()}"
    return ""


def _other_seed(sample: Sample) -> Sample:
    class Seeded(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            torch.rand(1)
            return self.inner(*args, **kwargs)

    return Sample(sample.text, Seeded(sample.module), sample.args, sample.kwargs)
