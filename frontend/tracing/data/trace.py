"""The trace: `build()`, its backward and the optimizers' updates as one list of ATen ops.

A trace is plain data. Every tensor is a `TraceValue`, assigned once; ops are functional
ATen overloads (no op mutates an argument; view ops stay, as pure ops).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_unflatten

from gflow.dialects.extents import Symbol

from .global_tensors import axes_of
from .guards import Guard
from .places import NumberSource, OptimizerTrace
from .values import OutputRef, ResultView, TraceInput, TraceOp, TraceOutput, TraceValue, View


@dataclass
class Trace:
    """A whole traced graph. `out_leaves` are the leaves of `out_spec`: an index into
    `outputs`, wrapped in `OutputRef`, or a plain Python value returned by `build()`.
    `input_leaves` gives for a graph input its place among the flattened arguments.
    `numbers` are the host numbers behind the scalar inputs; the trace holds for their new
    values while all `guards` and the baked values of `steps` do. `unscaled`: the optimizers, by
    number, whose gradients `build()` has divided by the loss scale. `kept`: parameters, and the
    buffers in which the step leaves their gradients.

    With `micro_batches`, the inputs are those of one; `parts` are what each micro-batch runs, and
    what runs after the last, over a part of `inputs` each. `ops` are those of both. `stacked`: single numbers
    come as tensors of one for each micro-batch.

    `proven`: ops whose values another program, which runs before, has found good.

    `size`: the size that dimensions vary with, if any do; the input of role "size" brings it along.
    `views`: tensors that are no inputs, since they lie in the memory of one. `result_views`: outputs that lie in the
    memory of an input or of another output.
    `groups`: process groups by name that are axes of the program's mesh, and these axes' names. `axes`: the whole mesh,
    where its axes and their order are told and do not follow from the collectives. `reduced`:
    gradients that are averaged over ranks, with their parameters' names. `buckets`: of the same, how many bytes are
    sent as one at most, see `gflow.buckets`. `copied`: inputs of which each rank of a group has a copy, and that group.
    `divided`: those of them of which a rank has a part in truth (`fully_shard`), and `kept_whole`: whether they are
    gathered once for forward and backward.
    `stages`: of a step in micro-batches, what each rank of a pipeline runs (`pipeline_stages.Stages`), in the order
    that `schedule` names.
    `histories`: inputs that need no gradient and are updated with values that do.
    `ungraded`: tensors of which `build()` has seen that they have no gradient before the call.
    `facts`: what `build()` has asked of tensors from outside, see `dispatch.functions.facts`.
    `rearranged`: arguments whose lists or dicts `build()` has changed.
    `frozen`: ids of inputs that are taken to be the same at each call; whoever runs the program looks for changes.
    `engines`: by the dotted name of a module, the engine that runs its forward and backward (`gflow.XRTModule`).
    `mesh`: a `DeviceMesh`, if the trace is of global tensors: values are wholes, of which ranks hold parts.
    `data_axes`: its dimensions along which no parameter is split; gradients are added up along them."""

    name: str
    inputs: list[TraceInput] = field(default_factory=list)
    ops: list[TraceOp] = field(default_factory=list)
    outputs: list[TraceOutput] = field(default_factory=list)
    out_spec: TreeSpec | None = None
    out_leaves: list[Any] = field(default_factory=list)
    input_leaves: dict[TraceValue, int] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    numbers: list[NumberSource] = field(default_factory=list)
    steps: list[OptimizerTrace] = field(default_factory=list)
    unscaled: list[int] = field(default_factory=list)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    micro_batches: int = 1
    stacked: bool = False
    parts: tuple[Trace, Trace] | None = None
    size: Symbol | None = None
    views: list[View] = field(default_factory=list)
    result_views: list[ResultView] = field(default_factory=list)
    histories: list[TraceInput] = field(default_factory=list)
    rearranged: list[str] = field(default_factory=list)
    ungraded: list[torch.Tensor] = field(default_factory=list)
    facts: list[Any] = field(default_factory=list)
    proven: set[TraceOp] = field(default_factory=set)
    groups: dict[str, str] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    reduced: dict[TraceValue, str] = field(default_factory=dict)
    buckets: dict[TraceValue, tuple[int, ...]] = field(default_factory=dict)
    copied: dict[TraceValue, str] = field(default_factory=dict)
    divided: set[TraceValue] = field(default_factory=set)
    kept_whole: bool = False
    stages: Any = None
    schedule: str = ""
    mesh: Any = None
    data_axes: tuple[str, ...] = ()
    frozen: frozenset[int] = frozenset()
    engines: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Trace:
        """What a micro-batch runs where there are several; the trace itself otherwise."""
        return self.parts[0] if self.parts else self

    @property
    def shared_axes(self) -> tuple[str, ...]:
        """The axes of the mesh along which ranks share values; along others each has a batch of its own."""
        return tuple(a for a in axes_of(self.mesh) if a not in self.groups.values())

    def __str__(self) -> str:
        lines = [f"trace {self.name}"]
        lines += [f"  {i.value!r} = {i.role} {i.name}" for i in self.inputs]
        lines += [f"  {op!r}" for op in self.ops]
        for out in self.outputs:
            target = "" if out.alias is None else f" -> {self.inputs[out.alias].name}"
            lines.append(f"  return {out.value!r} {out.name}{target}")
        return "\n".join(lines)


def unflatten(trace: Trace, results: Sequence[torch.Tensor]) -> Any:
    """What `build()` returned, with tensors for the outputs."""
    assert trace.out_spec is not None
    leaves = [results[x.index] if isinstance(x, OutputRef) else x for x in trace.out_leaves]
    return tree_unflatten(leaves, trace.out_spec)
