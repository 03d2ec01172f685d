"""Events while a graph is built, for observers: `Watcher`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten

from gflow.dialects.records import record

if TYPE_CHECKING:
    from ..data.trace import Trace
    from ..data.values import TraceInput, TraceOp


@record
class TensorInfo:
    """The metadata of a tensor. lazy: whether it represents a value of the graph, and has no data."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    lazy: bool = False

    def __str__(self) -> str:
        parts = ["..."]
        if self.device.type != "cpu":
            parts.append(f"device='{self.device}'")
        if self.lazy:
            parts.append("is_lazy='True'")
        parts += [f"size={self.shape}", f"dtype={self.dtype}"]
        if self.requires_grad:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(parts)})"


def tensor_info(tensor: torch.Tensor, lazy: bool = False) -> TensorInfo:
    """The metadata of a tensor."""
    grad = tensor.requires_grad and not lazy
    shape = tuple(map(_size, tensor.shape))
    return TensorInfo(shape, tensor.dtype, tensor.device, grad, lazy)


def _size(size: Any) -> Any:
    """A size as text; the formula of a dynamic size."""
    if not isinstance(size, torch.SymInt):
        return size
    concrete = getattr(getattr(size.node, "shape_env", None), "concrete", None)
    return size if concrete is None else concrete(size)


Infos = Sequence[TensorInfo]


def infos(*values: Any, lazy: bool = True) -> Infos:
    """The metadata of the tensors in nested values."""
    leaves = tree_flatten(values)[0]
    # otherwise the modes of a trace would be called for each attribute of each tensor
    with torch._C.DisableTorchFunction():
        return [tensor_info(leaf, lazy) for leaf in leaves if isinstance(leaf, torch.Tensor)]


class Watcher:
    """An observer of the build of a graph; the methods of this base class do nothing."""

    def phase(self, name: str, detail: str = "") -> None:
        """A phase begins, and the previous one ends: "trace", "first step", "lower", "passes" (each with its name),
        "codegen", or "cache" instead of the last two or of these three, "JIT"."""

    def argument(self, given: TraceInput) -> None:
        """An argument of the program was found: an input of the graph, a parameter, …"""

    def module_begins(self, path: str, module: torch.nn.Module, inputs: Infos) -> None:
        """A module is called with these tensors."""

    def module_ends(self, path: str, module: torch.nn.Module, outputs: Infos) -> None:
        """The call has returned these tensors, or raised an error."""

    def unnamed_module(self, module: torch.nn.Module) -> None:
        """A module is called that is neither the graph's nor known to be reached by its code."""

    def op(self, op: TraceOp) -> None:
        """An op was recorded; the frames of the code that runs it are on the stack."""

    def traced(self, trace: Trace) -> None:
        """The trace is complete."""


class Watchers(Watcher):
    """Forwards events to several observers."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = watchers

    def phase(self, name: str, detail: str = "") -> None:
        """Forward the event."""
        for watcher in self.watchers:
            watcher.phase(name, detail)

    def argument(self, given: TraceInput) -> None:
        """Forward the event."""
        for watcher in self.watchers:
            watcher.argument(given)

    def module_begins(self, path: str, module: torch.nn.Module, inputs: Infos) -> None:
        """Forward the event."""
        for watcher in self.watchers:
            watcher.module_begins(path, module, inputs)

    def module_ends(self, path: str, module: torch.nn.Module, outputs: Infos) -> None:
        """Forward the event."""
        for watcher in self.watchers:
            watcher.module_ends(path, module, outputs)

    def unnamed_module(self, module: torch.nn.Module) -> None:
        """Forward the event."""
        for watcher in self.watchers:
            watcher.unnamed_module(module)

    def op(self, op: TraceOp) -> None:
        """Forward the event."""
        for watcher in self.watchers:
            watcher.op(op)

    def traced(self, trace: Trace) -> None:
        """Forward the event."""
        for watcher in self.watchers:
            watcher.traced(trace)


_current: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_NOBODY = Watcher()


def current() -> Watcher:
    """The observer of the graph that is being built."""
    return _current.get() or _NOBODY


def is_watched() -> bool:
    """Whether a graph is being built, and observed."""
    return _current.get() is not None


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Within, `watcher` gets the events of builds."""
    token = _current.set(watcher)
    try:
        yield
    finally:
        _current.reset(token)
