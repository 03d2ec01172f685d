"""The tail of a trace: ops on tensors whose shape depends on values, which PyTorch runs after the program.

A program has fixed shapes. In `return loss, boxes[scores > 0.5]`, the index has as many rows as there are scores above
0.5; no parameter, buffer or gradient depends on it. Such ops follow the program, one by one, on its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gflow.dialects.records import record

from .values import TraceOp, TraceValue


@record
class Unknown:
    """A size, or a number that is computed from sizes, which is known when the tail runs.

    Args:
        text: its formula.
        names: of the sizes in it.
        function: gives the value for these sizes, in the same order.
    """

    text: str
    names: tuple[str, ...]
    function: Callable[[Sequence[int]], Any] = field(compare=False)

    def at(self, sizes: Mapping[str, int]) -> Any:
        """The value for these sizes, by name."""
        return self.function([sizes[name] for name in self.names])

    def __repr__(self) -> str:
        return self.text


@dataclass
class Tail:
    """Ops that run after the program.

    Args:
        ops: in order.
        results: the values that `build()` returns; a `TailRef` is an index into them.
        outputs: values of the program that the ops read, each with its index among the program's outputs.
        arguments: arguments of the program that the ops read, and that no update changes.
        sizes: by a value of the ops, its dimensions that were unknown before, with their names.
        symbols: the names of the dynamic dimensions.
        conditions: on sizes, which the trace has assumed.
    """

    ops: list[TraceOp]
    results: list[TraceValue]
    outputs: dict[TraceValue, int]
    arguments: list[TraceValue]
    sizes: dict[TraceValue, list[tuple[int, str]]]
    symbols: tuple[str, ...] = ()
    conditions: list[Unknown] = field(default_factory=list)

    def operands(
        self,
        positions: Mapping[TraceValue, int],
        arguments: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> dict[TraceValue, Tensor]:
        """What the ops read of the program.

        Args:
            positions: of the program's inputs, by value.
            arguments, results: of the program.
        """
        given = {v: arguments[positions[v]] for v in self.arguments}
        return given | {v: results[n] for v, n in self.outputs.items()}

    @property
    def first(self) -> TraceOp:
        """The first op that gives a result whose shape depends on values."""
        return next(op for op in self.ops if any(r in self.sizes for r in op.results if r))
