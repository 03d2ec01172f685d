"""Runs a trace op by op with PyTorch: for the one step in which an optimizer creates its state, and as the reference
for compiled graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gflow.runtime.failures import explain

from ..data.trace import Trace
from ..data.values import TraceValue, values_in


def _slots(func: torch._ops.OpOverload) -> tuple[list[bool], dict[str, bool]]:
    """Which parameters of an op are tensors (or tensor lists)."""
    flags = ["Tensor" in str(a.type) for a in func._schema.arguments]
    return flags, {a.name: f for a, f in zip(func._schema.arguments, flags, strict=True)}


def run_trace(trace: Trace, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The values of `trace.outputs` for `inputs` in the order of `trace.inputs`.

    The inputs are not changed; for outputs with an `alias` the result is the value to write.

    Raises:
        Exception: an error of PyTorch, with the location in the author's program.
    """
    env: dict[TraceValue, Any] = {}
    for spec, tensor in zip(trace.inputs, inputs, strict=True):
        env[spec.value] = tensor.detach()
    last_use: dict[TraceValue, int] = {}
    for position, op in enumerate(trace.ops):
        for value in values_in((op.args, op.kwargs)):
            last_use[value] = position
    keep = {o.value for o in trace.outputs} | {i.value for i in trace.inputs}

    def resolve(arg: Any, tensor_slot: bool) -> Any:
        if isinstance(arg, TraceValue):
            real = env[arg]
            if arg.is_number and not (tensor_slot and number_op):
                return real.item()
            return real if tensor_slot else real.item()
        if isinstance(arg, (list, tuple)):
            return [resolve(a, tensor_slot) for a in arg]
        return arg

    with torch.no_grad():
        for position, op in enumerate(trace.ops):
            flags, by_name = _slots(op.func)
            number_op = all(r is not None and r.is_number for r in op.results)
            args = [resolve(a, f) for a, f in zip(op.args, flags, strict=False)]
            kwargs = {k: resolve(v, by_name[k]) for k, v in op.kwargs.items()}
            try:
                out = op.func(*args, **kwargs)
            except Exception as error:
                explain(error, f"  at {op.loc}")
                raise
            flat: list[Any] = []
            for item in out if isinstance(out, (tuple, list)) else (out,):
                flat.extend(item) if isinstance(item, (tuple, list)) else flat.append(item)
            for result, item in zip(op.results, flat, strict=True):
                if result is not None:
                    env[result] = item
            for value in {*values_in((op.args, op.kwargs)), *(r for r in op.results if r)}:
                if last_use.get(value, -1) <= position and value not in keep:
                    env.pop(value, None)
    return [env[o.value] for o in trace.outputs]
