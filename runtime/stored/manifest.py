"""Checks the manifest of a saved graph: presence, types and references of all entries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gflow.dialects.extents import Extent, leaves
from gflow.dialects.program import Argument, Program
from gflow.dialects.types import row_major_strides

from ..calls import LIVE, tensors_in
from ..composed.micro_batches import Split
from ..numbers import known
from ..sizes import fixed, times
from ..tensors import DTYPES, dtype_named
from .bundle import seal

_KINDS = frozenset(kind.name for kind in inspect._ParameterKind)
_SOURCES: Mapping[str, Callable[[Any], bool]] = {
    "input": lambda w: _count(w),
    "gradient": lambda w: type(w) is str,
    "number": lambda w: type(w) is str,
    "weights": lambda w: _list(w, lambda p: type(p) in (str, int)) and len(w) > 0,
    "rng": lambda w: w is None,
    "size": lambda w: w is None,
}
_MOST_DEPTH = 100

Test = Callable[[Any], bool]


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 47


def _list(value: Any, item: Test) -> bool:
    return type(value) is list and all(map(item, value))


def _text(value: Any) -> bool:
    return type(value) is str


def _plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def _input(value: Any) -> bool:
    if type(value) is not dict or value.keys() != {"name", "shape", "dtype", "strides"}:
        return False
    dtype_named(value["dtype"])
    shape, strides = value["shape"], value["strides"]
    if not _text(value["name"]) or not _list(shape, lambda s: s is None or _count(s)):
        return False
    if None in shape:  # sizes that vary, of a dense tensor
        return strides is None
    return _list(strides, _count) and len(shape) == len(strides)


def _structure(value: Any, leaf: Test, key: Test, depth: int = 0) -> bool:
    """Nested arguments or results as `calls` writes them."""
    if type(value) is not dict or len(value) != 1 or depth > _MOST_DEPTH:
        return False
    ((tag, content),) = value.items()
    if tag == "tensor":
        return _count(content)
    if tag in ("list", "tuple"):
        return _list(content, lambda v: _structure(v, leaf, key, depth + 1))
    if tag == "dict":
        return _list(
            content,
            lambda e: (
                type(e) is list
                and len(e) == 2
                and key(e[0])
                and _structure(e[1], leaf, key, depth + 1)
            ),
        )
    if tag in LIVE:
        return leaf is _text and _text(content)
    return tag == "value" and leaf(content)


def _expression(value: Any, count: int, depth: int = 0) -> bool:
    if type(value) is not dict or depth > _MOST_DEPTH:
        return False
    if value.keys() == {"number"}:
        return _count(value["number"]) and value["number"] < count
    if value.keys() == {"call", "args"}:
        return known(value["call"]) and _list(
            value["args"], lambda a: _expression(a, count, depth + 1)
        )
    return value.keys() == {"value"} and _plain(value["value"]) and type(value["value"]) is not str


def _split(value: Any) -> bool:
    if value is None:
        return True
    fields = {"count", "forward", "update", "inputs", "sums", "results"}
    if type(value) is not dict or value.keys() - {"stacked"} != fields:
        return False
    if type(value.get("stacked", False)) is not bool:
        return False
    lists = (value[name] for name in ("forward", "update", "inputs", "sums"))
    return (
        all(_list(v, _count) for v in lists) and _count(value["results"]) and _count(value["count"])
    )


#: of each program's entry: the name of a field to its test
_PROGRAM: Mapping[str, Test] = {
    "split": _split,
    "parameters": lambda v: _list(
        v,
        lambda p: (
            type(p) is list
            and len(p) in (2, 3)
            and all(map(_text, p[:2]))
            and p[1] in _KINDS
            and p[0].isidentifier()
            and all(_structure(default, _text, _text) for default in p[2:])
        ),
    ),
    "call": lambda v: _structure(v, _text, _text),
    "inputs": lambda v: _list(v, _input),
    "arguments": lambda v: _list(
        v, lambda s: type(s) is list and len(s) == 2 and s[0] in _SOURCES and _SOURCES[s[0]](s[1])
    ),
    "outputs": lambda v: _structure(v, _plain, lambda k: type(k) in (str, int)),
    "numbers": lambda v: _list(v, _text),
    "guards": lambda v: _list(
        v, lambda g: type(g) is dict and g.keys() == {"expr", "expected"} and _plain(g["expected"])
    ),
    "program": _count,
}
_MANIFEST: Mapping[str, Test] = {
    "name": _text,
    "training": lambda v: type(v) is bool,
    "target": _text,
    "versions": lambda v: type(v) is dict and all(x is None or type(x) is str for x in v.values()),
    "programs": lambda v: _list(v, lambda p: type(p) is dict) and len(v) > 0,
    "schedulers": lambda v: _list(v, lambda s: s is None or _scheduler(s)),
    "frozen": lambda v: v is True,
}
#: what an earlier gflow did not write, and where there is no machine code
_OPTIONAL = frozenset(("schedulers", "object", "split", "program", "frozen"))
_NOT_OURS = frozenset(("format", "version", "files", "sha256", "seal"))


def _scheduler(value: Any, depth: int = 0) -> bool:
    return (
        type(value) is dict
        and depth < 8
        and value.keys() <= {"class", "inner", "own", "optimizer"}
        and _text(value.get("class"))
        and _list(value.get("inner"), lambda s: _scheduler(s, depth + 1))
        and type(value.get("own", True)) is bool
        and _count(value.get("optimizer", 0))
    )


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Check that every field exists and has its type, and that there are no others.

    Raises:
        ValueError: a field is missing, unknown or of another type.
    """
    machine: dict[str, Test] = {"object": lambda v: type(v) is dict}
    _check(manifest, {**_MANIFEST, **machine}, "the manifest", _NOT_OURS)
    for n, described in enumerate(manifest["programs"]):
        _check(described, _PROGRAM, f"program {n} of the manifest", frozenset())
        count = len(described["numbers"])
        if not all(_expression(g["expr"], count) for g in described["guards"]):
            raise ValueError(f"program {n} of the manifest has a guard that is none")


def _check(
    given: Mapping[str, Any], tests: Mapping[str, Test], what: str, left_out: frozenset[str]
) -> None:
    unknown = given.keys() - tests.keys() - left_out
    missing = tests.keys() - given.keys() - _OPTIONAL
    if unknown or missing:
        raise ValueError(
            f"{what}: missing or unknown: {', '.join(sorted(unknown | missing))}; it may be of another version"
        )
    for name, test in tests.items():
        if name in given:
            try:
                good = test(given[name])
            except (ValueError, RecursionError):
                good = False
            if not good:
                raise ValueError(f"{what}: its {name!r} is malformed")


def check_seal(manifest: Mapping[str, Any]) -> None:
    """Check that the manifest is unchanged since it was written.

    Raises:
        ValueError: it was changed.
    """
    if manifest.get("seal") != seal(manifest):
        raise ValueError("it was changed since it was written, or is of an older gflow")


def check_fit(
    described: Mapping[str, Any], programs: Sequence[Program], arguments: Sequence[Argument | None]
) -> None:
    """Check that a signature's entry in the manifest fits its programs.

    arguments: the type of each of its arguments.

    Raises:
        ValueError: it isn't.
    """

    def wanted(holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"the manifest does not fit the program: {what}")

    split = None if described.get("split") is None else Split(**described["split"])
    inputs, sources = described["inputs"], described["arguments"]
    size = programs[0].size
    own = [] if size is None else [size.argument if split is None else split.forward[size.argument]]
    wanted([n for n, (kind, _) in enumerate(sources) if kind == "size"] == own, "its size")
    wanted(all(p.size is None for p in programs[1:]), "a size of an update")
    wanted(
        any(None in i["shape"] for i in inputs) == (size is not None), "inputs whose size varies"
    )
    forms: set[Extent] = set()
    for n, (source, argument) in enumerate(zip(sources, arguments, strict=True)):
        kind, where = source
        if kind == "rng":
            wanted(n == len(sources) - 1, "random numbers are not its last argument")
            wanted(argument is None or argument.type == ((2,), "i64"), "random numbers")
        if kind != "input" or argument is None:
            continue
        wanted(where < len(inputs), f"there is no input {where}")
        shape, strides = inputs[where]["shape"], inputs[where]["strides"]
        dtype = dtype_named(inputs[where]["dtype"])
        wanted(dtype == DTYPES[argument.type.dtype], f"input {where} is {dtype}")
        found: list[Any] = list(argument.type.shape)
        if split is not None and n in split.inputs and found:
            found[0] = times(found[0], split.count)
        if None in shape:
            assert size is not None
            varying = [None if isinstance(s, Extent) else s for s in found]
            wanted(shape == varying, f"input {where} has shape {shape}, its argument {varying}")
            forms |= {s for s in found if isinstance(s, Extent)}
            for k in (size.least, size.most):
                dense = row_major_strides(fixed(argument.type.shape, k))
                wanted(fixed(argument.strides, k) == dense, f"input {where} has other strides")
            continue
        wanted(shape == found, f"input {where} has shape {shape}, its argument {found}")
        whole = split is None or n not in split.inputs
        if whole and 0 not in shape and max(shape, default=1) > 1:
            wanted(strides == list(argument.strides), f"input {where} has strides {strides}")
    linear = all(len(leaves(f.coefficients)) == 2 and f.limit is None for f in forms)
    steps = [leaves(f.coefficients)[1] for f in forms if len(f.coefficients) == 2]
    wanted(len(forms) < 2 and linear and min(steps, default=1) > 0, "sizes of inputs")
    results = len(programs[0].results)
    given = results if split is None else split.results
    wanted(all(n < given for n in tensors_in(described["outputs"])), "a result that there is not")
    if split is None:
        return
    wanted(0 < split.count <= 1 << 20, f"{split.count} micro-batches")
    count = len(sources)
    every = (split.forward, split.update, split.inputs, split.sums)
    wanted(all(n < count for part in every for n in part), "an argument that there is not")
    wanted(split.results <= results, f"{split.results} results")
