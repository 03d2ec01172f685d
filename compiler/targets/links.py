"""The table of networks between devices. Every parameter of a link is in this file.

Sources:

- `intra`, `inter`: the rates in NCCL's model for the links of a node and for a network card (`src/graph/topo.h`). They
  are what a ring sustains, below the data sheet's 450 and 50 GB/s of an H100 with NDR.
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
    """Timing of one protocol of ring collectives.

    Attributes:
        start: seconds that a collective takes before its first step.
        intra_latency, inter_latency: latency of one step of the ring, in seconds, within a node and between nodes.
        share: the share of the links' bandwidth that the protocol reaches, from 0 to 1.
        intra, inter: the most bytes per second within a node, and between nodes.
    """

    start: float
    intra_latency: float
    inter_latency: float
    share: float = 1.0
    intra: float = float("inf")
    inter: float = float("inf")


@record
class Network:
    """A network between devices.

    Attributes:
        name: the network's name in options and reports.
        node: the number of devices in a node; each has its own network card.
        intra, inter: bytes per second that one device sends within its node, and through its network card.
        protocols: the available protocols; a collective is taken to use the fastest one for its size.
        shares: by kind of collective, the share of the bandwidth that it reaches; 1 for a kind that is not listed.
        beside: whether collectives overlap with computation. Gloo's do not: its threads need the cores that compute.
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

#: by device name, the network to assume when none is named
_NETWORK_OF = {"cpu": "gloo", "a100": "a100"}


def network_of(device: str, name: str = "") -> Network:
    """The network called `name`, or, without a name, the default network of `device`.

    Raises:
        ValueError: there is no such network.
    """
    name = name or _NETWORK_OF.get(device, "h100")
    if name not in NETWORKS:
        raise ValueError(f"no network '{name}' (known: {', '.join(NETWORKS)})")
    return NETWORKS[name]
