"""Values that eager PyTorch refuses: a graph raises the same exception, with the author's line.

Cases come from PyTorch's own sample inputs: each tensor of a sample in turn is filled with values that it does not
expect. Where eager raises, so must the graph, by the reference interpreter and by generated code; where it
does not, results must be equal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from function_trace import trace_graph
from op_db_harness import (
    _argument,
    _same_layout,
    all_ops,
    compare,
    forward_of,
    op_name,
    returned,
    samples,
)

import gflow as flow
from gflow.compiler import compile_module
from gflow.errors import GraphTraceError
from gflow.lowering import lower
from gflow.runtime import Executable

Tensor = torch.Tensor

#: what tensors are filled with, in whole or at one place
_INTEGERS = (0, -1, 10_000, -10_000)
_FLOATS = (0.0, -2.0, 2.0, float("nan"))
#: samples of each op
_SAMPLES = 2

_READS = "its Python code, or PyTorch's shape rule, reads the value: refused when it is traced"
#: op → why a graph does not do as eager does
EXCEPTIONS: dict[str, str] = {
    "as_strided.partial_views": "reads memory around the tensor, which a graph does not have",
    "cov": _READS,
    "histogramdd": "NaN in a range that PyTorch finds in Python: refused when it is traced",
    "narrow": _READS,
    "tensor_split": _READS,
}
#: op → what the refusal of some of its samples says
IN_PART = {"nn.functional.one_hot": "Pass num_classes"}
#: the ops of op_db that refuse some values; test_all_ops finds them
REFUSING = (
    "__rmod__", "_segment_reduce.lengths", "_segment_reduce.offsets", "bernoulli", "bincount", "cholesky",
    "div.floor_rounding", "div.trunc_rounding", "floor_divide", "fmod", "gather", "histogram", "index_add",
    "index_copy", "index_fill", "index_put", "index_reduce.amax", "index_reduce.amin", "index_reduce.mean",
    "index_reduce.prod", "index_select", "linalg.cholesky", "linalg.cond", "linalg.eig", "linalg.eigh",
    "linalg.eigvalsh", "linalg.inv", "linalg.ldl_factor", "linalg.lstsq", "linalg.lstsq.grad_oriented",
    "linalg.lu_factor", "linalg.lu_solve", "linalg.matrix_power", "linalg.matrix_rank", "linalg.matrix_rank.hermitian",
    "linalg.pinv", "linalg.pinv.hermitian", "linalg.pinv.singular", "linalg.solve", "linalg.svdvals",
    "linalg.tensorinv", "linalg.tensorsolve", "linspace.tensor_overload", "lu_solve", "lu_unpack", "multinomial",
    "nn.functional.binary_cross_entropy", "nn.functional.cross_entropy", "nn.functional.ctc_loss",
    "nn.functional.embedding", "nn.functional.embedding_bag", "nn.functional.gaussian_nll_loss",
    "nn.functional.linear_cross_entropy", "nn.functional.linear_cross_entropy.chunked",
    "nn.functional.linear_cross_entropy.chunked_none", "nn.functional.max_unpool1d", "nn.functional.max_unpool1d.grad",
    "nn.functional.max_unpool2d", "nn.functional.max_unpool2d.grad", "nn.functional.max_unpool3d",
    "nn.functional.max_unpool3d.grad", "nn.functional.multi_margin_loss", "nn.functional.multilabel_margin_loss",
    "nn.functional.nll_loss", "nn.functional.one_hot", "norm.nuc", "normal", "pca_lowrank", "pinverse", "put",
    "remainder", "repeat_interleave", "scatter", "scatter_add", "scatter_reduce.amax", "scatter_reduce.amin",
    "scatter_reduce.mean", "scatter_reduce.prod", "scatter_reduce.sum", "svd_lowrank", "take", "take_along_dim",
)  # fmt: skip
#: PyTorch itself dies of NaN in these, or refuses all that it is given
_LEFT_OUT = ("linalg.eigvals", "linalg.ldl_solve", "jiterator_")
#: rounding of an algorithm on matrices that have no inverse, samples, or what PyTorch reads behind the last element
#: (it does not look at offsets that are too large): only errors are compared
_ERRORS_ONLY = (
    "_segment_reduce.offsets",
    "linalg.",
    "lu",
    "pinverse",
    "pca_lowrank",
    "svd_lowrank",
    "norm.nuc",
    "cholesky",
    "nn.functional.ctc_loss",
    "multinomial",
)


@dataclass
class Case:
    """A call of an op on tensors, and what eager makes of it."""

    name: str
    tensors: list[Tensor]
    wanted: list[Tensor] | Exception


def _fillings(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensor filled, in whole and at its last place, with each value that its type has."""
    if tensor.dtype == torch.bool or tensor.is_complex():
        return
    for value in _FLOATS if tensor.is_floating_point() else _INTEGERS:
        if not tensor.is_floating_point():
            info = torch.iinfo(tensor.dtype)
            if not info.min <= value <= info.max:
                continue
        yield f"all {value}", torch.full_like(tensor, value)
        one = tensor.detach().clone()
        one.view(-1)[-1] = value
        yield f"one {value}", one


def _eager(function: Any, tensors: list[Tensor]) -> list[Tensor] | Exception:
    torch.manual_seed(7)
    try:
        return [t.detach() for t in function(*[t.clone() for t in tensors])]
    except Exception as error:
        return error


def _cases(function: Any, tensors: list[Tensor]) -> list[Case]:
    found = []
    for at, tensor in enumerate(tensors):
        if tensor.layout != torch.strided or not tensor.numel() or not tensor.is_contiguous():
            continue
        for what, filled in _fillings(tensor):
            given = [*tensors[:at], filled, *tensors[at + 1 :]]
            found.append(Case(f"tensor {at}, {what}", given, _eager(function, given)))
    return found


def _problems(op: Any, dtype: torch.dtype, limit: int) -> list[str]:
    """What a graph does unlike eager, over the samples of an op."""
    found, name = [], op_name(op)
    for n, sample in enumerate(samples(op, dtype, False, limit)):
        function, tensors = forward_of(op, sample)
        tensors = [t.detach() for t in tensors]
        cases = _cases(function, tensors)
        if not any(isinstance(c.wanted, Exception) for c in cases):
            continue
        try:
            trace = trace_graph("sample", function, tensors, {}, {})
        except GraphTraceError as error:
            if name not in IN_PART or IN_PART[name] not in str(error):
                found.append(f"sample {n}: {error}")
            continue
        module = lower(trace)
        assert module.operation.verify()
        run = Executable(compile_module(module, None))
        for case in cases:
            if problem := _compare(op, case, trace, run):
                found.append(f"sample {n}, {case.name}: {problem}")
    return found


def _compare(op: Any, case: Case, trace: Any, run: Executable) -> str:
    by_name = {f"args.{i}": t for i, t in enumerate(case.tensors)}
    args = [_argument(given, by_name, case.tensors, n) for n, given in enumerate(trace.inputs)]
    if len(args) < len(run.program.arguments):
        args.append(torch.tensor([1234, 5]))
    try:
        given = [_same_layout(a) for a in args]
        outputs = returned(trace, run(given), given)
    except Exception as error:
        if not isinstance(case.wanted, Exception):
            return f"raises {type(error).__name__}: {error}; eager does not"
        if type(error) is not type(case.wanted):
            return f"raises {type(error).__name__}: {error}; eager {type(case.wanted).__name__}: {case.wanted}"
        return (
            ""
            if f"{__file__}:" in str(error) or "op_db_harness.py:" in str(error)
            else f"{error}: no line"
        )
    if isinstance(case.wanted, Exception):
        return f"raises nothing; eager {type(case.wanted).__name__}: {case.wanted}"
    if op_name(op).startswith(_ERRORS_ONLY):
        return ""
    return compare(op, outputs, case.wanted)


def _dtypes(op: Any) -> list[torch.dtype]:
    return [d for d in (torch.float32, torch.int64) if d in op.supported_dtypes("cpu")]


_OPS = {op_name(op): op for op in all_ops()}


@pytest.mark.parametrize("name", REFUSING)
def test_an_op_that_refuses_values(name: str) -> None:
    op = _OPS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problems = [p for d in _dtypes(op) for p in _problems(op, d, _SAMPLES)]
    assert not problems, f"{len(problems)}, such as {problems[0]}"


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(_OPS))
def test_all_ops(name: str) -> None:
    """Ops that refuse values are all listed, and do as eager does on more samples."""
    if name.startswith(_LEFT_OUT):
        pytest.skip("left out, with a reason above")
    op, problems = _OPS[name], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in _dtypes(op):
            if name in REFUSING:
                problems += _problems(op, dtype, 6)
            elif name not in EXCEPTIONS:
                for sample in samples(op, dtype, False, 4):
                    cases = _cases(*forward_of(op, sample))
                    problems += [c.name for c in cases if isinstance(c.wanted, Exception)]
    assert not problems, f"{len(problems)}, such as {problems[0]}"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[:0].max(), lambda x: x[:, :0].min(), lambda x: x[:, :3].view(torch.float64),
        lambda x: x.t().view(torch.float64),
        lambda x: x[:, 1:3].view(torch.float64), lambda x: x[0, 0].view(torch.complex64),
        lambda x: torch.heaviside(x, x.double()), lambda x: torch.linalg.pinv(x.half()),
        lambda x: torch.linalg.pinv(x.half(), rtol=0.1),
    ],
)  # fmt: skip
def test_a_call_that_nothing_reads_is_refused(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What PyTorch's kernels refuse whatever the values are, is refused when it is traced."""

    def build(x: torch.Tensor) -> torch.Tensor:
        call(x)
        return x + 1

    x = torch.randn(4, 4)
    with pytest.raises((RuntimeError, IndexError)):
        build(x)
    with pytest.raises(GraphTraceError, match=r"test_refused_values.py"):
        flow.nn.Graph.trace(build)(x)
