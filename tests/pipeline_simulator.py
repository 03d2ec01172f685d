"""All ranks of a pipeline in one process: what each would run, by the reference interpreters.

Forwards and backwards of a micro-batch run one after the other, the updates of the ranks in lock step. A tensor that
one rank keeps is NaN for the updates of the others, so that who reads it is found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from math import prod
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ir_interpreter import run_module
from rank_interpreter import Traffic, run_ranks
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from gflow.call.plans import new_plan
from gflow.execution.executor import Compiled
from gflow.lowering import lower
from gflow.runtime.composed.micro_batches import Joined, split
from gflow.tracing.data.trace import Trace
from gflow.tracing.optimizers.pipeline_stages import StagePart


class Simulated:
    """One step of all ranks. traffic: of the updates, by rank, of the latest call. kept: bytes that stages keep of a
    micro-batch from a forward to a backward."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.stages = trace, trace.stages
        self.world = dist.get_world_size()
        self.modules = {id(p): lower(p.trace) for p in self.stages.parts}
        self.updates = [lower(t) for t in self.stages.updates]
        self.traffic: list[Traffic] = []
        forward = {k: v for p in self.stages.parts if p.kind == "F" for k, v in p.made.items()}
        read = {k for p in self.stages.parts if p.kind == "B" for k in p.given}
        self.kept = sum(v.dtype.itemsize * prod(v.shape) for k, v in forward.items() if k in read)

    @torch.no_grad()
    def __call__(self, arguments: list[Any]) -> list[Tensor]:
        trace, count = self.trace, self.trace.micro_batches
        first, _ = trace.parts  # type: ignore[misc]
        env = dict(zip((i.value for i in trace.inputs), arguments))
        for i in first.inputs:
            if i.role == "gradient":
                env[i.value].zero_()
        batch = {
            i.value: split(env[i.value], count)
            for i in first.inputs
            if i.role == "input" and i.value.shape
        }
        joined: dict[int, Joined] = {}
        for k in range(count):
            env |= {v: parts[k] for v, parts in batch.items()}
            values: dict[int, Tensor] = {}
            for part in self.stages.parts:
                for n, result in self._part(part, env, values):
                    whole = joined.setdefault(n, Joined(result, count, trace.stacked))
                    whole.add(result, k)
        self._update(env)
        return [joined[n].result() for n in sorted(joined)]

    def _part(
        self, part: StagePart, env: dict[Any, Tensor], values: dict[int, Tensor]
    ) -> Iterator[tuple[int, Tensor]]:
        given = {entry.value: k for k, entry in part.given.items()}
        read = [
            values[given[i.value]] if i.value in given else env[i.value] for i in part.trace.inputs
        ]
        results = run_module(self.modules[id(part)], read)
        made, places = [*part.made], [*part.results]
        for n, (out, value) in enumerate(zip(part.trace.outputs, results, strict=True)):
            if out.alias is not None:
                env[part.trace.inputs[out.alias].value].copy_(value)
            elif n < len(made):
                values[made[n]] = value
            else:
                yield places.pop(0), value

    def _update(self, env: dict[Any, Tensor]) -> None:
        owners, ranks = self.stages.owners, range(self.world)

        def seen(entry: Any, rank: int) -> Tensor:
            tensor = env[entry.value]
            if owners.get(entry.value, rank) == rank or not tensor.is_floating_point():
                return tensor
            return torch.full_like(tensor, float("nan"))

        given = [[seen(i, r) for i in self.stages.updates[r].inputs] for r in ranks]
        self.traffic = []
        found = run_ranks(self.updates, given, self.traffic)
        new: dict[Any, Tensor] = {}
        for update, results in zip(self.stages.updates, found):
            for out, value in zip(update.outputs, results):  # then the last token
                target = update.inputs[out.alias].value
                assert torch.equal(new.setdefault(target, value), value), "ranks go apart"
        for target, value in new.items():
            env[target].copy_(value)


@contextlib.contextmanager
def simulated(world: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Simulated]]:
    """Graphs with modules in stages run so, on so many ranks; they are listed as they are traced."""
    made: list[Simulated] = []

    def compile_pipeline(trace: Trace, options: Any) -> Compiled:
        made.append(Simulated(trace))
        return Compiled(made[-1], False)

    monkeypatch.setattr(new_plan, "compile_pipeline", compile_pipeline)
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield made
    finally:
        dist.destroy_process_group()
