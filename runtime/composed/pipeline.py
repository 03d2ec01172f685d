"""Runs a training step in pipeline stages: the actions of this rank in order, with messages between ranks.

An action is the forward or backward of one stage for one micro-batch; each has its own program. An action sends its
values for other ranks at once, and receives the values that it needs just before it runs. After the last action each
rank updates its parameters and state, and the results of `build()` are sent to all ranks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gflow.dialects.records import record

from ..distributed.agreement import compare
from ..distributed.pieces import keep_on
from ..distributed.release import used
from ..failures import explain
from ..interrupts import held
from .micro_batches import Joined, split

Tensor = torch.Tensor
#: an action: "F" or "B", stage, micro-batch
Action = tuple[str, int, int]


@record
class Value:
    """A value that one part passes to others. A part is the forward or backward of a stage.

    Attributes:
        shape, dtype: those of the tensor.
        maker: kind ("F" or "B") and stage of the part that computes it.
        takers: kinds and stages of the parts that read it, in the order in which a micro-batch reaches them.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    maker: tuple[str, int]
    takers: tuple[tuple[str, int], ...]


@record
class StageProgram:
    """A part that this rank runs: the forward or backward of a stage, or the optimizers.

    Attributes:
        run: runs its program.
        takes_rng: whether the last argument of the program is (seed, offset).
        arguments: the arguments of the program: ("step", n) is argument n of the step, ("value", k) is value k.
        results: the results of the program: ("value", k) is value k, ("result", n) is the n-th result of `build()`,
            ("update", n) is the new value of argument n of the step.
        divided: the arguments of the step that are passed as this rank's piece (ZeRO).
    """

    run: Callable[[list[Tensor]], Sequence[Tensor]]
    takes_rng: bool
    arguments: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...]
    divided: frozenset[int] = frozenset()

    @property
    def writes(self) -> list[int]:
        """The arguments of the step that the part updates."""
        return [n for what, n in self.results if what == "update"]


@record
class PipelinePlan:
    """The plan of a pipeline, which is the same on all ranks. Ranks are numbered within the pipeline.

    Attributes:
        name: the graph's name.
        count: the number of micro-batches.
        ranks: the rank of each stage.
        actions: the actions of each rank, in order.
        values: the values that parts pass to each other, by number.
        inputs: the arguments that are split into micro-batches.
        sums: the arguments that hold sums of gradients.
        owners: by argument, the rank that keeps it.
        results: for each result of a micro-batch, its shape and dtype, and the rank that computes it.
        mesh: a description of the mesh of all ranks, for error messages.
        stacked: as in `Split`.
    """

    name: str
    count: int
    ranks: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]
    values: Mapping[int, Value]
    inputs: tuple[int, ...]
    sums: tuple[int, ...]
    owners: Mapping[int, int]
    results: tuple[tuple[tuple[int, ...], torch.dtype, int], ...]
    mesh: str
    stacked: bool = False


class Pipeline:
    """Runs one step, with the interface of an `Executable` and the arguments and results of the whole batch.

    done: whether the latest call has taken effect.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        programs: Mapping[tuple[str, int], StageProgram],
        update: StageProgram,
        group: Any,
    ) -> None:
        self.plan, self.programs, self.update, self.group = plan, programs, update, group
        self.executables = [p.run for p in (*programs.values(), update)]
        self._divided = update.divided.union(*(p.divided for p in programs.values()))
        self.rank = dist.get_rank(group)
        self.done = self._agreed = False
        # by number of a value: the last part of this rank that reads it
        self._last = {
            k: mine[-1]
            for k, v in plan.values.items()
            if (mine := [t for t in v.takers if plan.ranks[t[1]] == self.rank])
        }
        self._order = {k: n for n, k in enumerate(plan.values)}

    def __call__(self, arguments: list[Any]) -> list[Tensor]:
        self.done = False
        if not self._agreed:
            plan = self.plan
            lines = [plan.mesh]
            lines += [" ".join(f"{s}{k}{m}" for k, s, m in a) for a in plan.actions]
            lines += [
                f"{v.maker} to {v.takers}: {v.dtype} {list(v.shape)}" for v in plan.values.values()
            ]
            compare(plan.name, lines, dist.group.WORLD, "in the pipeline")
            self._agreed = True
        with held(), torch.no_grad():  # the other ranks do not wait for a second run
            return self._step(list(arguments))

    def _step(self, arguments: list[Any]) -> list[Tensor]:
        plan = self.plan
        takes = any(p.takes_rng for p in (*self.programs.values(), self.update))
        rng = arguments.pop() if takes else None
        for n, owner in plan.owners.items():
            divided = n in self._divided
            keep_on(arguments[n], self.group, owner, divided)
            if owner == self.rank and not divided:
                # an alias, which is not in the table of kept tensors (`runtime/distributed/pieces.py`)
                arguments[n] = arguments[n].detach()
        writes = {n for p in self.programs.values() for n in p.writes if n not in plan.sums}
        saved = [(arguments[n], arguments[n].clone()) for n in sorted(writes)]
        for n in plan.sums:
            if plan.owners.get(n) == self.rank:
                arguments[n].zero_()
        run = _Run(self, arguments, rng)
        try:
            for action in plan.actions[self.rank]:
                run.act(action)
            run.settle()
        except BaseException:
            run.abandon()
            for (
                target,
                value,
            ) in saved:  # what the micro-batches have updated; the optimizers have not run
                target.copy_(value)
            raise
        self._one(self.update, arguments, {}, rng, plan.count, len(plan.ranks) * 2)
        self.done = True
        return run.gathered()

    def _one(
        self,
        program: StageProgram,
        arguments: Sequence[Any],
        values: Mapping[int, Tensor],
        rng: Any,
        k: int,
        part: int,
    ) -> Sequence[Tensor]:
        mine = [arguments[n] if kind == "step" else values[n] for kind, n in program.arguments]
        if program.takes_rng:
            seed, offset = rng.tolist()
            parts = 2 * len(self.plan.ranks) + 1
            number = (offset * (self.plan.count + 1) + k) * parts + part
            mine.append(torch.tensor([seed, number]))
        return program.run(mine)


class _Run:
    """The state of a running step."""

    def __init__(self, pipeline: Pipeline, arguments: list[Any], rng: Any) -> None:
        self.of, self.plan, self.rng = pipeline, pipeline.plan, rng
        self.arguments = arguments
        self.pieces = {n: split(arguments[n], self.plan.count) for n in self.plan.inputs}
        self.values: dict[tuple[int, int], Tensor] = {}
        self.sent: deque[tuple[int, Any, Tensor]] = deque()  # messages, by action
        self.actions = 0
        self.joined: dict[int, Joined] = {}

    def act(self, action: Action) -> None:
        """Run one action."""
        kind, stage, k = action
        program = self.of.programs[kind, stage]
        self.actions += 1
        # messages of much earlier actions must have arrived by now; waiting for them frees their memory
        self.settle(self.actions - 2 * len(self.plan.ranks))
        try:
            here = {n: self._value(n, k) for what, n in program.arguments if what == "value"}
            for n, parts in self.pieces.items():
                self.arguments[n] = parts[k]
            number = stage * 2 + (kind == "B")
            results = self.of._one(program, self.arguments, here, self.rng, k, number)
            for (what, n), value in zip(program.results, results):
                if what == "value":
                    self._give(n, k, value)
                elif what == "result":
                    whole = self.joined.setdefault(
                        n, Joined(value, self.plan.count, self.plan.stacked)
                    )
                    whole.add(value, k)
        except RuntimeError as error:
            told = (
                f"rank {self.of.rank}: {'forward' if kind == 'F' else 'backward'} of stage {stage} of the pipeline, "
                f"micro-batch {k}, failed in {self.plan.name}"
            )
            explain(error, told)
            raise
        for n in here:
            if self.of._last.get(n) == (kind, stage):
                del self.values[n, k]

    def _tag(self, n: int, k: int) -> int:
        return k * len(self.plan.values) + self.of._order[n]

    def _value(self, n: int, k: int) -> Tensor:
        if (n, k) not in self.values:
            value = self.plan.values[n]
            target = torch.empty(value.shape, dtype=value.dtype)
            source = self.plan.ranks[value.maker[1]]
            dist.recv(_bytes(target), group=self.of.group, group_src=source, tag=self._tag(n, k))
            self.values[n, k] = target
        return self.values[n, k]

    def _give(self, n: int, k: int, tensor: Tensor) -> None:
        value = self.plan.values[n]
        ranks = dict.fromkeys(self.plan.ranks[stage] for _, stage in value.takers)
        tensor = tensor.contiguous()
        if self.of.rank in ranks:
            self.values[n, k] = tensor
        for rank in ranks:
            if rank != self.of.rank:
                tag = self._tag(n, k)
                work = dist.isend(_bytes(tensor), group=self.of.group, group_dst=rank, tag=tag)
                self.sent.append((self.actions, work, tensor))

    def settle(self, until: float = math.inf) -> None:
        """Wait until the messages that were sent before an action are complete."""
        while self.sent and self.sent[0][0] <= until:
            self.sent[0][1].wait()
            self.sent.popleft()

    def abandon(self) -> None:
        """Drop all messages in flight. Their errors are ignored."""
        for _, work, _ in self.sent:
            try:
                work.wait()
            except RuntimeError:
                continue  # the step has failed, and has raised its error
        self.sent.clear()

    def gathered(self) -> list[Tensor]:
        """The results of the step, on all ranks."""
        found = []
        for n, (shape, dtype, rank) in enumerate(self.plan.results):
            if n in self.joined:
                value = self.joined[n].result().contiguous()
            else:
                rows = shape and (shape[0] * self.plan.count, *shape[1:])
                value = torch.empty(rows or (), dtype=dtype)
            sent = _bytes(value)
            with used(sent):
                dist.broadcast(sent, group=self.of.group, group_src=rank)
            found.append(value)
        return found


def _bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.dtype == torch.bool else x
