"""The simulated step of a way, from the programs that its ranks run.

Computations take their roofline time, with rates that the same decoder's step on one rank has (all ranks at once, so
that they share the machine's memory as the way's ranks do); collectives the time of the measured links.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.distributed.stage_events import Stage, stage_events
from gflow.compiler.distribution.network import Group, seconds, sent
from gflow.compiler.distribution.pipeline import schedule
from gflow.compiler.distribution.simulator import COMPUTE, Event, simulate
from gflow.compiler.ir import cost
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.reports.timeline import step_on_ranks
from gflow.compiler.targets import DEVICES, Device
from gflow.compiler.targets.links import NETWORKS, Network
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.program import CollectiveStep


def compiled_of(graph: Any) -> Any:
    """The compiled step of a graph with one."""
    (plan,) = graph._checked().plans
    return plan.compiled


def facts(graph: Any) -> dict[str, int]:
    """Bytes that a rank sends in a step, those that it keeps of parameters and optimizer state, and its arena."""
    programs = [e.program for e in _executables(compiled_of(graph).run)]
    steps = [s for p in programs for s in p.steps if isinstance(s, CollectiveStep)]
    wholes = [s.output if s.kind == "all_gather" else s.input for s in steps]
    return {
        "sent": sum(sent(s.kind, s.ranks.count, w.type.nbytes) for s, w in zip(steps, wholes) if w),
        "arena": max(p.arena_bytes for p in programs),
    }


def rates(step: Any) -> dict[str, float]:
    """How much longer than the table's processor the computations of a step take, by a profile: products of matrices,
    and other ops."""
    found = step.graph.profile(*step.inputs, rounds=5)
    took, wanted = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    device = DEVICES["cpu"]
    with make_context():
        module = ir.Module.parse(found.program)  # held: what lies in a module goes with it
        function = entry_function(module)
        for n, view in enumerate(function.regions[0].blocks[0].operations):
            costs = cost.cost_of(view.operation)
            took[costs.contraction] += found.op_seconds.get(n, 0.0)
            wanted[costs.contraction] += cost.seconds(costs, device)
    return {"products": took[True] / wanted[True], "others": took[False] / wanted[False]}


def slower(factors: Mapping[str, float]) -> Device:
    """The table's processor with other rates."""
    device = DEVICES["cpu"]
    products, others = factors["products"], factors["others"]
    return replace(
        device,
        bandwidth=device.bandwidth / others,
        vector=device.vector / others,
        matmul={dtype: rate / products for dtype, rate in device.matmul.items()},
    )


def as_numbers(network: Network) -> dict[str, Any]:
    """A calibrated network, for another process."""
    (protocol,) = network.protocols
    return {"start": protocol.start, "bandwidth": network.intra, "shares": dict(network.shares)}


def predicted(graph: Any, factors: Mapping[str, float], network: Mapping[str, Any]) -> Any:
    """The simulated step of what this rank runs: seconds, of these waiting for collectives, and bytes sent. Of a
    pipeline what this rank has of it, for `of_pipeline`."""
    device, links = slower(factors), NETWORKS["gloo"].calibrated(**network)
    run = compiled_of(graph).run
    if not hasattr(run, "plan"):
        line = _simulated(run.program.ir, device, links)
        return {"seconds": line.seconds, "waiting": line.exposed, "sent": line.sent}
    plan = run.plan
    nbytes = [
        v.dtype.itemsize * math.prod(v.shape)
        for v in plan.values.values()
        if plan.ranks[v.maker[1]] == run.rank and v.maker[0] == "F"
        if any(plan.ranks[stage] != run.rank for _, stage in v.takers)
    ]
    programs = {
        f"{kind}{stage}": _simulated(p.run.program.ir, device, links).seconds
        for (kind, stage), p in run.programs.items()
    }
    update = _simulated(run.update.run.program.ir, device, links).seconds
    return {"programs": programs, "update": update, "sent": sum(nbytes), "count": plan.count}


def of_pipeline(parts: Sequence[Any], network: Network) -> dict[str, float]:
    """The step of a pipeline with a stage a rank, of what its ranks have answered."""
    stages = [
        Stage({"F": p["programs"][f"F{n}"], "B": p["programs"].get(f"B{n}", 0.0)}, p["sent"])
        for n, p in enumerate(parts)
    ]
    lists = schedule("1f1b", len(parts), parts[0]["count"])
    events = stage_events(lists, stages, network, Group(2, 2))
    for n, p in enumerate(parts):
        events[f"rank {n}"].append(Event(COMPUTE, "update", p["update"]))
    line = simulate(events)
    waiting = max(line.exposed(name) for name in events)
    return {"seconds": line.seconds, "waiting": waiting, "sent": max(line.sent.values())}


def work_of_pipeline(parts: Sequence[Any], network: Network) -> dict[str, float]:
    """The processor time of the rank of a pipeline that has most to do: as `of_pipeline`, without waits for the other
    ranks. A message costs its sender and its receiver."""
    count, between = parts[0]["count"], Group(2, 2)
    messages = [2 * count * seconds("send", between, p["sent"], network) for p in parts[:-1]]
    passing = [a + b for a, b in zip([0.0, *messages], [*messages, 0.0])]
    computing = [count * sum(p["programs"].values()) + p["update"] for p in parts]
    total, waiting = max((c + m, m) for c, m in zip(computing, passing))
    return {"seconds": total, "waiting": waiting, "sent": count * max(p["sent"] for p in parts)}


def _simulated(text: str, device: Device, network: Network) -> Any:
    with make_context():
        module = ir.Module.parse(text)
        return step_on_ranks(entry_function(module), device, network)


def _executables(run: Any) -> list[Any]:
    return [run] if hasattr(run, "program") else run.executables
