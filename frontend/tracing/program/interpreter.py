"""Runs a trace op by op with PyTorch: for the one step in which an optimizer creates its state, and as the reference
for compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from gflow.dialects.extents import N
from gflow.errors import GraphError
from gflow.runtime.failures import explain

from ..data.sizes import at_size
from ..data.tail import Tail, Unknown
from ..data.trace import Trace
from ..data.values import TraceOp, TraceValue, values_in

_WAY_OUT = "Return the tensor that the size is of, and go on outside build()."


@lru_cache(maxsize=1024)
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
    keep = {o.value for o in trace.outputs} | {i.value for i in trace.inputs}
    _run_ops(trace.ops, env, keep)
    return [env[o.value] for o in trace.outputs]


def run_tail(
    tail: Tail, given: Mapping[TraceValue, torch.Tensor], size: N | None
) -> list[torch.Tensor]:
    """The results of the tail of a trace.

    Args:
        given: what its ops read of the program.
        size: the value of the dynamic dimensions' symbol, or of both.

    Raises:
        Exception: an error of PyTorch, with the location in the author's program.
    """
    env: dict[TraceValue, Any] = {value: tensor.detach() for value, tensor in given.items()}
    symbols = () if size is None else size if isinstance(size, tuple) else (size,)
    known = dict(zip(tail.symbols, symbols, strict=True))

    def number(arg: Any) -> Any:
        if isinstance(arg, Unknown):
            return arg.at(known)
        return arg if size is None else at_size(arg, size)

    def made(op: TraceOp) -> None:
        for value in op.results:
            if value is not None and value in tail.sizes:
                known.update((name, env[value].shape[d]) for d, name in tail.sizes[value])
        for value in (r for r in op.results if r is not None):
            found, wanted = tuple(env[value].shape), tuple(map(number, value.shape))
            if found != wanted:
                raise GraphError(
                    f"{op.loc}: the result of {op.func} has the shape {[*found]}, where the graph was traced for "
                    f"{[*wanted]}: a size of 0 or 1 that depends on values gives another shape than others. {_WAY_OUT}"
                )

    _run_ops(tail.ops, env, {*tail.results}, number, made)
    for condition in tail.conditions:
        if not condition.at(known):
            sizes = ", ".join(f"{name} = {known[name]}" for name in condition.names)
            raise GraphError(
                f"{tail.first.loc}: the graph was traced for {condition} (sizes that depend on values), and this call "
                f"has {sizes}. {_WAY_OUT}"
            )
    return [env[value] for value in tail.results]


def _run_ops(
    ops: Sequence[TraceOp],
    env: dict[TraceValue, Any],
    keep: Collection[TraceValue],
    number: Callable[[Any], Any] = lambda arg: arg,
    made: Callable[[TraceOp], None] = lambda op: None,
) -> None:
    """Run ops, one by one.

    Args:
        env: the values that exist; it takes those of the ops.
        keep: those that are not dropped after their last use.
        number: gives the value of an argument that is no tensor.
        made: is called after each op.
    """
    last_use: dict[TraceValue, int] = {}
    for position, op in enumerate(ops):
        for value in values_in((op.args, op.kwargs)):
            last_use[value] = position

    def resolve(arg: Any, tensor_slot: bool) -> Any:
        if isinstance(arg, TraceValue):
            real = env[arg]
            if arg.is_number and not (tensor_slot and number_op):
                return real.item()
            return real if tensor_slot else real.item()
        if isinstance(arg, (list, tuple)):
            return [resolve(a, tensor_slot) for a in arg]
        return number(arg)

    with torch.no_grad():
        for position, op in enumerate(ops):
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
            made(op)
            for value in {*values_in((op.args, op.kwargs)), *(r for r in op.results if r)}:
                if last_use.get(value, -1) <= position and value not in keep:
                    env.pop(value, None)
