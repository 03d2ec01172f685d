"""Times of ops on a device, by the cost model."""

from __future__ import annotations

from gflow.compiler.ir.cost import cost_of, seconds
from gflow.compiler.ir.ssa import Body
from gflow.compiler.targets import Device


def seconds_of(body: Body, device: Device) -> list[float]:
    """The roofline time of each op, in seconds."""
    return [seconds(cost_of(o.op), device) for o in body.ops]
