"""Checks ATen calls in files: whether a program may make them.

The overload must exist and change none of its arguments, as all overloads that lowering emits. Its arguments must have
the types of its schema.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from gflow.dialects.aten.calls import AtenError, decode_call, find_overload
from gflow.dialects.extents import N
from gflow.dialects.program import AtenStep

from ..steps.aten_step import register

#: of ATen: what reads files, prints, or takes memory for something else
_REFUSED = (
    "from_file",
    "_print",
    "_make_dep_token",
    "_test",
    "_nested",
    "_assert",
    "_cuda_",
    "_cudnn_init",
)
#: whose overloads run here: PyTorch's own, and what is registered with its dispatcher by libraries
_INTERNAL = frozenset(
    ("_c10d_functional", "_test", "c10d", "debugprims", "export", "higher_order", "inductor", "inline", "prim",
     "profiler", "rpc", "static_runtime", "symm_mem", "_dtensor", "_inductor_test", "compile_profiler")
)  # fmt: skip


class _Operand:
    """Stands for a tensor."""


_OPERAND = _Operand()


def check_call(step: AtenStep, device: str, size: N) -> None:
    """Check a step's call against its overload's schema.

    Args:
        device: "cpu" or "cuda", where the program runs.
        size: the program's dynamic size, 0 without one.

    Raises:
        ValueError: the call does not fit the schema.
    """
    func = overload(step.overload)
    operands = [_OPERAND] * len(step.inputs)
    args, kwargs = decode_call(
        step.args, operands, lambda _: 0, size, part=lambda operand, *_: operand
    )
    declared = list(func._schema.arguments)
    positional = [a for a in declared if not a.kwarg_only]
    if len(args) > len(positional):
        raise ValueError(
            f"{step.overload} takes {len(positional)} arguments, {len(args)} are given"
        )
    given = dict(zip((a.name for a in positional), args))
    for name, value in kwargs.items():
        if name in given or name not in {a.name for a in declared}:
            raise ValueError(f"{step.overload} has no argument {name!r} left")
        given[name] = value
    for argument in declared:
        if argument.name not in given:
            if not argument.has_default_value():
                raise ValueError(f"{step.overload} needs {argument.name!r}")
            continue
        value = given[argument.name]
        if not _fits(value, argument.real_type):
            raise ValueError(
                f"{step.overload}: {argument.name!r} is {value!r:.40}, no {argument.type}"
            )
        if isinstance(value, torch.device) and value.type not in (device, "cpu", "meta"):
            raise ValueError(f"{step.overload} on {value}")


@cache
def overload(name: str) -> Any:
    """The overload of a name.

    Raises:
        ValueError: there is none, or none that a program may call.
    """
    try:
        register(name)
        found = find_overload(name)
    except AtenError as error:
        raise ValueError(str(error)) from None
    space, packet, _ = name.split(".")
    if not isinstance(found, torch._ops.OpOverload):
        raise ValueError(f"{name} is no overload")
    if space in _INTERNAL or (space == "aten" and packet.startswith(_REFUSED)):
        raise ValueError(f"{name} is none of the overloads that programs call")
    if found._schema.is_mutable or not found._schema.returns:
        raise ValueError(f"{name} changes its arguments; programs call none such")
    if not any("Tensor" in str(r.type) for r in found._schema.returns):
        raise ValueError(f"{name} gives no tensor")
    return found


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of a schema's type."""
    kind = wanted.kind()
    if kind == "OptionalType":
        return value is None or _fits(value, wanted.getElementType())
    if kind == "ListType":
        element = wanted.getElementType()
        if isinstance(value, list):
            return all(_fits(v, element) for v in value)
        # one number stands for a list of them, where the schema has a length
        return element.kind() in _NUMBERS and _fits(value, element)
    if kind == "TensorType":
        # numbers are made tensors
        return value is _OPERAND or type(value) in (int, float, bool, complex)
    test = _KINDS.get(kind)
    return test is not None and test(value)


def _is_int(value: Any) -> bool:
    return (type(value) is int and -(1 << 63) <= value < 1 << 63) or type(value) is bool


def _is_enum(kind: type) -> Any:
    return lambda v: isinstance(v, kind) or type(v) is int


_NUMBERS = ("IntType", "SymIntType", "FloatType", "BoolType", "NumberType")
_KINDS = {
    "IntType": _is_int,
    "SymIntType": _is_int,
    "FloatType": lambda v: type(v) is float or _is_int(v),
    "BoolType": lambda v: type(v) is bool,
    "SymBoolType": lambda v: type(v) is bool,
    "NumberType": lambda v: type(v) in (float, complex) or _is_int(v),
    "ComplexType": lambda v: type(v) in (float, complex) or _is_int(v),
    "StringType": lambda v: type(v) is str,
    "DeviceObjType": lambda v: isinstance(v, torch.device),
    "ScalarTypeType": _is_enum(torch.dtype),
    "LayoutType": _is_enum(torch.layout),
    "MemoryFormatType": _is_enum(torch.memory_format),
    "GeneratorType": lambda v: v is None,
}
