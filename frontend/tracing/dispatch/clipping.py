"""Clipping of gradients: by keys of parameter groups, and in `build()`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils import clip_grad

from gflow.errors import GraphTraceError

from ..context.location import here

#: keys of parameter groups. The order of the norm is no traced number, since the ops depend on it
MAX_NORM, NORM_TYPE = "clip_grad_max_norm", "clip_grad_norm_type"

_get_total_norm = clip_grad._get_total_norm


def clip_groups(groups: Sequence[dict[str, Any]], error_if_nonfinite: bool = False) -> None:
    """Scale the gradients of each group that has a `clip_grad_max_norm` so that their norm is at most that value.

    The order of the norm is the group's `clip_grad_norm_type`, 2 if it has none. -inf is the least magnitude of all
    elements; 0 counts nonzero elements of each tensor, and then nonzero counts, as `torch.linalg.vector_norm` does.

    Raises:
        RuntimeError: `error_if_nonfinite` is set, and a norm is inf or nan.
    """
    for group in groups:
        if group.get(MAX_NORM) is not None:
            norm_type = float(group.get(NORM_TYPE, 2.0))
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if gradients:
                # clip_grad_norm_ itself makes a constant of the norm
                total = _get_total_norm(gradients, norm_type, error_if_nonfinite)
                factor = torch.clamp(group[MAX_NORM] / (total + 1e-6), max=1.0)
                for gradient in gradients:
                    gradient.mul_(factor.to(gradient.dtype))


def clip_problem(optimizer: torch.optim.Optimizer) -> str | None:
    """What is wrong with the clipping keys of an optimizer's groups; None if nothing."""
    for i, group in enumerate(optimizer.param_groups):
        norm, kind = group.get(MAX_NORM), group.get(NORM_TYPE, 2.0)
        if norm is not None and (not _is_number(norm) or not norm > 0):
            return f"{MAX_NORM} of parameter group {i} is a number above 0; got {norm!r}"
        if isinstance(kind, str) and kind in ("inf", "-inf"):
            kind = float(kind)
        if not _is_number(kind) or not (kind >= 0 or kind == -math.inf):
            return f"{NORM_TYPE} of parameter group {i} is a number from 0 on, inf or -inf; got {kind!r}"
        if norm is None and NORM_TYPE in group:
            return f"parameter group {i} has a {NORM_TYPE} and no {MAX_NORM}; add it"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
) -> torch.Tensor:
    """`clip_grad._get_total_norm` without `error_if_nonfinite`, with which the original reads the norm's value.

    Raises:
        GraphTraceError: `error_if_nonfinite` is set.
    """
    if error_if_nonfinite:
        raise GraphTraceError(
            f"{here()}: error_if_nonfinite=True needs the value of the gradients' norm, which does not "
            "exist while a graph is traced. Leave it out and return the norm from build() to check it "
            "after the call; or set a grad scaler, which skips updates with inf or nan."
        )
    return _get_total_norm(tensors, norm_type, False, foreach)
