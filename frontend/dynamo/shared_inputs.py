"""Graphs of TorchDynamo that update an argument which shares elements with another one, in the first call or later.

AOTAutograd replaces such arguments by one synthetic base and views of it, and handles results that are views of them
wrongly: in PyTorch 2.13 `aot_eager` raises for `x.add_(1); return y[0]`, or loses elements. Such a graph runs as in
eager mode. If no two arguments of the first call share memory, TorchDynamo has no guard for it, so the arguments of
each call are compared here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import combinations
from operator import itemgetter
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.runtime.tensors import overlap, span, width

from .sizes import hint_of

_log = logging.getLogger("gflow")
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_data_ptr = torch.Tensor.data_ptr
#: a tensor argument: its index, its name, a fake tensor
_Argument = tuple[int, str, torch.Tensor]


@record
class _Place:
    """The layout of a fake tensor in its storage, with the methods of a tensor that `overlap` calls."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.itemsize

    def data_ptr(self) -> int:
        return self.offset * self.itemsize


def updated_in_shared_memory(module: torch.fx.GraphModule) -> tuple[str, str] | None:
    """The names of an argument that a graph updates and of one that shares elements with it; None if there are none."""
    arguments = _strided(module)
    by_storage: dict[int, list[tuple[int, str, torch.Tensor]]] = {}
    for at, name, value in arguments:
        by_storage.setdefault(value.untyped_storage()._cdata, []).append((at, name, value))
    for group in by_storage.values():
        # tensors of one storage share a version counter
        if len(group) < 2 or not any(value._version for _, _, value in group):
            continue
        for (_, a, first), (_, b, second) in combinations(group, 2):
            places = _place(first), _place(second)
            if None in places or overlap(*places):  # type: ignore[arg-type]
                updated = {at for at, _, _ in _updated(module, arguments)}
                if any(at in updated for at, _, _ in group):
                    return a, b
                break
    return None


def _updated(module: torch.fx.GraphModule, arguments: Sequence[_Argument]) -> list[_Argument]:
    """The arguments that a graph updates, by the version counters of their fake tensors. TorchDynamo itself increments
    some counters where two arguments share a storage without being views of each other (`x`, `x.detach()`); then the
    graph runs on aliases of them."""
    suspects = [a for a in arguments if a[2]._version]
    storages = [value.untyped_storage()._cdata for _, _, value in arguments]
    if all(storages.count(value.untyped_storage()._cdata) == 1 for _, _, value in suspects):
        return suspects
    examples = [n.meta.get("example_value") for n in module.graph.find_nodes(op="placeholder")]
    mode = suspects[0][2].fake_mode  # type: ignore[attr-defined]
    fresh = mode.shape_env.ignore_fresh_unbacked_symbols() if mode.shape_env else nullcontext()
    before = [value._version for _, _, value in suspects]
    with mode, fresh, torch.no_grad():
        tensors = {at for at, _, _ in arguments}
        module.forward(*(
            torch.ops.aten.alias(x) if at in tensors else x for at, x in enumerate(examples)
        ))  # fmt: skip
    return [a for a, version in zip(suspects, before) if a[2]._version != version]


def apart_in_each_call(module: torch.fx.GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with a check of each call: if an argument that the graph updates shares elements with another one, the
    call runs as in eager mode.

    Args:
        run: the compiled graph, whose arguments did not share elements when it was compiled.
    """
    arguments = _strided(module)
    if len(arguments) < 2:
        return run
    updated = [at for at, _, _ in _updated(module, arguments)]
    if not updated:
        return run
    places, names = [at for at, _, _ in arguments], {at: name for at, name, _ in arguments}
    written = [places.index(at) for at in updated]
    varying = [
        (k, at)
        for k, (at, _, v) in enumerate(arguments)
        if any(isinstance(n, torch.SymInt) for n in (*v.shape, *v.stride()))
    ]
    # of the others, TorchDynamo guards shapes and strides
    symbolic = {k for k, _ in varying}
    widths = [0 if k in symbolic else width(v) for k, (_, _, v) in enumerate(arguments)]
    layouts: list[Any] = [None] * len(varying)  # those for which the widths were computed
    taken = itemgetter(*places)
    apart: tuple[list[int], list[int]] | None = None  # of the latest call without shared elements
    said = False

    def call(*args: Any) -> Any:
        nonlocal apart, said
        tensors = taken(args)
        if _PLAIN.issuperset(map(type, tensors)):
            pointers = [*map(_data_ptr, tensors)]
        else:
            pointers = [t.data_ptr() if type(t) in _PLAIN else 0 for t in tensors]
        found = [(args[at].shape, args[at].stride()) for _, at in varying]
        if found != layouts:
            for (k, at), before, now in zip(varying, layouts, found):
                if before != now:
                    widths[k] = width(args[at])
            layouts[:] = found
        if apart is None or pointers != apart[0] or widths != apart[1]:
            if apart is None or _may_meet(pointers, widths, *apart, written):
                given = {at: args[at] for at, pointer in zip(places, pointers) if pointer}
                pair = _overlapping(given, updated)
                if pair is not None:
                    if not said:
                        _log.warning(SHARED, names[pair[0]], names[pair[1]])
                    said = True
                    return module.forward(*args)
            apart = pointers, widths.copy()
        return run(*args)

    return call


#: the warning for a graph that runs in eager mode
SHARED = (
    "torch.compile: a graph runs as in eager mode, since it updates one of the arguments %s and %s, which "
    "share memory; pass a copy (.clone()) of one of them"
)


def _may_meet(
    pointers: Sequence[int],
    widths: Sequence[int],
    apart: Sequence[int],
    apart_widths: Sequence[int],
    written: Sequence[int],
) -> bool:
    """Whether an argument that is updated may share bytes with another one.

    Args:
        pointers, widths: the address and width of each argument.
        apart, apart_widths: the same of a call whose arguments shared no elements.
        written: the positions of arguments that are updated.
    """
    moved = [
        (at, at + width)
        for at, then, width, before in zip(pointers, apart, widths, apart_widths)
        if at != then or width != before
    ]
    for k in written:
        begin, end = pointers[k], pointers[k] + widths[k]
        if begin != apart[k] or widths[k] != apart_widths[k]:
            return True
        for first, last in moved:
            if first < end and begin < last:
                return True
    return False


def _overlapping(given: dict[int, torch.Tensor], updated: Sequence[int]) -> tuple[int, int] | None:
    """The indices of an argument that is updated and of one that shares elements with it; None if there are none."""
    by_begin = sorted((*span(t), at) for at, t in given.items())
    open_: list[tuple[int, int]] = []  # earlier ones that may extend to here: end, index
    written = set(updated)
    for begin, end, at in by_begin:
        open_ = [(last, other) for last, other in open_ if last > begin]
        for _, other in open_:
            same = given[at] is given[other]  # TorchDynamo guards identity
            if not same and written & {at, other} and overlap(given[at], given[other]):
                return at, other
        open_.append((end, at))
    return None


def _strided(module: torch.fx.GraphModule) -> list[_Argument]:
    """The tensors among a graph's arguments: indices, names and fake tensors."""
    nodes = module.graph.find_nodes(op="placeholder")
    found = [(at, n.name, n.meta.get("example_value")) for at, n in enumerate(nodes)]
    return [
        (at, name, value) for at, name, value in found
        if isinstance(value, torch.Tensor) and value.layout == torch.strided
    ]  # fmt: skip


def _place(value: torch.Tensor) -> Any:
    """The layout of a fake tensor in its storage; None if its sizes are not known."""
    shape, strides = [*map(hint_of, value.shape)], [*map(hint_of, value.stride())]
    offset = hint_of(value.storage_offset())
    if None in (*shape, *strides, offset):
        return None
    return _Place(tuple(shape), tuple(strides), offset, value.element_size())  # type: ignore[arg-type]
