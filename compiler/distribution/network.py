"""The cost model of collectives over the ranks of a mesh axis: bytes that a rank sends, and seconds.

The model is NCCL's (`src/graph/tuning.cc`). A ring moves each byte `steps / ranks` times over its slowest link, and
each step adds latency. An all-reduce may use a tree over the nodes instead, which has fewer steps and half the
bandwidth; the faster one counts. The rings of a node's devices use all network cards at the same time, so the members
of a group within a node share the cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, prod

from gflow.dialects.records import record

from ..targets.links import Network, Protocol


@record
class Group:
    """The ranks of a collective. size: their number. local: how many of them are on the same node."""

    size: int
    local: int

    @property
    def nodes(self) -> int:
        """The number of nodes that its ranks are on."""
        return ceil(self.size / self.local)


def group_of(sizes: Sequence[int], axes: Sequence[int], network: Network) -> Group:
    """The group along some axes of a mesh. Ranks are numbered row-major, and fill one node after the other.

    Args:
        sizes: the sizes of the mesh's axes.
        axes: the positions of the group's axes, increasing.
        network: the network, for the number of devices of a node.
    """
    strides = [prod(sizes[n + 1 :]) for n in range(len(sizes))]
    ranks = [0]
    for axis in axes:
        ranks = [r + i * strides[axis] for r in ranks for i in range(sizes[axis])]
    first = ranks[0] // network.node
    return Group(len(ranks), sum(1 for r in ranks if r // network.node == first))


def sent(kind: str, size: int, nbytes: int) -> int:
    """The bytes that each rank sends with the ring algorithm.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send" or "recv".
        size: the number of ranks.
        nbytes: the bytes of the whole tensor: the result of an all-gather, the operand of the others.
    """
    if size == 1 or kind == "recv":
        return 0
    if kind in ("broadcast", "send"):
        return nbytes
    return nbytes * (size - 1) // size * (2 if kind == "all_reduce" else 1)


def seconds(kind: str, group: Group, nbytes: int, network: Network) -> float:
    """The predicted time of a collective in seconds. Arguments as in `sent`."""
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
    """The bytes per second that a rank sends in a ring over the group."""
    if group.nodes == 1:
        return min(network.intra * protocol.share, protocol.intra)
    cards = min(network.intra, network.inter * group.local)
    return min(cards * protocol.share, protocol.inter)
