"""Lowering one call: its rule, else its decomposition, else `gflow.aten`."""

from __future__ import annotations

import logging
from typing import Any

import torch

from gflow.dialects import extents
from gflow.dialects.opdef import VerifyError
from gflow.tracing.data.values import TraceValue

from .checks import find_check
from .collectives import emit_collectives
from .decompose import decompose
from .dtypes import TO_MLIR, LoweringError, Unsupported, has_kernels
from .emitter import Emitter, Value
from .escape import emit_aten
from .registry import find_rule

_log = logging.getLogger("gflow")


def lower_call(
    em: Emitter,
    func: torch._ops.OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    results: list[TraceValue | None],
) -> list[Value | None]:
    """Lower one call: by its rule, otherwise by its decomposition, otherwise as `gflow.aten`."""
    check = find_check(func)
    if check is not None and not em.proven:
        check(em, *args, **kwargs)
    made = emit_collectives(em, func, args, kwargs)
    if made is not None:
        return [conform(em, func, want, got) for want, got in zip(results, made, strict=True)]
    lowered = try_lower(em, func, args, kwargs, results)
    if lowered is not None:
        return lowered
    _log.debug("%s: %s runs through PyTorch (gflow.aten)", em.current and em.current.loc, func)
    return emit_aten(em, func, args, kwargs, results)


def try_lower(
    em: Emitter, func: Any, args: list[Any], kwargs: dict[str, Any], results: list[Any]
) -> list[Value | None] | None:
    """`lower_call`, with None instead of a `gflow.aten`."""
    if _no_kernels(args) or any(r and not has_kernels(TO_MLIR.get(r.dtype, "")) for r in results):
        return None
    rule = find_rule(func)
    if rule is not None:
        before = em.current_results
        em.current_results = results
        try:
            lowered = rule(em, *args, **kwargs)
            found = lowered if isinstance(lowered, list | tuple) else [lowered]
            return [conform(em, func, w, g) for w, g in zip(results, found, strict=True)]
        except (Unsupported, VerifyError):
            pass
        finally:
            em.current_results = before
    values = decompose(em, func, args, kwargs, try_lower)
    if values is None:
        return None
    return [conform(em, func, w, g) for w, g in zip(results, values, strict=True)]


def _no_kernels(args: Any) -> bool:
    """Whether an argument has a dtype or layout that only PyTorch computes with."""
    for a in args:
        if isinstance(a, Value):
            if not has_kernels(a.dtype):
                return True
        elif isinstance(a, complex) or (isinstance(a, list) and _no_kernels(a)):
            return True
    return False


def conform(em: Emitter, func: Any, want: TraceValue | None, got: Value | None) -> Value | None:
    """Convert a rule's result to the type that PyTorch gives.

    Raises:
        LoweringError: the rule's result has another shape than PyTorch's, at the traced size or at other sizes of a
            dynamic dimension.
    """
    if want is None:
        return None
    if got is None or got.shape != tuple(want.shape):
        found = None if got is None else list(got.shape)
        size = extents.current()
        if size is not None and got is not None:
            shapes = ["[" + ", ".join(map(size.text, s)) + "]" for s in (want.shape, got.shape)]
            raise LoweringError(
                f"the size {size} is dynamic (gflow.dynamic_dim), and the lowering of {func} gives shape "
                f"{shapes[0]} instead of {shapes[1]} for it, so dynamic sizes of this op are not supported; "
                "leave the dimension static"
            )
        raise LoweringError(
            f"the lowering of {func} gave shape {found}, PyTorch gives {list(want.shape)}; "
            "this is a bug of gflow, please report it"
        )
    dtype = TO_MLIR.get(want.dtype)
    if dtype is not None and got.dtype != dtype:
        got = em.convert(got, dtype)
    if got.number != want.is_number:
        got = Value(em, got.ir, got.shape, got.dtype, want.is_number, got.const)
    return got
