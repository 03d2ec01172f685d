"""PyTorch's own calls that eager refuses (`OpInfo.error_inputs`), by eager and by gflow, read or not."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import gflow as flow

Tensor = torch.Tensor

FRONTENDS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "graph": flow.nn.Graph.trace,
    "compile": flow.compile,
    "backend": lambda function: torch.compile(function, backend="gflow"),
}
#: what an error may be, with a sentence
_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)


def error_calls(op: Any) -> Iterator[tuple[Callable[..., Any], list[Tensor]]]:
    """The calls that eager refuses, each as a function of its tensors."""
    torch.manual_seed(0)
    for given in op.error_inputs("cpu"):
        sample = given.sample_input
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

        def function(*given: Tensor, leaves: list[Any] = leaves, spec: Any = spec) -> Any:
            found = iter(given)
            again = [next(found) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(again, spec)
            return op.op(*args, **kwargs)

        yield function, tensors


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors that lie alike; what shares memory goes on sharing it."""
    return copy.deepcopy(tensors)


def missed(call: Callable[..., Any], tensors: list[Tensor], frontend: str, read: bool) -> str:
    """What is wrong where eager refuses a call, or an empty string."""

    def function(x: Tensor, *given: Tensor) -> Any:
        result = call(*given)
        if not read:
            return x + 1
        found = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        return x + 1, found

    one = torch.ones(2)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(one, *_copies(tensors))
            return ""  # eager takes it in this form
        except Exception as error:
            wanted, kind = f"{type(error).__name__}: {error}"[:160], type(error)
        try:
            FRONTENDS[frontend](function)(one, *_copies(tensors))
        except (*_ERRORS, kind) as error:
            text = str(getattr(error, "inner_exception", error))
            return "" if len(text.split()) > 1 and "INTERNAL" not in text else f"says {text!r}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
    return f"eager: {wanted}"
