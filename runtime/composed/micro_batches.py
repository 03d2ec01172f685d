"""Runs a training step in several micro-batches.

One program runs forward and backward of a micro-batch and adds its gradients to buffers. After the last micro-batch, a
second program runs the optimizers. Results are joined: tensors along their first dimension, 0-d floats as their mean,
0-d integers (counts) as their sum; or all 0-d results as a tensor with one element for each micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from gflow.dialects.records import record

from ..interrupts import HalfDone, held


class Part(Protocol):
    """One of the two programs, ready to run."""

    @property
    def run(self) -> Callable[[list[torch.Tensor]], Any]:
        """The function that runs the program. It takes the list of arguments and returns the results."""

    @property
    def takes_rng(self) -> bool:
        """Whether a run draws from PyTorch's random generator: the last argument is then (seed, offset)."""


@record
class Ready:
    """A `Part` as plain data."""

    run: Callable[[list[torch.Tensor]], Any]
    takes_rng: bool


@record
class Split:
    """How a step's arguments, by position, are divided between its programs.

    Attributes:
        count: the number of micro-batches.
        forward, update: the arguments of each program.
        inputs: the arguments that are split along their first dimension.
        sums: the arguments that are buffers of gradients.
        results: the number of results of the first program that are not updates.
        stacked: whether 0-d results become a tensor with one element for each micro-batch.
    """

    count: int
    forward: list[int]
    update: list[int]
    inputs: list[int]
    sums: list[int]
    results: int
    stacked: bool = False


def split(tensor: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
    """`count` equal parts of a tensor along its first dimension, as views."""
    return tensor.split(max(tensor.shape[0] // count, 1)) if tensor.shape[0] else [tensor] * count


class MicroBatches:
    """Runs one step, with the interface of an `Executable` and the arguments and results of the whole batch.

    Attributes:
        forward: the program of a micro-batch.
        update: the program of the optimizers.
        executables: both. They never run at the same time, so they may share an arena.
    """

    def __init__(self, forward: Part, update: Part, parts: Split, kept: Sequence[int] = ()) -> None:
        """kept: the positions of gradients' buffers that are read after a step."""
        self.forward, self.update, self.split = forward, update, parts
        self.executables = [forward.run, update.run]
        self.done = False
        results = getattr(getattr(forward.run, "program", None), "results", ())
        written = {parts.forward[r.alias] for r in results if r.alias is not None}
        self._saved = sorted(written - {*parts.sums}) + list(kept)

    def __call__(self, arguments: list[Any]) -> list[torch.Tensor]:
        return self._step(arguments, self.forward)

    def _step(self, arguments: list[Any], forward: Part) -> list[torch.Tensor]:
        arguments = list(arguments)
        update: Any = self.update.run
        self.done = update.done = False
        saved = [(arguments[i], arguments[i].clone()) for i in self._saved]
        try:
            joined = self._parts(arguments, forward)
            self.done = True
        except BaseException as error:
            self.done = update.done
            if self.done:
                raise
            with (
                held(),
                torch.no_grad(),
            ):  # what the micro-batches have updated; the optimizers have not run
                for target, value in saved:
                    target.copy_(value)
            if isinstance(error, HalfDone) and error.name != self._name(update):
                raise error.failure from None
            raise
        return [whole.result() for whole in joined]

    @staticmethod
    def _name(run: Any) -> str:
        return getattr(getattr(run, "program", None), "name", "")

    def _parts(self, arguments: list[Any], forward: Part) -> list[Joined]:
        """Run all micro-batches, and the optimizers."""
        mine = self.split
        rng = arguments.pop() if forward.takes_rng or self.update.takes_rng else None
        pieces = {i: split(arguments[i], mine.count) for i in mine.inputs}
        for i in mine.sums:
            arguments[i].zero_()
        joined: list[Joined] = []
        for k in range(mine.count):
            for i, parts in pieces.items():
                arguments[i] = parts[k]
            results = self._run(forward, mine.forward, arguments, rng, k)
            if not joined:
                joined = [Joined(r, mine.count, mine.stacked) for r in results[: mine.results]]
            for whole, part in zip(joined, results):
                whole.add(part, k)
            del results
        self._run(self.update, mine.update, arguments, rng, mine.count)
        return joined

    def timed(
        self, arguments: list[Any]
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]], list[tuple[str, float, float]]]:
        """Run once, with times.

        Returns:
            The results; the times of the last micro-batch's steps; and spans of the host's time: those of
            `Executable.timed` for that micro-batch, the micro-batches before it, and the optimizers.
        """
        forward, times, spans = self.forward, [], []

        def run(mine: list[Any]) -> list[torch.Tensor]:
            nonlocal times, spans
            results, times, spans = forward.run.timed(mine)  # type: ignore[attr-defined]
            return results  # type: ignore[no-any-return]

        start = time.perf_counter()
        results = self._step(arguments, Ready(run, forward.takes_rng))
        begin, end = spans[0][1], spans[-1][2]
        update = ("optimizers, joining", end, time.perf_counter())
        return results, times, [("earlier micro-batches", start, begin), *spans, update]

    def _run(self, part: Part, positions: list[int], arguments: list[Any], rng: Any, k: int) -> Any:
        mine = [arguments[i] for i in positions]
        if part.takes_rng:
            seed, offset = rng.tolist()
            mine.append(torch.tensor([seed, offset * (self.split.count + 1) + k]))
        return part.run(mine)


class Joined:
    """One result of `build()`, joined over all micro-batches."""

    def __init__(self, first: torch.Tensor, count: int, stacked: bool = False) -> None:
        """stacked: whether 0-d results become a tensor with one element for each micro-batch."""
        if stacked and not first.ndim:
            first = first.reshape(1)
        self.count, self.dtype = count, first.dtype
        if count == 1:
            self.whole = first
            return
        self.rows = first.shape[0] if first.ndim else 0
        if first.ndim:
            self.whole = torch.empty(
                (self.rows * count, *first.shape[1:]), dtype=first.dtype, device=first.device
            )
        else:
            wide = torch.int64
            if first.is_floating_point() or first.is_complex():
                wide = torch.promote_types(first.dtype, torch.float64)
            self.whole = torch.zeros((), dtype=wide, device=first.device)

    def add(self, part: torch.Tensor, k: int) -> None:
        """Add the result of micro-batch `k`: its rows are copied to their place, a 0-d result is added.

        part: the result, of shape [rows, …] or [].
        """
        if self.count == 1:
            return
        if self.whole.ndim:
            self.whole[k * self.rows : (k + 1) * self.rows] = part
        else:
            self.whole += part

    def result(self) -> torch.Tensor:
        """The result of the whole batch, in the dtype of `build()`'s result.

        Rows are concatenated. 0-d floats are averaged; 0-d integers are summed.
        """
        if (
            self.count == 1
            or self.whole.ndim
            or not (self.dtype.is_floating_point or self.dtype.is_complex)
        ):
            return self.whole.to(self.dtype)
        return (self.whole / self.count).to(self.dtype)
