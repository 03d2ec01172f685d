"""Runs a trace op by op with PyTorch: for the one step in which an optimizer creates its state, and as the reference
for compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from gflow.dialects.extents import N
from gflow.errors import GraphError
from gflow.runtime.failures import explain

from ..data.sizes import Size, at_size
from ..data.tail import Tail, Unknown
from ..data.trace import Trace
from ..data.values import TraceOp, TraceValue, values_in

_WAY_OUT = "Return the tensor that the size is of, and go on outside build()."


@lru_cache(maxsize=1024)
def _slots(func: torch._ops.OpOverload) -> tuple[list[bool], dict[str, bool]]:
    """Which parameters of an op are tensors (or tensor lists)."""
    flags = ["Tensor" in str(a.type) for a in func._schema.arguments]
    return flags, {a.name: f for a, f in zip(func._schema.arguments, flags, strict=True)}


#: takes the values of a run, by slot, and its sizes by name or formula; those of the dynamic dimensions' symbols are
#: under `_SYMBOLS`
_Get = Callable[[list[Any], dict[str, Any]], Any]
_SYMBOLS = ""


class _Step(NamedTuple):
    """An op, with what each run needs of it.

    Args:
        args, kwargs: of the op; the entries `varying` and `named` are filled in at each run.
        results: slots; None for those that nothing uses.
        dropped: slots of values that nothing uses later.
    """

    op: TraceOp
    args: list[Any]
    varying: list[tuple[int, _Get]]
    kwargs: dict[str, Any]
    named: list[tuple[str, _Get]]
    results: list[int | None]
    dropped: list[int]


class Steps:
    """Ops that PyTorch runs one by one.

    Args:
        given: the values that exist before.
        keep: those that are not dropped after their last use.
    """

    def __init__(
        self, ops: Sequence[TraceOp], given: Sequence[TraceValue], keep: Collection[TraceValue]
    ) -> None:
        self.slots = {value: n for n, value in enumerate(given)}
        last_use: dict[TraceValue, int] = {}
        used: list[set[TraceValue]] = []
        for position, op in enumerate(ops):
            operands = {*values_in((op.args, op.kwargs))}
            last_use.update(dict.fromkeys(operands, position))
            used.append(operands.union(r for r in op.results if r is not None))
            for result in op.results:
                if result is not None:
                    self.slots.setdefault(result, len(self.slots))
        self.steps = [
            self._step(
                op,
                [v for v in values if last_use.get(v, -1) <= position and v not in keep],
            )
            for position, (op, values) in enumerate(zip(ops, used))
        ]

    def _step(self, op: TraceOp, dropped: list[TraceValue]) -> _Step:
        flags, by_name = _slots(op.func)
        number_op = all(r is not None and r.is_number for r in op.results)
        args = [self._operand(a, f, number_op) for a, f in zip(op.args, flags, strict=False)]
        kwargs = {k: self._operand(v, by_name[k], number_op) for k, v in op.kwargs.items()}
        return _Step(
            op,
            [constant for constant, _ in args],
            [(n, get) for n, (_, get) in enumerate(args) if get is not None],
            {k: constant for k, (constant, _) in kwargs.items()},
            [(k, get) for k, (_, get) in kwargs.items() if get is not None],
            [None if r is None else self.slots[r] for r in op.results],
            [self.slots[v] for v in dropped],
        )

    def _operand(self, arg: Any, tensor_slot: bool, number_op: bool) -> tuple[Any, _Get | None]:
        """An argument of an op: its constant, or how a run gets it."""
        if isinstance(arg, TraceValue):
            slot = self.slots[arg]
            if tensor_slot and not (arg.is_number and not number_op):
                return None, lambda values, sizes: values[slot]
            return None, lambda values, sizes: values[slot].item()
        if isinstance(arg, (list, tuple)):
            parts = [self._operand(a, tensor_slot, number_op) for a in arg]
            constants = [constant for constant, _ in parts]
            varying = [(n, get) for n, (_, get) in enumerate(parts) if get is not None]
            if not varying:
                return constants, None

            def filled(values: list[Any], sizes: dict[str, Any]) -> list[Any]:
                found = constants.copy()
                for n, get in varying:
                    found[n] = get(values, sizes)
                return found

            return None, filled
        if isinstance(arg, (Unknown, Size)):
            return None, lambda values, sizes: _at(arg, sizes)
        return arg, None

    def run(
        self,
        values: list[Any],
        sizes: dict[str, Any],
        made: Callable[[int], None] = lambda position: None,
    ) -> None:
        """Run the ops.

        Args:
            values: the given ones, in order; it takes those of the ops.
            made: is called after each op.

        Raises:
            Exception: an error of PyTorch, with the location in the author's program.
        """
        values += [None] * (len(self.slots) - len(values))
        with torch.no_grad():
            for position, step in enumerate(self.steps):
                args, kwargs = step.args, step.kwargs
                if step.varying:
                    args = args.copy()
                    for n, get in step.varying:
                        args[n] = get(values, sizes)
                if step.named:
                    kwargs = kwargs | {k: get(values, sizes) for k, get in step.named}
                try:
                    out = step.op.func(*args, **kwargs)
                except Exception as error:
                    explain(error, f"  at {step.op.loc}")
                    raise
                for slot, item in zip(step.results, _flat(out), strict=True):
                    if slot is not None:
                        values[slot] = item
                made(position)
                for slot in step.dropped:
                    values[slot] = None


def _flat(out: Any) -> list[Any]:
    """The results of an op, which may be a tensor, several, or lists of them."""
    if isinstance(out, torch.Tensor):
        return [out]
    flat: list[Any] = []
    for item in out if isinstance(out, (tuple, list)) else (out,):
        flat.extend(item) if isinstance(item, (tuple, list)) else flat.append(item)
    return flat


def _at(size: Any, sizes: dict[str, Any]) -> Any:
    """The value of a size, or of another number, in a run."""
    if isinstance(size, Unknown):
        found = sizes.get(size.text)  # a formula is computed once in a run
        if found is None:
            found = sizes[size.text] = size.at(sizes)
        return found
    symbols = sizes.get(_SYMBOLS)
    return size if symbols is None else at_size(size, symbols)


def run_trace(trace: Trace, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The values of `trace.outputs` for `inputs` in the order of `trace.inputs`.

    The inputs are not changed; for outputs with an `alias` the result is the value to write.

    Raises:
        Exception: an error of PyTorch, with the location in the author's program.
    """
    given = {spec.value: x.detach() for spec, x in zip(trace.inputs, inputs, strict=True)}
    steps = Steps(trace.ops, [*given], {o.value for o in trace.outputs} | given.keys())
    values: list[Any] = [*given.values()]
    steps.run(values, {})
    return [values[steps.slots[o.value]] for o in trace.outputs]


class TailSteps:
    """The tail of a trace, as PyTorch runs it."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._given = [*tail.arguments, *tail.outputs]
        self._steps = steps = Steps(tail.ops, self._given, {*tail.results})
        slots = steps.slots
        results = [[r for r in op.results if r is not None] for op in tail.ops]
        #: by op: the sizes that its results tell, as slot, dimension and name; and the slots and shapes of its results
        self._told = [
            [(slots[r], d, name) for r in found for d, name in tail.sizes.get(r, ())]
            for found in results
        ]
        self._shapes = [
            [(slots[r], r.shape, all(type(n) is int for n in r.shape)) for r in found]
            for found in results
        ]

    def run(self, given: Mapping[TraceValue, torch.Tensor], size: N | None) -> list[torch.Tensor]:
        """The results of the tail.

        Args:
            given: what its ops read of the program.
            size: the value of the dynamic dimensions' symbol, or of both.

        Raises:
            Exception: an error of PyTorch, with the location in the author's program.
            GraphError: a size that depends on values is not one for which the graph was traced.
        """
        tail = self.tail
        values: list[Any] = [given[value].detach() for value in self._given]
        symbols = () if size is None else size if isinstance(size, tuple) else (size,)
        known: dict[str, Any] = dict(zip(tail.symbols, symbols, strict=True))
        known[_SYMBOLS] = size

        def made(position: int) -> None:
            for slot, d, name in self._told[position]:
                known[name] = values[slot].shape[d]
            for slot, shape, fixed in self._shapes[position]:
                wanted = shape if fixed else tuple([_at(n, known) for n in shape])
                if values[slot].shape != wanted:
                    raise _other_shape(tail.ops[position], values[slot].shape, wanted)

        self._steps.run(values, known, made)
        for condition in tail.conditions:
            if not condition.at(known):
                sizes = ", ".join(f"{name} = {known[name]}" for name in condition.names)
                raise GraphError(
                    f"{tail.first.loc}: the graph was traced for {condition} (sizes that depend on values), and this "
                    f"call has {sizes}. {_WAY_OUT}"
                )
        return [values[self._steps.slots[value]] for value in tail.results]


def _other_shape(op: TraceOp, found: Sequence[int], wanted: Sequence[int]) -> GraphError:
    return GraphError(
        f"{op.loc}: the result of {op.func} has the shape {[*found]}, where the graph was traced for {[*wanted]}: a "
        f"size of 0 or 1 that depends on values gives another shape than others. {_WAY_OUT}"
    )
