"""Steps of collectives, which PyTorch's process groups execute; the same for all targets."""

from __future__ import annotations

from typing import Any

from gflow.dialects.attributes import read
from gflow.dialects.distribution.mesh import mesh_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.distribution import START
from gflow.dialects.program import CollectiveStep, Ranks, ShardStep, WaitStep

from ..ir.collectives import GRADIENT
from ..ir.errors import CannotLower
from ..ir.ssa import Op
from .placement import Placement


def axis_sizes(function: func.FuncOp) -> dict[str, int]:
    """The mesh of a function's module, as `Program.mesh`."""
    mesh = mesh_of(function)
    return {} if mesh is None else dict(zip(mesh.axes, mesh.sizes))


def start(b: Placement, o: Op) -> None:
    """Add the step of a `gflow.collective_start`.

    Raises:
        CannotLower: it splits or concatenates along another dimension than the first.
    """
    attrs = read(OPS[START], o.op.attributes)
    kind = attrs["kind"]
    if attrs["dim"] or attrs["concat_dim"]:
        raise CannotLower(
            f"{kind} along dimension {attrs['dim'] or attrs['concat_dim']}; run gflow-normalize-collectives first"
        )
    b.steps.append(
        CollectiveStep(
            kind,
            _ranks(attrs),
            attrs["sequence"],
            None if kind == "recv" else b.ref(o.operands[0]),
            None if kind == "send" else b.ref(o.results[0]),
            b.label(o),
            attrs["reduction"] or "",
            -1 if attrs["root"] is None else attrs["root"],
            -1 if attrs["peer"] is None else attrs["peer"],
            tuple(attrs["sends"] or ()),
            tuple(attrs["takes"] or attrs["sends"] or ()),
            ir.StringAttr(o.op.attributes[GRADIENT]).value if GRADIENT in o.op.attributes else "",
        )
    )


def wait(b: Placement, o: Op) -> None:
    """Add the step of a `gflow.collective_wait`, whose result has the address of the start's result."""
    started = b.body.ops[b.body.producer[o.operands[0]]]
    number = ir.IntegerAttr(started.op.attributes["sequence"]).value
    b.steps.append(WaitStep(number, b.label(started)))


def shard(b: Placement, o: Op) -> None:
    """Add the step of a `gflow.shard`."""
    attrs = read(OPS["shard"], o.op.attributes)
    b.steps.append(ShardStep(_ranks(attrs), b.ref(o.operands[0]), b.ref(o.results[0]), b.label(o)))


def _ranks(attrs: dict[str, Any]) -> Ranks:
    return Ranks(tuple(attrs["axes"] or ()), attrs["group"] or "", attrs["ranks"])
