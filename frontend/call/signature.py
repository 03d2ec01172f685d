"""The signature of a graph call: what a compiled program is chosen by."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from gflow.errors import GraphInputError
from gflow.tracing.context.location import here
from gflow.tracing.data.pytrees import learn
from gflow.tracing.tracer import input_names

Tensor = torch.Tensor
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum,
    torch.dtype, torch.device, torch.memory_format, torch.layout,
)  # fmt: skip


def flatten_call(
    build: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], tuple[Any, ...]]:
    """The leaves of a call's arguments, and a hashable key for everything about them that a
    trace depends on."""
    if not kwargs:
        key = []
        for arg in args:
            if type(arg) is not Tensor:
                break
            key.append((arg.shape, arg.stride(), arg.dtype, arg.device, arg.requires_grad))
        else:
            if len(args) > 1:
                key += _repeats(args)
            return args, tuple(key)
    leaves, spec = tree_flatten((args, kwargs))
    parts: list[Any] = [repr(spec)]
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            if leaf.layout != torch.strided:
                raise _wrong(build, args, kwargs, i, f"a {leaf.layout} tensor", "call .to_dense()")
            parts.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad))
            if isinstance(leaf, torch.nn.Parameter):
                parts.append(id(leaf))
        elif isinstance(leaf, _PLAIN):
            # nan is nan, and 0.0 is not -0.0
            plain = not isinstance(leaf, (float, complex)) or (leaf == leaf and leaf != 0)
            parts.append((type(leaf), leaf if plain else repr(leaf)))
        elif learn(leaf):
            return flatten_call(build, args, kwargs)
        elif type(leaf).__module__ == "numpy":
            raise _wrong(
                build,
                args,
                kwargs,
                i,
                f"a numpy {type(leaf).__name__}",
                "pass torch.as_tensor(...)",
            )
        else:
            what = f"an object of type {type(leaf).__module__}.{type(leaf).__qualname__}"
            raise _wrong(build, args, kwargs, i, what, "pass its tensors and numbers")
    parts += _repeats([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    return leaves, tuple(parts)


def _repeats(tensors: Sequence[Tensor]) -> list[Any]:
    """Which arguments are the same tensor."""
    ids = [id(t) for t in tensors]
    if len(set(ids)) == len(ids):
        return []
    return [tuple(ids.index(i) for i in ids)]


def _wrong(
    build: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    index: int,
    what: str,
    do: str,
) -> GraphInputError:
    name = input_names(build, args, kwargs)[index]
    return GraphInputError(
        f"{here()}: input {name!r} is {what}; a graph takes dense tensors, Python numbers, "
        f"strings, None, and lists, tuples, dicts and dataclasses of them: {do}."
    )


def check_call(build: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The arguments fit `build`'s parameters."""
    try:
        inspect.signature(build).bind(*args, **kwargs)
    except TypeError as error:
        owner = getattr(build, "__qualname__", "build")
        raise GraphInputError(
            f"{here()}: the arguments do not fit {owner}{inspect.signature(build)}: {error}"
        ) from None


def check_tensors(
    build: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: list[tuple[str, Tensor]],
) -> None:
    """Inputs and parameters have dtypes of the dialect and are on one device (0-d CPU tensors go
    with any)."""
    from gflow.lowering.dtypes import TO_MLIR

    leaves, _ = tree_flatten((args, kwargs))
    names = input_names(build, args, kwargs)
    known: tuple[str, torch.device] | None = None
    tensors = [(f"parameter {n!r}", t) for n, t in parameters]
    tensors += [(f"input {n!r}", t) for n, t in zip(names, leaves) if isinstance(t, Tensor)]
    for name, tensor in tensors:
        if torch.nn.parameter.is_lazy(tensor):
            raise GraphInputError(
                f"{here()}: {name} of a lazy module has no shape yet; call the model once with a "
                "batch, outside of the graph."
            )
        if tensor.is_quantized or tensor.dtype not in TO_MLIR:
            raise GraphInputError(
                f"{here()}: {name} has dtype {tensor.dtype}, which a graph cannot take; "
                "convert it first, e.g. with .float()."
            )
        if tensor.dim() == 0 and tensor.device.type == "cpu":
            continue
        if known is None:
            known = (name, tensor.device)
        elif tensor.device != known[1]:
            raise GraphInputError(
                f"{here()}: {name} is on {tensor.device}, but {known[0]} is on {known[1]}; "
                f"move one with .to({str(known[1])!r})."
            )
