"""The addresses of a planned function's values, and the list of steps; the base of both code generators."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gflow.dialects.attributes import read
from gflow.dialects.distribution.mesh import PARTS, SHARDING, WHOLE, mesh_of
from gflow.dialects.extents import at_most
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.structure import CHECK
from gflow.dialects.program import (
    Argument,
    AtenStep,
    Check,
    Place,
    Ranks,
    Result,
    Step,
    TensorRef,
)

from ..ir.errors import CompileError
from ..ir.modules import text_of
from ..ir.ssa import Body, Op, aliases
from ..ir.views import Layout, argument_strides
from ..kernel.description import descriptions
from ..memory.liveness import layouts_at_entry
from ..memory.places import results_of
from ..memory.spans import address


class Placement:
    """A planned function with the addresses of its values, and the steps of the program so far.

    Attributes:
        places: the address of each value that isn't a view, by value number.
        at: the layout of each value, by value number.
        arena: the bytes of the planned arena. Scratch that isn't planned follows it, and all steps share it.
        describe: describes its regions.
        constants, checks, steps: parts of the program.
        first_write: the number of the first step that writes to an argument; None: there is none.
        scratch_bytes: the bytes of the scratch behind the arena.
    """

    def __init__(self, function: func.FuncOp) -> None:
        self.function = function
        body, at = layouts_at_entry(function)
        # code generation adds values to them
        self.body: Body = replace(
            body, values=[*body.values], types=[*body.types], producer=[*body.producer]
        )
        self.at: list[Layout] = [*at]
        self.describe = descriptions(function)
        self.argument_strides = argument_strides(function, self.body)
        self.places: dict[int, Place] = {
            v: Place("arg", i, 0) for i, v in enumerate(self.body.arguments)
        }
        self.constants: list[bytes] = []
        self.checks: list[Check] = []
        self.steps: list[Step] = []
        self.first_write: int | None = None  # the step from which on arguments are written
        self.scratch_bytes = 0
        self.arena = ir.IntegerAttr(function.operation.attributes["gflow.arena_size"]).value

    def place(self, value: int) -> Place:
        """The address of a value's first element."""
        return address(value, self.body, self.at, self.places)

    def strides(self, value: int) -> tuple[int, ...]:
        """A value's strides in memory, in elements."""
        return self.at[value].strides

    def ref(self, value: int) -> TensorRef:
        """The address, type and strides (in elements) of a value, for a step."""
        return TensorRef(self.place(value), self.body.types[value], self.strides(value))

    def assign(self, o: Op) -> None:
        """Record the addresses of the results of `o` that its `gflow.buffers` states.

        Raises:
            CompileError: an address is malformed, or has other strides than the value's users expect.
        """
        found = results_of(o, self.at)
        if self.first_write is None and any(place.space == "arg" for place in found.values()):
            self.first_write = len(self.steps)
        self.places |= found

    def label(self, o: Op) -> str:
        """The op's name and source location, for messages and profiles."""
        return f"{o.name} {o.op.location}"

    def check(self, o: Op) -> int:
        """Record the error that a `gflow.check` reports, and return its number, from 1."""
        attrs = read(OPS[CHECK], o.op.attributes)
        self.checks.append(Check(attrs["error"], attrs["message"], self.label(o)))
        return len(self.checks)

    def scratch(self, size: int, wanted: bool = True) -> Place:
        """The address of the shared scratch, which gets at least `size` bytes if `wanted`."""
        if wanted:
            self.scratch_bytes = max(self.scratch_bytes, -(-at_most(size) // 64) * 64)
        return Place("arena", 0, self.arena)

    @contextmanager
    def planned_scratch(self, o: Op) -> Iterator[Callable[[], bool]]:
        """Inside the context, `scratch` gives the planned scratch of `o` in the arena (`gflow.scratch`).

        Yields a function that says whether the planned size suffices.
        """
        if "gflow.scratch" not in o.op.attributes:
            yield lambda: True
            return
        offset, size = ir.DenseI64ArrayAttr(o.op.attributes["gflow.scratch"])
        behind = self.arena, self.scratch_bytes
        self.arena, self.scratch_bytes = offset, 0
        used = 0
        try:
            yield lambda: used <= size
        finally:
            used = self.scratch_bytes
            self.arena, self.scratch_bytes = behind

    # -- through PyTorch

    def aten(
        self,
        label: str,
        overload: str,
        args: list[Any],
        inputs: Sequence[TensorRef],
        output: TensorRef,
    ) -> None:
        """Add a call of an ATen overload. In `args`, {"t": i} stands for input i."""
        call = json.dumps([args, {}])
        self.steps.append(AtenStep(overload, call, tuple(inputs), (output,), label))


def arguments(b: Placement) -> list[Argument]:
    """The program's arguments, with the names, roles and shardings that the function states."""
    function, found = b.function, []
    given: list[Any] = list(function.arg_attrs) if "arg_attrs" in function.attributes else []
    for i, (v, strides) in enumerate(zip(b.body.arguments, b.argument_strides)):
        attrs = given[i] if i < len(given) else {}
        role, name = text_of(attrs, "gflow.role", "input"), text_of(attrs, "gflow.name", f"arg{i}")
        pieces, part = _pieces(function, attrs), PARTS in attrs
        found.append(Argument(role, name, b.body.types[v], strides, pieces, part))
    return found


def _pieces(function: func.FuncOp, attrs: Any) -> Ranks | None:
    """The ranks over which an argument is sharded as flat pieces (ZeRO); None if it isn't.

    Raises:
        CompileError: the argument is a piece, and its sharding or the module's mesh is missing.
    """
    if WHOLE not in attrs:
        return None
    mesh = mesh_of(function)
    if mesh is None or SHARDING not in attrs:
        raise CompileError(f"an argument with '{WHOLE}' needs '{SHARDING}', and the module a mesh")
    placements = [ir.StringAttr(p).value for p in ir.ArrayAttr(attrs[SHARDING])]
    axes = tuple(axis for axis, p in zip(mesh.axes, placements) if p == "S(0)")
    return Ranks(axes, "", mesh.size(axes))


def results(b: Placement) -> list[Result]:
    """The program's results, with their names and the arguments that they update."""
    function, found = b.function, []
    stated = "res_attrs" in function.attributes
    given = list(ir.ArrayAttr(function.attributes["res_attrs"])) if stated else []
    for i, (v, alias) in enumerate(zip(b.body.returned, aliases(function, b.body))):
        attrs = ir.DictAttr(given[i]) if i < len(given) else {}
        found.append(Result(text_of(attrs, "gflow.name", f"result{i}"), b.body.types[v], alias))
    return found
