"""PyTorch's own samples of each op (`OpInfo.reference_inputs`: broadcasts, strides, 0-d and empty tensors, extremal
values, promotion), through each way into gflow, with gradients, beside eager.

The samples of an op are one program, which is quick to compile; where that differs or fails, each is one of its own.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from op_db_exceptions import NO_VALUES
from op_db_harness import forward_of, op_name
from op_variants import Variant

import gflow as flow
from gflow.errors import GraphError
from gflow.lowering.dtypes import LoweringError

Tensor = torch.Tensor
Results = list[list[Tensor | None]]
Function = Callable[..., Any]

#: how many of a generator's samples are drawn from, and how large their tensors may be together
AMONG, ELEMENTS = 240, 1 << 20


@dataclass(frozen=True)
class Problem:
    """status: "refused" (by name), "raised" (anything else), "differs"."""

    op: str
    sample: int
    status: str
    detail: str

    def __str__(self) -> str:
        return f"{self.op} [{self.sample}] {self.status}: {self.detail}"


def spread(op: Any, dtype: torch.dtype, grad: bool, count: int) -> list[Variant]:
    """Some samples that eager takes, drawn evenly, the same ones each time."""
    rng, drawn = random.Random(op_name(op)), list[Any]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample in enumerate(itertools.islice(_given(op, dtype, grad), AMONG)):
            at = i if i < count else rng.randrange(i + 1)
            if at < count:
                drawn[at : at + 1] = [sample]
        found = []
        for sample in drawn:
            function, tensors = forward_of(op.op, sample)
            if sum(t.numel() for t in tensors) > ELEMENTS:
                continue
            if any(t.layout != torch.strided for t in tensors):
                continue
            case = Variant(function, tensors, [t.requires_grad for t in tensors])
            if _attempt(lambda case=case: eager([case])) is None:
                found.append(case)
    return found


def _given(op: Any, dtype: torch.dtype, grad: bool) -> Iterator[Any]:
    """The op's reference inputs; its samples, where PyTorch cannot make those for the dtype."""
    try:
        yield from op.reference_inputs("cpu", dtype, requires_grad=grad)
    except (RuntimeError, ValueError):
        yield from op.sample_inputs("cpu", dtype, requires_grad=grad)


def _attempt(run: Callable[[], Any]) -> Exception | None:
    try:
        run()
    except Exception as error:
        return error
    return None


def _forward(cases: Sequence[Variant]) -> Callable[..., list[list[Tensor]]]:
    """All samples as one function of all their tensors."""

    def function(*flat: Tensor) -> list[list[Tensor]]:
        rest = iter(flat)
        return [c.function(*itertools.islice(rest, len(c.tensors))) for c in cases]

    return function


def _with_gradients(outs: list[list[Tensor]], given: Sequence[Sequence[Tensor]]) -> Results:
    """The results of each sample, and the gradients of its tensors."""
    pairs, sources, seeds = [], list[Tensor](), list[Tensor]()
    for result, tensors in zip(outs, given, strict=True):
        targets = [r for r in result if r.requires_grad]
        pairs += targets
        seeds += [torch.linspace(-1, 2, r.numel()).view(r.shape).to(r.dtype) for r in targets]
        sources += [t for t in tensors if t.requires_grad]
    grads = iter(
        torch.autograd.grad(pairs, sources, seeds, allow_unused=True) if pairs and sources else ()
    )
    found: Results = []
    for result, tensors in zip(outs, given, strict=True):
        needed = [t for t in tensors if t.requires_grad]
        found.append([*(r.detach() for r in result), *itertools.islice(grads, len(needed))])
    return found


def _grouped(cases: Sequence[Variant], flat: Sequence[Tensor]) -> list[list[Tensor]]:
    rest = iter(flat)
    return [[*itertools.islice(rest, len(c.tensors))] for c in cases]


def eager(cases: Sequence[Variant], how: Callable[[Function], Function] | None = None) -> Results:
    """What the samples give. how: compiles the function of all samples' tensors."""
    given = [c.arguments() for c in cases]
    torch.manual_seed(7)
    function = _forward(cases)
    outs = (function if how is None else how(function))(*itertools.chain(*given))
    return _with_gradients(outs, given)


def _graph(cases: Sequence[Variant]) -> Results:
    def both(*flat: Tensor) -> Results:
        return _with_gradients(_forward(cases)(*flat), _grouped(cases, flat))

    torch.manual_seed(7)
    return flow.nn.Graph.trace(both)(*itertools.chain(*(c.arguments() for c in cases)))


FRONTENDS: dict[str, Callable[[Sequence[Variant]], Results]] = {
    "graph": _graph,
    "compile": lambda cases: eager(cases, flow.compile),
    "backend": lambda cases: eager(cases, lambda f: torch.compile(f, backend="gflow")),
}


def problems(op: Any, cases: Sequence[Variant], frontend: str) -> list[Problem]:
    """What becomes of an op's samples, where they are not as in eager mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = _judge(op, cases, frontend)
        if not together or len(cases) == 1:
            return [replace(p, op=op_name(op)) for p in together]
        found = [
            replace(p, op=op_name(op), sample=n)
            for n, case in enumerate(cases)
            for p in _judge(op, [case], frontend)
        ]
    if found:
        return found
    return [replace(p, op=op_name(op), detail=f"together: {p.detail}") for p in together]


def _judge(op: Any, cases: Sequence[Variant], frontend: str) -> list[Problem]:
    torch._dynamo.reset()
    wanted = eager(cases)
    try:
        found = FRONTENDS[frontend](cases)
    except Exception as error:
        error = getattr(error, "inner_exception", error)
        named = isinstance(error, (GraphError, LoweringError)) and len(str(error).split()) > 3
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return [Problem("", 0, "refused" if named else "raised", text[:400])]
    made = []
    for n, (mine, right) in enumerate(zip(found, wanted, strict=True)):
        text = _difference(op, cases[n], mine, right)
        made += [Problem("", n, "differs", text)] if text else []
    return made


def _difference(
    op: Any, case: Variant, found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]
) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} tensors, eager {len(wanted)}"
    others: list[list[Tensor | None]] | None = None
    for n, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a is None or b is None:
            if a is not b:  # a gradient of zeros is none
                rest = b if a is None else a
                if rest is None or rest.any():
                    return f"{n}: {'no' if a is None else 'a'} gradient, not so in eager mode"
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{n}: {a.dtype}{[*a.shape]}, eager {b.dtype}{[*b.shape]}"
        if NO_VALUES & {op.name, op_name(op)} or close(a, b).all():
            continue
        others = _others(case) if others is None else others
        good = close(a, b)
        for other in others:
            if len(other) > n and (c := other[n]) is not None and c.shape == a.shape:
                good |= _as_right(a, b, c)
        if not good.all():
            at = (~good).nonzero()[0].tolist()
            was = [o[n][tuple(at)].item() for o in others if len(o) > n and o[n] is not None]  # type: ignore[index]
            place = tuple(at)
            operands = [(t.dtype, [*t.shape], t.stride()) for t in case.tensors]
            return (
                f"{n}: {int((~good).sum())} of {a.numel()} {a.dtype}, at {at} {a[place].item()!r}, eager "
                f"{b[place].item()!r}, dense and float64 {was}; of {operands}"
            )
    return ""


def close(a: Tensor, b: Tensor) -> Tensor:
    """Where numbers are equal up to rounding at the size of the largest."""
    if not (b.is_floating_point() or b.is_complex()):
        return a == b
    unit = torch.finfo(b.dtype).eps
    finite = b.abs()[b.isfinite()].double()
    size = finite.max().item() if finite.numel() else 0.0
    many = (1000, 100) if unit < 1e-3 else (4, 4)
    return torch.isclose(a, b, many[0] * unit, many[1] * unit * min(size, 1e30), equal_nan=True)


def _as_right(a: Tensor, b: Tensor, other: Tensor) -> Tensor:
    """Where another answer of eager's, on dense operands or in float64, is given, or is no nearer to eager's own."""
    if not (b.is_floating_point() or b.is_complex()):
        return a == other.to(a.dtype)
    kind = torch.complex128 if b.is_complex() else torch.float64
    wide, mine, theirs = other.to(kind), a.to(kind), b.to(kind)
    unit = torch.finfo(b.dtype).eps
    near = (mine - wide).abs() <= 2 * (theirs - wide).abs() + 16 * unit * wide.abs()
    out_of_range = wide.isfinite() & ~b.isfinite()
    return near & wide.isfinite() | out_of_range | close(a, other.to(b.dtype))


def _others(case: Variant) -> list[list[Tensor | None]]:
    """What eager gives on dense operands, and in float64."""
    found = []
    for kind in (None, torch.float64):
        tensors = [t.detach().contiguous().clone() for t in case.tensors]
        if kind is not None:
            tensors = [t.to(kind) if t.is_floating_point() else t for t in tensors]
        changed = Variant(case.function, tensors, case.needs)
        results: list[Results] = []
        if _attempt(lambda c=changed, r=results: r.append(eager([c]))) is None:
            found.append(results[0][0])
    return found


def supporting(ops: Iterable[Any], dtype: torch.dtype) -> list[Any]:
    """The ops that have kernels for a dtype."""
    return [op for op in ops if dtype in op.supported_dtypes("cpu")]
