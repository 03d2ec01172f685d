"""Ops that refuse some values at run time, so a trace keeps them even if no op reads a result.

`lowering/checks.py` has the checks. Ops that run through PyTorch check values themselves.
"""

from __future__ import annotations

from typing import Any

import torch

from gflow.runtime.failures import ERRORS

#: overloads, or ops (all of their overloads)
REFUSING = frozenset({
    "aten.embedding", "aten.index_select", "aten.gather", "aten.take", "aten.index_add", "aten.index_fill",
    "aten.index_copy", "aten.scatter.src", "aten.scatter.value", "aten.scatter_add", "aten.scatter_reduce",
    "aten.index.Tensor", "aten.index_put", "aten.nll_loss_forward", "aten.nll_loss2d_forward",
    "aten.binary_cross_entropy", "aten.floor_divide", "aten.remainder", "aten.fmod", "aten.div.Tensor_mode",
    "aten.div.Scalar_mode", "aten.bernoulli", "aten.multinomial", "aten.normal", "aten._assert_async",
    "aten._linalg_check_errors", "gflow.fail_if",
})  # fmt: skip

_names: dict[Any, str | None] = {}


def name_if_refusing(func: Any) -> str | None:
    """The entry of `REFUSING` for an overload; None if there is none."""
    try:
        return _names[func]
    except KeyError:
        name = str(func)
        family = name.rsplit(".", 1)[0]
        found = name if name in REFUSING else family if family in REFUSING else None
        _names[func] = found
        return found


# An op for a condition of a function written in Python: the run ends with the exception named `error`
# if an element of `bad` is true.
torch.library.define("gflow::fail_if", "(Tensor bad, str error, str message) -> ()")


@torch.library.impl("gflow::fail_if", "CompositeExplicitAutograd")
def _fail_if(bad: torch.Tensor, error: str, message: str) -> None:
    if bool(bad.any()):
        raise ERRORS[error](message)


@torch.library.impl("gflow::fail_if", "Meta")
def _fail_if_of_no_values(bad: torch.Tensor, error: str, message: str) -> None:
    pass
