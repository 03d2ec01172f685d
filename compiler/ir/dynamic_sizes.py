"""Programs with dynamic sizes: which numbers depend on the size, and how.

A module with a dynamic size (`gflow.dialects.extents`) is compiled twice, with two primes in place of the size. Numbers
that agree in both programs are constants. An integer that differs is a polynomial of the size: its coefficients are
read from its value at the first prime and checked at the second. Any other difference (a float, the code of a kernel,
the number of steps) would be right for one size only, and is an error that names its op. So no pass and no code
generator specializes a dynamic size silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gflow.dialects import marks
from gflow.dialects.attributes import from_mlir
from gflow.dialects.extents import Extent, Piece, Symbol, evaluate, leaves, size_of_program
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import Attr
from gflow.dialects.program import AtenStep, Program, Size

from .errors import CompileError
from .modules import text_of

ROLE = "size"


class SizeError(CompileError):
    """Something depends on a dynamic size in a way that generated code cannot express."""


@contextmanager
def sized(root: ir.Operation) -> Iterator[None]:
    """A context in which integers belong to this module or function and its dynamic size."""
    with size_of_program(symbol_of(root)):
        yield


def symbol_of(root: ir.Operation) -> Symbol | None:
    """The dynamic size of a module or function, from the attributes of its arguments; also the second one, if it has
    two.

    Raises:
        SizeError: an attribute is missing; see `gflow.dialects.marks`.
    """
    for function in _functions(root):
        if "arg_attrs" not in function.attributes:
            continue
        found: list[Symbol] = []
        for given in ir.ArrayAttr(function.attributes["arg_attrs"]):
            attrs = ir.DictAttr(given)
            if "gflow.stand_in" in attrs:
                for message, _ in marks.problems(function):
                    raise SizeError(message)
                name = text_of(attrs, "gflow.name", "n")
                least, most, stand_in = (
                    ir.IntegerAttr(attrs[f"gflow.{key}"]).value
                    for key in ("min", "max", "stand_in")
                )
                flat = (
                    from_mlir(Attr("i64[]"), attrs["gflow.forms"]) if "gflow.forms" in attrs else []
                )
                forms = tuple(zip(flat[::2], flat[1::2]))
                found.append(Symbol(name, least, most, stand_in, forms=forms))
        if found:
            outer, *inner = sorted(found, key=lambda s: -s.stand_in)
            return replace(outer, second=inner[0]) if inner else outer
    return None


def _functions(root: ir.Operation) -> list[ir.Operation]:
    if root.name == "func.func":
        return [root]
    return [
        op.operation
        for region in root.regions
        for block in region.blocks
        for op in block.operations
        if isinstance(op.operation.opview, func.FuncOp)
    ]


def join(first: Program, second: Program, symbols: tuple[Symbol, Symbol]) -> Program:
    """Join the programs of two primes to one program for all sizes.

    Raises:
        SizeError: they differ in more than integers.
    """
    merge = _Merge(*symbols)
    given = {
        f.name: getattr(first, f.name)
        for f in fields(first)
        if f.name not in ("ir", "twin", "steps", "size", "seal")
    }
    steps = []
    if len(first.steps) != len(second.steps):
        raise SizeError(f"the number of steps of '{first.name}' depends on its size")
    for a, b in zip(first.steps, second.steps):
        steps.append(merge(a, b, getattr(a, "label", "")))
    made = {name: merge(a, getattr(second, name), name) for name, a in given.items()}
    places = {a.name: i for i, a in enumerate(first.arguments) if a.role == ROLE}
    symbol = symbols[0]
    arena = made["arena_bytes"]
    if isinstance(arena, Extent):  # scratch that grows with the size; memory is for the greatest
        if min(leaves(arena.coefficients)[1:]) < 0:
            raise SizeError(f"the scratch of '{first.name}' shrinks as its size grows: {arena}")
        made["arena_bytes"] = arena.at(symbol.greatest)
    size: Size | None = None
    for own in reversed(symbol.each):
        size = Size(own.name, own.least, own.most, places[own.name], size)
    return replace(first, **made, steps=steps, size=size, twin=second.ir)


class _Merge:
    def __init__(self, first: Symbol, second: Symbol) -> None:
        self.first, self.second = first, second
        self.apart = 0 if first.second is not None else first.stand_in - second.stand_in

    def __call__(self, a: Any, b: Any, where: str) -> Any:
        if type(a) is not type(b):
            raise self.error(a, b, where)
        if isinstance(a, int) and not isinstance(a, bool):
            return a if a == b else self.integer(a, b, where)
        if isinstance(a, Piece):
            if (a.first, a.limit) != (b.first, b.limit) or a.whole == b.whole:
                raise self.error(a, b, where)
            whole = self.integer(a.whole, b.whole, where)
            return replace(whole, first=a.first, limit=a.limit)
        if isinstance(a, AtenStep) and a.args != b.args:
            args = json.dumps(self.call(json.loads(a.args), json.loads(b.args), where))
            return replace(self(replace(a, args=""), replace(b, args=""), where), args=args)
        if is_dataclass(a):
            values = {
                f.name: self(getattr(a, f.name), getattr(b, f.name), where) for f in fields(a)
            }
            return type(a)(**values)  # type: ignore[misc, operator]
        if isinstance(a, (tuple, list)):
            if len(a) != len(b):
                raise self.error(a, b, where)
            items = [self(x, y, where) for x, y in zip(a, b)]
            return type(a)(*items) if hasattr(a, "_fields") else type(a)(items)
        if isinstance(a, dict):
            if a.keys() != b.keys():
                raise self.error(sorted(a), sorted(b), where)
            return {k: self(v, b[k], where) for k, v in a.items()}
        if a != b and not (a != a and b != b):
            raise self.error(a, b, where)
        return a

    def integer(self, a: int, b: int, where: str) -> Extent:
        """A polynomial from its values at two primes."""
        if self.apart:
            slope, rest = divmod(a - b, self.apart)
            if not rest and abs(slope) < self.second.stand_in // 4:
                return Extent((a - slope * self.first.stand_in, slope))
        coefficients = self.first.coefficients(a)
        if evaluate(coefficients, self.second.place) != b:
            raise self.error(a, b, where)
        return Extent(coefficients)

    def call(self, a: Any, b: Any, where: str) -> Any:
        """The arguments of a call as JSON; numbers that depend on the size are `{"n": coefficients}`."""
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            return [self.call(x, y, where) for x, y in zip(a, b)]
        if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            return {k: self.call(v, b[k], where) for k, v in a.items()}
        if a == b and type(a) is type(b):
            return a
        if type(a) is int and type(b) is int:
            return {"n": list(self.integer(a, b, where).coefficients)}
        raise self.error(a, b, where)

    def error(self, a: Any, b: Any, where: str) -> SizeError:
        return SizeError(
            f"{where}: this depends on the size {self.first} (gflow.dynamic_dim) in a way that one program "
            f"cannot follow: {_short(a)} for {self.first.stand_in}, {_short(b)} for "
            f"{self.second.stand_in}. Leave the dimension static."
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
