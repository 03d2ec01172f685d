"""One compiled FX graph: a function of a list of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Any

import torch

from gflow.dialects.extents import N
from gflow.dialects.records import record
from gflow.dialects.types import share_memory
from gflow.errors import GraphTraceError
from gflow.execution.executor import Compiled
from gflow.runtime.seeds import Seeds
from gflow.runtime.tensors import with_strides
from gflow.tracing.context.transforms import is_transformed
from gflow.tracing.data.sizes import at_size

from .scalars import Counted
from .trace_fx import ArgumentOutput, ArgumentView, FxTrace, NumberOutput, ResultOutput, ResultView

_stride, _is_neg = torch.Tensor.stride, torch.Tensor.is_neg
_dtype = attrgetter("dtype")

#: for how many sizes `_Call`s are cached
_SIZES = 256


def _items(numbers: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that returns the items of a sequence at these positions, as a tuple."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda items: tuple(items[n] for n in numbers)


@record
class _Call:
    """What all calls with one size have in common.

    Args:
        arguments: the program's arguments that are not arguments of the graph: constants and sizes; None for the
            others.
        places: for each tensor argument, its index among the graph's arguments and among the program's, its shape and
            strides.
        given: takes the tensors out of the graph's arguments.
        put: arranges these tensors and `arguments` in the program's order.
        strides, dtypes: of the tensors, in the order of `places`.
        outputs: takes the outputs out of the program's results, the graph's arguments and `constants`.
        constants: the outputs that are the same in all calls, and None for each of `made`.
        made: the outputs that each call computes, such as views: position, and what `FxTrace.results` has for it, with
            this size's numbers.
    """

    arguments: list[Any]
    places: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]
    given: Callable[[Sequence[Any]], tuple[Any, ...]]
    put: Callable[[Sequence[Any]], tuple[Any, ...]]
    strides: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    outputs: Callable[[Sequence[Any]], tuple[Any, ...]]
    constants: list[Any]
    made: list[tuple[int, Any]]


class FxProgram:
    """A compiled FX graph. A call takes the graph's arguments as a list, which it empties (AOTAutograd's boxed
    convention), and returns the graph's outputs as a list."""

    def __init__(self, found: FxTrace, compiled: Compiled) -> None:
        self.found, self.compiled = found, compiled
        self.calls: dict[N, _Call] = {}
        self.mutated = [o.alias for o in found.trace.outputs if o.alias is not None]
        self.seeds = Seeds() if compiled.takes_rng else None

    def _call(self, k: N) -> _Call:
        """Compute and cache what all calls with the size `k` have in common."""
        trace = self.found.trace
        arguments: list[Any] = [i.tensor for i in trace.inputs]
        for index, n in zip(self.found.sizes, k if isinstance(k, tuple) else (k,)):
            arguments[index] = torch.tensor(n, device="cpu")
        places = [
            (at, index, at_size(value.shape, k), at_size(value.strides, k))
            for at, index in enumerate(self.found.arguments)
            if index is not None
            for value in (trace.inputs[index].value,)
        ]
        outputs = [
            replace(
                o,
                shape=at_size(o.shape, k),
                strides=at_size(o.strides, k),
                offset=at_size(o.offset, k),
            )
            if isinstance(o, (ResultView, ArgumentView))
            else replace(o, gaps=at_size(o.gaps, k))
            if isinstance(o, ResultOutput)
            else o.formula(k)
            if isinstance(o, NumberOutput)
            else at_size(o, k)
            for o in self.found.results
        ]
        if len(self.calls) >= _SIZES:
            del self.calls[next(iter(self.calls))]
        start = len(trace.outputs)  # of the arguments behind the results, then of the constants
        behind = start + len(self.found.arguments)
        taken, constants, made = list[int](), list[Any](), list[tuple[int, Any]]()
        for at, o in enumerate(outputs):
            if isinstance(o, ResultOutput) and o.order is None and o.gaps is None:
                taken.append(o.index)
            elif isinstance(o, ArgumentOutput):
                taken.append(start + o.index)
            else:
                taken.append(behind + len(constants))
                computed = isinstance(o, (ResultOutput, ResultView, ArgumentView, Counted))
                constants.append(None if computed else o)
                if computed:
                    made.append((at, o))
        strides = [s for _, _, _, s in places]
        dtypes = [trace.inputs[index].value.dtype for _, index, _, _ in places]
        order = [*range(len(places), len(places) + len(arguments))]
        for n, (_, index, _, _) in enumerate(places):
            order[index] = n
        given, put = _items([at for at, _, _, _ in places]), _items(order)
        self.calls[k] = call = _Call(
            arguments, places, given, put, strides, dtypes, _items(taken), constants, made
        )
        return call

    def __call__(self, args: list[Any], k: N = 0) -> list[Any]:
        """Run the program.

        Args:
            args: the graph's arguments; the list is emptied.
            k: the value of the program's dynamic dimension, or of both; 0 if it has none.

        Returns:
            The graph's outputs.

        Raises:
            Beyond: a number computed from the arguments is out of the range that programs support. `args` is then
                unchanged.
            GraphTraceError: an updated argument's elements share memory, or an argument has another dtype.
        """
        call = self.calls.get(k) or self._call(k)
        given = list(args)
        tensors: Sequence[torch.Tensor] = call.given(given)
        numbers = [
            (
                index,
                torch.tensor(number.value(given), dtype=call.arguments[index].dtype, device="cpu"),
            )
            for index, number in self.found.numbers.items()
        ]
        args.clear()
        copied = []
        if [*map(_dtype, tensors)] != call.dtypes:
            tensors = self._converted(call, given)
        usual = [*map(_stride, tensors)] == call.strides and not any(map(_is_neg, tensors))
        arguments = [*call.put((*tensors, *call.arguments))]
        for index, number in numbers:
            arguments[index] = number
        for at, index, shape, strides in () if usual else call.places:
            tensor = given[at]
            if tensor.stride() != strides and not _same(shape, tensor.stride(), strides):
                if index in self.mutated and share_memory(shape, tensor.stride()):
                    raise GraphTraceError(  # possible for sizes that did not occur when the graph was compiled
                        f"an argument is changed in place, and some of its elements are one in memory (shape "
                        f"{[*shape]}, strides {[*tensor.stride()]}). Pass a copy (.clone())"
                    )
                tensor = _with_strides(tensor, shape, strides)
                copied.append((index, given[at]))
            elif tensor.is_neg():  # the memory of a negative view holds the negated elements
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
        outputs = [*call.outputs((*results, *given, *call.constants))]
        for at, out in call.made:
            outputs[at] = self._output(out, given, results)
        return outputs

    def _converted(self, call: _Call, given: list[Any]) -> list[torch.Tensor]:
        """The tensor arguments, converted to the program's dtypes. TorchDynamo traces its own Python numbers (random
        ones) as 0-d float64 tensors, and passes float32.

        Raises:
            GraphTraceError: a tensor with dimensions, or one that is updated, has another dtype.
        """
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
        """Commit a run: keep the random state and mark updated arguments. It can be repeated if it is interrupted."""
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
        if isinstance(out, ResultOutput):
            if out.gaps is not None:
                return with_strides(results[out.index], out.gaps)
            assert out.order is not None
            # `data`, so that it is no view for autograd: the caller may update it
            return results[out.index].permute(out.order).data
        if isinstance(out, ResultView):
            return _view(results[out.index], out)
        if isinstance(out, ArgumentView):
            of = given[out.index]
            return of.as_strided(out.shape, out.strides, of.storage_offset() + out.offset)
        return out.value(given)


def boxed(
    run: Callable[[list[Any]], Any], in_eager: Callable[[list[Any]], Any]
) -> Callable[[list[Any]], Any]:
    """A plain function with AOTAutograd's boxed calling convention (`_boxed_call`): it takes one list of arguments.

    in_eager: the same op by op, for calls within a transform, such as a vmap over a backward (`is_grads_batched=True`).
    """

    def call(args: list[Any]) -> Any:
        return in_eager(args) if is_transformed() else run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _view(result: torch.Tensor, out: ResultView) -> torch.Tensor:
    """A view of the memory of a result, which is dense, but no view of it for autograd: either may need a gradient
    without the other."""
    result = result.detach()
    if out.reading is None:
        return result.as_strided(out.shape, out.strides, out.offset)
    row = result.as_strided((result.numel(),), (1,)).view(out.reading.dtype)
    view = row.as_strided(out.shape, out.strides, out.offset)
    if out.reading.conjugated:
        view = view.conj()
    return torch._neg_view(view) if out.reading.negated else view


def _same(shape: tuple[int, ...], found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether strides are equal in all dimensions of more than one element."""
    return 0 in shape or all(f == w or n == 1 for f, w, n in zip(found, wanted, shape))


def _with_strides(
    tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise RuntimeError(
            f"a program for a tensor of shape {list(shape)} was given {list(tensor.shape)}"
        )
    with torch.no_grad():
        return with_strides(tensor, strides)
