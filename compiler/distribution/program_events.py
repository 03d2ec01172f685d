"""The events of one rank's program, from its IR: computations by their roofline, collectives by the network's model.

All ranks of an SPMD program do the same, so one rank represents all. The IR may be of any stage: a `gflow.collective`
is a start directly followed by its wait, and `gflow-split-collectives` puts work between the two. If the network's
collectives cannot overlap with computation, a start also waits.
"""

from __future__ import annotations

from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.distribution.mesh import Mesh, mesh_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.distribution import COLLECTIVE, START, WAIT

from ..ir import cost
from ..targets import Device
from ..targets.links import Network
from .network import Group, group_of, seconds, sent
from .simulator import COMPUTE, Event
from .simulator import START as STARTED
from .simulator import WAIT as WAITED

#: names of the links of a collective within a node, and between nodes
NODE, BETWEEN_NODES = "node", "between nodes"


def program_events(
    function: func.FuncOp, device: Device, network: Network, mesh: Mesh | None = None
) -> list[Event]:
    """The events of a rank in a call of the function, in order.

    Args:
        function: the function.
        device: the device of each rank.
        network: the network between ranks.
        mesh: the mesh; None: that of the function's module.
    """
    mesh = mesh or mesh_of(function)
    found: list[Event] = []
    for view in function.regions[0].blocks[0].operations:
        op = view.operation
        name = op.name.removeprefix("gflow.")
        if name in (COLLECTIVE, START):
            found.append(_started(op, mesh, network))
        if name in ((COLLECTIVE, WAIT) if network.beside else (COLLECTIVE, START)):
            started = op.operands[0].owner.operation if name == WAIT else op
            found.append(Event(WAITED, _label(started), collective=_name(started)))
        elif name not in (START, WAIT) and (took := cost.seconds(cost.cost_of(op), device)):
            found.append(Event(COMPUTE, name, took))
    return found


def collective_seconds(op: ir.Operation, mesh: Mesh | None, network: Network) -> float:
    """The predicted time in seconds of a collective, or of the collective that a start begins."""
    return seconds(*_sends(op, mesh, network), network)


def _sends(op: ir.Operation, mesh: Mesh | None, network: Network) -> tuple[str, Group, int]:
    """A collective's kind, its group, and the bytes of the whole tensor (as for `network.sent`)."""
    attrs = read(OPS[op.name.removeprefix("gflow.")], op.attributes)
    kind, ranks = attrs["kind"], attrs["ranks"]
    whole = op.results[0] if kind in ("all_gather", "recv") else op.operands[0]
    nbytes = builder.type_of(whole).nbytes
    if mesh is not None and attrs.get("axes"):
        group = group_of(mesh.sizes, sorted(mesh.axes.index(a) for a in attrs["axes"]), network)
    else:  # a process group: assume consecutive ranks
        group = Group(ranks, min(ranks, network.node))
    return kind, group, nbytes


def _started(op: ir.Operation, mesh: Mesh | None, network: Network) -> Event:
    kind, group, nbytes = _sends(op, mesh, network)
    return Event(
        STARTED,
        _label(op),
        seconds(kind, group, nbytes, network),
        _name(op),
        links=NODE if group.nodes == 1 else BETWEEN_NODES,
        nbytes=sent(kind, group.size, nbytes),
    )


def _name(op: ir.Operation) -> str:
    return f"#{ir.IntegerAttr(op.attributes['sequence']).value}"


def _label(op: ir.Operation) -> str:
    kind = ir.StringAttr(op.attributes["kind"]).value
    axes = op.attributes["axes"] if "axes" in op.attributes else op.attributes["group"]
    over = (
        ", ".join(str(a).strip('"') for a in axes)
        if isinstance(axes, ir.ArrayAttr)
        else str(axes).strip('"')
    )
    return f"{kind} over {over} {_name(op)}"
