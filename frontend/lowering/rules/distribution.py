"""How ranks hold a value: `gflow.reshard`, over the mesh of the whole program."""

from __future__ import annotations

from ..emitter import Emitter, Value
from ..global_view import placed
from ..registry import lowers


@lowers("gflow.reshard")
def reshard(em: Emitter, x: Value, placements: str, side: str) -> Value:
    """Axes of the mesh that are not named have the value in full."""
    assert em.trace is not None
    sharding = placed(em.trace, dict(p.split(":") for p in placements.split()))
    return em("reshard", x, sharding=sharding, side=side or None)
