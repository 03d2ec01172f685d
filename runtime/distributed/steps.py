"""Steps of collectives: the start of a collective, its wait, and the copy of a rank's piece.

A collective is started with `async_op=True` on tensors in the program's memory. PyTorch's process group transfers the
data in its own threads (Gloo) or on its own stream (NCCL). The wait is a later step of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gflow.dialects.extents import N
from gflow.dialects.program import CollectiveStep, ShardStep, TensorRef, WaitStep

from ..failures import explain, where
from ..interrupts import held
from ..steps.host_step import HostStep, Locate
from . import exchange
from .groups import Groups, describe_ranks
from .release import references, release

Tensor = torch.Tensor

#: PyTorch 2.13 renamed these functions, and warns about the old names
_all_gather_single: Callable[..., Any] = getattr(
    dist, "all_gather_single", getattr(dist, "all_gather_into_tensor", None)
)  # type: ignore[assignment]
_reduce_scatter_single: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", getattr(dist, "reduce_scatter_tensor", None)
)  # type: ignore[assignment]


class InFlight:
    """The collectives of one executable that were started and not waited for.

    failed: the error of a collective of the latest run; no further collective is started in that run.
    """

    def __init__(self) -> None:
        self.works: dict[int, tuple[Any, CollectiveCall]] = {}
        self.failed: Exception | None = None

    def drain(self) -> None:
        """Wait for all, and ignore their errors, since their memory will be reused."""
        calls = []
        for work, call in self.works.values():
            calls.append(call)
            try:
                work.wait()
            except RuntimeError:
                continue  # the run that started it has failed, and has raised its error
        self.works.clear()
        for call in calls:
            release(call.references)


class _Step(HostStep):
    """A step on tensors, some of which may be missing."""

    def __init__(self, step: Any) -> None:
        self.step, self.label = step, step.label
        output = getattr(step, "output", None)
        self.to_arguments = output is not None and output.place.space == "arg"
        self.tensors: list[Tensor | None] = []

    def refs(self) -> list[TensorRef]:
        found = (getattr(self.step, "input", None), getattr(self.step, "output", None))
        return [ref for ref in found if ref is not None]

    def bound(self) -> list[Tensor]:
        return [t for t in self.tensors if t is not None]

    def bind(self, locate: Locate, size: N = 0) -> None:
        refs = (getattr(self.step, "input", None), getattr(self.step, "output", None))
        self.tensors = [None if ref is None else locate(ref) for ref in refs]

    def unbind(self) -> None:
        self.tensors = []

    def run(self) -> None:
        self.writes = self.has_run = False
        with held():  # the other ranks do not wait for a second collective
            self.writes = True
            self._run()
        self.has_run = True

    def _run(self) -> None:
        raise NotImplementedError


class CollectiveCall(_Step):
    """Starts a collective."""

    step: CollectiveStep

    def __init__(self, step: CollectiveStep, groups: Groups, flying: InFlight) -> None:
        super().__init__(step)
        self._groups, self._flying = groups, flying
        self.references: list[tuple[Tensor, int]] = []

    def _run(self) -> None:
        if self._flying.failed is not None:
            raise self._flying.failed
        group = self._groups.of(self.step.ranks)
        self.references = references(self.bound())
        try:
            work = _BEGIN[self.step.kind](self.step, *self.tensors, group)
        except Exception as error:
            self.fail(error)
            raise
        self._flying.works[self.step.sequence] = (work, self)

    def fail(self, error: Exception) -> None:
        """Add the rank and the collective to an error."""
        step = self.step
        text = (
            f"rank {dist.get_rank()} of {dist.get_world_size()}: {step.kind} number {step.sequence} "
            f"{describe_ranks(step.ranks)} "
            f"({step.ranks.count} ranks) failed. A rank has ended, hangs, or does something else; the group's timeout "
            f"(init_process_group(timeout=…)) says how long is waited\n{where(step.label)}"
        )
        explain(error, text.rstrip())
        self._flying.failed = error


class WaitCall(_Step):
    """Waits for a collective."""

    step: WaitStep

    def __init__(self, step: WaitStep, flying: InFlight) -> None:
        super().__init__(step)
        self._flying = flying

    def _run(self) -> None:
        if self.step.sequence not in self._flying.works:
            if self._flying.failed is not None:
                raise self._flying.failed
            return  # the step already ran, in an interrupted run that is being completed
        work, call = self._flying.works.pop(self.step.sequence)
        try:
            work.wait()
        except Exception as error:
            call.fail(error)
            raise
        del work  # it also references the tensors
        release(call.references)
        call.references = []


class ShardCall(_Step):
    """Copies this rank's piece."""

    step: ShardStep

    def __init__(self, step: ShardStep, groups: Groups) -> None:
        super().__init__(step)
        self._groups = groups

    def _run(self) -> None:
        source, target = self.tensors
        assert source is not None
        assert target is not None
        rank = dist.get_rank(self._groups.of(self.step.ranks))
        put_piece(source, target, rank)


def put_piece(whole: Tensor, target: Tensor, rank: int) -> None:
    """Copy piece `rank` of a dense tensor to the flat tensor `target`, padded with zeros."""
    flat, size = whole.reshape(-1), target.numel()
    part = flat[rank * size : (rank + 1) * size]
    target[: part.numel()].copy_(part)
    target[part.numel() :].zero_()


# by kind: starts the collective on an input and an output


def _bytes(x: Tensor) -> Tensor:
    """A view as bytes, for collectives that only move data, if the backend does not support the element type."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x


def _into(source: Tensor, target: Tensor) -> None:
    if source.data_ptr() != target.data_ptr():
        target.copy_(source)


def _reduction(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper())


def all_reduce(y: Tensor, group: Any, reduction: str = "sum") -> Any:
    """Start an all-reduce in place, by messages (`exchange.py`) or the backend; returns an object to wait for."""
    if dist.get_world_size(group) > 2 and exchange.carries(y, group, reduction):
        return exchange.Sum(y, None, group)
    return dist.all_reduce(y, _reduction(reduction), group, async_op=True)


def all_gather(y: Tensor, x: Tensor, group: Any) -> Any:
    """Start an all-gather of the ranks' pieces x into y; returns an object to wait for."""
    if exchange.carries(y, group):
        return exchange.Gather(_bytes(y), _bytes(x), group)
    return _all_gather_single(_bytes(y), _bytes(x), group, async_op=True)


def reduce_scatter(y: Tensor, x: Tensor, group: Any, reduction: str = "sum") -> Any:
    """Start a reduce-scatter of x into the ranks' pieces y; returns an object to wait for."""
    if exchange.carries(x, group, reduction):
        return exchange.Sum(x, y, group)
    return _reduce_scatter_single(y, x, _reduction(reduction), group, async_op=True)


def _all_reduce(step: CollectiveStep, x: Tensor, y: Tensor, group: Any) -> Any:
    _into(x, y)
    return all_reduce(y, group, step.reduction)


def _all_gather(step: CollectiveStep, x: Tensor, y: Tensor, group: Any) -> Any:
    return all_gather(y, x, group)


def _reduce_scatter(step: CollectiveStep, x: Tensor, y: Tensor, group: Any) -> Any:
    return reduce_scatter(y, x, group, step.reduction)


def _all_to_all(step: CollectiveStep, x: Tensor, y: Tensor, group: Any) -> Any:
    takes, sends = [*step.takes] or None, [*step.sends] or None
    return dist.all_to_all_single(_bytes(y), _bytes(x), takes, sends, group, async_op=True)


def _broadcast(step: CollectiveStep, x: Tensor, y: Tensor, group: Any) -> Any:
    if dist.get_rank(group) == step.root:
        _into(x, y)
    return dist.broadcast(_bytes(y), group=group, group_src=step.root, async_op=True)


def _send(step: CollectiveStep, x: Tensor, y: None, group: Any) -> Any:
    return dist.isend(_bytes(x), group=group, group_dst=step.peer)


def _recv(step: CollectiveStep, x: None, y: Tensor, group: Any) -> Any:
    return dist.irecv(_bytes(y), group=group, group_src=step.peer)


_BEGIN: dict[str, Callable[..., Any]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send": _send,
    "recv": _recv,
}
