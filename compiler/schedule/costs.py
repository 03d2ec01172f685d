"""How long ops take on a device, by the cost model."""

from __future__ import annotations

from ..cost import Device, cost_of
from ..ssa import Body


def seconds_of(body: Body, device: Device) -> list[float]:
    """Each op's roofline time."""
    return [device.seconds(cost_of(o.op)) for o in body.ops]
