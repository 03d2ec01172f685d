"""One measurement in a process of its own: `python -m benchmarks.child JSON`.

The argument is a request (`mode`, `item`, `peers`, `rounds`, `quick`, …), the last line of the
output its answer, both JSON. A process each, so that a peer starts cold, so that its memory is
its own, and so that a crash costs one row and not the run.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.compile_time import passes
from benchmarks.harness.measure import in_turns, in_turns_beside
from benchmarks.harness.neighbour import neighbour
from benchmarks.harness.peers import Step, gflow_step, import_libraries, make_step
from benchmarks.workloads.items import decoder, make_work
from examples.peak_memory import MIB, peak, release_unused, reset_peak, resident

WARM_UP_STEPS = 3
SAMPLE_SECONDS = 0.03  # a sample repeats a short step until it takes about this long
MEMORY_STEPS = 3


def first_call(request: dict[str, Any]) -> dict[str, Any]:
    """From before the peer is asked for anything until its first result."""
    work = make_work(request["item"], request["quick"])
    start = time.perf_counter()
    make_step(request["peers"][0], work)()
    return {"seconds": time.perf_counter() - start}


def libraries(request: dict[str, Any]) -> dict[str, Any]:
    """Import what the peer needs, so that Python's bytecode is on disk for the readings that come, as after an
    installation: reading sources takes longer than all else of a small first call."""
    import_libraries(request["peers"][0])
    return {}


def memory(request: dict[str, Any]) -> dict[str, Any]:
    """Peak of resident memory over what model, inputs and libraries take.

    `first` covers the first call with its compilation, `steady` the steps after the warm-up.
    """
    peer = request["peers"][0]
    work = make_work(request["item"], request["quick"])
    import_libraries(peer)
    release_unused()
    reset_peak()
    before = resident()
    step = make_step(peer, work)
    for _ in range(WARM_UP_STEPS):
        step()
    first = peak() - before
    release_unused()
    reset_peak()
    for _ in range(MEMORY_STEPS):
        step()
    steady = peak() - before
    return {"first_mib": first / MIB, "steady_mib": steady / MIB}


def steps(request: dict[str, Any]) -> dict[str, Any]:
    """Peers take turns: a sample of each in every round, another one first each time.

    With `busy`, each round has a second half in which another process computes on one of the cores.
    """
    ready: dict[str, tuple[Step, int]] = {}
    errors: dict[str, str] = {}
    results: dict[str, list[Tensor]] = {}
    for peer in request["peers"]:
        try:
            step = make_step(peer, make_work(request["item"], request["quick"]))
            results[peer] = [_flat(step()) for _ in range(WARM_UP_STEPS)]
            ready[peer] = (step, _repeats(step))
        except Exception as error:  # a peer that fails costs its own column only
            traceback.print_exc()
            errors[peer] = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    busy: dict[str, list[float]] = {}
    if request.get("busy"):
        with neighbour() as beside:
            samples, busy = in_turns_beside(ready, request["rounds"], beside)
    else:
        samples = in_turns(ready, request["rounds"])
    return {
        "step_ms": {peer: median(times) for peer, times in samples.items()},
        "busy_ms": {peer: median(times) for peer, times in busy.items()},
        "busy_samples_ms": {peer: [round(t, 4) for t in times] for peer, times in busy.items()},
        "best_ms": {peer: min(times) for peer, times in samples.items()},
        "samples_ms": {peer: [round(t, 4) for t in times] for peer, times in samples.items()},
        "difference": _differences(results),
        "load": round(os.getloadavg()[0], 2),
        "errors": errors,
    }


def _flat(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    tensors = result if isinstance(result, tuple) else (result,)
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors])


def _repeats(step: Step) -> int:
    start = time.perf_counter()
    step()
    return max(1, min(1000, round(SAMPLE_SECONDS / (time.perf_counter() - start))))


def _differences(results: dict[str, list[Tensor]]) -> dict[str, list[float]]:
    """Largest difference to eager in each warm-up step's results, relative to their largest."""
    if "eager" not in results:
        return {}
    return {
        peer: [
            float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))
            for ours, theirs in zip(found, results["eager"])
        ]
        for peer, found in results.items()
        if peer != "eager"
    }


def scaling(request: dict[str, Any]) -> dict[str, Any]:
    """First call of a narrow decoder of a given depth."""
    torch.manual_seed(0)
    work = decoder(request["depth"], width=64, heads=2, batch=2, tokens=32, vocabulary=512)
    peer = request["peers"][0]
    start = time.perf_counter()
    if peer == "gflow":
        step, graph = gflow_step(work)
        step()
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "phases": dict(getattr(graph, "timings", {})),
            "ops": _count_ops(graph),
        }
    make_step(peer, work)()
    return {"seconds": time.perf_counter() - start, "phases": {}, "ops": None}


def _count_ops(graph: Any) -> int | None:
    """Ops of the module as traced."""
    text = graph.ir("traced", generic=True)
    return sum('"gflow.' in line or " = gflow." in line for line in text.splitlines()) or None


MODES = {
    "libraries": libraries,
    "first_call": first_call,
    "memory": memory,
    "steps": steps,
    "scaling": scaling,
    "passes": passes.measure,
}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if asked.get("threads"):
        torch.set_num_threads(asked["threads"])
    print("\n" + json.dumps(MODES[asked["mode"]](asked)), flush=True)
