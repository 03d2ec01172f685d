"""Elementwise ops as expressions of Triton.

In registers, half precision is float32, rounded where the IR's element type requires it; other types are as in memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from gflow.compiler.kernel.registers import register_dtype
from gflow.dialects.ops import OPS
from gflow.dialects.types import FLOATS, HALVES

_TYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8",
    "i1": "int1",
}  # fmt: skip

_POINTERS = {
    "f64": "*fp64", "f32": "*fp32", "f16": "*fp16", "bf16": "*bf16", "i64": "*i64", "i32": "*i32",
    "i16": "*i16", "i8": "*i8", "ui64": "*u64", "ui32": "*u32", "ui16": "*u16", "ui8": "*u8", "i1": "*i1",
}  # fmt: skip

_PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

#: ops whose result is one of their operands, up to the sign, and needs no rounding
_EXACT = frozenset(
    {"maximum", "minimum", "neg", "abs", "sign", "copysign", "select", "floor", "ceil", "trunc", "round"}
)  # fmt: skip

#: ops that take literals
_OPERATORS = frozenset({"add", "sub", "mul", "select", "compare", "and", "or", "xor"})


def triton_type(dtype: str) -> str:
    """`tl.float32` for `f32`."""
    return f"tl.{_TYPES[dtype]}"


def pointer_type(dtype: str) -> str:
    """`*fp32` for `f32`: the type of a pointer in a signature."""
    return _POINTERS[dtype]


def scalar_type(dtype: str) -> str:
    """`fp32` for `f32`: the type of a number in a signature."""
    return _POINTERS[register_dtype(dtype)].removeprefix("*")


def loaded(text: str, dtype: str) -> str:
    """Convert a loaded value to its register type."""
    return f"{text}.to(tl.float32)" if dtype in HALVES else text


def rounded(text: str, dtype: str) -> str:
    """A float32 rounded to the nearest value of f16 or bf16, as float32."""
    return f"{text}.to({triton_type(dtype)}).to(tl.float32)"


def literal(value: Any, dtype: str) -> str:
    """A constant as an expression of its element type."""
    if dtype == "i1":
        return f"tl.full([], {bool(value)}, tl.int1)"
    if dtype in FLOATS:
        number = float(value)
        text = repr(number) if math.isfinite(number) else f'float("{number}")'
        return text if dtype != "f64" else f"tl.full([], {text}, tl.float64)"
    return str(int(value)) if dtype == "i32" else f"tl.full([], {int(value)}, {triton_type(dtype)})"


def elementwise(
    name: str,
    args: Sequence[str],
    arg_dtypes: Sequence[str],
    dtype: str,
    attrs: dict[str, Any],
    used: set[str],
    coarse: bool = False,
) -> str:
    """The elementwise op `name` as an expression.

    Args:
        name: the op's name.
        args: names of variables, or literals.
        arg_dtypes: the element types of the operands.
        dtype: the element type of the result.
        attrs: the op's attributes.
        used: the device functions that are called are added to it.
        coarse: whether the precision of a half-precision result suffices.
    """
    source = arg_dtypes[0]
    if name not in _OPERATORS:
        args = [_as_tensor(a, t) for a, t in zip(args, arg_dtypes)]
    if name == "convert":
        return convert(args[0], source, dtype)
    if name == "compare":
        if source == "i1" and attrs["predicate"] not in ("eq", "ne"):
            args = [f"{a}.to(tl.int32)" for a in args]
        return f"({args[0]} {_PREDICATES[attrs['predicate']]} {args[1]})"
    table = OPS[name].triton
    if source in FLOATS:
        keys = ["d", "f"] if source == "f64" else ["h", "f"] if coarse else ["f"]
    else:
        keys = ["b" if source == "i1" else "u" if source.startswith("ui") else "s"]
    template = next(table[key] for key in [*keys, "*"] if key in table)
    bits = re.sub(r"\D", "", source)
    text = template.format(*args, bits=bits)
    called = re.findall(r"\bgf\.(\w+)", text)
    used.update(f"gf_{c}" for c in called)
    text = re.sub(r"\bgf\.", "gf_", text)
    if dtype in HALVES and name not in _EXACT:
        return rounded(text, dtype)
    return text


def _as_tensor(text: str, dtype: str) -> str:
    """A literal as a tensor, so that it has methods; names of variables are returned as they are."""
    return (
        text
        if text.isidentifier() or text.startswith("tl.")
        else f"tl.full([], {text}, {triton_type(register_dtype(dtype))})"
    )


def convert(x: str, src: str, dst: str) -> str:
    """`x` of element type `src` as `dst`, by PyTorch's rules."""
    if src == dst:
        return x
    if dst == "i1":
        return f"({x} != 0)"
    if dst in HALVES:
        narrow = x if src in FLOATS else f"{x}.to(tl.float32)"
        return rounded(narrow, dst)
    source, target = register_dtype(src), triton_type(dst)
    if source == dst:
        return x
    if src in FLOATS and dst not in FLOATS:
        if dst in ("i64", "i32"):
            return f"{x}.to({target})"
        wide = "int64" if dst in ("ui32", "ui64") else "int32"
        return f"{x}.to(tl.{wide}).to({target})"
    if src == "i1" and dst in FLOATS:
        return f"{x}.to(tl.int32).to({target})"
    return f"{x}.to({target})"
