"""Gradient accumulation: one call of a training graph in several micro-batches.

Every tensor among the arguments that has dimensions is split along its first. Each micro-batch runs
one program, forward and backward, which adds its gradients to buffers; after the last, another runs
the optimizers. What `build()` returns is joined: tensors along their first dimension, single numbers
as their mean, single integers (counts) as their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import executor
from .errors import GraphInputError, GraphTraceError
from .executor import Compiled
from .tracing.location import user_frame
from .tracing.trace import OutputRef, Trace
from .tracing.tracer import input_names


def split_arguments(
    build: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of each micro-batch.

    Raises:
        GraphInputError: a tensor's first dimension is no multiple of their number.
    """
    leaves, spec = tree_flatten((args, kwargs))
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] % count:
            file, line = user_frame(2)
            name = input_names(build, args, kwargs)[i]
            raise GraphInputError(
                f"{file}:{line}: input {name!r} of shape {list(leaf.shape)} cannot be split into "
                f"{count} micro-batches (config.set_gradient_accumulation_steps({count})): its first "
                f"dimension is no multiple of {count}. Pass whole batches (DataLoader has drop_last="
                "True); keep what does not belong to samples as a buffer of a module."
            )
    pieces: dict[int, Sequence[Any]] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            pieces.setdefault(id(leaf), split(leaf, count))
    return [
        tree_unflatten([pieces[id(x)][k] if id(x) in pieces else x for x in leaves], spec)
        for k in range(count)
    ]


def split(tensor: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
    """Equal parts along the first dimension, as views."""
    return tensor.split(max(tensor.shape[0] // count, 1)) if tensor.shape[0] else [tensor] * count


def compile_step(trace: Trace, options: Any) -> Compiled:
    """Compile a trace: as one program, or as those of a step in micro-batches. What is said of the
    latter (IR, kernels, memory) is said of the program that every micro-batch runs."""
    if trace.parts is None:
        return executor.compile_trace(trace, options)
    _check_results(trace)
    compiled = [executor.compile_trace(part, options) for part in trace.parts]
    run = MicroBatches(trace, *compiled)
    timings: dict[str, float] = {}
    for part in compiled:
        for phase, seconds in part.timings.items():
            timings[phase] = timings.get(phase, 0.0) + seconds
    takes_rng = any(part.takes_rng for part in compiled)
    return replace(compiled[0], run=run, takes_rng=takes_rng, timings=timings)


def _check_results(trace: Trace) -> None:
    for leaf in trace.out_leaves:
        if isinstance(leaf, OutputRef):
            value = trace.outputs[leaf.index].value
            if not value.shape and value.dtype == torch.bool:
                raise GraphTraceError(
                    f"{trace.name}: build() returns a single bool, of which there would be one for "
                    "each micro-batch (set_gradient_accumulation_steps). Return a count (.sum()), "
                    "or a tensor with one for each sample."
                )


class MicroBatches:
    """Runs one step: as an `Executable`, on the arguments and for the results of the whole batch.

    forward: the program of a micro-batch. update: that of the optimizers. executables: both, which
    never run at the same time and so may share an arena.
    """

    def __init__(self, trace: Trace, forward: Compiled, update: Compiled) -> None:
        assert trace.parts is not None
        positions = {entry.value: i for i, entry in enumerate(trace.inputs)}
        self.forward, self.update = forward, update
        self.executables = [forward.run, update.run]
        self.count = trace.micro_batches
        self._forward, self._update = (
            [positions[i.value] for i in part.inputs] for part in trace.parts
        )
        self._split = [
            i for i, entry in enumerate(trace.inputs) if entry.role == "input" and entry.value.shape
        ]
        self._results = sum(o.alias is None for o in trace.parts[0].outputs)
        self._sums = [
            i.tensor for i in trace.parts[0].inputs if i.role == "gradient" and i.tensor is not None
        ]
        self.executables = [forward.run, update.run]
        self._takes_rng = forward.takes_rng or update.takes_rng

    def __call__(self, arguments: list[Any]) -> list[torch.Tensor]:
        arguments = list(arguments)
        rng = arguments.pop() if self._takes_rng else None
        pieces = {i: split(arguments[i], self.count) for i in self._split}
        for total in self._sums:
            total.zero_()
        joined: list[Joined] = []
        for k in range(self.count):
            for i, parts in pieces.items():
                arguments[i] = parts[k]
            results = self._run(self.forward, self._forward, arguments, rng, k)
            if not joined:
                joined = [Joined(r, self.count) for r in results[: self._results]]
            for whole, part in zip(joined, results):
                whole.add(part, k)
            del results
        self._run(self.update, self._update, arguments, rng, self.count)
        return [whole.result() for whole in joined]

    def timed(self, arguments: list[Any]) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """Run once; returns the results, and the times of the last micro-batch's steps."""
        forward, times = self.forward, []

        def run(mine: list[Any]) -> list[torch.Tensor]:
            nonlocal times
            results, times = forward.run.timed(mine)  # type: ignore[attr-defined]
            return results

        self.forward = replace(forward, run=run)
        try:
            return self(arguments), times
        finally:
            self.forward = forward

    def _run(
        self, part: Compiled, positions: list[int], arguments: list[Any], rng: Any, k: int
    ) -> list[torch.Tensor]:
        mine = [arguments[i] for i in positions]
        if part.takes_rng:
            seed, offset = rng.tolist()
            mine.append(torch.tensor([seed, offset * (self.count + 1) + k]))
        return part.run(mine)


class Joined:
    """One result of all micro-batches."""

    def __init__(self, first: torch.Tensor, count: int) -> None:
        self.count, self.dtype = count, first.dtype
        if count == 1:
            self.whole = first
            return
        self.rows = first.shape[0] if first.ndim else 0
        if first.ndim:
            self.whole = torch.empty((self.rows * count, *first.shape[1:]), dtype=first.dtype)
        else:
            wide = torch.int64
            if first.is_floating_point() or first.is_complex():
                wide = torch.promote_types(first.dtype, torch.float64)
            self.whole = torch.zeros((), dtype=wide)

    def add(self, part: torch.Tensor, k: int) -> None:
        if self.count == 1:
            return
        if part.ndim:
            self.whole[k * self.rows : (k + 1) * self.rows] = part
        else:
            self.whole += part

    def result(self) -> torch.Tensor:
        if (
            self.count == 1
            or self.whole.ndim
            or not (self.dtype.is_floating_point or self.dtype.is_complex)
        ):
            return self.whole.to(self.dtype)
        return (self.whole / self.count).to(self.dtype)
