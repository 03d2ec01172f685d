"""Shardings that the program requests: `gflow.reshard`, over the mesh of the whole program."""

from __future__ import annotations

from gflow.compiler.ir.collectives import GRADIENT
from gflow.dialects.attributes import to_mlir
from gflow.dialects.distribution.mesh import COPIES
from gflow.dialects.opdef import Attr

from ..collectives import mark_gradient
from ..emitter import Emitter, Value
from ..global_view import placed
from ..registry import lowers


@lowers("gflow.reshard")
def reshard(em: Emitter, x: Value, placements: str, side: str) -> Value:
    """A value with another sharding. Along axes of the mesh that are not named, the sharding is open."""
    assert em.trace is not None
    sharding = placed(em.trace, dict(p.split(":") for p in placements.split()))
    made = em("reshard", x, sharding=sharding, side=side or None)
    op = made.ir.owner.operation
    mark_gradient(em, op)
    if GRADIENT in op.attributes:
        op.attributes[COPIES] = to_mlir(Attr("str[]"), em.trace.data_axes)
    return made
