"""Where the author says how ranks are to hold a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..distribution.sharding import ShardingRule, check_placement
from ..opdef import Attr, OpDef, VerifyError
from ..types import TensorType
from .factors import MOVED, elementwise

RESHARD = "reshard"
#: on an axis of which the author says nothing
OPEN = "?"


def _reshard(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    for placement in attrs["sharding"]:
        if placement == OPEN:
            continue
        try:
            check_placement(placement, operands[0].rank)
        except ValueError as error:
            raise VerifyError(f"sharding: {error}") from None
    return [operands[0]]


OPS: tuple[OpDef, ...] = (
    OpDef(
        RESHARD,
        "distribution",
        "x with the given sharding over the mesh of the module. `gflow-partition` replaces it by "
        "collectives",
        ("x",),
        {
            "sharding": Attr(
                "str[]",
                "for each mesh axis S(dimension), B (replicated), P(reduction) (partial), or ? (any)",
            ),
            "side": Attr(
                "str",
                "enter: from here to a `leave`, the author's program computes on the local part of each "
                "rank; plain: it computes on the whole, on every rank",
                optional=True,
                choices=("enter", "leave", "plain"),
            ),
        },
        infer=_reshard,
        amp="clear",
        cost=0,
        sharding=ShardingRule(elementwise((0,), passes=MOVED)),
    ),
)
