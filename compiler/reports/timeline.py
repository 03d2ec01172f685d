"""A simulated step of a program on many ranks: `gflow-opt --emit=timeline`.

The time of a computation is a lower bound (the roofline of its op). The time of a collective comes from the network
model. The table lists both. The part of a collective that runs while the rank computes is called covered.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from gflow.dialects.distribution.mesh import Mesh, mesh_of
from gflow.dialects.mlir import func
from gflow.dialects.records import record

from ..distribution.program_events import BETWEEN_NODES, NODE, program_events
from ..distribution.simulator import START, Event, Timeline, simulate
from ..ir.tables import ratio, table, time_text
from ..targets import Device
from ..targets.links import Network
from .visual.page import byte_text

RANKS = "each rank"


@record
class StepOnRanks:
    """A simulated step. `str()` gives the text for people.

    Attributes:
        name: the function's name.
        mesh: the mesh of ranks, or None for a program of one rank.
        line: the simulated timeline.
        events: the events of a rank, in program order.
    """

    name: str
    device: Device
    network: Network
    mesh: Mesh | None
    line: Timeline
    events: tuple[Event, ...]

    @property
    def seconds(self) -> float:
        """The predicted time of a step, in seconds."""
        return self.line.seconds

    @property
    def sent(self) -> int:
        """The bytes that a rank sends in the step."""
        return self.line.sent.get(RANKS, 0)

    @property
    def exposed(self) -> float:
        """The seconds that a rank waits for collectives."""
        return self.line.exposed(RANKS)

    @property
    def covered(self) -> float:
        """The share of sent bytes that move while the rank computes, from 0 to 1 (no rank waits)."""
        if not self.sent:
            return 1.0
        waited: defaultdict[str, float] = defaultdict(float)
        for span in self.line.spans:
            if span.stream == "wait":
                waited[span.label] += span.seconds
        shares = (
            e.nbytes * max(0.0, 1 - waited[e.label] / e.seconds)
            for e in self.events
            if e.kind == START and e.seconds
        )
        return sum(shares) / self.sent

    def __str__(self) -> str:
        mesh = (
            " x ".join(f"{a}={n}" for a, n in zip(self.mesh.axes, self.mesh.sizes))
            if self.mesh
            else "1"
        )
        ranks = prod(self.mesh.sizes) if self.mesh else 1
        computed = self.line.total(RANKS, "compute")
        rows = [
            ("step", time_text(self.seconds), ""),
            ("computing (floor)", time_text(computed), ratio(computed, self.seconds)),
            ("waiting for collectives", time_text(self.exposed), ratio(self.exposed, self.seconds)),
            ("collectives within a node", time_text(self.line.total(RANKS, NODE)), ""),
            ("collectives between nodes", time_text(self.line.total(RANKS, BETWEEN_NODES)), ""),
            ("bytes sent by a rank", byte_text(self.sent), ""),
            ("of these covered by work", f"{100 * self.covered:.1f} %", ""),
        ]
        head = f"@{self.name} on {ranks} ranks ({mesh}) of {self.device.name}, network {self.network.name}\n\n"
        return head + table(rows, "<>>") + "\n\n" + self._kinds() + "\n"

    def _kinds(self) -> str:
        starts = [e for e in self.events if e.kind == START]
        waits = [s for s in self.line.spans if s.stream == "wait"]
        rows = [("collective", "count", "bytes sent", "time", "waited for")]
        for what in dict.fromkeys(_kind(e.label) for e in starts):
            found = [e for e in starts if _kind(e.label) == what]
            rows.append((
                what, str(len(found)), byte_text(sum(e.nbytes for e in found)),
                time_text(sum(e.seconds for e in found)),
                time_text(sum(s.seconds for s in waits if _kind(s.label) == what)),
            ))  # fmt: skip
        return table(rows, "<>>>>")


def _kind(label: str) -> str:
    return label.rpartition(" #")[0]


def mesh_with(function: func.FuncOp, text: str) -> Mesh | None:
    """The function's mesh with other sizes of some axes.

    Args:
        text: the new sizes, for example "dp=64,tp=8"; "" changes nothing.

    Raises:
        ValueError: the text has another form, or names an axis that the mesh lacks.
    """
    mesh = mesh_of(function)
    if not text:
        return mesh
    sizes = dict(zip(mesh.axes, mesh.sizes)) if mesh is not None else {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in sizes:
            known = ", ".join(sizes) or "none"
            raise ValueError(f"the module's mesh has no axis '{axis}' (it has: {known})")
        if not size.isdigit() or int(size) < 1:
            raise ValueError(f"'{part}' is no number of ranks: write {axis}=8")
        sizes[axis] = int(size)
    return Mesh(tuple(sizes), tuple(sizes.values()))


def step_on_ranks(
    function: func.FuncOp, device: Device, network: Network, mesh: Mesh | None = None
) -> StepOnRanks:
    """Simulate a call of the function on all ranks of `mesh`, or of the function's own mesh if it is None."""
    mesh = mesh or mesh_of(function)
    events = program_events(function, device, network, mesh)
    name = str(function.name).strip('"')
    line = simulate({RANKS: events})
    return StepOnRanks(name, device, network, mesh, line, tuple(events))
