"""One compiled FX graph: a function of a list of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import torch

from gflow.dialects.extents import N
from gflow.dialects.records import record
from gflow.dialects.types import share_memory
from gflow.errors import GraphTraceError
from gflow.execution.executor import Compiled
from gflow.runtime.seeds import Seeds
from gflow.runtime.tensors import laid_out
from gflow.tracing.data.sizes import at_size

from .scalars import Counted
from .trace_fx import Computed, FxTrace, Given, Lying, Taken, Viewed

_stride, _is_neg = torch.Tensor.stride, torch.Tensor.is_neg
_dtype = attrgetter("dtype")

#: sizes whose numbers are kept
_SIZES = 256


def _items(numbers: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Gives the items with these numbers."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda items: tuple(items[n] for n in numbers)


@record
class _Call:
    """What calls of one size have in common.

    places: of each tensor that is given, its place among the graph's arguments and among the program's, its shape and
    strides. given, put: gives them out of the graph's arguments; puts these and `arguments` in the program's order.
    strides, dtypes: of all of them. outputs: as `FxTrace.results`, with the numbers of this size. plain: where all
    outputs are results as they are, which.
    """

    arguments: list[Any]
    places: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]
    given: Callable[[Sequence[Any]], tuple[Any, ...]]
    put: Callable[[Sequence[Any]], tuple[Any, ...]]
    strides: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    outputs: list[Any]
    plain: list[int] | None


class FxProgram:
    """Takes the graph's arguments as a list, which it empties, as AOTAutograd wants it; returns
    the graph's outputs as a list."""

    def __init__(self, found: FxTrace, compiled: Compiled) -> None:
        self.found, self.compiled = found, compiled
        self.calls: dict[N, _Call] = {}
        self.mutated = [o.alias for o in found.trace.outputs if o.alias is not None]
        self.seeds = Seeds() if compiled.takes_rng else None

    def _call(self, k: N) -> _Call:
        """What calls with the size `k` have in common."""
        trace = self.found.trace
        arguments: list[Any] = [i.tensor for i in trace.inputs]
        for index, n in zip(self.found.sizes, k if isinstance(k, tuple) else (k,)):
            arguments[index] = torch.tensor(n)
        places = [
            (at, index, at_size(value.shape, k), at_size(value.strides, k))
            for at, index in enumerate(self.found.arguments)
            if index is not None
            for value in (trace.inputs[index].value,)
        ]
        outputs = [
            type(o)(o.index, at_size(o.shape, k), at_size(o.strides, k), at_size(o.offset, k))
            if isinstance(o, (Lying, Viewed))
            else o.formula(k)
            if isinstance(o, Computed)
            else at_size(o, k)
            for o in self.found.results
        ]
        if len(self.calls) >= _SIZES:
            del self.calls[next(iter(self.calls))]
        whole = all(isinstance(o, Given) and o.order is None for o in outputs)
        plain = [o.index for o in outputs] if whole else None
        strides = [s for _, _, _, s in places]
        dtypes = [trace.inputs[index].value.dtype for _, index, _, _ in places]
        order = [*range(len(places), len(places) + len(arguments))]
        for n, (_, index, _, _) in enumerate(places):
            order[index] = n
        given, put = _items([at for at, _, _, _ in places]), _items(order)
        self.calls[k] = made = _Call(arguments, places, given, put, strides, dtypes, outputs, plain)
        return made

    def __call__(self, args: list[Any], k: N = 0) -> list[Any]:
        """k: the program's size, if it has one.

        Raises:
            Beyond: a number among the arguments is none that programs take. They are as they were.
        """
        call = self.calls.get(k) or self._call(k)
        given = list(args)
        tensors: Sequence[torch.Tensor] = call.given(given)
        numbers = {
            index: torch.tensor(number.value(given), dtype=call.arguments[index].dtype)
            for index, number in self.found.numbers.items()
        }
        args.clear()
        copied = []
        if [*map(_dtype, tensors)] != call.dtypes:
            tensors = self._converted(call, given)
        usual = [*map(_stride, tensors)] == call.strides and not any(map(_is_neg, tensors))
        arguments = [*call.put((*tensors, *call.arguments))]
        for index, number in numbers.items():
            arguments[index] = number
        for at, index, shape, strides in () if usual else call.places:
            tensor = given[at]
            if tensor.stride() != strides and not _same(shape, tensor.stride(), strides):
                if index in self.mutated and share_memory(shape, tensor.stride()):
                    raise GraphTraceError(  # of sizes that were not there when the graph was made
                        f"an argument is changed in place, and some of its elements are one in memory (shape "
                        f"{[*shape]}, strides {[*tensor.stride()]}). Pass a copy (.clone())"
                    )
                tensor = _laid_out(tensor, shape, strides)
                copied.append((index, given[at]))
            elif tensor.is_neg():  # its memory holds the elements with the other sign
                tensor = tensor.resolve_neg()
                copied.append((index, given[at]))
            arguments[index] = tensor
        run: Any = self.compiled.run
        run.done = False
        try:
            if self.seeds is not None:
                arguments.append(self.seeds.draw())
            results = run(arguments)
            self._ran(arguments, copied)
        except BaseException:
            if run.done:
                self._ran(arguments, copied)
            elif self.seeds is not None:
                self.seeds.undo()
            raise
        if call.plain is not None:
            return [results[i] for i in call.plain]
        return [self._output(out, given, results) for out in call.outputs]

    def _converted(self, call: _Call, given: list[Any]) -> list[torch.Tensor]:
        """Arguments in the program's types. TorchDynamo makes a graph for a Python number of its own (a random one)
        as float64, and hands over float32."""
        for (at, index, _, _), dtype in zip(call.places, call.dtypes):
            tensor = given[at]
            if tensor.dtype == dtype:
                continue
            if tensor.ndim or index in self.mutated:
                raise GraphTraceError(
                    f"the program expects a tensor of {dtype}, got {tensor.dtype}"
                )
            given[at] = tensor.to(dtype)
        return [given[at] for at, _, _, _ in call.places]

    def _ran(self, arguments: list[Any], copied: list[tuple[int, torch.Tensor]]) -> None:
        """What follows a run. Given up in the middle, it can be done again."""
        if self.seeds is not None:
            self.seeds.keep()
        if self.mutated:
            self._mark_mutated(arguments, dict(copied))

    def _mark_mutated(self, arguments: list[Any], copied: dict[int, torch.Tensor]) -> None:
        for index in self.mutated:
            if index in copied:
                copied[index].detach().copy_(arguments[index])
            torch.autograd.graph.increment_version(copied.get(index, arguments[index]))

    def _output(self, out: Any, given: list[Any], results: list[torch.Tensor]) -> Any:
        if isinstance(out, Given):
            result = results[out.index]
            # no view of another tensor: the caller may update it
            return result if out.order is None else result.permute(out.order).data
        if isinstance(out, Lying):
            return results[out.index].as_strided(out.shape, out.strides, out.offset)
        if isinstance(out, Viewed):
            of = given[out.index]
            return of.as_strided(out.shape, out.strides, of.storage_offset() + out.offset)
        if isinstance(out, Counted):
            return out.value(given)
        return given[out.index] if isinstance(out, Taken) else out


def boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """A plain function that AOTAutograd calls with a list of arguments."""

    def call(args: list[Any]) -> Any:
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _same(shape: tuple[int, ...], found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether strides are equal but for dimensions in which nothing steps."""
    return 0 in shape or all(f == w or n == 1 for f, w, n in zip(found, wanted, shape))


def _laid_out(
    tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise RuntimeError(
            f"a program for a tensor of shape {list(shape)} was given {list(tensor.shape)}"
        )
    with torch.no_grad():
        return laid_out(tensor, strides)
