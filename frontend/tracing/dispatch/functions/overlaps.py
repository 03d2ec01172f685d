"""Updates through views whose elements share memory: of an expanded tensor, of overlapping windows.

PyTorch's functionalization propagates such an update back through each view in turn. A view that shows an element more
than once has no exact inverse: for `expand` PyTorch adds differences, which rounds, and makes NaN of infinities.
Therefore the update is applied to one strided view of the tensor that holds the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only

from gflow.dialects.types import share_memory

from ...data.values import instances_in

Tensor = torch.Tensor
_views: Any = torch._C._functionalization

#: view ops whose result may show an element more than once
_OVERLAPPING = (_views.expand_ViewMeta, _views.as_strided_ViewMeta, _views.unfold_ViewMeta)

#: operators that write into their first operand, and methods with a trailing underscore that do not
_OPERATORS = {"__setitem__", *(f"__i{o}__" for o in (
    "add", "sub", "mul", "truediv", "div", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift",
))}  # fmt: skip
_NO_WRITES = frozenset({
    "requires_grad_", "detach_", "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_",
    "as_strided_", "share_memory_", "rename_", "resize_", "resize_as_",
})  # fmt: skip

#: functions that write to operands without incrementing their version counters, with the positions of these
_STATISTICS = {
    torch.batch_norm: (3, 4), torch.instance_norm: (3, 4), F.batch_norm: (1, 2), F.instance_norm: (1, 2),
}  # fmt: skip

#: PyTorch's error for a write through several views, one of which is `as_strided`
_CHAIN = "encountered a mutation on a view chain"
_ADVICE = "Call .clone() first, or change what it is a view of."


class Unwritable(Exception):
    """A write that cannot be expressed as a write to one view of the memory; the message says why."""


def writes_first(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function of PyTorch writes into its first operand."""
    name = getattr(func, "__name__", "")
    underscore = name.endswith("_") and name[-2:] != "__" and name not in _NO_WRITES
    return underscore or name in _OPERATORS or bool(kwargs.get("inplace"))


def targets(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Tensor]:
    """The tensors that a function writes to, judged by its name and its arguments."""
    places, names = _written(func, args, kwargs)
    if not places and not names:
        return []
    return list(instances_in([args[n] for n in places] + [kwargs[name] for name in names], Tensor))


def _written(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[int], list[str]]:
    """Positions and names of the arguments that a function writes to."""
    first = writes_first(func, kwargs)
    places = [n for n in _STATISTICS.get(func, (0,) if first else ()) if n < len(args)]
    names = [n for n in ("out", "running_mean", "running_var") if kwargs.get(n) is not None]
    if first and not args:
        names += [n for n in ("input", "tensor", "self") if n in kwargs]
    return places, names


def call(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    concrete: Callable[[Any], Any] = int,
    run: Callable[..., Any] | None = None,
    moved: Callable[[Tensor], bool] = lambda tensor: False,
) -> Any:
    """`func(*args, **kwargs)` on traced tensors, which may write into some of them.

    Args:
        concrete: converts a size to an integer.
        run: has the effect of `func`; by default `func` itself.
        moved: whether a tensor has other strides than its value in the program.

    Raises:
        Unwritable: several written elements share memory, or `func` writes in an unknown way.
    """
    run = run or func
    places, names = _written(func, args, kwargs)
    if not places and not names:
        before = [
            (t, t._version) for t in instances_in((args, kwargs), Tensor) if not t.is_inference()
        ]
        result = run(*args, **kwargs)
        for t, version in before:
            if t._version != version and may_overlap(t):
                raise Unwritable(
                    f"{_name(func)} changes a tensor in place, which may be one that shares memory with a part of "
                    f"an expanded tensor, or of windows that overlap. {_ADVICE}"
                )
        return result
    if func is Tensor.__setitem__ and is_basic(args[1]) and shares(args[0], concrete):
        part = args[0][args[1]]
        return _assign(part, args[2], concrete, moved)
    direct: dict[int, Tensor] = {}

    def exchange(t: Tensor) -> Tensor:
        new = _direct(t, func, concrete, moved)
        if new is not t:
            direct[id(new)] = t
        return new

    def exchanged(given: Any) -> Any:
        return (
            exchange(given) if isinstance(given, Tensor) else tree_map_only(Tensor, exchange, given)
        )

    args, kwargs = list(args), dict(kwargs)
    for place in places:
        args[place] = exchanged(args[place])
    for name in names:
        kwargs[name] = exchanged(kwargs[name])
    try:
        result = run(*args, **kwargs)
    except RuntimeError as error:
        if _CHAIN not in str(error):
            raise
        raise Unwritable(
            f"{_name(func)} changes a view of a view of .unfold(), .as_strided() or the like in place, which PyTorch "
            f"cannot take back to what it is a view of. {_ADVICE}"
        ) from error
    if not direct:
        return result
    return tree_map_only(Tensor, lambda t: direct.get(id(t), t), result)


def _assign(
    part: Tensor, value: Any, concrete: Callable[[Any], Any], moved: Callable[[Tensor], bool]
) -> None:
    """`x[i] = value`, where `part` is the view `x[i]`."""
    if isinstance(value, Tensor):
        while value.dim() > part.dim() and value.shape[0] == 1:
            value = value.squeeze(0)
        call(Tensor.copy_, (part, value), {}, concrete, None, moved)
    else:
        call(Tensor.fill_, (part, value), {}, concrete, None, moved)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", str(func))


def is_basic(index: Any) -> bool:
    """Whether an index selects a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(isinstance(p, (int, slice, EllipsisType)) or p is None for p in parts) and not any(
        isinstance(p, bool) for p in parts
    )


def _sequence(t: Tensor) -> list[Any]:
    """The view ops from the tensor that holds the memory to a traced tensor."""
    held = getattr(t, "elem", t)  # a functional tensor of AOTAutograd
    return _views.get_view_meta_sequence(held) if torch._is_functional_tensor(held) else []


def is_view(t: Tensor) -> bool:
    """Whether a traced tensor is a view of another one."""
    return bool(_sequence(t))


def may_overlap(t: Tensor) -> bool:
    """Whether a traced tensor is derived by views that may show an element more than once."""
    return any(isinstance(view, _OVERLAPPING) for view in _sequence(t))


def shares(t: Tensor, concrete: Callable[[Any], Any]) -> bool:
    """Whether elements of a tensor share memory. concrete: converts a size to an integer."""
    if t.layout != torch.strided:
        return False
    shape, strides = (tuple(map(concrete, sizes)) for sizes in (t.shape, t.stride()))
    return share_memory(shape, strides)


def shared_problem(func: Callable[..., Any], t: Tensor) -> str:
    """The error message for a write to a tensor whose elements share memory."""
    return (
        f"{_name(func)} changes a tensor in place, and some of its elements are one in memory (an expanded tensor, "
        f"or windows that overlap: shape {[*t.shape]}, strides {[*t.stride()]}). {_ADVICE}"
    )


def _direct(
    t: Tensor,
    func: Callable[..., Any],
    concrete: Callable[[Any], Any],
    moved: Callable[[Tensor], bool],
) -> Tensor:
    """A tensor as one view of the tensor that holds the memory; the tensor itself if functionalization handles its
    update exactly.

    Raises:
        Unwritable: some of its elements share memory, or there is no such view.
    """
    sequence = _sequence(t)
    if not any(isinstance(view, _OVERLAPPING) for view in sequence):
        return t
    torch._sync(getattr(t, "elem", t))
    if shares(t, concrete):
        raise Unwritable(shared_problem(func, t))
    base = t._base
    if base is not None and base.dtype == t.dtype and not may_overlap(base):
        sliced = _as_slices(base, t)
        if sliced is not None:
            return sliced
    if len(sequence) == 1 and isinstance(sequence[0], _views.as_strided_ViewMeta):
        return t
    if base is None or may_overlap(base) or base.dtype != t.dtype or moved(base):
        raise Unwritable(
            f"{_name(func)} changes a part of an expanded tensor, or of windows that overlap, in place, as a view that "
            f"PyTorch has no base of that type for. {_ADVICE}"
        )
    return base.as_strided(t.shape, t.stride(), t.storage_offset())


def _as_slices(base: Tensor, t: Tensor) -> Tensor | None:
    """The elements of `t` as slices of `base`, which functionalization inverts exactly; None if that is not
    possible."""
    offsets = base.storage_offset(), t.storage_offset()
    if not all(
        type(n) is int for n in (*base.shape, *base.stride(), *t.shape, *t.stride(), *offsets)
    ):
        return None
    rest = int(offsets[1]) - int(offsets[0])
    free = sorted(
        (d for d, n in enumerate(base.shape) if n > 1), key=lambda d: base.stride(d), reverse=True
    )
    starts = [0] * base.dim()
    for d in free:
        starts[d], rest = divmod(rest, max(base.stride(d), 1))
    if rest or not all(0 <= start < n for start, n in zip(starts, base.shape)):
        return None
    index: list[int | slice] = list(starts)
    order: list[int] = []
    for n, stride in zip(t.shape, t.stride()):
        if n == 1:
            continue
        for d in free:
            step, odd = divmod(stride, max(base.stride(d), 1))
            last = starts[d] + (n - 1) * step
            if step > 0 and not odd and last < base.shape[d]:
                break
        else:
            return None
        free.remove(d)
        order.append(d)
        index[d] = slice(starts[d], last + 1, step)
    part = base[tuple(index)].permute([sorted(order).index(d) for d in order])
    part = part[tuple(None if n == 1 else slice(None) for n in t.shape)]
    return part if part.shape == t.shape and part.storage_offset() == offsets[1] else None


def unsafe_parts(name: str, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """The results of `unsafe_chunk`, `unsafe_split` and `unsafe_split_with_sizes`: views of the tensor, although their
    schemas declare new tensors. Each is a separate view, since autograd refuses updates of views from one multi-output
    op, and these ops exist to allow them."""
    x = next(a for a in (*args[:1], kwargs.get("input"), kwargs.get("self")) if a is not None)
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 0)
    safe = getattr(torch.ops.aten, name.removeprefix("unsafe_").partition(".")[0])
    parts = safe(*args, **{"self" if k == "input" else k: v for k, v in kwargs.items()})
    views, start = [], 0
    for part in parts:
        views.append(x.narrow(dim, start, part.shape[dim]))
        start = start + part.shape[dim]
    return tuple(views)
