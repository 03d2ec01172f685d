"""What an elementwise op may write into a tensor in place, or by `out=`.

PyTorch's kernels refuse a result of a wider kind than the tensor that takes it (`ints.mul_(1.5)`), and one of
another shape (`column.add_(matrix)`). Functionalization turns both into an op and a conversion, and what is
left of the check in shape rules differs from op to op; so it is made here. They also refuse to read, at other
places, what they write.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.utils._pytree import tree_leaves

from .numbers import number_of
from .overlaps import is_basic, is_view
from .recorder import untraced

Tensor = torch.Tensor

#: elementwise methods that PyTorch has no tag for, as they are names of others or made of others
_OTHER_NAMES = (
    "absolute", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "divide", "fix",
    "floor_divide", "greater", "greater_equal", "less", "less_equal", "multiply", "negative", "not_equal",
    "subtract",
)  # fmt: skip
_OPERATORS = {
    "__iadd__": "add", "__isub__": "sub", "__imul__": "mul", "__itruediv__": "div", "__imod__": "remainder",
    "__ifloordiv__": "floor_divide", "__iand__": "bitwise_and", "__ior__": "bitwise_or",
    "__ixor__": "bitwise_xor", "__ilshift__": "bitwise_left_shift", "__irshift__": "bitwise_right_shift",
}  # fmt: skip


@functools.cache
def _plain_forms() -> Mapping[Any, Callable[..., Tensor]]:
    """A method that works in place → the one that gives a new tensor."""
    found: dict[Any, Callable[..., Tensor]] = {}
    for name in dir(Tensor):
        plain = name.removesuffix("_")
        if plain == name or name.startswith("_") or not hasattr(Tensor, plain):
            continue
        if _is_elementwise(plain):
            for owner in (Tensor, torch):
                if hasattr(owner, name):
                    found[getattr(owner, name)] = getattr(Tensor, plain)
    for name, plain in _OPERATORS.items():
        found[getattr(Tensor, name)] = getattr(Tensor, plain)
    return found


def write_problem(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], concrete: Callable[[Any], Any]
) -> str | None:
    """Why a call may not write its result where it wants to; None if it may, or writes nothing.

    concrete: a size as an integer.
    """
    plain = _plain_forms().get(func)
    written = plain is not None or func in (Tensor.copy_, Tensor.__setitem__)
    if written and args and isinstance(args[0], Tensor):
        problem = _overlap_problem(func, args[0], (args[1:], kwargs), args, concrete)
        if problem is not None or plain is None:
            return problem
        return _in_place_problem(plain, args, kwargs, concrete)
    target = kwargs.get("out")
    if not isinstance(target, Tensor):
        return None
    if _is_elementwise(getattr(func, "__name__", "")):
        others = {k: v for k, v in kwargs.items() if k != "out"}
        problem = _overlap_problem(func, target, (args, others), args, concrete)
        if problem is not None:
            return problem
    return _out_problem(func, args, kwargs, target, concrete)


@functools.cache
def _is_elementwise(name: str) -> bool:
    """Whether a function of `torch` has an elementwise kernel."""
    packet = getattr(torch.ops.aten, name, None) if name and name[0] != "_" else None
    overloads = [] if packet is None else [getattr(packet, o) for o in packet.overloads()]
    return name in _OTHER_NAMES or any(torch.Tag.pointwise in o.tags for o in overloads)


def _overlap_problem(
    func: Any, target: Tensor, others: Any, args: Sequence[Any], concrete: Callable[[Any], Any]
) -> str | None:
    """What an op reads may be what it writes, element by element, or lie elsewhere; not in parts, as in
    `x[1:] = x[:-1]`. The rules are those of ATen/MemoryOverlap.cpp: where strides leave gaps, nothing is said.

    others: the arguments that hold what it reads.
    """
    read = [a for a in tree_leaves(others) if isinstance(a, Tensor) and a is not target]
    if func is Tensor.__setitem__:
        read = [args[2]] if len(args) > 2 and isinstance(args[2], Tensor) else []
    read = [a for a in read if a.numel() and torch._C._is_alias_of(a, target)]  # type: ignore[attr-defined]
    if not read:
        return None
    name = getattr(func, "__name__", "the op")
    with untraced():
        place = _extent(target, concrete)
        if func is Tensor.__setitem__:
            if not is_basic(args[1]):
                return None
            size = (
                target.storage_offset()
                + 1
                + sum((concrete(n) - 1) * st for n, st in zip(target.shape, target.stride()))
            )
            memory = torch.empty(size, dtype=target.dtype, device="meta")
            shape = [concrete(n) for n in target.shape]
            twin = memory.as_strided(shape, target.stride(), target.storage_offset())
            place = _extent(twin[args[1]], concrete)
        for other in read:
            found = _extent(other, concrete)
            if place is None or found is None or found == place:
                continue
            if found[0] < place[1] and place[0] < found[1]:
                return (
                    f"{name} writes to a tensor, and reads elements of it at other places (the written tensor and "
                    "an operand lie in one memory and overlap in parts). Copy the operand first: .clone()."
                )
    return None


def _extent(tensor: Tensor, concrete: Callable[[Any], Any]) -> tuple[Any, ...] | None:
    """Where in its memory a tensor begins and ends, with its strides; None where there are gaps."""
    if not tensor.numel() or not is_non_overlapping_and_dense_or_false(tensor):
        return None
    begin = concrete(tensor.storage_offset())
    length = math.prod(concrete(n) for n in tensor.shape)
    strides = tuple(st for n, st in zip(tensor.shape, tensor.stride()) if n != 1)
    size = tensor.element_size()
    return begin * size, (begin + length) * size, strides


def _in_place_problem(
    plain: Callable[..., Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    concrete: Callable[[Any], Any],
) -> str | None:
    target = args[0]
    others = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, (Tensor, complex))]
    wider = any(isinstance(a, complex) or a.dtype.is_complex for a in others)
    fits = target.dtype.is_complex or (target.dtype.is_floating_point and not wider)
    if fits and all(isinstance(a, complex) or a.shape in ((), target.shape) for a in others):
        return None
    meta = functools.partial(_on_meta, concrete=concrete)
    with untraced():
        try:
            result = plain(*map(meta, args), **{k: meta(v) for k, v in kwargs.items()})
        except Exception:  # the call itself will say so
            return None
    name = f"{getattr(plain, '__name__', 'the op')}_()"
    if not torch.can_cast(result.dtype, target.dtype):
        return (
            f"{name} gives {_name(result.dtype)} here, and the tensor that it writes to is "
            f"{_name(target.dtype)}. Write the result to a new tensor, or convert the operand first."
        )
    shape = [concrete(s) for s in target.shape]
    if list(result.shape) != shape:
        return (
            f"{name} gives a tensor of shape {list(result.shape)} here, and the tensor that it writes to has "
            f"shape {shape}. Write the result to a new tensor."
        )
    return None


def _out_problem(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Tensor,
    concrete: Callable[[Any], Any],
) -> str | None:
    meta = functools.partial(_on_meta, concrete=concrete)
    with untraced():
        try:
            result = func(*map(meta, args), **{k: meta(v) for k, v in kwargs.items() if k != "out"})
        except Exception:  # the call itself will say so
            return None
    if not isinstance(result, Tensor):
        return None
    name = getattr(func, "__name__", "the op")
    shape = [concrete(s) for s in target.shape]
    if list(result.shape) != shape and any(a is target for a in args):
        return (
            f"{name}(out=…) gives a tensor of shape {list(result.shape)} here, and the tensor that takes it, which "
            f"is an operand too, has shape {shape}. Write the result to a new tensor."
        )
    if list(result.shape) != shape and is_view(target):
        return (
            f"{name}(out=…) gives a tensor of shape {list(result.shape)} here, and the tensor that takes it is a view "
            f"of shape {shape}, which PyTorch would make larger than what it is a view of. Write to a new tensor."
        )
    if torch.can_cast(result.dtype, target.dtype):
        return None
    return (
        f"{name}(out=…) gives {_name(result.dtype)} here, and the tensor that takes it is "
        f"{_name(target.dtype)}. Pass one of a dtype that holds it."
    )


def _on_meta(value: Any, concrete: Callable[[Any], Any]) -> Any:
    """An argument without memory: shape, strides and dtype alone."""
    if isinstance(value, Tensor):
        shape, strides = [concrete(s) for s in value.shape], [concrete(s) for s in value.stride()]
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)([_on_meta(v, concrete) for v in value])
    node = number_of(value)
    return value if node is None else node.hint


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
