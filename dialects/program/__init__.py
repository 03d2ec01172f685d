"""Compiled programs as plain data: the interface between the compiler and the runtime.

A `Program` has kernels, a flat list of steps, and the address of every tensor. Other modules of the package:

accesses     the memory that each step may read and write, from the IR; the runtime's checks compare a run with it
environment  environment variables that are switches
form         a `Program` as JSON and back, without pickle
processor    the instruction sets that code for this CPU may use: those it has, or those that `GFLOW_CPU_ISA` allows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..extents import Extent, N, Piece
from ..records import record
from ..types import TensorType

#: takes kernels for the CPU and the declarations of what they call: `llvm.func` texts by name
OnKernels = Callable[[Mapping[str, str], Mapping[str, str]], None]

#: upstream passes that lower kernels from `scf`/`arith`/`vector`/`math` to the LLVM dialect
KERNEL_LOWERING = (
    "builtin.module(canonicalize,cse,convert-scf-to-cf,convert-math-to-llvm,convert-vector-to-llvm,"
    "convert-to-llvm,reconcile-unrealized-casts)"
)

#: memory that a step addresses: the arena, the storage of an argument, a result's buffer, a constant, or a status
#: buffer of the executable. Status buffer 0 has the report of a failed check; on a GPU, status buffer 1 counts the
#: runs of each check.
Space = Literal["arena", "arg", "result", "constant", "status"]


class Place(NamedTuple):
    """An address: `offset` bytes into the arena, or into argument, result or constant `index`."""

    space: Space
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs of it
    offset: int


class KernelAddress(NamedTuple):
    """The address of a function of the program's kernels, for another kernel to call."""

    kernel: str


@record
class TensorRef:
    """A tensor in memory; strides in elements.

    In programs with a dynamic dimension, the offset, shape and strides may be `Extent`s.
    """

    place: Place
    type: TensorType
    strides: tuple[int, ...]


@record
class KernelStep:
    """Call a kernel function with a list of 64-bit words: numbers, and the addresses of places and of kernels.

    parallel: run it on all threads of the pool; otherwise on the calling thread.
    shared: the function computes its thread's share of the work, for any number of threads.
    label: the op's name and source, for profiles.
    reach: for each place among the words, how many bytes from its address on the op may access.
    from_size: in a program with a dynamic dimension, the least size at which the step is parallel.
    """

    kernel: str
    words: tuple[int | Extent | Piece | Place | KernelAddress, ...]
    parallel: bool
    label: str
    shared: bool = False
    reach: tuple[int, ...] = ()
    from_size: int = 0


@record
class KernelGroup:
    """Kernels that run concurrently, as one launch; none reads what another one writes."""

    members: tuple[KernelStep, ...]
    label: str


@record
class AtenStep:
    """Call an ATen overload and copy its results into `outputs` (None for an unused result)."""

    overload: str
    args: str
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef | None, ...]
    label: str


@record
class EngineStep:
    """Run a part of the program by another engine. All inputs are read before the first output is written.

    engine: the engine's name.
    code: the model that the engine compiles: base64 of the zlib-compressed file in the engine's format.
    numbers: in a program with a dynamic dimension, the numbers that `str.format` inserts into the model for each size.
    frozen: inputs that are constants of the compiled model; the engine compiles again after their values change.
    exact: the model that runs instead once the last output of `code`, a probe, is not finite. Empty if `code` has no
        probe.
    """

    engine: str
    code: str
    numbers: tuple[int, ...]
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    label: str
    frozen: tuple[int, ...] = ()
    exact: str = ""


@record
class Ranks:
    """The ranks of a collective: those along mesh axes (`Program.mesh`), or a process group by its name.

    count: the number of ranks.
    """

    axes: tuple[str, ...]
    group: str
    count: int


@record
class CollectiveStep:
    """Start a collective. No step accesses `input` or `output` until the `WaitStep` with its number.

    input: None for recv. output: None for send. reduction: "" for a collective without one. root, peer: a rank of the
    group; -1 if the collective has none. sends, takes: the elements to and from each rank, for an all_to_all of unequal
    parts. parameters: the names of the parameters whose gradients or values a collective of gflow's sends, in order.
    """

    kind: str
    ranks: Ranks
    sequence: int
    input: TensorRef | None
    output: TensorRef | None
    label: str
    reduction: str = ""
    root: int = -1
    peer: int = -1
    sends: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    parameters: str = ""


@record
class WaitStep:
    """Wait for the collective of this number."""

    sequence: int
    label: str


@record
class ShardStep:
    """Copy this rank's shard of a tensor, whose elements are padded with zeros to a multiple of the number of ranks."""

    ranks: Ranks
    input: TensorRef
    output: TensorRef
    label: str


@record
class TritonConfig:
    """One configuration of a Triton kernel: the values of its tunable `tl.constexpr` parameters (block sizes), warps in
    a block, and stages of the software pipeline."""

    constants: dict[str, int]
    num_warps: int = 4
    num_stages: int = 2

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.constants.items()]
        return ", ".join([*parts, f"{self.num_warps} warps", f"{self.num_stages} stages"])


@record
class TritonKernel:
    """The source of a Triton kernel, and its configurations.

    source: Python; one `@triton.jit` function of the kernel's name, after the functions it calls.
    parameters: the arguments of a launch in order: name to Triton type ("*fp32", "i32", "i64", "fp32").
    constants: `tl.constexpr` parameters that are the same for all launches of this kernel.
    multiples: the parameters that are multiples of 16 (numbers, or addresses in bytes).
    configs: the configurations; the first is the cost model's choice.
    grid: one to three Python expressions for the number of programs, in terms of parameters, constants,
        the values of a config, and `cdiv`.
    """

    name: str
    source: str
    parameters: dict[str, str]
    constants: dict[str, int]
    multiples: tuple[str, ...]
    configs: tuple[TritonConfig, ...]
    grid: tuple[str, ...]


@record
class LaunchStep:
    """Launch a Triton kernel.

    args: one for each of the kernel's parameters; places are passed as addresses.
    config: the number of the kernel's configuration. grid: the number of programs along three axes.
    reach: for each place among the arguments, how many bytes from its address on the op may access.
    """

    kernel: str
    args: tuple[int | float | Place, ...]
    config: int
    grid: tuple[int, ...]
    label: str
    reach: tuple[int, ...] = ()


@record
class DeviceCode:
    """A Triton kernel compiled with one config for one architecture.

    image: base64 of the zlib-compressed image: NVIDIA's cubin, or AMD's code object (hsaco).
    entry: the name of the kernel function in it.
    shared: bytes of shared memory per block. warps: warps of the device's size per block. scratch: bytes of global
    scratch memory per block. registers: registers per thread. spills: bytes of spilled registers per thread.
    scalar_spills: on AMD, bytes of scalar registers that are spilled to lanes of vector registers.
    instructions: the matrix instructions in the code, sorted.
    """

    image: str
    entry: str
    shared: int
    warps: int
    scratch: int = 0
    registers: int = 0
    spills: int = 0
    instructions: tuple[str, ...] = ()
    scalar_spills: int = 0


@record
class Race:
    """The timed comparison that selected the kernel of a step.

    step: the step's number in the program. label: the op's name and source. device: the device of the measurement.
    seconds: time by alternative ("BLOCK=64, 4 warps, 2 stages", "library"), the fastest first, which the step runs.
    There are none if other work on the machine disturbed the measurement, or if on a GPU the time for measurements was
    over; the step then runs the cost model's choice.
    """

    step: int
    label: str
    device: str
    seconds: dict[str, float]


@record
class Check:
    """An error that a step may report by its number in `Program.checks`.

    error: the exception's name. message: the text; `{}` is replaced by the value that failed the check.
    label: the op's name and source.
    """

    error: str
    message: str
    label: str


#: a step, or one of those that share a launch
Member = KernelStep | AtenStep | EngineStep | LaunchStep | CollectiveStep | WaitStep | ShardStep
Step = Member | KernelGroup


@record
class Argument:
    """A function argument: its role in the graph, dotted name, type and strides.

    pieces: for a sharded argument, the ranks that have one shard each. part: callers pass their shard; otherwise they
    pass the whole tensor, and the runtime takes the shard."""

    role: str
    name: str
    type: TensorType
    strides: tuple[int, ...]
    pieces: Ranks | None = None
    part: bool = False


@record
class Result:
    """A function result: a fresh tensor, or the new value of the storage of argument `alias`."""

    name: str
    type: TensorType
    alias: int | None


@record
class Size:
    """A dynamic dimension: each call passes its value in argument number `argument` (int64).

    second: a second dynamic dimension, independent of the first."""

    name: str
    least: int
    most: int
    argument: int
    second: Size | None = None

    @property
    def lowest(self) -> N:
        """The least of both."""
        return self.least if self.second is None else (self.least, self.second.least)

    @property
    def greatest(self) -> N:
        """The greatest of both."""
        return self.most if self.second is None else (self.most, self.second.most)

    def of(self, args: Sequence[Any]) -> N:
        """The values of the dynamic dimensions in a call's arguments."""
        n = int(args[self.argument])
        return n if self.second is None else (n, int(args[self.second.argument]))


@dataclass
class Program:
    """A compiled function.

    ir: the text of the planned module, from which all other fields were generated.
    kernels: MLIR text by function name. declarations: the text of functions that kernels call, by name.
    arena_bytes: the size of the arena: the planned values, then scratch memory that steps share.
    max_threads: the number of threads that the scratch memory is for.
    target: the target of the code: "cpu", "cuda:90".
    triton: Triton kernels by name. device_code: compiled Triton kernels by `kernel/config`.
    size: the program's dynamic dimension, if any. twin: the text of the planned module with the other prime that
    represents the dimension (`gflow.dialects.extents`).
    races: timed comparisons that selected kernels of steps.
    checks: errors that steps may report.
    first_write: the number of the first step that writes into an argument; an earlier failure leaves arguments as they
    were.
    mesh: the number of ranks along each mesh axis of the collectives; ranks are numbered row-major.
    seal: the digest of all other fields (`form.seal`), computed by the code that made the program.
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
    target: str = "cpu"
    triton: dict[str, TritonKernel] = field(default_factory=dict)
    device_code: dict[str, DeviceCode] = field(default_factory=dict)
    size: Size | None = None
    twin: str = ""
    races: list[Race] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    first_write: int = 0
    mesh: dict[str, int] = field(default_factory=dict)
    seal: str = ""
