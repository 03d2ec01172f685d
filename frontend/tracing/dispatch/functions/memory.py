"""Functions that depend on a tensor's storage, change its strides, or write into it in an unusual way."""

from __future__ import annotations

from typing import Any

import torch

from gflow.errors import GraphTraceError

from ..recorder import describe, item_error
from ..symbols.number_nodes import number_of
from . import overlaps
from .proxies import Handler, TensorProxies

aten = torch.ops.aten
Tensor = torch.Tensor


def _unsafe_parts(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, ...]:
    return overlaps.unsafe_parts(func.__name__, *args, **kwargs)


def _by_copy(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    # In place and with traced numbers, PyTorch would decompose its slow Python reference.
    if not any(number_of(a) is not None for a in (*args[1:], *kwargs.values())):
        return func(*args, **kwargs)
    return args[0].copy_(getattr(torch, func.__name__[:-1])(*args, **kwargs))


def _polygamma_(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    # PyTorch's functionalization does not support the method.
    order = args[1] if len(args) > 1 else kwargs["n"]
    return args[0].copy_(torch.polygamma(order, args[0]))


def _of_arguments(what: str) -> Handler:
    def handler(
        mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if mode.argument_of(args[0]) is None:
            return func(*args, **kwargs)
        raise item_error(mode.recorder.locator.here(), what)

    return handler


def _strided(place: int) -> Handler:
    """A handler for `as_strided` and related functions. Their offset counts from the beginning of the storage, which
    is unknown for a tensor from outside.

    place: the position of the offset among the arguments.
    """

    def handler(
        mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        where = describe(mode.recorder.locator.here())
        if args and mode.has_moved(args[0]):
            raise GraphTraceError(
                f"{where}: as_strided on a non-dense tensor after an in-place update of it is not supported, "
                "since a graph does not keep the gaps between its elements. Call it before the update, or use "
                "slicing, expand or permute."
            )
        given = kwargs.get("storage_offset") is not None or any(
            a is not None for a in args[place : place + 1]
        )
        known = mode.argument_of(args[0]) if args else None
        if known is not None:
            entry = mode.recorder.inputs[known.index]
            entry.by_memory = entry.role == "input"
        if known is not None and given:
            if known.real.storage_offset():
                raise GraphTraceError(
                    f"{where}: {func.__name__}() with storage_offset counts from where the memory begins that "
                    f"{entry.role} {entry.name!r} lies in, and a graph knows nothing of what lies before the tensor. "
                    "Leave storage_offset out, which starts at the tensor, or call .clone() first."
                )
            entry.from_start = entry.role == "input"
        return func(*args, **kwargs)

    return handler


def _restrided(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Methods that change strides in place: record the line for the check at the end of `build()`."""
    result = func(*args, **kwargs)
    mode.restrided.setdefault(id(args[0]), (args[0], describe(mode.recorder.locator.here())))
    return result


def _as_strided_(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return _restrided(mode, func, args, kwargs)

    run.__name__ = func.__name__
    return _strided(3)(mode, run, args, kwargs)


def _other_memory(
    mode: TensorProxies, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x.data = y` of an argument.

    Raises:
        GraphTraceError: always for an argument: a program can write into its memory, but not replace it.
    """
    if any(s.wrapper is args[0] for s in mode.given):
        raise GraphTraceError(
            f"{describe(mode.recorder.locator.here())}: build() replaces the memory of an argument (.data "
            "= ...), which a program cannot do: it can only write into that memory. Write x.copy_(y), or "
            "return the new tensor."
        )
    return func(*args, **kwargs)


_UNSAFE = (
    torch.unsafe_chunk, Tensor.unsafe_chunk, aten.unsafe_chunk, aten.unsafe_chunk.default,
    torch.unsafe_split, Tensor.unsafe_split, aten.unsafe_split, aten.unsafe_split.Tensor,
    torch.unsafe_split_with_sizes, Tensor.unsafe_split_with_sizes, aten.unsafe_split_with_sizes,
    aten.unsafe_split_with_sizes.default,
)  # fmt: skip

#: of those, methods that write like others do
IN_PLACE = (_by_copy, _polygamma_)

HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(_UNSAFE, _unsafe_parts),
    Tensor.as_strided_: _as_strided_,
    **dict.fromkeys(
        (torch.as_strided, Tensor.as_strided, torch.as_strided_copy),
        _strided(3),
    ),
    **dict.fromkeys((torch.as_strided_scatter, Tensor.as_strided_scatter), _strided(4)),
    Tensor.storage_offset: _of_arguments("where a tensor lies in memory (.storage_offset())"),
    Tensor.untyped_storage: _of_arguments("the memory of a tensor (.untyped_storage())"),
    Tensor.storage: _of_arguments("the memory of a tensor (.storage())"),
    Tensor._typed_storage: _of_arguments("the memory of a tensor (.storage())"),
    Tensor._version.__get__: _of_arguments("how often a tensor was updated (._version)"),  # type: ignore[attr-defined]
    **dict.fromkeys(
        (
            Tensor.transpose_,
            Tensor.t_,
            Tensor.swapaxes_,
            Tensor.swapdims_,
            Tensor.squeeze_,
            Tensor.unsqueeze_,
        ),
        _restrided,
    ),
    Tensor.data.__set__: _other_memory,  # type: ignore[attr-defined]
    **dict.fromkeys((Tensor.clamp_, torch.clamp_, Tensor.pow_), _by_copy),
    Tensor.polygamma_: _polygamma_,
}
