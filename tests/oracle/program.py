"""A program as data.

A program is tensors (`TensorSpec`, each a view of a `Storage`), calls of PyTorch (`Call`), the names of
its results, and how it is run (`Settings`). It is written to JSON, and to Python text: `build(...)`, which
eager and gflow run alike, and which a reproduction consists of.

Arguments of calls are JSON. What JSON lacks is a dict of one key:

    {"r": "v3"}          a value: an argument, or the result of an earlier call ("v3[0]" of a tuple)
    {"d": "float32"}     a dtype
    {"s": [1, None, 2]}  a slice
    {"f": "inf"}         a float that JSON has no word for
    {"c": [1.0, 2.0]}    a complex number
    {"t": [...]}         a tuple
    {"py": "..."}        any other Python expression
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from .settings import Settings

Json = Any

#: dtypes in which float64 stands for what the program computes in
WIDER = {
    "float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128",
}  # fmt: skip


@dataclass(frozen=True)
class Storage:
    """Memory that tensors are views of. size: elements. fill: a kind of `tensors.FILLS`.
    values: elements written out, in place of a fill."""

    dtype: str
    size: int
    seed: int = 0
    fill: str = "normal"
    values: tuple[Json, ...] | None = None


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a program takes. role: "input", "parameter", "buffer", or "closure" (read from an
    enclosing scope). same: the name of the tensor that it is, where it is passed twice."""

    name: str
    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    role: str = "input"
    requires_grad: bool = False
    same: str | None = None


@dataclass(frozen=True)
class Call:
    """A call of PyTorch. target: "torch.add", "F.relu", a method ".add_", an attribute "@T", an operator
    "+" or "+=", "getitem", "setitem", or a sample of op_db, "op_db:name". result: a name, or "" where the
    call is made for its effect."""

    result: str
    target: str
    args: tuple[Json, ...] = ()
    kwargs: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """See the module. raises: what eager raises for it ("" if it runs). float64: whether the
    float64 run means the same (no conversions to narrower types)."""

    seed: int
    storages: tuple[Storage, ...]
    tensors: tuple[TensorSpec, ...]
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]
    settings: Settings = field(default_factory=Settings)
    raises: str = ""
    float64: bool = True

    def with_calls(self, calls: tuple[Call, ...]) -> Program:
        """The program with other calls; results that nothing makes any more are left out."""
        names = {t.name for t in self.tensors} | {c.result for c in calls if c.result}
        outputs = tuple(o for o in self.outputs if base_name(o) in names)
        return replace(self, calls=calls, outputs=outputs)


def base_name(reference: str) -> str:
    """The value that "v3[0]" is a part of."""
    return reference.partition("[")[0]


def references(value: Json) -> Iterator[str]:
    """Names of values in an argument."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "r":
                yield base_name(item)
            elif key not in ("d", "f", "c", "py"):
                yield from references(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from references(item)


def reads(call: Call) -> set[str]:
    """Names of the values that a call takes."""
    # values of keywords: one may be called r
    return {*references(list(call.args)), *references(list(call.kwargs.values()))}


# -- text


def expression(value: Json, dtypes: Mapping[str, str] = {}) -> str:
    """An argument as Python. dtypes: names of dtypes to exchange."""
    if isinstance(value, dict):
        ((kind, item),) = value.items()
        if kind in ("r", "py"):
            return item
        if kind == "d":
            return f"torch.{dtypes.get(item, item)}"
        if kind == "s":
            return "slice(" + ", ".join(expression(i, dtypes) for i in item) + ")"
        if kind == "f":
            return f"float({item!r})"
        if kind == "c":
            return f"complex({item[0]}, {item[1]})"
        if kind == "t":
            inner = ", ".join(expression(i, dtypes) for i in item)
            return f"({inner},)" if len(item) == 1 else f"({inner})"
        raise ValueError(f"unknown argument {value!r}")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(expression(i, dtypes) for i in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def op_db_name(target: str) -> str:
    """The name that a program's text has for an op of op_db."""
    return "op_db_" + re.sub(r"\W", "_", target.removeprefix("op_db:"))


def is_augmented(target: str) -> bool:
    """Whether a target is an assignment like `+=`."""
    return (
        target.endswith("=") and not target[0].isalpha() and target not in ("==", "<=", ">=", "!=")
    )


def statement(call: Call, dtypes: Mapping[str, str] = {}) -> str:
    """A call as a line of Python."""
    args = [expression(a, dtypes) for a in call.args]
    kwargs = [f"{k}={expression(v, dtypes)}" for k, v in call.kwargs.items()]
    target = call.target
    index = args[1][1:-1] if target in ("getitem", "setitem") and args[1].startswith("(") else None
    index = (index or args[1]) if target in ("getitem", "setitem") else ""
    if target == "setitem":
        return f"{args[0]}[{index}] = {args[2]}"
    if target == "getitem":
        made = f"{args[0]}[{index}]"
    elif is_augmented(target):
        return f"{args[0]} {target} {args[1]}"
    elif target[0] == ".":
        made = f"{args[0]}{target}({', '.join(args[1:] + kwargs)})"
    elif target[0] == "@" and len(target) > 1:
        made = f"{args[0]}.{target[1:]}"
    elif target.startswith("op_db:"):
        made = f"{op_db_name(target)}({', '.join(args + kwargs)})"
    elif target[0].isalpha():
        made = f"{target}({', '.join(args + kwargs)})"
    elif len(args) == 1:
        made = f"{target}{args[0]}"
    else:
        made = f"{args[0]} {target} {args[1]}"
    return f"{call.result} = {made}" if call.result else made


def source(program: Program, dtypes: Mapping[str, str] = {}) -> str:
    """`build(...)` as Python text: the tensors that are not from a closure by name, then the calls."""
    names = [t.name for t in program.tensors if t.role != "closure"]
    samples = sorted({c.target for c in program.calls if c.target.startswith("op_db:")})
    lines = [f"{op_db_name(t)} = op_db({t.removeprefix('op_db:')!r})" for t in samples]
    lines.append(f"def build({', '.join(names)}):")
    assigned = {base_name(c.args[0]["r"]) for c in program.calls if is_augmented(c.target)}
    closures = sorted(assigned & {t.name for t in program.tensors if t.role == "closure"})
    lines += [f"    global {', '.join(closures)}"] if closures else []
    lines += [f"    {statement(c, dtypes)}" for c in program.calls]
    lines.append(f"    return [{', '.join(program.outputs)}]")
    return "\n".join(lines) + "\n"


# -- JSON


def to_json(program: Program) -> str:
    return json.dumps(asdict(program))


def from_json(text: str) -> Program:
    data = json.loads(text)
    return Program(
        seed=data["seed"],
        storages=tuple(
            Storage(**{**s, "values": s["values"] and tuple(s["values"])}) for s in data["storages"]
        ),
        tensors=tuple(
            TensorSpec(**{**t, "shape": tuple(t["shape"]), "strides": tuple(t["strides"])})
            for t in data["tensors"]
        ),
        calls=tuple(Call(**{**c, "args": tuple(c["args"])}) for c in data["calls"]),
        outputs=tuple(data["outputs"]),
        settings=Settings.from_dict(data["settings"]),
        raises=data["raises"],
        float64=data["float64"],
    )


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype), name
    return found


Build = Callable[..., "list[torch.Tensor]"]
