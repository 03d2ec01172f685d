"""What a collective over the ranks of a mesh axis costs: bytes that a rank sends, and seconds.

The model is NCCL's own (`src/graph/tuning.cc`): a ring moves each byte `steps / ranks` times over the slowest link of
the ring; latency is added by step. All-reduce may run over a tree of the nodes instead, which takes fewer steps and
half the bandwidth; the faster one counts. Rings of one node's devices leave it through all their network cards at
once, so that the members of a group within a node share the cards that they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, prod

from gflow.dialects.records import record

from ..targets.links import Network, Protocol


@record
class Group:
    """The ranks that take part in a collective: `size` of them, `local` within each node."""

    size: int
    local: int

    @property
    def nodes(self) -> int:
        """How many nodes its ranks lie on."""
        return ceil(self.size / self.local)


def group_of(sizes: Sequence[int], axes: Sequence[int], network: Network) -> Group:
    """The group of some axes of a mesh whose ranks are numbered row-major, and fill one node after another.

    Args:
        sizes: of the mesh's axes.
        axes: positions of those that take part, increasing.
    """
    strides = [prod(sizes[n + 1 :]) for n in range(len(sizes))]
    ranks = [0]
    for axis in axes:
        ranks = [r + i * strides[axis] for r in ranks for i in range(sizes[axis])]
    first = ranks[0] // network.node
    return Group(len(ranks), sum(1 for r in ranks if r // network.node == first))


def sent(kind: str, size: int, nbytes: int) -> int:
    """Bytes that each rank sends, as a ring does.

    Args:
        kind: of collective: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv".
        size: ranks of the group.
        nbytes: of the whole tensor: the result of an all-gather, the operand of the others.
    """
    if size == 1 or kind == "recv":
        return 0
    if kind in ("broadcast", "send"):
        return nbytes
    return nbytes * (size - 1) // size * (2 if kind == "all_reduce" else 1)


def seconds(kind: str, group: Group, nbytes: int, network: Network) -> float:
    """Seconds of a collective on a group whose ranks all wait for it. Arguments as in `sent`."""
    if group.size == 1:
        return 0.0
    return min(_with(p, kind, group, nbytes, network) for p in network.protocols)


def _with(protocol: Protocol, kind: str, group: Group, nbytes: int, network: Network) -> float:
    bandwidth = _bandwidth(protocol, group, network) * network.shares.get(kind, 1.0)
    if kind in ("send", "recv"):
        hop = protocol.inter_latency if group.nodes > 1 else protocol.intra_latency
        return protocol.start + hop + nbytes / bandwidth
    rounds = 2 if kind == "all_reduce" else 1
    between = rounds * (group.nodes - 1)
    within = rounds * (group.size - 1) - between
    latency = within * protocol.intra_latency + between * protocol.inter_latency
    ring = protocol.start + latency + sent(kind, group.size, nbytes) / bandwidth
    if kind != "all_reduce" or group.nodes == 1:
        return ring
    within, between = 2 * (group.local - 1), 2 * ceil(log2(group.nodes))
    latency = within * protocol.intra_latency + between * protocol.inter_latency
    return min(ring, protocol.start + latency + 2 * nbytes / bandwidth)


def _bandwidth(protocol: Protocol, group: Group, network: Network) -> float:
    """Bytes a second that a rank sends in a ring over the group."""
    if group.nodes == 1:
        return min(network.intra * protocol.share, protocol.intra)
    cards = min(network.intra, network.inter * group.local)
    return min(cards * protocol.share, protocol.inter)
