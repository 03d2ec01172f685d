"""Properties of tensors from outside that Python can read, besides elements and layout: whether a tensor is a leaf, a
view, shared between processes. The real tensor gives the answer, and the program is valid for calls with the same
answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..recorder import item_error
from .proxies import Fact, Handler, TensorProxies

Tensor = torch.Tensor


#: getter → its name, and its value for an unmodified traced tensor
_PLAIN: dict[Any, tuple[str, Any]] = {
    Tensor.is_leaf.__get__: ("is_leaf", True),  # type: ignore[attr-defined]
    Tensor.retains_grad.__get__: ("retains_grad", False),  # type: ignore[attr-defined]
    Tensor.output_nr.__get__: ("output_nr", 0),  # type: ignore[attr-defined]
    Tensor._is_view: ("_is_view()", False),
    Tensor.is_inference: ("is_inference()", False),
    torch.is_inference: ("is_inference()", False),
    Tensor.is_shared: ("is_shared()", False),
    Tensor.is_pinned: ("is_pinned()", False),
}
#: getters whose value is an object, which a program cannot have
_OBJECTS: dict[Any, str] = {
    Tensor.grad_fn.__get__: "grad_fn",  # type: ignore[union-attr]
    Tensor._base.__get__: "_base",  # type: ignore[union-attr]
    Tensor._backward_hooks.__get__: "_backward_hooks",  # type: ignore[union-attr]
}


def _is_none(question: Callable[[Tensor], Any]) -> Callable[[Tensor], bool]:
    return lambda tensor: question(tensor) is None


_ARE_NONE = {question: _is_none(question) for question in _OBJECTS}


def _ask(
    mode: TensorProxies, func: Any, name: str, question: Callable[[Tensor], Any], tensor: Tensor
) -> Any:
    """The value for the real tensor that a traced one represents, recorded as a fact; None if it represents none."""
    real = mode.real_of(tensor)
    if real is None:
        return None
    with torch._C.DisableTorchFunction():
        answer = question(real)
    mode.facts.append(Fact(real, question, answer, name))
    return answer


def _plain(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, untouched = _PLAIN[func]
    if func in (Tensor.is_shared, Tensor.is_pinned):  # a traced tensor has no memory
        own = untouched
    elif (own := func(*args, **kwargs)) != untouched and name != "is_inference()":
        return (
            own  # within inference_mode(), all traced tensors are of it, and arguments need not be
        )
    answer = _ask(mode, func, name, func, args[0]) if len(args) == 1 and not kwargs else None
    return own if answer is None else answer


def _object(mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    own = func(*args, **kwargs)
    if own is not None:
        return own
    name = _OBJECTS[func]
    if _ask(mode, func, f"{name} is None", _ARE_NONE[func], args[0]) is False:
        raise item_error(mode.recorder.locator.here(), f"the .{name} of a tensor from outside")
    return None


#: handlers that replace PyTorch's getters
HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(_OBJECTS, _object),
}
