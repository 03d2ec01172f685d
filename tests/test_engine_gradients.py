"""Forward and gradients of PyTorch's ops, traced, through each engine, beside eager's in float64.

Samples are PyTorch's own (`op_db`). What an engine has no form for is left out: a call into PyTorch, for example.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from function_trace import trace_graph
from oracle.judge import REFUSALS
from oracle.op_db import _drawable, _ops, _samples
from stablehlo_interpreter import interpret
from torch.utils import _pytree as pytree

from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, export_pipeline
from gflow.compiler.engines.form import EngineError, call_of
from gflow.compiler.engines.forms import form_of, written_form
from gflow.compiler.engines.stablehlo.write import portable, write_function
from gflow.compiler.ir.modules import entry_function
from gflow.dialects.mlir import func, ir
from gflow.lowering import lower
from gflow.lowering.dtypes import LoweringError
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

Tensor = torch.Tensor
ENGINES = ("interpreter", "xla", "onnxruntime", "openvino")


class Left(Exception):
    """There is nothing to compare."""


class Call:
    """A sample of an op, and the gradients of its results for its operands."""

    def __init__(self, name: str, sample: Any) -> None:
        self.name, op = name, _ops()[name].op
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        places = [n for n, x in enumerate(leaves) if isinstance(x, Tensor)]
        self.tensors = [leaves[n].detach().clone() for n in places]
        if any(x.is_complex() or x.layout != torch.strided for x in self.tensors):
            raise Left

        def run(*tensors: Tensor) -> list[Tensor]:
            given = list(leaves)
            for n, x in zip(places, tensors):
                given[n] = x
            args, kwargs = pytree.tree_unflatten(given, spec)
            found = pytree.tree_leaves(op(*args, **kwargs))
            return [x for x in found if isinstance(x, Tensor)]

        self.run = run
        with torch.no_grad():
            results = run(*self.tensors)
        if not results or any(x.is_complex() for x in results):
            raise Left
        torch.manual_seed(1)
        self.weights = [torch.randn(x.shape) for x in results if x.is_floating_point()]

    def with_gradients(self, *given: Tensor) -> list[Tensor]:
        """Results, then gradients. given: operands, and what each result of floats is weighted with."""
        count = len(self.tensors)
        operands, weights = given[:count], given[count:]
        leaves = [x for x in operands if x.requires_grad]
        results = self.run(*operands)
        pairs = [
            (x, w)
            for x, w in zip((x for x in results if x.is_floating_point()), weights)
            if x.requires_grad
        ]
        if not pairs:
            return results
        outs, by = zip(*pairs)
        found = torch.autograd.grad(outs, leaves, by, allow_unused=True)
        return [*results, *(x for x in found if x is not None)]

    def arguments(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Operands that require gradients where they can, and weights."""
        floats = [x.to(dtype) if x.is_floating_point() else x for x in self.tensors]
        operands = [x.clone().requires_grad_(x.is_floating_point()) for x in floats]
        return [*operands, *(w.to(dtype) for w in self.weights)]


def lowered(call: Call, for_onnx: bool) -> tuple[func.FuncOp, list[Tensor], ir.Module]:
    """The traced call as a function, and its arguments."""
    given = call.arguments()
    trace = trace_graph("call", call.with_gradients, given, {}, {})
    module = lower(trace, for_onnx=for_onnx)
    run_pipeline(module, export_pipeline(PipelineOptions()))
    function = entry_function(module)
    args = [
        (given[trace.input_leaves[i.value]] if i.tensor is None else i.tensor).detach()
        for i in trace.inputs
    ]
    if len(function.arguments) > len(args):
        raise Left  # random numbers, which eager draws otherwise
    return function, args, module


def by_engine(
    engine: str, function: func.FuncOp, args: Sequence[Tensor], places: Sequence[Tensor]
) -> list[Tensor]:
    """
    places: where results go, as those of a step do.

    Raises:
        EngineError: the engine has no form for an op.
    """
    if engine in ("interpreter", "xla"):
        module = write_function(function, checks=True).module
        if engine == "interpreter":
            return interpret(module, list(args))
        return load_code(engine, portable(module)).run(list(args), list(places))
    # start-up: not installed everywhere
    from gflow.compiler.engines.onnx.write import write_function as write_onnx

    if any(place.numel() == 0 for place in places):
        raise EngineError("a region has no results without elements")
    form = form_of(engine)
    for view in function.regions[0].blocks[0].operations:
        op = view.operation
        if (
            op.name.startswith("gflow.")
            and op.name != "gflow.check"
            and (why := form.why_not(call_of(op)))
        ):
            raise EngineError(why)
    model = write_onnx(function, checks=True, form=written_form(engine)).model
    return load_code(engine, model.SerializeToString()).run(list(args), list(places))


def wrong(got: Sequence[Tensor], want: Sequence[Tensor], exact: Sequence[Tensor]) -> str:
    """What differs; "" if nothing does. want: eager's in float32, exact: in float64."""
    for n, (a, w, e) in enumerate(zip(got, want, exact, strict=True)):
        if a.dtype != w.dtype or a.shape != w.shape:
            return f"result {n}: {a.dtype}{list(a.shape)}, not {w.dtype}{list(w.shape)}"
        if not a.is_floating_point():
            if not torch.equal(a, w):
                return f"result {n}: {int((a != w).sum())} of {a.numel()} integers differ"
            continue
        same = torch.isclose(a.double(), e.double(), rtol=2e-4, atol=2e-5, equal_nan=True)
        same |= torch.isclose(a, w, rtol=2e-4, atol=2e-5, equal_nan=True)
        if not same.all():
            at = tuple((~same).nonzero()[0].tolist())
            return f"result {n} at {list(at)}: {a[at]:g}, eager {w[at]:g}, float64 {e[at]:g}"
    return ""


def compared(
    names: Sequence[str], engines: Sequence[str], count: int = 2
) -> tuple[list[str], dict[str, int]]:
    """What differs, or raises; and how many calls each engine ran. count: samples of an op."""
    failures, ran = [], dict.fromkeys(engines, 0)
    for name in names:
        for number, sample in enumerate(_samples(name, torch.float32)[:count]):
            try:
                call = Call(name, sample)
                want = [x.detach() for x in call.with_gradients(*call.arguments())]
                exact = [x.detach() for x in call.with_gradients(*call.arguments(torch.float64))]
                made = {k: lowered(call, k) for k in {e in ENGINES[2:] for e in engines}}
            except (Left, LoweringError, *REFUSALS):
                continue
            except RuntimeError:  # eager has no such call, or no gradients of it
                continue
            for engine in engines:
                function, args, module = made[engine in ENGINES[2:]]
                try:
                    places = [torch.empty_like(x).contiguous() for x in want]
                    with module.context:
                        found = wrong(by_engine(engine, function, args, places), want, exact)
                except EngineError:
                    continue
                except (RuntimeError, ValueError) as error:  # an engine's own refusals
                    found = f"{type(error).__name__}: {str(error)[:300]}"
                ran[engine] += 1
                if found:
                    failures.append(f"{name}, sample {number}, {engine}: {found}")
    return failures, ran


@functools.cache
def names() -> tuple[str, ...]:
    """Ops of floats with gradients, whose results are determined."""
    ops = _ops()
    return tuple(n for n in _drawable(True) if torch.float32 in ops[n].dtypes)


def installed(engines: Sequence[str]) -> list[str]:
    return [e for e in engines if e == "interpreter" or available(e)]


def test_some_ops() -> None:
    few = ("logsumexp", "matmul", "index_select", "nn.functional.gelu")
    failures, ran = compared(few, installed(("xla", "onnxruntime")), 1)
    assert not failures, "\n".join(failures)
    assert all(count == len(few) for count in ran.values())


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(24))
def test_all_ops(part: int) -> None:
    failures, ran = compared(names()[part::24], installed(ENGINES))
    assert not failures, "\n".join(failures)
    assert ran["interpreter"]
