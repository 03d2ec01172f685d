"""What an elementwise op may write into a tensor in place, or by `out=`.

PyTorch's kernels refuse a result of a wider kind than the tensor that takes it (`ints.mul_(1.5)`), and one of
another shape (`column.add_(matrix)`). Functionalization turns both into an op and a conversion, and what is
left of the check in shape rules differs from op to op; so it is made here. They also refuse to read, at other
places, what they write; and those that look elements up, place them, join or multiply, to read it at all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.utils._pytree import tree_leaves

from ..recorder import untraced
from .out_types import dtype_name, dtype_problem, results_on_meta
from .overlaps import is_basic, is_view

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

#: elementwise methods that have read all operands before they write: through another op, or as a number
_READ_FIRST = frozenset({Tensor.ldexp_, Tensor.logit_, Tensor.nan_to_num_})
#: what places elements by indices, or writes a product: no operand may share an element with what it writes, in
#: the same place neither. PyTorch refuses most of it; where it does not, the result depends on the order in
#: which the kernel comes by.
_APART_IN_PLACE = frozenset({
    Tensor.scatter_, Tensor.scatter_add_, Tensor.scatter_reduce_, Tensor.index_add_, Tensor.index_copy_,
    Tensor.index_reduce_, Tensor.index_put_, Tensor.put_, Tensor.masked_scatter_, Tensor.addmm_, Tensor.addmv_,
    Tensor.addr_, Tensor.addbmm_, Tensor.baddbmm_,
})  # fmt: skip
#: the same by `out=`
_APART_BY_OUT = frozenset({
    "gather", "take", "take_along_dim", "index_select", "index_add", "index_copy", "index_reduce", "scatter",
    "scatter_add", "scatter_reduce", "masked_select", "cat", "concat", "concatenate", "stack", "hstack", "vstack",
    "dstack", "column_stack", "mm", "bmm", "mv", "matmul", "dot", "inner", "outer", "ger", "addmm", "addmv", "addr",
    "addbmm", "baddbmm", "chain_matmul", "kron", "multi_dot", "sum", "mean", "prod", "amax", "amin", "all", "any",
    "logsumexp", "norm", "std", "var", "nansum", "nanmean", "argmax", "argmin", "cross", "roll", "tril", "triu",
    "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear",
})  # fmt: skip
#: of these, what may write over its operand where both lie in one place
_SAME_PLACE = frozenset({"tril", "triu", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"})


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
    if func in _APART_IN_PLACE and args and isinstance(args[0], Tensor):
        if func is Tensor.index_put_ and _fills(args[1:]):
            return None
        problem = _shared_problem(func, args[0], (args[1:], kwargs), concrete)
        return problem or (_resized_problem(args, concrete) if func is Tensor.addbmm_ else None)
    if written and args and isinstance(args[0], Tensor):
        others: Any = (args[1:], kwargs)
        if func is Tensor.masked_fill_:  # the value is a number by then
            others = (args[1:2], kwargs.get("mask"))
        problem = None
        if func not in _READ_FIRST:
            problem = _overlap_problem(func, args[0], others, args, concrete)
        if problem is not None or plain is None:
            return problem
        return _in_place_problem(plain, args, kwargs, concrete)
    target = kwargs.get("out")
    if target is None:
        return None
    name = getattr(func, "__name__", "")
    others = (args, {k: v for k, v in kwargs.items() if k != "out"})
    problem = None
    for written_to in tree_leaves(target):
        if not isinstance(written_to, Tensor):
            continue
        if name in _APART_BY_OUT:
            problem = problem or _shared_problem(
                func, written_to, others, concrete, name in _SAME_PLACE
            )
        elif _is_elementwise(name):
            problem = problem or _overlap_problem(func, written_to, others, args, concrete)
    problem = problem or dtype_problem(func, args, kwargs, target, concrete)
    if problem is not None or not isinstance(target, Tensor):
        return problem
    return _out_problem(func, args, kwargs, target, concrete)


def with_out(run: Callable[..., Any], /, *args: Any, out: Any, **kwargs: Any) -> Any:
    """`run(*args, out=out, **kwargs)`, a call of a function of PyTorch, with what it gives written to `out`.

    Some kernels (`linalg.matrix_rank`, `native_batch_norm`) make new tensors where an operand is traced, and leave
    those that should take them as they are. A tensor that counts no versions, or that was resized, does not tell.
    """
    targets = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    before = [None if t.is_inference() or not t.numel() else t._version for t in targets]
    result = run(*args, out=out, **kwargs)
    written = [v is not None and t._version != v for t, v in zip(targets, before)]
    if all(written):
        return result
    found = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
    if result is None or any(new is target for new, target in zip(found, targets)):
        found = [t for t in tree_leaves(run(*args, **kwargs)) if isinstance(t, Tensor)]
    for new, target, done in zip(found, targets, written, strict=True):
        if not done:
            if new.shape != target.shape:
                target.resize_(new.shape)
            target.copy_(new)
    if result is None:  # of `unbind_copy` and the like
        return None
    return out if isinstance(out, Tensor) else type(result)(targets)


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
                given = args[1] if isinstance(args[1], tuple) else (args[1],)
                shares = not _fills((given, args[2]))
                return _shared_problem(func, target, read, concrete) if shares else None
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


def _fills(given: Sequence[Any]) -> bool:
    """Whether elements chosen by a mask get one number, which PyTorch reads before it writes.

    given: indices and value of an `index_put_`.
    """
    if len(given) < 2 or not isinstance(given[1], Tensor) or given[1].numel() != 1:
        return False
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in given[0])


def _shared_problem(
    func: Any, target: Tensor, others: Any, concrete: Callable[[Any], Any], same_place: bool = False
) -> str | None:
    """What is wrong with a call that writes to `target` in another order than it reads `others`, if those share
    elements with it. Nothing is said where strides leave gaps.

    same_place: whether an operand may be the written tensor itself.
    """
    read = [a for a in tree_leaves(others) if isinstance(a, Tensor) and a.numel()]
    read = [a for a in read if torch._C._is_alias_of(a, target)]  # type: ignore[attr-defined]
    with untraced():
        place = _extent(target, concrete) if read else None
        for other in read:
            found = _extent(other, concrete)
            if place is None or found is None or (same_place and found == place):
                continue
            if found[0] < place[1] and place[0] < found[1]:
                return (
                    f"{getattr(func, '__name__', 'the op')} writes to a tensor, and reads elements of it (the written "
                    "tensor and an operand share memory), so that the result would depend on which is first. Copy "
                    "the operand first: .clone()."
                )
    return None


def _resized_problem(args: Sequence[Any], concrete: Callable[[Any], Any]) -> str | None:
    """PyTorch's `addbmm_` gives a tensor that is smaller than the sum the sum's shape, and says nothing of it."""
    batches = [a for a in args[1:3] if isinstance(a, Tensor) and a.dim() == 3]
    if len(batches) < 2:
        return None
    shape = [concrete(batches[0].shape[1]), concrete(batches[1].shape[2])]
    found = [concrete(n) for n in args[0].shape]
    if found == shape:
        return None
    return (
        f"addbmm_() gives a tensor of shape {shape} here, and the tensor that it writes to has shape {found}, which "
        "PyTorch would change, and views of it would stay as they are. Write the result to a new tensor: addbmm()."
    )


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
    results = results_on_meta(plain, args, kwargs, concrete)
    if len(results) != 1 or not isinstance(results[0], Tensor):
        return None
    result = results[0]
    name = f"{getattr(plain, '__name__', 'the op')}_()"
    if not torch.can_cast(result.dtype, target.dtype):
        return (
            f"{name} gives {dtype_name(result.dtype)} here, and the tensor that it writes to is "
            f"{dtype_name(target.dtype)}. Write the result to a new tensor, or convert the operand first."
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
    results = results_on_meta(func, args, kwargs, concrete)
    if len(results) != 1 or not isinstance(results[0], Tensor):
        return None
    result = results[0]
    name = getattr(func, "__name__", "the op")
    shape = [concrete(s) for s in target.shape]
    read = [a for a in args if isinstance(a, Tensor)]
    if list(result.shape) != shape and any(torch._C._is_alias_of(a, target) for a in read):  # type: ignore[attr-defined]
        return (
            f"{name}(out=…) gives a tensor of shape {list(result.shape)} here, and the tensor that takes it, which "
            f"is an operand too or lies in its memory, has shape {shape}. Write the result to a new tensor."
        )
    if target.requires_grad and torch.is_grad_enabled():
        return (
            f"{name}(out=…) writes to a tensor that requires a gradient, which would go on through what the tensor was "
            "before. Write to a new tensor, or under torch.no_grad()."
        )
    if list(result.shape) != shape and is_view(target):
        return (
            f"{name}(out=…) gives a tensor of shape {list(result.shape)} here, and the tensor that takes it is a view "
            f"of shape {shape}, which PyTorch would make larger than what it is a view of. Write to a new tensor."
        )
    if list(result.shape) != shape and target.numel():
        return (
            f"{name}(out=…) gives a tensor of shape {list(result.shape)} here, and the tensor that takes it has shape "
            f"{shape}. PyTorch would resize it (and is to stop doing so), and views of it would stay as they are. "
            "Write to a new tensor, or to an empty one."
        )
    if torch.can_cast(result.dtype, target.dtype):
        return None
    return (
        f"{name}(out=…) gives {dtype_name(result.dtype)} here, and the tensor that takes it is "
        f"{dtype_name(target.dtype)}. Pass one of a dtype that holds it."
    )
