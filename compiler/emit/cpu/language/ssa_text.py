"""A writer of MLIR text in SSA form.

Kernels are written as text and parsed once for each module. Formatting a line takes about a microsecond, and building
the same operation through the Python bindings ten times that. `gflow-opt --emit=kernels` prints the text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

_FLOAT_BITS = {"f32": ("<f", "<I", 8), "f64": ("<d", "<Q", 16)}


def float_literal(value: float, scalar: str) -> str:
    """`value` as an MLIR literal of type `scalar`. For f32 and f64 it is exact (hexadecimal), also for inf and NaN."""
    if scalar in _FLOAT_BITS:
        pack, unpack, digits = _FLOAT_BITS[scalar]
        try:
            raw = struct.pack(pack, value)
        except OverflowError:
            raw = struct.pack(pack, float("inf") if value > 0 else float("-inf"))
        return f"0x{struct.unpack(unpack, raw)[0]:0{digits}X}"
    return f"{value:.17e}"


class Emitter:
    """Appends operations to a text and names their results.

    `e("arith.addf %a, %b : f32")` appends `%v7 = arith.addf %a, %b : f32` and returns `%v7`.
    `const` values are emitted once, at the entry of the function that is being written.
    """

    def __init__(self) -> None:
        self._body: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}
        self._counter = 0
        self._indent = 2
        self.externals: set[str] = set()  # functions called, for `vmath.declarations`
        #: float32 values that are bfloat16 values, and the i32 whose lower half has their bits
        self.bf16_values: dict[str, str] = {}
        #: other float32 values that are bfloat16 values
        self.exact: set[str] = set()

    def fresh(self, prefix: str = "v") -> str:
        """A new SSA name, `%v12`."""
        self._counter += 1
        return f"%{prefix}{self._counter}"

    def line(self, text: str) -> None:
        """Append one line as it is."""
        self._body.append("  " * self._indent + text)

    def __call__(self, op: str) -> str:
        """Append an operation with one result; returns the result's name."""
        name = self.fresh()
        self.line(f"{name} = {op}")
        return name

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent the lines that are written inside this context."""
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def marked(self, mark: str) -> Iterator[None]:
        """End the lines that are written inside this context with a comment."""
        start = len(self._body)
        yield
        self._body[start:] = [f"{line} {mark}" for line in self._body[start:]]

    def const(self, value: float | int | bool, ty: str) -> str:
        """A constant of scalar type (`f32`, `i64`, `i1`, `index`) or vector type (`vector<16xf32>`), splat."""
        vector = ty.startswith("vector<")
        scalar = ty[ty.rindex("x") + 1 : -1] if vector else ty
        if scalar.startswith(("f", "bf")):
            literal = float_literal(float(value), scalar)
        elif scalar == "i1":
            literal = "true" if value else "false"
        else:
            literal = str(int(value))
        key = (literal, ty)
        if key not in self._constants:
            self._constants[key] = self.fresh("c")
        return self._constants[key]

    def steps(self, lanes: int, scalar: str) -> str:
        """The vector 0, 1, 2, … of integer type `scalar`."""
        literal = f"[{', '.join(map(str, range(lanes)))}]"
        return self._constants.setdefault((literal, f"vector<{lanes}x{scalar}>"), self.fresh("c"))

    def constant_lines(self) -> list[str]:
        """The definitions of all constants that were used so far, for the function's entry."""
        lines = []
        for (literal, ty), name in self._constants.items():
            if ty.startswith("vector<"):
                lines.append(f"    {name} = arith.constant dense<{literal}> : {ty}")
            elif ty == "i1":
                lines.append(f"    {name} = arith.constant {literal}")
            else:
                lines.append(f"    {name} = arith.constant {literal} : {ty}")
        return lines

    def text(self) -> str:
        """The text: constants, then the body."""
        return "\n".join(self.constant_lines() + self._body)
