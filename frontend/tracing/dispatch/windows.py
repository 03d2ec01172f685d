"""`Tensor.unfold` and `Tensor.expand` where what they show is written to.

PyTorch's functionalization takes an update of windows back to their tensor by the gradient of `unfold`, so that
elements in no window become zero, and those in several windows sums. A trace in which a tensor changes after
`unfold` has shown it is made again, with windows of views that an update can be taken back through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from gflow.dialects.types import share_memory
from gflow.errors import GraphTraceError

from ..data.values import SourceLoc, TraceOp


class WindowsWritten(Exception):
    """A trace changes a tensor in place that `unfold` has shown before."""


class Windows:
    """The windows of one trace. written: whether updates of them must be right."""

    def __init__(self, written: bool) -> None:
        self.written = written
        self._shown: list[tuple[torch.Tensor, int]] = []
        self._readable: list[tuple[Any, SourceLoc]] = []

    def show(self, windows: torch.Tensor) -> torch.Tensor:
        """Remember what `unfold` has given."""
        version = -1 if windows.is_inference() else windows._version
        self._shown.append((windows, version))
        return windows

    def only_read(self, shape: Sequence[int], call: Sequence[int], where: SourceLoc) -> None:
        """Remember windows of a tensor of a shape that no update can go back through."""
        self._readable.append(((list(shape), *call), where))

    def check(self, ops: Sequence[TraceOp]) -> None:
        """
        Args:
            ops: of the trace.

        Raises:
            WindowsWritten: what some of them show has changed since.
            GraphTraceError: one that can only be read has been updated.
        """
        for windows, version in self._shown:
            if version < 0 or windows._version != version:
                raise WindowsWritten
        back = [op.args[1:] for op in ops if op.func is torch.ops.aten.unfold_backward.default]
        for call, where in self._readable:
            if any((list(shape), *rest) == call for shape, *rest in back):
                raise GraphTraceError(
                    f"{where}: build() changes windows in place that unfold() shows of a part of a tensor, or "
                    "of a tensor with gaps in memory, and they leave elements out. Call .clone() before "
                    ".unfold() and copy the result back, or update slices."
                )


class _Locator(Protocol):
    def here(self) -> SourceLoc: ...


class _Recorder(Protocol):
    sizes: Any

    @property
    def locator(self) -> _Locator: ...


class Mode(Protocol):
    """What windows need of the mode that rewrites calls."""

    windows: Windows

    @property
    def recorder(self) -> _Recorder: ...


def unfold(mode: Mode, func: Callable[..., Any], args: Any, kwargs: Any) -> torch.Tensor:
    """The handler of `Tensor.unfold`."""
    if not mode.windows.written and not _one(*args, **kwargs):
        return mode.windows.show(func(*args, **kwargs))
    return views(*args, **kwargs, layout=partial(_held, mode))


def _one(x: torch.Tensor, dimension: int, size: int, step: int) -> bool:
    """Whether there is one window, which is a slice; PyTorch takes its size and step for an overlap."""
    rank = x.dim()
    return -rank <= dimension < rank and 0 < size <= x.shape[dimension] < size + step


#: of a tensor: shape, strides and offset
Lies = tuple[tuple[int, ...], tuple[int, ...], int]


def _lies(x: torch.Tensor, call: Any = None) -> Lies:
    return tuple(x.shape), tuple(x.stride()), int(x.storage_offset())


def views(
    x: torch.Tensor,
    dimension: int,
    size: int,
    step: int,
    *,
    layout: Callable[[torch.Tensor, tuple[int, int, int]], Lies | None] = _lies,
) -> torch.Tensor:
    """`x.unfold(dimension, size, step)`, as views that an update goes back through.

    Args:
        layout: how a tensor lies, of which windows are shown that leave elements out; None where it has no
            layout that `as_strided` can use.
    """
    rank = x.dim()
    dim = dimension + rank if dimension < 0 else dimension
    fits = rank and 0 <= dim < rank and 0 < size <= x.shape[dim] and step > 0
    if not fits:
        return x.unfold(dimension, size, step)  # PyTorch's error; or one number, or no element
    count = (x.shape[dim] - size) // step + 1
    if _one(x, dim, size, step):
        return x.narrow(dim, 0, size).unsqueeze(dim).movedim(dim + 1, -1)
    if step >= size and count * step <= x.shape[dim]:
        blocks = x.narrow(dim, 0, count * step).unflatten(dim, (count, step))
        return blocks.narrow(dim + 1, 0, size).movedim(dim + 1, -1)
    lies = None if step < size else layout(x, (dim, size, step))
    if lies is None:  # overlapping windows: PyTorch refuses updates of them
        return x.unfold(dim, size, step)
    shape, strides, offset = lies
    shape = (*shape[:dim], count, *shape[dim + 1 :], size)
    strides = (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim])
    return x.as_strided(shape, strides, offset)


def _held(mode: Mode, x: torch.Tensor, call: tuple[int, int, int]) -> Lies | None:
    """How a traced tensor lies, if it fills its memory."""
    torch._sync(x)
    held = torch._from_functional_tensor(x)
    filled = held.untyped_storage().nbytes() == held.numel() * held.element_size()
    if filled and not share_memory(tuple(held.shape), tuple(held.stride())):
        return _lies(held)
    mode.windows.only_read(held.shape, call, mode.recorder.locator.here())
    return None


def written_through(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph of TorchDynamo's in which updates go back through windows, and through expansions that change no
    size: the same one, if none is made."""
    if not any(map(_is_written, module.graph.nodes)):
        return module
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        if _is_written(node):
            node.op, node.target = "call_function", _EXACT[str(node.target)]
    return torch.fx.GraphModule(module, graph)


def expanded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function`, an expansion; where it changes no size, a plain view of the tensor.

    PyTorch's functionalization takes an update of an expanded tensor back as base + (updated - base), which is
    rounded, and no number beside an infinite one."""
    result = function(*args, **kwargs)
    if not isinstance(result, torch.Tensor):  # broadcast_tensors
        tensors = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        return type(result)(map(_plain_view, tensors, result))
    return _plain_view(args[0], result) if args else result


def _plain_view(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    same = result.dim() >= x.dim() and result.numel() == x.numel()
    return x.view(result.shape) if same and x.layout == torch.strided else result


def _expand(x: torch.Tensor, *sizes: Any, **kwargs: Any) -> Any:
    return expanded(torch.Tensor.expand, x, *sizes, **kwargs)


def _expand_as(x: torch.Tensor, other: torch.Tensor) -> Any:
    return expanded(torch.Tensor.expand_as, x, other)


def _broadcast_to(x: torch.Tensor, *sizes: Any, **kwargs: Any) -> Any:
    return expanded(torch.Tensor.broadcast_to, x, *sizes, **kwargs)


#: methods whose results PyTorch takes an update back through inexactly → functions that it doesn't
_EXACT: dict[str, Callable[..., Any]] = {
    "unfold": views, "expand": _expand, "expand_as": _expand_as, "broadcast_to": _broadcast_to,
}  # fmt: skip


def expand(mode: Mode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The handler of expansions."""
    if mode.recorder.sizes is not None:
        return func(*args, **kwargs)
    return expanded(func, *args, **kwargs)


def _is_written(node: torch.fx.Node) -> bool:
    """Whether a node is windows or an expansion that may be updated, themselves or what is made of them."""
    if node.op != "call_method" or node.target not in _EXACT:
        return False
    seen, found = {node}, [node]
    while found:
        for user in found.pop().users:
            if _writes(user):
                return True
            if user not in seen:
                seen.add(user)
                found.append(user)
    return False


def _writes(node: torch.fx.Node) -> bool:
    """Whether a call may change a tensor in place."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    operators = ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow")
    return in_place or name in operators or bool({"out", "inplace"} & set(node.kwargs))
