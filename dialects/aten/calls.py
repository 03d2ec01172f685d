"""How `gflow.aten` holds a call of any ATen overload as text: encoder and decoder.

`overload` names the overload (`aten.topk.default`); `args` is JSON `[positional, keyword]`. Plain
JSON values are themselves, lists are lists; everything else is an object with one tag:

    {"t": 0}            the tensor that is operand 0
    {"part": [0, 4, [2, 3]]}  a row-major tensor of 2×3 in operand 0, which has one dimension, from element 4
    {"s": 1}            a Python number, read from the 0-d operand 1 when the call is made
    {"n": [1, 4]}       1 + 4 n, of a compiled program's size n
    {"float": "inf"}    also "-inf" and "nan"
    {"complex": [re, im]}
    {"dtype": "float32"}, {"device": "cpu"}, {"layout": "strided"},
    {"memory_format": "contiguous_format"}

The layout of operands is the runtime's choice (dense, or a view with strides). The op's results are
the tensors among the call's flattened results, in their order. A call that draws random numbers
carries a distinct `unique` attribute, so that cse never merges two, and takes a result of the draw
before it as an operand that `args` does not mention, so that draws keep their order.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ..extents import N, evaluate, leaves
from .written import NAMESPACE, written_by_name

#: what PyTorch calls the values of these types
_NAMES = {
    "dtype": re.compile(
        r"bool|q?u?int\d+(x\d+)?|bfloat16|float(16|32|64)|float[48]_e\w+|complex(32|64|128)|bits\d+(x\d+)?"
    ),
    "device": re.compile(r"[a-z]+(:\d+)?"),
    "layout": re.compile(r"strided|jagged|_mkldnn|sparse_(coo|cs[rc]|bs[rc])"),
    "memory_format": re.compile(r"contiguous_format|preserve_format|channels_last(_3d)?"),
}
_NAMED = tuple(_NAMES)


class AtenError(ValueError):
    """The text of a `gflow.aten` op does not describe a call."""


def encode_call(
    args: Sequence[Any], kwargs: dict[str, Any], operand: Callable[[Any], dict[str, Any] | None]
) -> str:
    """The `args` attribute of a call.

    operand: gives `{"t": i}`, `{"s": i}` or `{"part": …}` for a leaf that is an operand, None for all others.

    Raises:
        TypeError: an argument has no encoding.
    """

    def encode(value: Any) -> Any:
        tagged = operand(value)
        if tagged is not None:
            return tagged
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            if math.isfinite(value):
                return value
            return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
        if isinstance(value, complex):
            return {"complex": [encode(value.real), encode(value.imag)]}
        if isinstance(value, list | tuple):
            return [encode(v) for v in value]
        kind = type(value).__name__
        if kind in _NAMED and type(value).__module__.split(".")[0] == "torch":
            return {kind: str(value).removeprefix("torch.")}
        raise TypeError(f"cannot write a {type(value).__name__} as an argument of gflow.aten")

    return json.dumps([[encode(a) for a in args], {k: encode(v) for k, v in kwargs.items()}])


@lru_cache(maxsize=1 << 12)
def _parsed(text: str) -> Any:
    """The JSON of a call, which nobody changes: a program whose arguments move decodes it again and again."""
    return json.loads(text)


def decode_call(
    text: str,
    operands: Sequence[Any],
    scalar: Callable[[Any], int | float | bool],
    size: N = 0,
    named: Callable[[str, str], Any] | None = None,
    part: Callable[[Any, int, list[int]], Any] | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keyword arguments of the call, with `operands` put in.

    scalar: reads a number from a 0-d operand. size: what `{"n": …}` depends on. named: what stands for a
    data type, device, layout or memory format; PyTorch's own without it. part: gives what lies in an operand
    from an element on, of these sizes; a view without it.

    Raises:
        AtenError: malformed text, or an operand that does not exist.
    """
    try:
        call = _parsed(text)
    except (ValueError, RecursionError) as error:  # also numbers of too many digits
        raise AtenError(f"'args' is not JSON: {error}") from None
    if (
        not isinstance(call, list)
        or len(call) != 2
        or not isinstance(call[0], list)
        or not isinstance(call[1], dict)
    ):
        raise AtenError("'args' must be a JSON list of a list (positional) and an object (keyword)")

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(v) for v in value]
        if isinstance(value, dict):
            if len(value) != 1:
                raise AtenError(f"expected an object with one tag, found {json.dumps(value)}")
            ((tag, content),) = value.items()
            return decode_tagged(tag, content)
        return value

    def decode_tagged(tag: str, content: Any) -> Any:
        if tag in ("t", "s"):
            if type(content) is not int or not 0 <= content < len(operands):
                raise AtenError(f"operand {content!r} does not exist: there are {len(operands)}")
            return operands[content] if tag == "t" else scalar(operands[content])
        if tag == "part":
            index, offset, sizes = _part_of(content, len(operands))
            return (part or _view)(operands[index], offset, sizes)
        if (
            tag == "n"
            and isinstance(content, list)
            and all(type(c) is int for c in leaves(content))
        ):
            return evaluate(content, size)
        if tag == "float" and content in ("inf", "-inf", "nan"):
            return float(content)
        if tag == "complex" and isinstance(content, list) and len(content) == 2:
            try:
                return complex(decode(content[0]), decode(content[1]))
            except TypeError:
                raise AtenError(f"expected two numbers, found {content!r}") from None
        if tag in _NAMED and isinstance(content, str):
            return (named or _named)(tag, content)
        raise AtenError(f"unknown argument {json.dumps({tag: content})}")

    return [decode(a) for a in call[0]], {k: decode(v) for k, v in call[1].items()}


def check_call(text: str, operand_count: int) -> None:
    """Check the text, without PyTorch.

    Raises:
        AtenError: as `decode_call`.
    """
    decode_call(text, [None] * operand_count, lambda _: 0, named=_known, part=lambda *_: None)


def _part_of(content: Any, count: int) -> tuple[int, int, list[int]]:
    match content:
        case [int(index), int(offset), [*sizes]] if (
            0 <= index < count and offset >= 0 and all(type(s) is int and s >= 0 for s in sizes)
        ):
            return index, offset, sizes
    raise AtenError(f"expected [operand, first element, [sizes]], found {content!r}")


def _view(operand: Any, offset: int, sizes: list[int]) -> Any:
    return operand[offset : offset + math.prod(sizes)].view(sizes)


def _known(tag: str, content: str) -> str:
    if not _NAMES[tag].fullmatch(content):
        raise AtenError(f"torch has no {tag} named {content!r}")
    return content


def _named(tag: str, content: str) -> Any:
    import torch  # only here: the dialect itself loads without torch

    if tag == "device":
        try:
            return torch.device(content)
        except RuntimeError as error:
            raise AtenError(f"no such device: {error}") from None
    found = vars(torch).get(content)  # no attribute that is imported when it is asked for
    if type(found).__name__ != tag:
        raise AtenError(f"torch has no {tag} named {content!r}")
    return found


def find_overload(name: str) -> Any:
    """The overload that `overload` names.

    Raises:
        AtenError: torch has no such overload.
    """
    # the dialect itself loads without torch
    import torch

    parts = name.split(".")
    if len(parts) == 3 and all(part.isidentifier() for part in parts):
        space = getattr(torch.ops, parts[0])
        try:
            if parts[0] == NAMESPACE:
                return written_by_name(parts[1], parts[2])
            return getattr(getattr(space, parts[1]), parts[2])
        except (AttributeError, RuntimeError, ValueError):
            pass
    raise AtenError(f"no such overload: {name!r} (expected a name like aten.topk.default)")
