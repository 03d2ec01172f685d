"""The function mode above autograd while tracing. It

- replaces real tensors from outside by traced constants,
- replaces functions that update tensors although their schemas do not say so (batch norm's running statistics) by
  functional equivalents,
- raises clear errors for reads of a tensor's value, or returns traced numbers in an optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from gflow.errors import GraphTraceError

from ...program import collectives, resharding
from ..recorder import Recorder, describe
from . import (
    custom_writes,
    facts,
    gradients,
    memory,
    networks,
    overlaps,
    transformed,
    value_free,
    values,
)
from .in_place import with_out, write_problem
from .layouts import RESHAPING, layouts, restore
from .proxies import TensorProxies, unwrap

Tensor = torch.Tensor


#: functions whose branches functionalization processes before the recorder receives them
_CONTROL_FLOW = {"cond", "while_loop", "scan", "associative_scan", "map_impl"}
#: modules of `flex_attention`, which applies vmap to functions of one score
_FLEX_ATTENTION = ("torch.nn.attention.flex_attention", "torch._higher_order_ops.flex_attention")
#: functions that take an index or a condition, and its position among the arguments
_SELECTING = {
    **dict.fromkeys(
        (Tensor.__getitem__, Tensor.__setitem__, Tensor.index_put, Tensor.index_put_), 1
    ),
    **dict.fromkeys((torch.index_put, torch.index_put_, Tensor.where), 1),
    torch.where: 0,
}


class Rewrites(TensorProxies, TorchFunctionMode):
    """Active around `build()` and `optimizer.step()`."""

    def __init__(self, recorder: Recorder, has_optimizer: bool, trained: frozenset[int]) -> None:
        TorchFunctionMode.__init__(self)
        TensorProxies.__init__(self, recorder, has_optimizer, trained)
        self.transforms = False  # whether `build()` has used a transform of `torch.func`

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if isinstance(func, torch._ops.HigherOrderOperator) and func.name() in _CONTROL_FLOW:
            raise self.recorder.control_flow(
                func
            )  # functionalization would raise unclear errors for branches
        if peek_interpreter_stack() is not None:
            return self._transformed(func, args, kwargs or {})
        if func in _GETTERS:
            return func(self.lift(args[0]))
        if self.transforms and transformed.is_wrapped((args, kwargs)):
            return self._after_transform(func, args, kwargs or {})
        return self._called(func, args, kwargs)

    def _transformed(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call within a transform of `torch.func`."""
        if _is_called_from(_FLEX_ATTENTION):
            raise self.recorder.flex_attention()
        self.transforms = True
        handled = func in _HANDLERS or custom_writes.handler_of(func, args, kwargs) is not None
        written = handled or overlaps.writes_first(func, kwargs) or "out" in kwargs
        if written and not transformed.is_wrapped((args, kwargs)):
            with torch._C._DisableFuncTorch():  # of tensors that no transform knows
                return self._called(func, args, kwargs)
        return transformed.call(self, func, args, kwargs, handled)

    def _after_transform(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call with tensors that a transform has left in its wrappers. These hold the history of `vjp`, whose
        function calls `torch.autograd.grad`."""
        handled = func in _HANDLERS or custom_writes.handler_of(func, args, kwargs) is not None
        handled &= func is not torch.autograd.grad
        if handled or overlaps.writes_first(func, kwargs) or "out" in kwargs:
            free = partial(tree_map_only, Tensor, self.lift)
            return self._called(func, free(args), free(kwargs))
        return transformed.call(self, func, args, kwargs, handled=False)

    def _called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        args = tuple([self.lift(a) for a in args])
        kwargs = {k: self.lift(v) for k, v in kwargs.items()} if kwargs else {}
        at = _SELECTING.get(func)
        if at is not None and len(args) > at and not _fills(func, args):
            args = (*args[:at], _with_bool_masks(args[at]), *args[at + 1 :])
        elif at is not None and "condition" in kwargs:
            kwargs["condition"] = _with_bool_masks(kwargs["condition"])
        if at == 1 and func is not Tensor.where:
            func, args, kwargs = value_free.put_by_mask(func, args, kwargs)
        name = getattr(func, "__name__", "")
        before = [] if name in RESHAPING or self.in_optimizer else layouts(args, kwargs)
        handler = _HANDLERS.get(func) or custom_writes.handler_of(func, args, kwargs)
        run = func if handler is None else partial(_handled, handler, self, func)
        if kwargs.get("out") is not None:
            run = partial(with_out, run)
        if handler is None or handler in memory.IN_PLACE:
            if overlaps.writes_first(func, kwargs):
                self._check_target(func, args)
            for target in overlaps.targets(func, args, kwargs):
                self._check_foreign(target)
            problem = write_problem(func, args, kwargs, self.concrete)
            if problem is not None:
                raise GraphTraceError(f"{describe(self.recorder.locator.here())}: {problem}")
        try:
            result = overlaps.call(func, args, kwargs, self.concrete, run, self.has_moved)
        except overlaps.Unwritable as error:
            raise GraphTraceError(f"{describe(self.recorder.locator.here())}: {error}") from None
        if before:
            restore(self, before)
        if self.in_optimizer:  # code of a step gets the parameters themselves, and may compare them
            return self.stepped.get(id(result), result)
        # An in-place update returns the real tensor, since `self.count += 1` assigns it to the module.
        known = self.reals.get(id(result))
        return result if known is None else known[1]

    def _check_foreign(self, target: Tensor) -> None:
        """Check that a written tensor does not lie in an array's memory: a program has a constant instead. Arrays
        that `torch.from_numpy` and the like get are noted when they do (`check_arrays`); this finds those of
        functions under other names (`from torch import from_numpy`).

        Raises:
            GraphTraceError: it does.
        """
        base = target if target._base is None else target._base
        if not self.recorder.foreign or any(found is base for _, found, _, _ in self.arrays):
            return
        with self.recorder.fake_mode, self.recorder:
            value = self.recorder.value_of(unwrap(base))
        if value in self.recorder.foreign:
            raise GraphTraceError(
                f"{describe(self.recorder.locator.here())}: build() updates a tensor that it made over the memory of a "
                "NumPy array. A program has a constant in its place. Make the tensor before the call, and use it in "
                "build(): its updates reach the array. Or copy the array first (torch.tensor)."
            )

    def _check_target(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Check the target of an in-place op.

        Raises:
            GraphTraceError: elements of the tensor share memory, and it is no view that `overlaps` handles.
        """
        target = args[0] if args else None
        if not isinstance(target, Tensor) or overlaps.may_overlap(target):
            return
        outside = (*self.proxies.values(), *self.given)  # for these, `check_update` raises
        if overlaps.shares(target, self.concrete) and not any(s.wrapper is target for s in outside):
            where = describe(self.recorder.locator.here())
            raise GraphTraceError(f"{where}: {overlaps.shared_problem(func, target)}")


def _is_called_from(names: tuple[str, ...]) -> bool:
    """Whether code of one of these modules is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in names:
            return True
        frame = frame.f_back
    return False


def _handled(handler: Any, mode: Rewrites, func: Any, /, *args: Any, **kwargs: Any) -> Any:
    return handler(mode, func, args, kwargs)


def _fills(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether a call assigns one number by an index; PyTorch refuses uint8 masks for this."""
    value = args[2] if len(args) > 2 and func not in (torch.where, Tensor.where) else None
    return value is not None and (not isinstance(value, Tensor) or value.numel() == 1)


def _with_bool_masks(index: Any) -> Any:
    """An index or a condition with uint8 masks converted to booleans, with the same selection: shape rules do not
    support uint8 masks."""
    if isinstance(index, (list, tuple)) and not isinstance(index, torch.Size):
        return type(index)([_with_bool_masks(i) for i in index])
    return index.bool() if isinstance(index, Tensor) and index.dtype == torch.uint8 else index


#: getters of what a traced tensor has by itself; the code of an optimizer mostly calls these
_GETTERS = frozenset({
    Tensor.dtype.__get__, Tensor.device.__get__, Tensor.shape.__get__, Tensor.layout.__get__,  # type: ignore[attr-defined]
    Tensor.ndim.__get__, Tensor.is_sparse.__get__, Tensor.is_cuda.__get__,  # type: ignore[attr-defined]
})  # fmt: skip
_HANDLERS: dict[Any, Callable[..., Any]] = {
    **networks.HANDLERS,
    **value_free.HANDLERS,
    **gradients.HANDLERS,
    **values.HANDLERS,
    **memory.HANDLERS,
    **facts.HANDLERS,
    resharding.reshard: resharding.handler,
    **collectives.in_place(),
}
