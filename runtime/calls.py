"""The arguments and results of a graph's call as plain data.

Arguments and results are nested lists, tuples and dicts; as JSON each is an object with one tag:
`{"tensor": 0}`, `{"list": [...]}`, `{"tuple": [...]}`, `{"dict": [[key, ...], ...]}`, `{"value": ...}`, and of a float
that is an input `{"number": name}`, of an int `{"integer": name}`.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gflow.dialects.records import record

_KINDS = {kind.name: kind for kind in inspect._ParameterKind}

#: tag of a number that is an input → its Python type
LIVE: dict[str, type] = {"number": float, "integer": int}


#: integers that an input of a program can be
_INTEGERS = range(-(1 << 63), 1 << 63)


@record
class LiveNumber:
    """A number among the arguments that is an input of programs, not a constant. tag: its kind. name: its name."""

    tag: str
    name: str

    @staticmethod
    def make(value: float, name: str) -> LiveNumber:
        """The number, with a name."""
        return LiveNumber("integer" if type(value) is int else "number", name)


def is_input(value: Any) -> bool:
    """Whether programs can take a number as an input. 0, infinities, NaN and integers beyond int64 cannot: Python and
    PyTorch treat them by special rules."""
    if type(value) is int:
        return value != 0 and value in _INTEGERS
    return type(value) is float and math.isfinite(value) and value != 0


def parameters_of(function: Callable[..., Any]) -> list[list[Any]]:
    """The parameters of a function: name and kind of each, and its default if that is plain data."""
    found: list[list[Any]] = []
    for p in inspect.signature(function).parameters.values():
        found.append([p.name, p.kind.name])
        tensors: list[torch.Tensor] = []
        if p.default is not p.empty:
            try:
                default = encode_arguments(p.default, tensors, shared=True)
            except TypeError:
                continue
            if not tensors:
                found[-1].append(default)
    return found


def encode_call(
    parameters: Sequence[Sequence[Any]],
    bound: Mapping[str, Any],
    tensors: list[torch.Tensor],
    shared: bool,
) -> Any:
    """A call as data, with defaults for arguments that were not given. bound: the given arguments; see
    `encode_arguments`.

    Raises:
        TypeError: an argument is neither a tensor nor plain data.
    """
    (items,) = encode_arguments(bound, tensors, shared).values()
    items += [[repr(p[0]), p[2]] for p in parameters if len(p) == 3 and p[0] not in bound]
    return {"dict": sorted(items, key=lambda item: item[0])}


def bind(
    parameters: Sequence[Sequence[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of each parameter that was given one.

    Raises:
        TypeError: the arguments do not fit.
    """
    found = []
    for name, kind, *_ in parameters:
        kind_of = _KINDS[kind]
        variable = kind_of in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        default = inspect.Parameter.empty if variable else None
        found.append(inspect.Parameter(name, kind_of, default=default))
    return dict(inspect.Signature(found).bind(*args, **kwargs).arguments)


def encode_arguments(value: Any, tensors: list[torch.Tensor], shared: bool) -> Any:
    """Arguments as data. Their tensors are appended to `tensors`, each once if `shared`.

    Raises:
        TypeError: an argument is neither a tensor nor plain data.
    """
    if isinstance(value, torch.Tensor):
        for n, known in enumerate(tensors if shared else ()):
            if known is value:
                return {"tensor": n}
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        return {"dict": [[repr(k), encode_arguments(v, tensors, shared)] for k, v in items]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode_arguments(v, tensors, shared) for v in value]}
    plain = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.memory_format)
    if isinstance(value, LiveNumber):
        return {value.tag: value.name}
    if value is None or isinstance(value, plain):
        return {"value": repr(value)}
    raise TypeError(f"an argument is a {type(value).__module__}.{type(value).__qualname__}")


def fits(given: Any, known: Any, numbers: dict[str, float]) -> bool:
    """Whether an encoded call fits a saved one. numbers: receives the numbers that are inputs, by name."""
    ((tag, content),), ((wanted, inside),) = given.items(), known.items()
    if wanted in LIVE:
        value = _number(content, LIVE[wanted]) if tag == "value" else None
        if value is None:
            return False
        numbers[inside] = value
        return True
    if tag != wanted or tag in ("tensor", "value") or len(content) != len(inside):
        return bool(tag == wanted and content == inside)
    if tag == "dict":
        return all(
            a[0] == b[0] and fits(a[1], b[1], numbers) for a, b in zip(content, inside, strict=True)
        )
    return all(fits(a, b, numbers) for a, b in zip(content, inside, strict=True))


def _number(text: str, kind: type) -> float | None:
    """The number that a text spells, if programs can take it as an input."""
    try:
        value: Any = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    fits = type(value) is kind and is_input(value)
    return value if fits else None


def encode_results(value: Any, index: Callable[[Any], int | None]) -> Any:
    """Results as data. index: gives the number of a leaf among the results; None for a leaf that is no result.

    Raises:
        TypeError: a leaf is neither a result nor plain data.
    """
    number = index(value)
    if number is not None:
        return {"tensor": number}
    if isinstance(value, dict):
        if all(isinstance(k, (str, int)) for k in value):
            return {"dict": [[k, encode_results(v, index)] for k, v in value.items()]}
    elif isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode_results(v, index) for v in value]}
    elif value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"build() returns a {type(value).__module__}.{type(value).__qualname__}")


def decode_results(value: Any, results: Sequence[torch.Tensor]) -> Any:
    """The inverse of `encode_results`, with the given tensors as results."""
    ((tag, content),) = value.items()
    if tag == "tensor":
        return results[content]
    if tag == "list":
        return [decode_results(v, results) for v in content]
    if tag == "tuple":
        return tuple(decode_results(v, results) for v in content)
    if tag == "dict":
        return {k: decode_results(v, results) for k, v in content}
    return content


def tensors_in(value: Any) -> list[int]:
    """The results that encoded results refer to, in order."""
    ((tag, content),) = value.items()
    if tag == "tensor":
        return [content]
    if tag in ("list", "tuple"):
        return [n for v in content for n in tensors_in(v)]
    return [n for _, v in content for n in tensors_in(v)] if tag == "dict" else []


def result_names(value: Any, prefix: str = "") -> dict[int, str]:
    """A dotted name for each result among encoded results: `loss`, `output.0`."""
    ((tag, content),) = value.items()
    if tag == "tensor":
        return {content: prefix or "output"}
    found: dict[int, str] = {}
    if tag in ("list", "tuple", "dict"):
        items = content if tag == "dict" else enumerate(content)
        base = f"{prefix}." if prefix else "" if tag == "dict" else "output."
        for key, item in items:
            found |= result_names(item, f"{base}{key}")
    return found
