"""Updates through views whose elements share memory, in graphs of TorchDynamo
(`tracing/dispatch/functions/overlaps.py` for `build()`).

This file also handles ops whose result depends on strides after an update of a tensor with gaps: AOTAutograd replaces
the tensor by the dense result of another op, so `contiguous()` returns the tensor itself where eager returns a copy.
It also handles kernels that do not write to their `out=` operand.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._C._functionalization import apply_view_meta_sequence, get_view_meta_sequence
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from gflow.dialects.types import share_memory
from gflow.errors import GraphTraceError
from gflow.tracing.dispatch.functions.in_place import with_out
from gflow.tracing.dispatch.functions.out_types import dtype_problem
from gflow.tracing.dispatch.functions.overlaps import Unwritable, call, unsafe_parts

from .sizes import hint_of, is_symbolic

#: substrings of the names of functions that may return a tensor whose elements share memory
_OVERLAPPING = ("expand", "as_strided", "broadcast", "meshgrid", "unfold", "views")

#: functions whose results share the tensor's memory, although their schemas declare new tensors
_UNSAFE = ("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")

#: operators that TorchDynamo records, as methods of tensors
_OPERATORS: dict[Any, Callable[..., Any]] = {operator.setitem: torch.Tensor.__setitem__} | {
    getattr(operator, name): getattr(torch.Tensor, f"__{name}__")
    for name in (
        "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
    )
}  # fmt: skip


#: functions that return a view or a copy, depending on the tensor's strides
_BY_LAYOUT = ("contiguous", "reshape", "reshape_as", "flatten", "ravel", "view", "view_as")


def written_in_memory(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace calls that may write through views whose elements share memory by calls that write to the base's memory.

    Returns:
        The new graph; the same graph if there is no such call.
    """
    calls = ("call_method", "call_function")
    left = [
        n for n in module.graph.nodes if n.op in calls and any(m in _name(n) for m in _OVERLAPPING)
    ]
    left += [
        n
        for n in module.graph.nodes
        if n.op == "placeholder" and _has_gaps(n.meta.get("example_value"))
    ]
    found: set[torch.fx.Node] = set()
    while left:
        for user in left.pop().users:
            if user.op in calls and user not in found:
                found.add(user)
                left.append(user)
    unsafe = [
        n for n in module.graph.nodes if n.op in calls and _name(n).partition(".")[0] in _UNSAFE
    ]
    outs = [n for n in module.graph.nodes if n.kwargs.get("out") is not None]
    by_strides = _strided_storages(module.graph)
    if not found and not unsafe and not outs and not by_strides:
        return module
    shared = _shared_storages(module.graph)
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    graph.output(graph.graph_copy(module.graph, copies))
    for node in found:
        new = copies[node]
        trace = (node.meta.get("stack_trace") or "").strip()
        held = [storage_of(n.meta.get("example_value")) in shared for n in node.all_input_nodes]
        new.op, new.target = "call_function", _in_memory(new.target, trace)
        if any(held):
            marked = [
                isinstance(a, torch.fx.Node) and storage_of(a.meta.get("example_value")) in shared
                for a in (*node.args, *node.kwargs.values())
            ]
            new.target = _unwritten(new.target, marked, trace)
    for node in outs:
        copies[node].target = _to_out(
            copies[node].target, (node.meta.get("stack_trace") or "").strip()
        )
    for node in unsafe:
        new = copies[node]
        new.op, new.target, new.args = "call_function", unsafe_parts, (_name(node), *new.args)
    for node in module.graph.nodes:
        storages = [storage_of(n.meta.get("example_value")) for n in node.all_input_nodes]
        if node.op in calls and not by_strides.isdisjoint(storages):
            new, trace = copies[node], (node.meta.get("stack_trace") or "").strip()
            new.op, new.target = "call_function", _keeping_strides(_as_function(new.target), trace)
    return torch.fx.GraphModule(module, graph)


def with_results_apart(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Copy results whose elements share memory.

    AOTAutograd gives the gradient of a result the result's strides, so the gradients of elements that share memory
    also share memory (PyTorch 2.13: `aot_eager` and Inductor lose all but the last of them). Results that share
    storage with arguments or with other results are not copied: AOTAutograd creates these views outside of the graph.

    Returns:
        The new graph; the same graph if there is no such result.
    """
    (output,) = module.graph.find_nodes(op="output")
    results = output.all_input_nodes
    taken = Counter(storage_of(n.meta.get("example_value")) for n in results)
    taken.update(
        storage_of(n.meta.get("example_value")) for n in module.graph.find_nodes(op="placeholder")
    )
    apart = [n for n in results if _is_overlapping(n.meta.get("example_value"))]
    apart = [n for n in apart if taken[storage_of(n.meta["example_value"])] == 1]
    if not apart:
        return module
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    outs = graph.graph_copy(module.graph, copies)
    dense: dict[str, Any] = {"memory_format": torch.contiguous_format}
    clones = {copies[n]: graph.call_method("clone", (copies[n],), dense) for n in apart}
    graph.output(torch.fx.map_arg(outs, lambda n: clones.get(n, n)))
    return torch.fx.GraphModule(module, graph)


def _is_overlapping(value: Any) -> bool:
    """Whether elements of a result share memory other than by expansion (AOTAutograd gives gradients of expanded
    tensors memory of their own)."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return False
    if value.layout != torch.strided:
        return False
    sizes = [(hint_of(n), hint_of(stride)) for n, stride in zip(value.shape, value.stride())]
    kept = [(n, stride) for n, stride in sizes if n is not None and stride is not None]
    if len(kept) < len(sizes):
        return False
    return share_memory(tuple(n for n, s in kept if s), tuple(s for _, s in kept if s))


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _has_gaps(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    reach = sum((n - 1) * s for n, s in zip(value.shape, value.stride())) + 1
    return value.numel() > 0 and reach != value.numel()


def storage_of(value: Any) -> int | None:
    """The identity of a tensor's storage, or of the tensor that a `torch.func` transform wraps; None for a value
    without storage."""
    while isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    strided = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return value.untyped_storage()._cdata if strided else None


def _shared_storages(graph: torch.fx.Graph) -> set[int | None]:
    """The storages of arguments whose elements share memory."""
    found: set[int | None] = set()
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor) or is_symbolic(value):
            continue
        if value.layout == torch.strided and share_memory(tuple(value.shape), value.stride()):
            found.add(storage_of(value))
    return found


def _strided_storages(graph: torch.fx.Graph) -> set[int | None]:
    """The storages of the tensors that `as_strided` is applied to."""
    views = [n for n in graph.nodes if n.op.startswith("call") and "as_strided" in _name(n)]
    found = {storage_of(n.all_input_nodes[0].meta.get("example_value")) for n in views}
    return found - {None}


def _as_function(target: Any) -> Callable[..., Any]:
    """The function that a node calls; a method's name becomes a function."""
    if not isinstance(target, str):
        return target
    return lambda tensor, *args, **kwargs: getattr(tensor, target)(*args, **kwargs)


def _keeping_strides(function: Callable[..., Any], trace: str) -> Callable[..., Any]:
    """A node's function, with an error if it changes the strides of a tensor in place.

    `as_strided` counts in the storage of the tensor, and AOTAutograd replaces an updated tensor by the result of
    another op.
    """

    def keeping_strides(*args: Any, **kwargs: Any) -> Any:
        held = [
            t if t._base is None else t._base
            for t in (*args, *kwargs.values())
            if isinstance(t, torch.Tensor) and hasattr(t, "elem")
        ]
        before = [t._version for t in held]
        result = function(*args, **kwargs)
        for t, version in zip(held, before, strict=True):
            if t._version == version or _layout_of(t) == (t.stride(), t.storage_offset()):
                continue
            raise GraphTraceError(
                f"a tensor (shape {[*t.shape]}, strides {[*t.stride()]}, storage_offset {t.storage_offset()}) is "
                "changed in place, of which as_strided makes a view, by elements in memory that a graph does not keep "
                f"in that form. Use slicing, expand or permute, or .clone() first\n{trace}"
            )
        return result

    return keeping_strides


def _layout_of(held: Any) -> tuple[Any, Any]:
    """Strides and storage_offset of the functional tensor's current value, after its updates."""
    torch._sync(held.elem)
    now = torch._from_functional_tensor(held.elem)
    return now.stride(), now.storage_offset()


def _unwritten(function: Callable[..., Any], marked: list[bool], trace: str) -> Callable[..., Any]:
    """A node's function, with an error if it updates one of the arguments that `marked` marks.

    AOTAutograd copies such a tensor, and then updates each element once; eager updates a memory location once for each
    of its elements.
    """

    def unwritten(*args: Any, **kwargs: Any) -> Any:
        held = [a for a, one in zip((*args, *kwargs.values()), marked, strict=True) if one]
        before = [t._version for t in held]
        result = function(*args, **kwargs)
        for t, version in zip(held, before, strict=True):
            if t._version != version:
                raise GraphTraceError(
                    f"an argument is changed in place, and some of its elements are one in memory (shape "
                    f"{[*t.shape]}, strides {[*t.stride()]}). Pass a copy (.clone())\n{trace}"
                )
        return result

    return unwritten


def _copied(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function of `_BY_LAYOUT` returns a copy, by the strides of the tensor in eager.

    Raises:
        Unwritable: `as_strided` is applied to a tensor whose current value has other strides.
    """
    name, tensor = getattr(function, "__name__", ""), args[0]
    if name not in (*_BY_LAYOUT, "as_strided") or not hasattr(tensor, "elem"):
        return False
    held = tensor if tensor._base is None else tensor._base
    torch._sync(held.elem)
    now = torch._from_functional_tensor(held.elem)
    if now.stride() == held.stride() or now.shape != held.shape:
        return False
    if name == "as_strided":
        raise Unwritable(
            "as_strided on a tensor with gaps, after an update of it in place, reads memory that a graph does not "
            "keep in that form. Call it before the update, or use slicing, expand or permute"
        )
    with torch.utils._python_dispatch._disable_current_modes():
        real = torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device="meta")
        sequence = get_view_meta_sequence(tensor.elem)
        view = apply_view_meta_sequence(real, sequence)
        rest = [
            torch.empty(a.shape, device="meta") if isinstance(a, torch.Tensor) else a
            for a in args[1:]
        ]
        result = function(view, *rest, **kwargs)
        return result.untyped_storage()._cdata != view.untyped_storage()._cdata


def _to_out(function: Any, trace: str) -> Callable[..., Any]:
    """A node's function for calls with `out=`. trace: the node's stack trace, for errors."""

    def to_out(*args: Any, **kwargs: Any) -> Any:
        problem = dtype_problem(function, args, kwargs, kwargs["out"], _hint)
        if problem is not None:
            raise GraphTraceError(f"{problem}\n{trace}" if trace else problem)
        return with_out(function, *args, **kwargs)

    return to_out


def _hint(size: Any) -> int:
    """An example value of a size, for checks of dtypes, which do not depend on sizes."""
    found = hint_of(size)
    return 2 if found is None else found


def _in_memory(target: Any, trace: str) -> Callable[..., Any]:
    """A node's function that writes to the memory of the base.

    Args:
        target: the node's function, or the name of a method.
        trace: the node's stack trace, for errors.
    """

    def written_in_memory(*args: Any, **kwargs: Any) -> Any:
        function = target
        is_tensor = bool(args) and isinstance(args[0], torch.Tensor)
        if isinstance(target, str):
            if not is_tensor:
                return getattr(args[0], target)(*args[1:], **kwargs)
            function = getattr(torch.Tensor, target)
        elif is_tensor:
            function = _OPERATORS.get(target, target)
        try:
            if is_tensor and _copied(function, args, kwargs):
                return function(*args, **kwargs).clone()
            return call(function, args, kwargs)
        except Unwritable as error:
            raise GraphTraceError(f"{error}\n{trace}" if trace else str(error)) from None

    return written_in_memory
