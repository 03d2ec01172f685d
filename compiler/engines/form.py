"""What a form for engines is: for each op that it has, how it is written; and which ops are brought into it how."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from gflow.compiler.ir.errors import CompileError
from gflow.dialects.attributes import read
from gflow.dialects.extents import current, varies
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.ops.distribution import COLLECTIVE, SHARD, START, WAIT
from gflow.dialects.ops.structure import ENGINE, ENGINE_YIELD
from gflow.dialects.records import record
from gflow.dialects.types import COMPLEX, TensorType, type_of

from .decompositions import DECOMPOSITIONS, calls, functions


class EngineError(CompileError):
    """A program, or a part of it, cannot be given to an engine; the message says what, where, and the way out."""


#: problems that an error lists
_MOST = 8


def refuse(what: str, problems: Sequence[str]) -> None:
    """Raises EngineError: there are problems; the message lists the first of them, each once."""
    if problems:
        problems = list(dict.fromkeys(problems))
        more = f"\n  and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
        listed = "\n  ".join(problems[:_MOST])
        raise EngineError(f"{what}:\n  {listed}{more}")


@record
class Call:
    """An op as plain data. results: their types."""

    op: ir.Operation
    name: str
    attrs: dict[str, Any]
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]

    @property
    def type(self) -> TensorType:
        """The (first) result's type."""
        return self.results[0]


def call_of(op: ir.Operation) -> Call:
    """An op of the dialect as plain data."""
    name = op.name.removeprefix("gflow.")
    definition = OPS[name]
    attrs = read(definition, op.attributes) if definition.attrs else {}
    return Call(
        op,
        name,
        attrs,
        tuple(type_of(v) for v in op.operands),
        tuple(type_of(v) for v in op.results),
    )


@record
class Row:
    """How a form writes an op.

    shown: its ops, for the docs. write: gets the writer, the call and what its operands are called there, gives what
    its results are. when: whether this call is one that the form has; others are decomposed.
    """

    shown: str
    write: Callable[[Any, Call, list[Any]], list[Any]]
    when: Callable[[Call], bool] | None = None

    @property
    def partly(self) -> bool:
        """Whether there are calls that are decomposed."""
        return self.when is not None


#: ops that no engine's form has, and why; `inline`: their region stands for them
NOWHERE = {
    "aten": "a call into PyTorch; the op stays with gflow",  # but for those in `CALLS`
    "check": "engines cannot end a run with an error of ours: in a partitioned program it stays with gflow, and "
    "files that are written leave it out",
    "quantized_matmul": "frozen graphs are for gflow's own kernels",
    "reshard": "a program for one device has none: gflow-partition makes collectives of it",
}
#: what engines that run within gflow's ranks leave to gflow, as does a form without collectives
ON_RANKS = {
    **dict.fromkeys(
        (COLLECTIVE, START, WAIT),
        "a collective is a step of gflow's: its process groups are PyTorch's",
    ),
    SHARD: "which rank this is, only gflow knows",
}
#: ops of regions: what is inside of them is written
INLINE = ("fused", "yield", ENGINE, ENGINE_YIELD)


@record
class Form:
    """A form: its name, and a row for each op that it has.

    dtypes: the element types that its engines take. without: ops that it cannot have, decomposed or not, and why.
    refuse: why it cannot have one call; "" if it can.
    """

    name: str
    rows: dict[str, Row] = field(repr=False)
    dtypes: frozenset[str]
    without: dict[str, str] = field(default_factory=dict)
    refuse: Callable[[Call], str] = lambda call: ""

    def why_not(self, call: Call) -> str:
        """Why an op cannot be brought into this form; "" if it can."""
        for without in (NOWHERE, self.without):
            if call.name in without and not (call.name == "aten" and decomposes(call)):
                return without[call.name]
        for ty in (*call.operands, *call.results):
            if ty.dtype not in self.dtypes:
                kind = "complex numbers" if ty.dtype in COMPLEX else ty.dtype
                return f"{self.name} has no {kind}"
        if refused := self.refuse(call) or _needs_fixed(call):
            return refused
        if call.name in INLINE or self.has(call) or decomposes(call):
            return ""
        dtype = (call.operands or call.results)[0].dtype
        return f"{self.name} has no gflow.{call.name} of {dtype}"

    def has(self, call: Call) -> bool:
        """Whether the form has an op (or a few) for this call."""
        row = self.rows.get(call.name)
        return row is not None and (row.when is None or row.when(call))


def decomposes(call: Call) -> bool:
    """Whether there is a decomposition for this call."""
    if call.name == "aten":
        return calls.applies(call.attrs, call.operands)
    if call.name in functions.FUNCTIONS:
        return functions.applies(call.name, (call.operands or call.results)[0].dtype)
    return call.name in DECOMPOSITIONS


_POOLS = ("avg_pool", "avg_pool_grad", "max_pool", "max_pool_grad")


def _needs_fixed(call: Call) -> str:
    """Why an op has no form while its sizes vary (`gflow.dialects.extents`); "" if it has."""
    if current() is None:
        return ""
    if call.name in _POOLS:
        dims = conv_dims(call.attrs["layout"], call.type.rank)[2]
        shapes = [ty.shape for ty in (call.operands[0], call.type)]
        if any(varies(shape[d]) for shape in shapes for d in dims):
            return "windows over a dimension that varies have no form for engines"
    if call.name == "partial_sums" and varies(math.prod(call.operands[0].shape[:-1])):
        return "runs of rows whose number varies have no form for engines"
    return ""
