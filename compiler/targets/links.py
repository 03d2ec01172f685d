"""The table of networks that join devices. No number of a link stands anywhere else.

Sources:

- `intra`, `inter`: the rates that NCCL's own model has for the links of a node and for a network card
  (`src/graph/topo.h`): what a ring sustains, below the data sheet's 450 and 50 GB/s of an H100 with NDR.
- `PROTOCOLS`: NCCL's "simple" and "low latency" protocols over a ring, `src/graph/tuning.cc`; the latter is limited to
  141 GB/s in a node and 35 GB/s between nodes on an H100, 87.7 and 19 on an A100.
- `gloo`: two processes of one machine over its loopback interface, measured on two cores of an EPYC
  (`python -m benchmarks distributed --links`). `Network.calibrated` takes a machine's own figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from gflow.dialects.records import record


@record
class Protocol:
    """How a ring sends.

    Attributes:
        start: seconds that a collective takes before its first step.
        intra_latency, inter_latency: seconds of a step of the ring within a node, and between nodes.
        share: of the links' bandwidth.
        intra, inter: the most bytes a second within a node, and between nodes.
    """

    start: float
    intra_latency: float
    inter_latency: float
    share: float = 1.0
    intra: float = float("inf")
    inter: float = float("inf")


@record
class Network:
    """How devices are joined.

    Attributes:
        name: how options and reports call it.
        node: devices of a node; each has a network card of its own.
        intra, inter: bytes a second that one device sends within its node, and through its network card.
        protocols: the fastest of these counts.
        shares: by kind of collective, the share of the bandwidth that it reaches; 1 where none is named.
        beside: collectives run beside computations. Threads of Gloo need the cores that compute.
    """

    name: str
    node: int
    intra: float
    inter: float
    protocols: tuple[Protocol, ...]
    shares: Mapping[str, float] = field(default_factory=dict)
    beside: bool = True

    def calibrated(
        self, start: float, bandwidth: float, shares: Mapping[str, float] | None = None
    ) -> Network:
        """The same, one node, with a measured start (seconds), bandwidth (bytes a second) and shares of it."""
        protocols = (Protocol(start, 0.0, 0.0),)
        return replace(self, intra=bandwidth, protocols=protocols, shares=shares or {})


_SIMPLE = Protocol(8.4e-6, 3.4e-6, 14e-6)
_H100 = (_SIMPLE, Protocol(6.6e-6, 0.6e-6, 2.7e-6, 0.5, 141e9, 35e9))
_A100 = (_SIMPLE, Protocol(6.6e-6, 0.6e-6, 2.7e-6, 0.5, 87.7e9, 19e9))
_GLOO = {"all_gather": 1.15, "reduce_scatter": 0.65, "send": 2.0, "recv": 2.0}

NETWORKS = {
    n.name: n
    for n in (
        Network("h100", 8, 370e9, 50e9, _H100),
        Network("a100", 8, 240e9, 25e9, _A100),
        Network("gloo", 1 << 20, 1.7e9, 1.7e9, (Protocol(400e-6, 0.0, 0.0),), _GLOO, beside=False),
    )
}

#: the network of a device, where none is named
_NETWORK_OF = {"cpu": "gloo", "a100": "a100"}


def network_of(device: str, name: str = "") -> Network:
    """A network by its name, or the one that devices of a name are joined by.

    Raises:
        ValueError: there is no such network.
    """
    name = name or _NETWORK_OF.get(device, "h100")
    if name not in NETWORKS:
        raise ValueError(f"no network '{name}' (known: {', '.join(NETWORKS)})")
    return NETWORKS[name]
