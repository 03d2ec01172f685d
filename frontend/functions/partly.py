"""A backward in which some results are not used, for example if only the loss of (loss, logits) is differentiated.

Zero gradients for these results would be wrong: 0 · inf is NaN, and a parameter on which only such a result depends
has no gradient, which optimizers skip, rather than a gradient of zeros, with which they step.

```
backward(g0, g1):  a = mul(g0, x); b = div(g1, x); return add(a, b), sum(g1)
without {1}:       a = mul(g0, x);                 return a,         none
```
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import (
    TraceOp,
    TraceOutput,
    TraceValue,
    renamed,
    renamed_op,
    values_in,
)
from gflow.tracing.program.collectives import is_collective

from .joint import Divided

aten = torch.ops.aten
#: elementwise functions that map zero gradients to zeros, besides those that are derivatives by name
_LINEAR = {
    aten.mul, aten.div, aten.neg, aten._to_copy, aten.clone, aten.where, aten.masked_fill, aten._conj, aten.conj,
    aten._conj_physical, aten.real, aten.imag, aten.view_as_real, aten.view_as_complex, aten.alias, aten.detach,
}  # fmt: skip


def without(divided: Divided, missing: frozenset[int]) -> Divided:
    """A partition whose backward has no gradients of the results `missing` (indices among those that have gradients).
    A backward with collectives is not changed, since all ranks must run the same ones."""
    backward = divided.backward
    if any(map(is_collective, backward.ops)):
        return divided
    places = list(zip(divided.inputs, backward.inputs, strict=True))
    later = {entry.value for (kind, _), entry in places if kind == "gradient"}
    absent = {entry.value for (kind, n), entry in places if kind == "gradient" and n in missing}
    ops: list[TraceOp] = []
    proven: set[TraceOp] = set()
    names: dict[TraceValue, TraceValue] = {}
    made: set[TraceValue] = set()
    for old in backward.ops:
        op = renamed_op(old, names)
        coming = [v for v in values_in((op.args, op.kwargs)) if v in later]
        results = [r for r in op.results if r is not None]
        if coming:
            later.update(results)
        if coming and absent.issuperset(coming) and _is_linear(op, coming):
            absent.update(results)
            continue
        left = _other_term(op, absent)
        if left is not None:
            names[results[0]] = left
            continue
        for value in dict.fromkeys(coming):
            if value in absent and value not in made:
                made.add(value)
                ops.append(_zeros(value, op))
        ops.append(op)
        if old in backward.proven:
            proven.add(op)
    outputs, order = list[TraceOutput](), dict[int, int]()
    for n, out in enumerate(backward.outputs):
        value = renamed(out.value, names)
        if value not in absent:
            order[n] = len(outputs)
            outputs.append(TraceOutput(value, None, out.name))
    used = {v for op in ops for v in values_in((op.args, op.kwargs))} | {o.value for o in outputs}
    kept = [
        (p, e) for p, e in places if e.role == "size" or (e.value in used and e.value not in made)
    ]
    trace = Trace(
        f"{backward.name}_partly", inputs=[entry for _, entry in kept], ops=ops, outputs=outputs
    )
    trace.size, trace.proven, trace.engines = backward.size, proven, backward.engines
    gradients = [None if n is None else order.get(n) for n in divided.gradients]
    return replace(
        divided, backward=trace, inputs=[place for place, _ in kept], gradients=gradients
    )


def _is_linear(op: TraceOp, coming: list[TraceValue]) -> bool:
    """Whether an op returns zeros if its gradient operands are zero. Custom backwards may do anything."""
    if torch.Tag.pointwise not in op.func.tags or op.func.overloadpacket in _LINEAR:
        return True
    if op.func.overloadpacket in (aten.add, aten.sub):
        return len(coming) == 2
    return op.func._schema.name.endswith("_backward")


def _other_term(op: TraceOp, absent: set[TraceValue]) -> TraceValue | None:
    """The other term of a sum of two gradients of which one is absent."""
    if op.func is not aten.add.Tensor or op.kwargs or len(op.args) != 2:
        return None
    here = [v for v in op.args if isinstance(v, TraceValue) and v not in absent]
    (result,) = op.results
    if len(here) != 1 or result is None:
        return None
    same = (here[0].shape, here[0].strides, here[0].dtype) == (
        result.shape,
        result.strides,
        result.dtype,
    )
    return (
        here[0] if same and any(v in absent for v in op.args if isinstance(v, TraceValue)) else None
    )


def _zeros(value: TraceValue, op: TraceOp) -> TraceOp:
    given = {"dtype": value.dtype, "device": value.device}
    return TraceOp(aten.full.default, (list(value.shape), 0), given, [value], op.loc, op.scope)
