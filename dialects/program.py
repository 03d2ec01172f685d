"""What the compiler hands to the runtime, as plain data.

That is kernels, a flat list of steps, and where every tensor lives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .types import TensorType

#: upstream passes that take kernels from `scf`/`arith`/`vector`/`math` to the LLVM dialect
KERNEL_LOWERING = (
    "builtin.module(canonicalize,cse,convert-scf-to-cf,convert-math-to-llvm,convert-vector-to-llvm,"
    "convert-to-llvm,reconcile-unrealized-casts)"
)

#: where a tensor lives: in the arena, in an argument's own storage, in a result that the caller
#: gets, in a constant
Space = Literal["arena", "arg", "result", "constant"]


class Place(NamedTuple):
    """An address: `offset` bytes into the arena, or into argument, result or constant `index`."""

    space: Space
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs of it
    offset: int


@dataclass(frozen=True)
class TensorRef:
    """A tensor in memory; strides in elements."""

    place: Place
    type: TensorType
    strides: tuple[int, ...]


@dataclass(frozen=True)
class KernelStep:
    """Run a kernel function on a list of 64-bit words: numbers as they are, places as addresses.

    parallel: run it on all threads of the pool; else on the calling one.
    shared: its function does the calling thread's share of the work, on any number of threads.
    label: the op's name and source, for profiles.
    """

    kernel: str
    words: tuple[int | Place, ...]
    parallel: bool
    label: str
    shared: bool = False


@dataclass(frozen=True)
class KernelGroup:
    """Kernels that run side by side, as one launch; none reads what another one writes."""

    members: tuple[KernelStep, ...]
    label: str


@dataclass(frozen=True)
class AtenStep:
    """Call an ATen overload; its results are copied into `outputs` (None: not used)."""

    overload: str
    args: str
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef | None, ...]
    label: str


Step = KernelStep | KernelGroup | AtenStep


@dataclass(frozen=True)
class Argument:
    """A function argument: its role in the graph, dotted name, type and strides."""

    role: str
    name: str
    type: TensorType
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """A function result: a fresh tensor, or the new value of the storage of argument `alias`."""

    name: str
    type: TensorType
    alias: int | None


@dataclass
class Program:
    """A compiled function.

    ir: the planned module's text, which the rest was made from.
    kernels: function name to its MLIR text; declarations: what they call, name to text.
    arena_bytes: the planned values, then scratch that steps share.
    max_threads: threads that scratch was planned for.
    """

    name: str
    ir: str
    arguments: list[Argument]
    results: list[Result]
    steps: list[Step]
    kernels: dict[str, str]
    declarations: dict[str, str]
    arena_bytes: int
    constants: list[bytes] = field(default_factory=list)
    max_threads: int = 1
