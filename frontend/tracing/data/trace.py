"""The trace: `build()`, its backward and the optimizers' updates as one list of ATen ops.

A trace is plain data. Every tensor is a `TraceValue`, assigned once; ops are functional
ATen overloads (no op mutates an argument; view ops stay, as pure ops).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import TreeSpec

if TYPE_CHECKING:
    from gflow.dialects.extents import Symbol

    from .numbers import Guard
    from .places import NumberSource, OptimizerTrace

_CPU = torch.device("cpu")


@dataclass(eq=False, slots=True)
class TraceValue:
    """One tensor value. `is_number`: it stands for a Python number (shape (), float64 or
    int64) and promotes dtypes as a Python number does."""

    id: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]
    device: torch.device = _CPU
    is_number: bool = False

    def __repr__(self) -> str:
        kind = "number" if self.is_number else str(self.dtype).removeprefix("torch.")
        return f"%{self.id}:{kind}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class SourceLoc:
    """Where an op comes from: the user's file and line, the module that ran it, the phase
    ("forward", "backward" or "optimizer")."""

    file: str
    line: int
    module: str
    phase: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where} ({self.phase} of {self.module})" if self.module else where


@dataclass(eq=False, slots=True)
class TraceOp:
    """One ATen call; tensors among the arguments are `TraceValue`s. `results` holds the
    flattened tensor results, None for an undefined one. `scope`: the calls of modules to be
    computed again in the backward that the op is part of, outermost first."""

    func: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[TraceValue | None]
    loc: SourceLoc
    scope: tuple[str, ...] = ()

    def __repr__(self) -> str:
        results = ", ".join(repr(r) for r in self.results)
        args = ", ".join(
            [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        )
        return f"{results} = {self.func}({args})  # {self.loc}"


@dataclass(eq=False, slots=True)
class TraceInput:
    """An argument of the traced function. `tensor` is the real tensor whose storage is
    read and updated (None for a graph input)."""

    value: TraceValue
    role: str
    name: str
    tensor: torch.Tensor | None


@dataclass(eq=False, slots=True)
class TraceOutput:
    """A result. `alias`: index of the input whose storage takes the value, None for an
    output of `build()`."""

    value: TraceValue
    alias: int | None
    name: str


@dataclass(frozen=True, eq=False)
class View:
    """`tensor` lies in the memory of `base`, `offset` bytes from its begin."""

    tensor: torch.Tensor
    base: torch.Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: torch.Tensor, base: torch.Tensor) -> View:
        """As they lie now."""
        offset = tensor.data_ptr() - base.data_ptr()
        return View(tensor, base, tuple(tensor.shape), tuple(tensor.stride()), offset)

    def holds(self) -> bool:
        """Whether it still does."""
        now = View.of(self.tensor, self.base)
        mine = (self.shape, self.strides, self.offset)
        return (now.shape, now.strides, now.offset) == mine


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
    what runs after the last, over a part of `inputs` each. `ops` are those of both.

    `proven`: ops whose values another program, which runs before, has found good.

    `size`: the size that dimensions vary with, if any do; the input of role "size" brings it along.
    `views`: tensors that are no inputs, since they lie in the memory of one.
    `histories`: inputs that need no gradient and are updated with values that do."""

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
    parts: tuple[Trace, Trace] | None = None
    size: Symbol | None = None
    views: list[View] = field(default_factory=list)
    histories: list[TraceInput] = field(default_factory=list)
    proven: set[TraceOp] = field(default_factory=set)

    @property
    def main(self) -> Trace:
        """What a micro-batch runs where there are several; the trace itself otherwise."""
        return self.parts[0] if self.parts else self

    def __str__(self) -> str:
        lines = [f"trace {self.name}"]
        lines += [f"  {i.value!r} = {i.role} {i.name}" for i in self.inputs]
        lines += [f"  {op!r}" for op in self.ops]
        for out in self.outputs:
            target = "" if out.alias is None else f" -> {self.inputs[out.alias].name}"
            lines.append(f"  return {out.value!r} {out.name}{target}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class OutputRef:
    """A leaf of `Trace.out_leaves` that is the tensor `Trace.outputs[index]`."""

    index: int


def values_in(arg: Any) -> Iterator[TraceValue]:
    """The trace values in nested call arguments, in order."""
    if isinstance(arg, TraceValue):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from values_in(item)
    elif isinstance(arg, dict):
        for item in arg.values():
            yield from values_in(item)
