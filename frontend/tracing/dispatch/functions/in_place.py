"""Which results an op may write into a tensor in place, or by `out=`.

PyTorch's kernels refuse a result of a higher type category than the tensor that it is written to (`ints.mul_(1.5)`),
and one of another shape (`column.add_(matrix)`). Functionalization turns both into an op and a conversion, and the
remaining checks in shape rules differ between ops, so the check is made here. Kernels also refuse operands that partly
overlap the written tensor. Kernels of indexing, concatenation and products refuse operands that share any element with
it.
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

#: elementwise methods without PyTorch's tag `pointwise`: aliases and composite functions
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

#: methods whose result of int64 and an integer is int64
_COUNTS = frozenset({Tensor.add, Tensor.sub, Tensor.mul})
#: elementwise methods that read all operands before they write: by another op, or as a number
_READ_FIRST = frozenset({Tensor.ldexp_, Tensor.logit_, Tensor.nan_to_num_})
#: methods that write by indices, or write a product: no operand may share an element with the written tensor, not even
#: at the same position. PyTorch refuses most such calls; for the others, the result depends on the kernel's order
_APART_IN_PLACE = frozenset({
    Tensor.scatter_, Tensor.scatter_add_, Tensor.scatter_reduce_, Tensor.index_add_, Tensor.index_copy_,
    Tensor.index_reduce_, Tensor.index_put_, Tensor.put_, Tensor.masked_scatter_, Tensor.addmm_, Tensor.addmv_,
    Tensor.addr_, Tensor.addbmm_, Tensor.baddbmm_,
})  # fmt: skip
#: the same for functions with `out=`
_APART_BY_OUT = frozenset({
    "gather", "take", "take_along_dim", "index_select", "index_add", "index_copy", "index_reduce", "scatter",
    "scatter_add", "scatter_reduce", "masked_select", "cat", "concat", "concatenate", "stack", "hstack", "vstack",
    "dstack", "column_stack", "mm", "bmm", "mv", "matmul", "dot", "inner", "outer", "ger", "addmm", "addmv", "addr",
    "addbmm", "baddbmm", "chain_matmul", "kron", "multi_dot", "sum", "mean", "prod", "amax", "amin", "all", "any",
    "logsumexp", "norm", "std", "var", "nansum", "nanmean", "argmax", "argmin", "cross", "roll", "tril", "triu",
    "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "linear",
})  # fmt: skip
#: of these, functions that may write over their first operand, to which they add products
_ADDENDS = frozenset({"addmm", "addmv", "addr", "addbmm", "baddbmm"})
#: of these, functions that may write over an operand with the same address and strides
_SAME_PLACE = frozenset({"tril", "triu", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"})


@functools.cache
def _plain_forms() -> Mapping[Any, Callable[..., Tensor]]:
    """In-place methods → the methods that return a new tensor."""
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
    """Why a call may not write its result where it would; None if it may, or writes nothing.

    concrete: converts a size to an integer.
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
        if func is Tensor.masked_fill_:  # PyTorch converts the value to a number first
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
            added = name in _ADDENDS and args and args[0] is written_to  # the in-place form
            read = (args[1:], others[1]) if added else others
            problem = problem or _shared_problem(
                func, written_to, read, concrete, name in _SAME_PLACE
            )
        elif _is_elementwise(name):
            problem = problem or _overlap_problem(func, written_to, others, args, concrete)
    problem = problem or dtype_problem(func, args, kwargs, target, concrete)
    if problem is not None or not isinstance(target, Tensor):
        return problem
    return _out_problem(func, args, kwargs, target, concrete)


def with_out(run: Callable[..., Any], /, *args: Any, out: Any, **kwargs: Any) -> Any:
    """`run(*args, out=out, **kwargs)`, a call of a function of PyTorch, with its results written to `out`.

    With traced operands, some kernels (`linalg.matrix_rank`, `native_batch_norm`) create new tensors and do not write
    to `out`. This is detected by version counters. For tensors without one, and for resized ones, the results are
    written again.
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
    if result is None:  # `unbind_copy` and similar functions
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
    """Why a call may not read `others` and write to `target`: an operand may be the written tensor itself, or disjoint
    from it, but must not partly overlap it, as in `x[1:] = x[:-1]`. The rules are those of ATen/MemoryOverlap.cpp;
    tensors with gaps are not checked.

    others: the arguments that contain the operands.
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
    """Whether a mask selects the elements and the value is one number, which PyTorch reads before it writes.

    given: indices and value of an `index_put_`.
    """
    if len(given) < 2 or not isinstance(given[1], Tensor) or given[1].numel() != 1:
        return False
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in given[0])


def _shared_problem(
    func: Any, target: Tensor, others: Any, concrete: Callable[[Any], Any], same_place: bool = False
) -> str | None:
    """Why a call may not read `others` and write to `target` in another order: they share elements. Tensors with gaps
    are not checked.

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
    """Why an `addbmm_` is refused: PyTorch would silently give a tensor with a smaller shape than the sum the sum's
    shape."""
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
    """The first and last byte of a tensor in its storage, with its strides; None if it has gaps."""
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
    counts = plain in _COUNTS and target.dtype == torch.int64 and len(args) == 2 and not kwargs
    if counts and type(args[1]) is int and abs(args[1]) < 1 << 31:
        return None  # PyTorch's rule takes 0.5 ms, and each batch norm counts its calls
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
