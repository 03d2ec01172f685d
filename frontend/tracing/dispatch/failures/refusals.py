"""Ops that refuse some values at run time, so a trace keeps them even where nothing reads a result.

`lowering/checks.py` says what they refuse. Ops that run through PyTorch refuse by themselves.
"""

from __future__ import annotations

from typing import Any

import torch

from gflow.runtime.failures import ERRORS

#: overloads, or ops with all their overloads
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
    """The entry of `REFUSING` that an overload falls under, if any."""
    try:
        return _names[func]
    except KeyError:
        name = str(func)
        family = name.rsplit(".", 1)[0]
        found = name if name in REFUSING else family if family in REFUSING else None
        _names[func] = found
        return found


# A condition that a function written in Python states, as an op: the run ends with the exception named `error`
# where an element of `bad` is true.
torch.library.define("gflow::fail_if", "(Tensor bad, str error, str message) -> ()")


@torch.library.impl("gflow::fail_if", "CompositeExplicitAutograd")
def _fail_if(bad: torch.Tensor, error: str, message: str) -> None:
    if bool(bad.any()):
        raise ERRORS[error](message)


@torch.library.impl("gflow::fail_if", "Meta")
def _fail_if_of_no_values(bad: torch.Tensor, error: str, message: str) -> None:
    pass
