"""Custom ops that write into arguments (`torch.library.custom_op(mutates_args=...)`), which functionalization does not
support: the op runs on copies, and their values are written back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from gflow.dialects.aten.written import (
    argument_of,
    by_name,
    can_be_written,
    names_written,
    tensors_of,
    written,
)
from gflow.errors import GraphTraceError

from ..recorder import describe
from .proxies import Handler, TensorProxies

Tensor = torch.Tensor
#: namespaces of ops that are handled elsewhere
_OTHERS = ("aten", "prims", "c10d", "_c10d_functional", "gflow")


def handler_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handler | None:
    """A handler for a custom op that writes into arguments; None for another function."""
    if not isinstance(func, (OpOverload, OpOverloadPacket)):
        return None
    overload = _overload(func, args, kwargs)
    if overload is None or overload.namespace in _OTHERS or not can_be_written(overload):
        return None
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    if any(known(overload.name(), k) for k in ("Functionalize", "CompositeImplicitAutograd")):
        return None
    return _handler(overload)


def _overload(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpOverload | None:
    if isinstance(func, OpOverload):
        return func
    names = func.overloads()
    if len(names) > 1:
        names = [
            torch._C._jit_resolve_packet(func._qualified_op_name, *args, **kwargs) or "default"
        ]  # type: ignore[attr-defined]
    return getattr(func, names[0], None)


def _handler(func: OpOverload) -> Handler:
    def handler(mode: TensorProxies, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = by_name(func, args, kwargs)
        targets = [t for name in names_written(func) for t in tensors_of(given.get(name))]
        problem = _problem(func, given, targets)
        if problem:
            raise GraphTraceError(f"{describe(mode.recorder.locator.here())}: {func} {problem}")
        own = [r.alias_info is None for r in func._schema.returns]
        found = written(func)(**given)
        *mine, copies = found if any(own) else (found,)
        with torch.no_grad():  # eager does not count these writes as new versions either
            for target, copy in zip(targets, copies, strict=True):
                target.copy_(copy)
        left: Iterator[Any] = iter(mine)
        results = [
            next(left) if is_own else given[argument_of(func, n) or ""]
            for n, is_own in enumerate(own)
        ]
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    return handler


def _problem(func: OpOverload, given: dict[str, Any], targets: list[Tensor]) -> str:
    """Why a call is not supported; None if it is."""
    tensors = [t for value in given.values() for t in tensors_of(value) if isinstance(t, Tensor)]
    for target in targets:
        if any(t is not target and torch._C._is_alias_of(t, target) for t in tensors) or (  # type: ignore[attr-defined]
            sum(t is target for t in tensors) > 1
        ):
            return (
                "writes into an argument that shares memory with another one, so what it computes depends on the order "
                "of its writes. Pass a copy (.clone())"
            )
    own = any(r.alias_info is None for r in func._schema.returns)
    if own and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return (
            "writes into an argument and takes tensors that require gradients; such an op has no backward. Call it "
            "under torch.no_grad(), or pass tensors without gradients (.detach())"
        )
    return ""
