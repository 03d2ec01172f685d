"""What Gloo takes for collectives on this machine, and the network that follows from it.

A collective over one machine is a start and the bytes that a rank sends at a bandwidth, which differs by kind. Before
each, other data goes through the caches, as within a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch
import torch.distributed as dist

from benchmarks.distributed.clocks import CLOCKS, timed
from gflow.compiler.distribution.network import sent
from gflow.compiler.targets.links import NETWORKS, Network
from gflow.runtime.distributed.steps import all_gather, all_reduce, reduce_scatter

SIZES = (1 << 12, 1 << 18, 1 << 21, 1 << 23, 1 << 24)
#: bytes that go through the caches in between
_OTHERS = 1 << 26
#: by kind and bytes of the whole tensor, seconds
Found = Mapping[str, Mapping[int, float]]


def measured(sizes: Sequence[int]) -> dict[str, dict[str, dict[int, float]]]:
    """By clock, one collective of each kind and size, which all ranks begin together."""
    found: dict[str, dict[str, dict[int, float]]] = {clock: {} for clock in CLOCKS}
    rank, ranks = dist.get_rank(), dist.get_world_size()
    others = torch.zeros(_OTHERS // 4)
    for nbytes in sizes:
        whole = torch.zeros(nbytes // 4 // ranks * ranks)
        part = torch.zeros(whole.numel() // ranks)
        for kind, run in _kinds(whole, part, rank).items():
            run()  # once, so that its buffers are there
            others += 1
            for clock, seconds in timed(run).items():
                found[clock].setdefault(kind, {})[nbytes] = seconds
    return found


def _kinds(whole: torch.Tensor, part: torch.Tensor, rank: int) -> dict[str, Callable[[], object]]:
    def message() -> None:
        if rank < 2:
            dist.send(whole, 1) if rank == 0 else dist.recv(whole, 0)

    return {
        "all_reduce": lambda: all_reduce(whole, None).wait(),
        "all_gather": lambda: all_gather(whole, part, None).wait(),
        "reduce_scatter": lambda: reduce_scatter(part, whole, None).wait(),
        "send": message,
    }


def slowest(answers: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[int, float]]:
    """Of what the ranks have measured, whose sizes are texts in JSON."""
    return {
        kind: {int(n): max(a[kind][n] for a in answers) for n in sizes}
        for kind, sizes in answers[0].items()
    }


def medians(rounds: Sequence[Found]) -> dict[str, dict[int, float]]:
    """Of several measurements."""
    first = rounds[0]
    return {
        kind: {n: median(r[kind][n] for r in rounds) for n in sizes}
        for kind, sizes in first.items()
    }


def network_of(found: Found, ranks: int) -> Network:
    """Gloo's network with the start and the bandwidths that fit best, relative to the times measured."""
    start = median(min(sizes.values()) for sizes in found.values())
    rates = {}
    for kind, sizes in found.items():
        pairs = [(sent(kind, ranks, n) / t, (t - start) / t) for n, t in sizes.items()]
        rates[kind] = sum(u * u for u, _ in pairs) / max(sum(u * v for u, v in pairs), 1e-30)
    best = rates["all_reduce"]
    return NETWORKS["gloo"].calibrated(start, best, {k: rate / best for k, rate in rates.items()})


def text_of(found: Found, network: Network, ranks: int) -> str:
    """The times, and the network that follows, for people."""
    lines = [f"{'':16}" + "".join(f"{n >> 10:>9} KiB" for n in SIZES)]
    for kind, sizes in found.items():
        lines.append(f"{kind:16}" + "".join(f"{1e3 * t:>10.2f} ms" for t in sizes.values()))
    (protocol,) = network.protocols
    rates = ", ".join(f"{k} {network.intra * s / 1e9:.2f}" for k, s in network.shares.items())
    lines.append(
        f"{ranks} ranks: a start of {1e6 * protocol.start:.0f} µs, GB/s that a rank sends: {rates}"
    )
    return "\n".join(lines)
