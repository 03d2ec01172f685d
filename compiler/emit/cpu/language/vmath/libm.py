"""Calls of the C library's math functions, lane by lane.

A vector is passed to an out-of-line helper with a loop over the lanes, since sixteen inlined calls would take longer to
compile than the rest of the kernel. `Emitter.externals` records the called functions, and `declarations` writes them
for the module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .arith import Arith

# fmt: off
_UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
)
# fmt: on
_BINARY = ("pow", "atan2", "fmod")

# C name -> (element type, number of arguments)
FUNCTIONS: dict[str, tuple[str, int]] = {
    name + suffix: (scalar, arity)
    for names, arity in ((_UNARY, 1), (_BINARY, 2))
    for name in names
    for suffix, scalar in (("", "f64"), ("f", "f32"))
}

_HELPER = re.compile(r"gflow_lanes(\d+)_(\w+)")


def call(m: Arith, function: str, args: list[str]) -> str:
    """`function` (a C name, `sinf`) on scalars, or on each lane of vectors."""
    symbol = f"gflow_lanes{m.lanes}_{function}" if m.lanes else function
    m.e.externals.add(symbol)
    types = ", ".join([m.ty] * len(args))
    return m.e(f"llvm.call @{symbol}({', '.join(args)}) : ({types}) -> {m.ty}")


def declarations(externals: Iterable[str]) -> list[str]:
    """Module-level text for these `Emitter.externals`: each function once, in a fixed order.

    Raises:
        ValueError: a name is no function of libm.
    """
    functions: set[str] = set()
    helpers: list[str] = []
    for symbol in sorted(set(externals)):
        match = _HELPER.fullmatch(symbol)
        function = match[2] if match else symbol
        if function not in FUNCTIONS:
            raise ValueError(f"no declaration is known for the external function '{symbol}'")
        functions.add(function)
        if match:
            helpers.append(_helper(symbol, function, int(match[1])))
    lines = []
    for function in sorted(functions):
        scalar, arity = FUNCTIONS[function]
        lines.append(f"  llvm.func @{function}({', '.join([scalar] * arity)}) -> {scalar}")
    return lines + helpers


def _helper(symbol: str, function: str, lanes: int) -> str:
    scalar, arity = FUNCTIONS[function]
    vector = f"vector<{lanes}x{scalar}>"
    params = [f"%x{k}" for k in range(arity)]
    extracts = "\n".join(
        f"      %s{k} = vector.extract {p}[%i] : {scalar} from {vector}"
        for k, p in enumerate(params)
    )
    arguments = ", ".join(f"%s{k}" for k in range(arity))
    types = ", ".join([scalar] * arity)
    return f"""\
  llvm.func internal @{symbol}({", ".join(f"{p}: {vector}" for p in params)}) -> {vector}
      attributes {{passthrough = ["noinline"]}} {{
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %count = arith.constant {lanes} : index
    %result = scf.for %i = %zero to %count step %one iter_args(%acc = %x0) -> ({vector}) {{
{extracts}
      %y = llvm.call @{function}({arguments}) : ({types}) -> {scalar}
      %next = vector.insert %y, %acc[%i] : {scalar} into {vector}
      scf.yield %next : {vector}
    }}
    llvm.return %result : {vector}
  }}"""
