"""The trace: `build()`, its backward and the optimizers' updates as one list of ATen ops.

A trace is plain data. Every tensor is a `TraceValue`, assigned once; ops are functional ATen overloads (no op mutates
an argument; view ops are kept, as pure ops).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_unflatten

from gflow.dialects.extents import Symbol

from .branches import Branch
from .global_tensors import axes_of
from .guards import Guard
from .known import Known
from .places import NumberSource, OptimizerTrace
from .tail import Tail
from .values import (
    OutputRef,
    ResultView,
    TailRef,
    TraceInput,
    TraceOp,
    TraceOutput,
    TraceValue,
    View,
)


@dataclass
class Trace:
    """A whole traced graph.

    Structure:

        out_leaves    the leaves of `out_spec`: an `OutputRef`, a `TailRef`, or a plain Python value
        assigned      (dict, key) for each attribute to which a call assigns a new tensor. `out_spec` is a pair then:
                      the result of `build()`, and a list of these tensors
        tail          ops that run after the program, since their shapes depend on values
        input_leaves  for each graph input, its index among the flattened arguments
        numbers       the Python numbers behind the scalar inputs. The trace is valid for their new values while all
                      `guards` and the baked values of `steps` hold
        unscaled      the indices of optimizers whose gradients `build()` has divided by the loss scale
        kept          parameters, and the buffers in which the step leaves their gradients
        proven        ops whose values another program, which runs before, has checked
        known         values of arguments and buffers that the trace has read, and is made for
        branches      conditions on values for whose truths it is made, in the order in which `build()` has asked
        engines       by the dotted name of a module, the engine that runs its forward and backward (`gflow.XRTModule`)

    Micro-batches: the inputs are those of one micro-batch.

        parts         the program of each micro-batch, and the one after the last; each reads some of `inputs`.
                      `ops` has the ops of both
        stacked       whether results that are single numbers are returned as one number for each micro-batch
        stages        what each rank of a pipeline runs (`pipeline_stages.Stages`), in the order `schedule`

    Sizes and memory:

        size          the symbol of the dynamic dimensions; the input of role "size" holds its value
        views         tensors that are views of an input, and no inputs themselves
        result_views  outputs that are views of an input or of another output
        frozen        ids of inputs that are constant; the caller detects changes

    Observations about `build()`:

        histories     inputs that need no gradient and are updated with values that do
        ungraded      tensors of which `build()` has read that they have no gradient before the call
        held          tensors from outside that `build()` has used, other than the parameters and buffers of modules
        facts         what `build()` has asked of tensors from outside, see `dispatch.functions.facts`
        rearranged    arguments whose lists or dicts `build()` has changed
        passing       what `build()` has changed of autograd's settings, which a call leaves as they are, with the lines

    Distribution:

        groups        by the name of a process group, the axis of the program's mesh that it is
        axes          the whole mesh, where it is given and not derived from the collectives
        reduced       gradients that are averaged over ranks, with their parameters' names
        buckets       for these, the maximal bytes of a message, see `gflow.buckets`
        copied        inputs that are replicated over a process group, and that group
        divided       those of them that are sharded between steps (`fully_shard`)
        kept_whole    whether these are gathered once for forward and backward
        mesh          a `DeviceMesh`, if values are global tensors, which are sharded over it
        data_axes     its axes along which no parameter is sharded; gradients are summed over them
    """

    name: str
    inputs: list[TraceInput] = field(default_factory=list)
    ops: list[TraceOp] = field(default_factory=list)
    outputs: list[TraceOutput] = field(default_factory=list)
    out_spec: TreeSpec | None = None
    out_leaves: list[Any] = field(default_factory=list)
    assigned: list[tuple[dict[Any, Any], Any]] = field(default_factory=list)
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
    passing: list[tuple[str, tuple[str, int]]] = field(default_factory=list)
    ungraded: list[torch.Tensor] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)
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
    tail: Tail | None = None
    known: Known | None = None
    branches: list[Branch] = field(default_factory=list)

    @property
    def main(self) -> Trace:
        """The program of a micro-batch if there are several; otherwise the trace itself."""
        return self.parts[0] if self.parts else self

    @property
    def symbol(self) -> str:
        """The function's name: the graph's name without its number, so that all graphs of a class have the same
        program, and find it in the cache."""
        name = re.sub(r"_\d+(_update)?$", r"\1", self.name)
        return "".join(c if c.isalnum() or c in "_.$" else "_" for c in name) or "main"

    @property
    def shared_axes(self) -> tuple[str, ...]:
        """The axes of the mesh along which ranks share values; along other axes each rank has a batch of its own."""
        return tuple(a for a in axes_of(self.mesh) if a not in self.groups.values())

    def __str__(self) -> str:
        lines = [f"trace {self.name}"]
        lines += [f"  {i.value!r} = {i.role} {i.name}" for i in self.inputs]
        lines += [f"  {op!r}" for op in self.ops]
        for out in self.outputs:
            target = "" if out.alias is None else f" -> {self.inputs[out.alias].name}"
            lines.append(f"  return {out.value!r} {out.name}{target}")
        return "\n".join(lines)


def leaf_of(leaf: Any, results: Sequence[torch.Tensor], late: Sequence[torch.Tensor] = ()) -> Any:
    """A leaf of `build()`'s result. late: the results of the tail."""
    if isinstance(leaf, OutputRef):
        return results[leaf.index]
    return late[leaf.index] if isinstance(leaf, TailRef) else leaf


def unflatten(
    trace: Trace, results: Sequence[torch.Tensor], late: Sequence[torch.Tensor] = ()
) -> Any:
    """The result of `build()`, with these tensors. late: the results of the tail."""
    result, _ = _unflatten(trace, results, late)
    return result


def finish_call(
    trace: Trace, results: Sequence[torch.Tensor], late: Sequence[torch.Tensor] = ()
) -> Any:
    """As `unflatten`, after a call: assigns the tensors of `trace.assigned`.

    They are copies, since later programs update them in place.
    """
    result, new = _unflatten(trace, results, late)
    for (holder, key), tensor in zip(trace.assigned, new):
        dict.__setitem__(holder, key, tensor.clone())
    return result


def _unflatten(
    trace: Trace, results: Sequence[torch.Tensor], late: Sequence[torch.Tensor]
) -> tuple[Any, list[torch.Tensor]]:
    """The result of `build()`, and the tensors of `trace.assigned`."""
    assert trace.out_spec is not None
    leaves = [leaf_of(x, results, late) for x in trace.out_leaves]
    whole = tree_unflatten(leaves, trace.out_spec)
    return whole if trace.assigned else (whole, [])
