"""Checks the memory of inputs: whether they share memory with tensors that the program updates, and begin where it
expects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from gflow.errors import GraphInputError
from gflow.runtime.tensors import overlap, span, storage_of
from gflow.tracing.context.location import here
from gflow.tracing.data.trace import Trace


class MemoryCheck:
    """The check for one program and its parameters, buffers and other tensors, at their current addresses.

    Args:
        arguments: the program's arguments, None for its inputs.
        slots: for each input, its argument and its index among the arguments of the call.
    """

    def __init__(
        self,
        trace: Trace,
        arguments: Sequence[torch.Tensor | None],
        slots: Sequence[tuple[int, int]],
    ) -> None:
        self.trace, self.arguments, self.slots = trace, arguments, slots
        updated = {o.alias for o in trace.outputs if o.alias is not None}
        self._inputs = [position for position, _ in slots if position in updated]
        last = {r: op.loc.phase for op in trace.ops for r in op.results if r is not None}
        self._storages: dict[int, list[tuple[int, bool]]] = {}
        for out in trace.outputs:
            tensor = None if out.alias is None else arguments[out.alias]
            if out.alias is not None and tensor is not None:
                after_build = last.get(out.value) == "optimizer"
                entry = (out.alias, after_build)
                self._storages.setdefault(storage_of(tensor), []).append(entry)
        self._from_start = [position for position, _ in slots if trace.inputs[position].from_start]
        held = [(n, t) for n, t in enumerate(arguments) if t is not None and t.numel()]
        self._held = sorted((*span(t), n) for n, t in held) if self._inputs else []
        self._reach = list(accumulate((end for _, end, _ in self._held), max))
        self.needed = bool(self._inputs or self._storages or self._from_start)

    def apply(self, given: list[torch.Tensor]) -> None:
        """Replace inputs by copies if only optimizers update their memory, after all ops that read them.

        Args:
            given: the arguments of the program.

        Raises:
            GraphInputError: `build()` updates one of two tensors that share memory, or an input must begin at the
                start of its storage and does not.
        """
        for position in self._from_start:
            if given[position].storage_offset():
                raise GraphInputError(
                    f"{here()}: build() calls as_strided with a storage_offset, which counts from where the memory "
                    f"of input {self.trace.inputs[position].name!r} begins, and the tensor of this call begins "
                    f"{given[position].storage_offset()} elements behind that; pass a copy (.clone()) of it."
                )
        for position, _ in self.slots:
            tensor = given[position]
            for other, after_build in self._storages.get(storage_of(tensor), ()):
                held = self.arguments[other]
                if held is None or held is tensor or not overlap(held, tensor):
                    continue
                if not after_build or position in self._inputs:
                    raise self._problem(other, position)
                given[position] = tensor.clone(memory_format=torch.preserve_format)
        if self._inputs:
            self._check_updates(given)

    def _check_updates(self, given: list[torch.Tensor]) -> None:
        """Compare each input that the program updates with the other arguments in its memory."""
        inputs = {n: span(given[n]) for n, _ in self.slots if given[n].numel()}
        for mine in self._inputs:
            if mine not in inputs:
                continue
            begin, end = inputs[mine]
            near = [n for n, (first, last) in inputs.items() if first < end and begin < last]
            for other in (*self._held_within(begin, end), *near):
                if given[other] is not given[mine] and overlap(given[other], given[mine]):
                    raise self._problem(mine, other)

    def _held_within(self, begin: int, end: int) -> Iterator[int]:
        """The arguments of the program that overlap a range of addresses, by binary search: there may be thousands."""
        count = bisect_left(self._held, (end,))
        if count and self._reach[count - 1] > begin:
            yield from (n for _, last, n in self._held[:count] if last > begin)

    def _problem(self, updated: int, other: int) -> GraphInputError:
        first, second = self.trace.inputs[updated], self.trace.inputs[other]
        return GraphInputError(
            f"{here()}: build() updates {first.role} {first.name!r} in place, and it shares memory with "
            f"{second.role} {second.name!r}; pass a copy (.clone()) of one of them."
        )
