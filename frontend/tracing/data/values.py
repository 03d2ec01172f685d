"""The parts of a trace: tensor values, ops with their locations, inputs and outputs. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from .global_tensors import Layout

_CPU = torch.device("cpu")
_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class TraceValue:
    """One tensor value; strides are in elements. `is_number`: it represents a Python number (shape (), float64 or
    int64) and takes part in dtype promotion as a Python number does."""

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
    """Where an op comes from: the user's file and line, the path of the module that ran it, and the phase ("forward",
    "backward" or "optimizer")."""

    file: str
    line: int
    module: str
    phase: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where} ({self.phase} of {self.module})" if self.module else where


@dataclass(eq=False, slots=True)
class TraceOp:
    """One ATen call; tensors among the arguments are `TraceValue`s.

    Args:
        results: the flattened tensor results, None for an undefined one.
        scope: the module calls with recomputation that contain the op, outermost first.
    """

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
    """An argument of the traced function.

    Args:
        tensor: the real tensor whose storage is read and updated (None for a graph input).
        from_start: whether the input must begin at the start of its storage, since the program has offsets into the
            storage.
        by_memory: whether the program reads the input by its memory (`as_strided`), not by its elements.
        layout: the sharding of a global tensor. `value` then has the global shape, and `tensor` is this rank's shard.
    """

    value: TraceValue
    role: str
    name: str
    tensor: torch.Tensor | None
    from_start: bool = False
    by_memory: bool = False
    layout: Layout | None = None


@dataclass(eq=False, slots=True)
class TraceOutput:
    """A result. `alias`: the index of the input whose storage takes the value, None for an output of `build()`."""

    value: TraceValue
    alias: int | None
    name: str


@dataclass(frozen=True, eq=False)
class View:
    """`tensor` is a view of the memory of `base`, beginning `offset` bytes after it."""

    tensor: torch.Tensor
    base: torch.Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: torch.Tensor, base: torch.Tensor) -> View:
        """The view of these tensors with their current addresses and strides."""
        offset = tensor.data_ptr() - base.data_ptr()
        return View(tensor, base, tuple(tensor.shape), tuple(tensor.stride()), offset)

    def holds(self) -> bool:
        """Whether the tensors still have this offset, shape and strides."""
        now = View.of(self.tensor, self.base)
        mine = (self.shape, self.strides, self.offset)
        return (now.shape, now.strides, now.offset) == mine


@dataclass(frozen=True, slots=True)
class ResultView:
    """Output `output` is a view of an argument, or of output `base` if `argument` is None.

    Args:
        whole: whether it is that tensor itself.
        base_strides: the strides that the base must have.
        offset: in elements from the beginning of the base.
    """

    output: int
    argument: TraceValue | None
    base: int
    base_strides: tuple[int, ...]
    whole: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The view of `tensor`; None if its strides are not `base_strides`."""
        if self.whole:
            return tensor
        if tensor.stride() != self.base_strides:
            return None
        if tensor.dtype != self.dtype:
            tensor = tensor.view(self.dtype)
        return tensor.as_strided(self.shape, self.strides, tensor.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class OutputRef:
    """A leaf of `Trace.out_leaves` that is the tensor `Trace.outputs[index]`."""

    index: int


@dataclass(frozen=True, slots=True)
class TailRef:
    """A leaf of `Trace.out_leaves` that is result `index` of the tail."""

    index: int


def instances_in(arg: Any, kind: type[_T]) -> Iterator[_T]:
    """The instances of a class among nested call arguments (lists, tuples and dicts), in order."""
    found: list[_T] = []
    _collect((arg,), kind, found)
    return iter(found)


#: types of arguments that hold no others
_LEAVES = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout))


def _collect(items: Iterable[Any], kind: type[_T], found: list[_T]) -> None:
    for item in items:
        if isinstance(item, kind):
            found.append(item)
        elif type(item) in _LEAVES:
            continue
        elif isinstance(item, (list, tuple)):
            _collect(item, kind, found)
        elif isinstance(item, dict):
            _collect(item.values(), kind, found)


def values_in(arg: Any) -> Iterator[TraceValue]:
    """The trace values in nested call arguments, in order."""
    return instances_in(arg, TraceValue)


def renamed(arg: Any, values: Mapping[TraceValue, TraceValue]) -> Any:
    """Nested call arguments with some trace values replaced."""
    if isinstance(arg, TraceValue):
        return values.get(arg, arg)
    if isinstance(arg, (list, tuple)):
        return type(arg)([renamed(a, values) for a in arg])
    if isinstance(arg, dict):
        return {k: renamed(v, values) for k, v in arg.items()}
    return arg


def renamed_op(op: TraceOp, values: Mapping[TraceValue, TraceValue]) -> TraceOp:
    """An op with some of its operands replaced."""
    args, kwargs = renamed(op.args, values), renamed(op.kwargs, values)
    return TraceOp(op.func, args, kwargs, op.results, op.loc, op.scope)
