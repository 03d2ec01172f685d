"""All ranks of pipelines in one process: what each would run, by the reference interpreters.

Forwards and backwards of a micro-batch run one after the other, those of several pipelines and the updates of all ranks
in lock step. A tensor that one rank of a pipeline keeps is NaN for the updates of the others, so that who reads it is
found. Each pipeline has its own part of the batch: the argument, cut into as many.
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
from rank_interpreter import Traffic, piece, run_ranks
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from gflow.call.plans import pipeline as plans_of_stages
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.dialects.types import tensor_type
from gflow.execution.executor import Compiled
from gflow.lowering import lower
from gflow.runtime.composed.micro_batches import Joined, split
from gflow.tracing.data.trace import Trace
from gflow.tracing.optimizers.pipeline_stages import StagePart


class Simulated:
    """One step of all ranks. traffic: of the updates, by rank, of the latest call. kept: bytes that stages of one rank
    keep of a micro-batch from a forward to a backward. pieces: optimizer state that ranks divide, by name."""

    def __init__(self, trace: Trace, pipeline: str) -> None:
        self.trace, self.stages = trace, trace.stages
        mesh = self.stages.mesh
        self.copies, self.length = mesh.axes.get("dp", 1), mesh.length
        places = {rank: place for place in range(self.length) for rank in mesh.ranks(place)}
        self.places = [places[rank] for rank in range(len(places))]
        self.copy = [mesh.ranks(place).index(rank) for rank, place in sorted(places.items())]
        self.modules = {id(p): lower(p.trace) for p in self.stages.parts}
        self.updates = [lower(t) for t in self.stages.updates]
        for module in (*self.modules.values(), *self.updates) if pipeline else ():
            with module.context:
                run_pipeline(module, pipeline)
        self.traffic: list[Traffic] = []
        forward = {k: v for p in self.stages.parts if p.kind == "F" for k, v in p.made.items()}
        read = {k for p in self.stages.parts if p.kind == "B" for k in p.given}
        self.kept = sum(v.dtype.itemsize * prod(v.shape) for k, v in forward.items() if k in read)
        self.pieces: dict[str, tuple[int, ...]] = {}
        # of pipelines other than the first, after a call; all else that is kept, all have alike
        self._buffers: list[dict[Any, Tensor]] = []

    @torch.no_grad()
    def __call__(self, arguments: list[Any]) -> list[Tensor]:
        trace, count = self.trace, self.trace.micro_batches
        first, _ = trace.parts  # type: ignore[misc]
        given = dict(zip((i.value for i in trace.inputs), arguments))
        batch = {i.value for i in first.inputs if i.role == "input" and i.value.shape}
        envs = [
            {v: x if c == 0 else x.clone() for v, x in given.items()} for c in range(self.copies)
        ]
        for env, state in zip(envs[1:], self._buffers):
            env.update(state)
        for i in first.inputs:
            if i.role == "gradient":
                for env in envs:
                    env[i.value].zero_()
        parts = {v: self._cut(given[v], count) for v in batch}
        joined: dict[int, Joined] = {}
        for k in range(count):
            for c, env in enumerate(envs):
                env.update({v: each[c][k] for v, each in parts.items()})
            values: list[dict[int, Tensor]] = [{} for _ in envs]
            for part in self.stages.parts:
                for n, result in self._part(part, envs, values):
                    whole = joined.setdefault(n, Joined(result, count, trace.stacked))
                    whole.add(result, k)
        self._update(envs)
        buffers = [i.value for i in trace.inputs if i.role == "buffer"]
        self._buffers = [{v: env[v] for v in buffers} for env in envs[1:]]
        return [joined[n].result() for n in sorted(joined)]

    def _cut(self, x: Tensor, count: int) -> list[list[Tensor]]:
        """The micro-batches of each pipeline. The traced batch is that of one of them: its length tells nothing."""
        each = BATCHES[0].get(x.data_ptr())
        return [split(part, count) for part in (each or [x])]

    def _part(
        self, part: StagePart, envs: list[dict[Any, Tensor]], values: list[dict[int, Tensor]]
    ) -> Iterator[tuple[int, Tensor]]:
        """Run a part in all pipelines; gives the first one's results of `build()`."""
        given = {entry.value: k for k, entry in part.given.items()}
        module = self.modules[id(part)]
        read = [
            [v[given[i.value]] if i.value in given else env[i.value] for i in part.trace.inputs]
            for env, v in zip(envs, values)
        ]
        for c, mine in enumerate(read):
            for n, tensor in enumerate(mine):
                if (size := self._size(module, n)) != tensor.shape:
                    self.pieces[part.trace.inputs[n].name] = size
                    mine[n] = piece(tensor, self.copies, c)
        found = run_ranks(module, read) if len(envs) > 1 else [run_module(module, read[0])]
        for c, results in enumerate(found):
            made, places = [*part.made], [*part.results]
            for n, (out, value) in enumerate(zip(part.trace.outputs, results)):  # then the token
                if out.alias is not None:
                    envs[c][part.trace.inputs[out.alias].value].copy_(value)
                elif n < len(made):
                    values[c][made[n]] = value
                elif c == 0:
                    yield places.pop(0), value

    def _update(self, envs: list[dict[Any, Tensor]]) -> None:
        owners, world = self.stages.owners, len(self.places)
        given = []
        for rank, (place, copy) in enumerate(zip(self.places, self.copy)):
            update = self.stages.updates[place]
            given.append([])
            for n, i in enumerate(update.inputs):
                tensor = envs[copy][i.value]
                if owners.get(i.value, place) != place and tensor.is_floating_point():
                    tensor = torch.full_like(tensor, float("nan"))
                size = self._size(self.updates[place], n)
                if size != tensor.shape:
                    assert owners[i.value] == place, "who keeps a tensor divides it"
                    self.pieces[i.name] = size
                    tensor = piece(tensor, self.copies, copy)
                given[rank].append(tensor)
        self.traffic = []
        modules = [self.updates[place] for place in self.places]
        found = run_ranks(modules, given, self.traffic)
        new: dict[Any, dict[tuple[int, int], Tensor]] = {}
        for rank in range(world):
            update = self.stages.updates[self.places[rank]]
            for out, value in zip(update.outputs, found[rank]):  # then the last token
                target = update.inputs[out.alias].value
                new.setdefault(target, {})[self.places[rank], self.copy[rank]] = value
        for target, by_rank in new.items():
            value = next(iter(by_rank.values()))
            shape = envs[0][target].shape
            if value.shape != shape:
                parts = [v for _, v in sorted(by_rank.items())]
                value = torch.cat(parts)[: prod(shape)].reshape(shape)
            else:
                assert all(map(value.equal, by_rank.values())), "ranks go apart"
            for env in envs:
                env[target].copy_(value)

    def _size(self, module: Any, n: int) -> tuple[int, ...]:
        with module.context:
            (function,) = [o for o in module.body.operations if o.operation.name == "func.func"]
            argument = function.operation.regions[0].blocks[0].arguments[n]
            return tuple(tensor_type(argument.type).shape)


#: of the step to come: by the address of an argument, the tensors that the pipelines have for it
BATCHES: list[dict[int, list[Tensor]]] = [{}]


@contextlib.contextmanager
def batches(each: list[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    """The arguments of a call in which each pipeline has its own."""
    BATCHES[0] = {x.data_ptr(): [*there] for x, *there in zip(each[0], *each)}
    try:
        yield each[0]
    finally:
        BATCHES[0] = {}


@contextlib.contextmanager
def simulated(
    world: int, monkeypatch: pytest.MonkeyPatch, pipeline: str = ""
) -> Iterator[list[Simulated]]:
    """Graphs with modules in stages run so, on so many ranks; they are listed as they are traced. pipeline: passes that
    updates go through."""
    made: list[Simulated] = []

    def compile_pipeline(trace: Trace, options: Any) -> Compiled:
        made.append(Simulated(trace, pipeline))
        return Compiled(made[-1], False)

    monkeypatch.setattr(plans_of_stages, "compile_pipeline", compile_pipeline)
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield made
    finally:
        dist.destroy_process_group()
