"""Values that a trace knows: those that follow from integers and masks among its arguments and buffers.

A count of true elements, `index.max() + 1`, `sizes.tolist()`: Python, or the shape of a result, depends on them. Where
no floating-point argument, parameter or buffer takes part, they are computed while the graph is traced, and the program
is made for them. A call computes them anew and runs the program only if they are the same; the program checks them as
well, since a saved one runs without a graph.

Floating-point arguments, and what follows from parameters, have other values at each call. There the ops are refused,
or run after the program (`data.tail`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from ..context.location import Locator
from ..data.known import Answer, Known
from ..data.values import TraceInput, TraceOp, TraceValue, values_in
from ..program.collectives import is_collective
from ..program.interpreter import Steps
from .failures.assertions import fail_if
from .failures.pruning import draws, needed_ops

aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
_ROLES = ("input", "buffer", "constant")
#: the largest tensor of which Python takes the values as a list
_LIST = 1024
_INT64 = torch.iinfo(torch.int64).max


def count_of(mask: Tensor) -> int:
    """The number of elements that are not zero."""
    return int(mask.count_nonzero())


def _kinds_of(x: Tensor) -> int:
    return int(torch.unique(x).numel())


def _runs_of(x: Tensor) -> int:
    return int(torch.unique_consecutive(x).numel())


def _largest_of(x: Tensor) -> int:
    return int(x.max())


def _is_whole(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def _total_of(x: Tensor) -> int:
    return int(x.sum())


class _Recording(Protocol):
    """What the values are read from: the recorder."""

    ops: list[TraceOp]
    inputs: list[TraceInput]
    late: dict[TraceValue, TraceOp]
    locator: Locator

    def value_of(self, fake: Tensor) -> TraceValue: ...
    def constant(self, tensor: Tensor) -> Tensor: ...
    def truth(self, fake: Tensor) -> bool | None: ...
    def apart(self) -> AbstractContextManager[Any]: ...


class KnownValues:
    """The values that a trace in progress knows.

    Args:
        leaf: the tensor of the call that an input stands for.
        every: whether all values of the call that is traced are meant, with other random numbers than those of the
            program.
    """

    def __init__(
        self,
        recorder: _Recording,
        leaf: Callable[[TraceValue], Tensor | None],
        every: bool = False,
    ) -> None:
        self.recorder, self._leaf, self._every = recorder, leaf, every
        self._answers: list[Answer] = []
        self._known: dict[TraceValue, Tensor | None] = {}
        self._makers: dict[TraceValue, TraceOp] = {}
        self._seen: tuple[int, TraceOp | None] = (0, None)  # ops in `_makers`, and the last of them
        self._places: dict[TraceValue, tuple[Tensor, ...]] = {}

    # what is known

    def of(self, fake: Tensor) -> Tensor | None:
        """The values of a traced tensor; None where they are not known."""
        value = self.recorder.value_of(fake)
        if value not in self._known:
            self._compute(value)
        return self._known[value]

    def _compute(self, wanted: TraceValue) -> None:
        """Compute a value, and all that it follows from."""
        self._look()
        inputs = {i.value: i for i in self.recorder.inputs}
        stack = [wanted]
        while stack:
            value = stack[-1]
            if value in self._known:
                stack.pop()
                continue
            op = self._makers.get(value)
            if value in inputs or op is None or not self._is_plain(op):
                self._known[value] = self._outside(inputs.get(value))
                continue
            operands = [*dict.fromkeys(values_in((op.args, op.kwargs)))]
            if any(self._known.get(v, v) is None for v in operands):
                self._known.update((r, None) for r in op.results if r is not None)
            elif missing := [v for v in operands if v not in self._known]:
                stack += missing
            else:
                self._run(op, operands)

    def _look(self) -> None:
        """Note the ops that were recorded since the last time; some may have been dropped."""
        ops, (count, last) = self.recorder.ops, self._seen
        if count and (count > len(ops) or ops[count - 1] is not last):
            count = 0
        for op in ops[count:]:
            self._makers.update((r, op) for r in op.results if r is not None)
        self._seen = len(ops), ops[-1] if ops else None

    def _outside(self, entry: TraceInput | None) -> Tensor | None:
        """The tensor of an input; None if its values are other ones at each call."""
        roles = (*_ROLES, "parameter") if self._every else _ROLES
        if entry is None or entry.role not in roles or entry.layout is not None:
            return None
        tensor = entry.tensor if entry.tensor is not None else self._leaf(entry.value)
        if tensor is None:
            return None
        if entry.role != "constant" and not _is_whole(tensor) and not self._every:
            return None
        return tensor if type(tensor) in (Tensor, torch.nn.Parameter) else None

    def _is_plain(self, op: TraceOp) -> bool:
        """Whether the results of an op follow from its operands, and have known shapes."""
        results = [r for r in op.results if r is not None]
        if (draws(op) and not self._every) or is_collective(op):
            return False
        sizes = (n for r in results for n in (*r.shape, *r.strides))
        return all(type(n) is int for n in sizes) and not any(
            r.is_number or r in self.recorder.late for r in results
        )

    def _run(self, op: TraceOp, operands: Sequence[TraceValue]) -> None:
        with self.recorder.apart():
            steps = Steps([op], operands, {*operands, *(r for r in op.results if r is not None)})
            values: list[Any] = [self._known[v] for v in operands]
            steps.run(values, {})
        self._known.update((r, values[steps.slots[r]]) for r in op.results if r is not None)

    def ask(self, fake: Tensor, question: Callable[[Tensor], Any], name: str) -> Any:
        """The answer to a question about a traced tensor's values, for which the program is made; None if they are not
        known. name: of the question, for messages."""
        real = self.of(fake)
        if real is None:
            return None
        with self.recorder.apart():
            found = question(real)
        value = self.recorder.value_of(fake)
        self._answers.append(Answer(value, question, found, name, self.recorder.locator.here()))
        return found

    def conditions(self) -> Known | None:
        """What the trace has read; None if it has read nothing that may change."""
        needed = needed_ops(self.recorder.ops, [a.value for a in self._answers], lambda op: False)
        ops = [op for op in self.recorder.ops if op in needed]
        read = {a.value for a in self._answers}.union(
            *(values_in((op.args, op.kwargs)) for op in ops)
        )
        inputs = [i for i in self.recorder.inputs if i.value in read]
        return Known(self._answers, ops, inputs) if inputs else None

    # ops

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an op of `BY_VALUES`; None if the values on which its shape, or the result itself, depends are
        not known."""
        return BY_VALUES[func](self, *args, **kwargs)

    def number(self, fake: Tensor) -> Any:
        """`tensor.item()`; None if it is not known."""
        found = self.ask(fake, Tensor.item, "the value of a tensor")
        if found is not None:
            if type(found) is int and found > _INT64:
                with self.recorder.apart():
                    constant = torch.tensor(found, dtype=fake.dtype)
                bad = fake != self.recorder.constant(constant)
            else:
                bad = fake != found if found == found else ~fake.isnan()
            self._check(bad, f"a tensor's value {found}")
        return found

    def listed(self, fake: Tensor, question: Callable[[Tensor], Any]) -> Any:
        """`tensor.tolist()`; None if it is not known, or long."""
        if fake.numel() > _LIST:
            return None
        found = self.ask(fake, Tensor.tolist, "the values of a tensor")
        real = self.of(fake)
        if found is None or real is None:
            return None
        with self.recorder.apart():
            answer, known = question(real), real.clone()
        constant = self.recorder.constant(known)
        bad = fake != constant
        if not _is_whole(fake):
            bad = bad & ~(fake.isnan() & constant.isnan())
        self._check(bad, f"the values {found} of a tensor")
        return answer

    def text(self, fake: Tensor) -> str | None:
        """`repr(tensor)`; None if its values are not known, or many. It depends on PyTorch's options of printing."""
        if self.listed(fake, repr) is None:
            return None
        return self.ask(fake, repr, "the text of a tensor")

    def places_of(self, mask: Tensor) -> tuple[Tensor, ...] | None:
        """The positions of a mask's true elements, by dimension; None if their number is not known."""
        value = self.recorder.value_of(mask)
        if value not in self._places:
            count = self.ask(mask, count_of, "the number of true elements of a mask")
            if count is None:
                return None
            self._check(mask.count_nonzero() != count, f"{count} true elements in a mask")
            found = aten.nonzero_static.default(mask, size=count, fill_value=0)
            self._places[value] = (found, *aten.unbind.int(found, 1))
        return self._places[value][1:]

    def _check(self, bad: Tensor, what: str) -> None:
        fail_if(bad, "RuntimeError", f"the program is for {what}; trace it for others")


# These functions call ops that PyTorch does not decompose: they run below its decompositions.


def _converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else aten._to_copy.default(x, dtype=dtype)


def _flat(x: Tensor) -> Tensor:
    dense = aten.clone.default(x, memory_format=torch.contiguous_format)
    return aten.view.default(dense, [x.numel()])


def _nonzero(known: KnownValues, x: Tensor) -> Tensor | None:
    if known.places_of(x) is None:
        return None
    return aten.clone.default(known._places[known.recorder.value_of(x)][0])


def _by_positions(known: KnownValues, indices: Sequence[Any]) -> list[Any] | None:
    """The indices of an op, with positions instead of masks; None if it has no masks, or one is not known."""
    if not any(_is_mask(i) for i in indices):
        return None
    found: list[Any] = []
    for index in indices:
        places = known.places_of(index) if _is_mask(index) else (index,)
        if places is None:
            return None
        found += places
    return found


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in _MASKS


def _index(known: KnownValues, x: Tensor, indices: Sequence[Any]) -> Tensor | None:
    found = _by_positions(known, indices)
    return None if found is None else aten.index.Tensor(x, found)


def _put(
    known: KnownValues,
    x: Tensor,
    indices: Sequence[Any],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor | None:
    if values.numel() == 1:  # chosen by the mask itself
        return None
    found = _by_positions(known, indices)
    return None if found is None else aten.index_put.default(x, found, values, accumulate)


def _select(known: KnownValues, x: Tensor, mask: Tensor) -> Tensor | None:
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    x, mask = aten.expand.default(x, shape), aten.expand.default(mask, shape)
    places = known.places_of(mask)
    return None if places is None else aten.index.Tensor(x, [*places])


def _repeat(known: KnownValues, repeats: Tensor, *, output_size: Any = None) -> Tensor | None:
    if output_size is not None:
        return None
    total = known.ask(repeats, _total_of, "the sum of a tensor of counts")
    if total is None:
        return None
    known._check(repeats.sum() != total, f"a sum of counts of {total}")
    return aten.repeat_interleave.Tensor(repeats, output_size=total)


def _bincount(
    known: KnownValues, x: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> Tensor | None:
    if x.dim() != 1 or x.dtype == torch.bool:
        return None
    if not x.numel():  # eager ignores the weights and their dtype
        return torch.zeros(minlength, dtype=torch.int64, device=x.device)
    most = known.ask(x, _largest_of, "the largest of a tensor of classes")
    if most is None:
        return None
    known._check((x.max() != most) | (x.min() < 0), f"classes up to {most}")
    size, dtype = max(most + 1, minlength), torch.int64
    if weights is not None:
        dtype = weights.dtype if weights.dtype == torch.float32 else torch.float64
    given = torch.ones_like(x) if weights is None else weights
    sums = torch.zeros(size, dtype=dtype, device=x.device)
    return aten.index_add.default(sums, 0, _converted(x, torch.int64), _converted(given, dtype))


def _of_runs(known: KnownValues, x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first elements of the runs of equal elements of a vector, the run of each element, and the runs' lengths."""
    begins = torch.cat([torch.ones_like(x[:1], dtype=torch.bool), x[1:] != x[:-1]])
    known._check(begins.count_nonzero() != count, f"{count} different values in a tensor")
    places = aten.nonzero_static.default(begins, size=count, fill_value=0)
    places = aten.view.default(places, [count])
    ends = torch.cat([places[1:], torch.full_like(places[:1], x.numel())])
    return x[places], _converted(begins, torch.int64).cumsum(0) - 1, ends - places


def _unique(
    known: KnownValues, x: Tensor, sorted: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[Tensor, Tensor, Tensor] | None:
    if not sorted or not x.numel() or not _is_whole(x):
        return None
    count = known.ask(x, _kinds_of, "the number of different values of a tensor")
    if count is None:
        return None
    ordered, order = _flat(x).sort(stable=True)
    values, runs, lengths = _of_runs(known, ordered, count)
    group = torch.zeros_like(runs).scatter(0, order, runs)
    return _asked(values, aten.view.default(group, [*x.shape]), lengths, inverse, counts)


def _unique_consecutive(
    known: KnownValues, x: Tensor, inverse: bool = False, counts: bool = False, dim: Any = None
) -> tuple[Tensor, Tensor, Tensor] | None:
    if dim is not None or not x.numel():
        return None
    count = known.ask(x, _runs_of, "the number of runs of equal values of a tensor")
    if count is None:
        return None
    values, runs, lengths = _of_runs(known, _flat(x), count)
    return _asked(values, aten.view.default(runs, [*x.shape]), lengths, inverse, counts)


def _asked(
    values: Tensor, group: Tensor, lengths: Tensor, inverse: bool, counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What `unique` returns: empty tensors for what was not asked for."""
    nothing = torch.zeros(0, dtype=torch.int64, device=values.device)
    return values, group if inverse else nothing, lengths if counts else nothing.clone()


def _equal(known: KnownValues, x: Tensor, y: Tensor) -> bool | None:
    if x.shape != y.shape:
        return False
    return _truth(known, (x == y).all())


def _allclose(
    known: KnownValues,
    x: Tensor,
    y: Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool | None:
    return _truth(known, torch.isclose(x, y, rtol, atol, equal_nan).all())


def _truth(known: KnownValues, fake: Tensor) -> bool | None:
    found = known.number(fake)
    return known.recorder.truth(fake) if found is None else found


#: ops that need values, unless their arguments tell
BY_VALUES: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten.index.Tensor: _index,
    aten.index_put.default: _put,
    aten._unsafe_index_put.default: _put,
    aten._index_put_impl.default: _put,
    aten.masked_select.default: _select,
    aten.repeat_interleave.Tensor: _repeat,
    aten.bincount.default: _bincount,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.equal.default: _equal,
    aten.allclose.default: _allclose,
}
