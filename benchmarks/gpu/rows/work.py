"""One piece of work by a graph and by its peers: first checked, then timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.children import error_of
from benchmarks.gpu.graphs import graph_of
from benchmarks.gpu.record import Row
from benchmarks.gpu.rows import exactness, own_kernels
from benchmarks.gpu.setting import Setting, best_ratio, medians

Run = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """function: of the inputs, by PyTorch; its results are tensors. exact: the same for wide types, where `function`
    would need too much memory; else None. peers: other ways to do it, by name. flops: of one run."""

    function: Callable[..., list[Tensor]]
    inputs: Sequence[Tensor]
    exact: Callable[..., list[Tensor]] | None = None
    peers: Mapping[str, Run] = field(default_factory=dict)
    flops: float = 0.0


def measure(setting: Setting, work: Work, *, alone: bool) -> Row:
    """Errors against float64 beside eager's, and, if they may pass, times.

    alone: our own kernels without libraries, too: each of their configurations is checked and timed.

    The row's `ok` is that of the check. `ran` says what was timed as "gflow".
    """
    row, graphs = _checks(setting, work, alone)
    if setting.where.type == "cuda":
        torch.cuda.empty_cache()
    peers: dict[str, Run] = {name: partial(graph, *work.inputs) for name, graph in graphs.items()}
    row["failed"] = {}
    for name, peer in work.peers.items():
        try:
            peer()
            setting.sync()
            peers[name] = peer
        except Exception as error:  # a library says what it cannot do
            row["failed"][name] = error_of(error)
    samples = setting.interleaved(peers)
    found, others = medians(samples), [name for name in peers if name in work.peers]
    row |= {"ms": found, "ratio": best_ratio(samples, "gflow", others)}
    if alone:
        row["own_ratio"] = best_ratio(samples, "own kernels", others)
    if work.flops:
        row["tflop_per_s"] = work.flops / found["gflow"] / 1e9
    return row


def _checks(setting: Setting, work: Work, alone: bool) -> tuple[Row, dict[str, Any]]:
    """The row as far as it tells of errors, and the graphs to time, by name."""
    kind, exact = exactness.exact_of(work.exact or work.function, work.inputs)
    eager = work.function(*work.inputs)

    def check(found: Sequence[Tensor]) -> dict[str, Any]:
        return exactness.compare(found, eager, exact)

    graphs = {"gflow": graph_of(setting, work.function)}
    row: Row = {"exact": kind, **checked(setting, graphs["gflow"], work.inputs, check)}
    row["ran"] = own_kernels.what_ran(graphs["gflow"])
    if not alone:
        return row, graphs
    graphs["own kernels"] = own = graph_of(setting, work.function, libraries=False)
    row["own"] = checked(setting, own, work.inputs, check)
    row["own"]["ran"] = own_kernels.what_ran(own)
    configurations = own_kernels.each_configuration(setting, own, work.inputs, check)
    row["own"]["configurations"] = configurations
    wrong = [c["config"] for c in configurations if c["ok"] is False]
    row["ok"] = row["ok"] and row["own"]["ok"] and not wrong
    if wrong:
        row["error"] = f"wrong results by {'; '.join(wrong)}"
    return row, graphs


def checked(
    setting: Setting,
    graph: Any,
    inputs: Sequence[Tensor],
    check: Callable[[Sequence[Tensor]], dict[str, Any]],
) -> dict[str, Any]:
    """What `check` says of a graph's results: step by step, while a CUDA graph is made, and from it. All runs of our
    own kernels give the same bits."""
    first = [t.clone() for t in graph(*inputs)]
    same = True
    for _ in range(2):
        found = graph(*inputs)
        same = same and all(torch.equal(_bits(a), _bits(b)) for a, b in zip(first, found))
    setting.sync()
    answer = check(found)
    if not same and not own_kernels.what_ran(graph)["library"]:
        answer |= {"ok": False, "error": "results change from call to call"}
    return {**answer, "same_bits": same}


def _bits(t: Tensor) -> Tensor:
    """NaNs are equal as bits."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return t.view(kinds[t.element_size()]) if t.element_size() in kinds else t
