"""The description of a format for engines ("form"): a table of ops with how each is written.

An op that isn't in the table, or a call that its row does not support, is decomposed if there is a decomposition.
"""

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
    """A program, or a part of it, cannot be translated for an engine. The message says what, where, and what to do."""


#: the most problems that an error lists
_MOST = 8


def refuse(what: str, problems: Sequence[str]) -> None:
    """Raise an error if there are problems. what: the start of its message.

    Raises:
        EngineError: there are problems. The message lists the first ones, each once.
    """
    if problems:
        problems = list(dict.fromkeys(problems))
        more = f"\n  and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
        listed = "\n  ".join(problems[:_MOST])
        raise EngineError(f"{what}:\n  {listed}{more}")


@record
class Call:
    """An op as plain data."""

    op: ir.Operation
    name: str
    attrs: dict[str, Any]
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]

    @property
    def type(self) -> TensorType:
        """The type of the first result."""
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
    """How a format writes an op.

    Attributes:
        shown: the format's ops, for the docs.
        write: takes the writer, the call and the operands' values in the format; returns the values of the results.
        when: whether the format supports a call of the op; other calls are decomposed.
    """

    shown: str
    write: Callable[[Any, Call, list[Any]], list[Any]]
    when: Callable[[Call], bool] | None = None

    @property
    def partly(self) -> bool:
        """Whether some calls of the op are decomposed."""
        return self.when is not None


#: ops that no format has, and why
NOWHERE = {
    "aten": "a call into PyTorch; the op stays with gflow",  # except those in `CALLS`
    "check": "engines cannot end a run with an error of ours: in a partitioned program it stays with gflow, and "
    "files that are written leave it out",
    "quantized_matmul": "frozen graphs are for gflow's own kernels",
    **dict.fromkeys(("put", "scaled_matmul", "softmax_runs"), "part of programs for GPUs"),
    "reshard": "a program for one device has none: gflow-partition makes collectives of it",
}
#: ops that engines inside gflow's programs leave to gflow, and formats without collectives refuse
ON_RANKS = {
    **dict.fromkeys(
        (COLLECTIVE, START, WAIT),
        "a collective is a step of gflow's: its process groups are PyTorch's",
    ),
    SHARD: "which rank this is, only gflow knows",
}
#: ops whose regions are inlined
INLINE = ("fused", "yield", ENGINE, ENGINE_YIELD)


@record
class Form:
    """A format.

    Attributes:
        name: its name.
        rows: a row for each op.
        dtypes: the element types that its engines support.
        without: ops that it does not support, even by decomposition, and why.
        refuse: gives the reason why a call isn't supported; "" if it is.
    """

    name: str
    rows: dict[str, Row] = field(repr=False)
    dtypes: frozenset[str]
    without: dict[str, str] = field(default_factory=dict)
    refuse: Callable[[Call], str] = lambda call: ""

    def why_not(self, call: Call) -> str:
        """The reason why a call cannot be translated to this format; "" if it can."""
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
        """Whether the format has a row for this call, so that no decomposition is needed."""
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
    """The reason why a call with dynamic dimensions (`gflow.dialects.extents`) isn't supported; "" if it is."""
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
