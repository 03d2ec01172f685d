"""What the compiler hands to the runtime, as plain data.

That is kernels, a flat list of steps, and where every tensor lives. Beside it:

accesses   what the steps of a program read and write, as its IR says: plain data to check a run against
form       a `Program` as JSON and back, without pickle
processor  which instructions code for this processor may use: what it has, or what `GFLOW_CPU_ISA` limits it to
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..extents import Extent, N, Piece
from ..records import record
from ..types import TensorType

#: upstream passes that take kernels from `scf`/`arith`/`vector`/`math` to the LLVM dialect
KERNEL_LOWERING = (
    "builtin.module(canonicalize,cse,convert-scf-to-cf,convert-math-to-llvm,convert-vector-to-llvm,"
    "convert-to-llvm,reconcile-unrealized-casts)"
)

#: where a tensor lives: in the arena, in an argument's own storage, in a result that the caller
#: gets, in a constant. Steps also write to what an executable has for itself: "status" 0 is its report of a
#: check that failed, "status" 1 counts the runs of each check, on a device.
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
    """A tensor in memory; strides in elements. In programs with a size, numbers of its place, shape and
    strides may be `Extent`s."""

    place: Place
    type: TensorType
    strides: tuple[int, ...]


@record
class KernelStep:
    """Run a kernel function on a list of 64-bit words: numbers as they are, places and kernels as addresses.

    parallel: run it on all threads of the pool; else on the calling one.
    shared: its function does the calling thread's share of the work, on any number of threads.
    label: the op's name and source, for profiles.
    reach: for each place among the words, the bytes from there on that the op may touch.
    from_size: of a program with a size, the least one at which it is parallel.
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
    """Kernels that run side by side, as one launch; none reads what another one writes."""

    members: tuple[KernelStep, ...]
    label: str


@record
class AtenStep:
    """Call an ATen overload; its results are copied into `outputs` (None: not used)."""

    overload: str
    args: str
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef | None, ...]
    label: str


@record
class EngineStep:
    """Have another engine run a part of the program. All inputs are read before the first output is written.

    engine: its name. code: what it compiles, base64 of the zlib-compressed file in its form. numbers: of a program
    with a size, what is put into the code for each size, which is then a text for `str.format`. frozen: inputs that
    are constants of what the engine compiles; where their values change, it compiles again.
    """

    engine: str
    code: str
    numbers: tuple[int, ...]
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    label: str
    frozen: tuple[int, ...] = ()


@record
class Ranks:
    """Who takes part in a collective: the ranks along mesh axes (`Program.mesh`), or a process group by its name.

    count: how many they are.
    """

    axes: tuple[str, ...]
    group: str
    count: int


@record
class CollectiveStep:
    """Begin a collective; the `WaitStep` of its number comes later, and nothing touches `input` or `output` meanwhile.

    input: None of recv. output: None of send. reduction: "" where none is made. root, peer: a rank of the group; -1
    where there is none. sends, takes: elements for and from each rank, of an all_to_all of unequal parts.
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


@record
class WaitStep:
    """Wait for the collective of this number."""

    sequence: int
    label: str


@record
class ShardStep:
    """Copy this rank's piece of a tensor: of its elements, filled up with zeros to a multiple of the ranks."""

    ranks: Ranks
    input: TensorRef
    output: TensorRef
    label: str


@record
class TritonConfig:
    """One way to run a Triton kernel: values of its `tl.constexpr` parameters that may be chosen
    (block sizes), warps in a block, and stages of a software pipeline."""

    constants: dict[str, int]
    num_warps: int = 4
    num_stages: int = 2

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.constants.items()]
        return ", ".join([*parts, f"{self.num_warps} warps", f"{self.num_stages} stages"])


@record
class TritonKernel:
    """A Triton kernel as text, and how it may be run.

    source: Python; one `@triton.jit` function of the kernel's name, after the functions it calls.
    parameters: those that a launch gives, in order: name to Triton type ("*fp32", "i32", "i64", "fp32").
    constants: `tl.constexpr` parameters that every launch of this kernel has in common.
    multiples: the parameters that are multiples of 16 (numbers, or addresses in bytes).
    configs: ways to run it; the first is the cost model's choice.
    grid: one to three Python expressions for the number of programs, over parameters, constants,
        those of a config, and `cdiv`.
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

    args: one for each of its parameters; places as addresses.
    config: which of the kernel's configs. grid: the number of programs, three numbers.
    reach: for each place among the arguments, the bytes from there on that the op may touch.
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

    image: base64 of the zlib-compressed image: NVIDIA's cubin, or AMD's code object (hsaco). entry: its function.
    shared: bytes of shared memory a block. warps: of the device's size, a block. scratch: bytes of global scratch a
    block needs. registers, spills: of a thread; spills in bytes. scalar_spills: of AMD, bytes of scalar registers
    that are kept in lanes of vector registers. instructions: matrix instructions used, sorted.
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
    """What was measured for a step before it was chosen how to run it.

    step: its number in the program; label: the op's name and source. device: where.
    seconds: by way, the fastest first, which is the one that runs: "BLOCK=64, 4 warps, 2 stages", "library". None
    where other work on the machine disturbed the measurement, so that the model's choice runs.
    """

    step: int
    label: str
    device: str
    seconds: dict[str, float]


@record
class Check:
    """An error that a step may report, by the number of this in `Program.checks`.

    error: the exception's name. message: `{}` in it stands for the value that was found.
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
    """A function argument: its role in the graph, dotted name, type and strides. pieces: the ranks that have a piece
    of it each, where this is one. part: callers give it as their piece; else as the whole tensor, to be divided."""

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
    """A number that each call brings along, in argument number `argument` (int64): numbers of the program
    depend on it. second: another one, which varies on its own."""

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
        """What a call's arguments bring along."""
        n = int(args[self.argument])
        return n if self.second is None else (n, int(args[self.second.argument]))


@dataclass
class Program:
    """A compiled function.

    ir: the planned module's text, which the rest was made from.
    kernels: function name to its MLIR text; declarations: what they call, name to text.
    arena_bytes: the planned values, then scratch that steps share.
    max_threads: threads that scratch was planned for.
    target: what the code is for: "cpu", "cuda:90".
    triton: Triton kernels by name. device_code: compiled ones, by `kernel/config`.
    size: what its sizes vary with, if they do. twin: the planned module at the other stand-in, of such a program.
    races: how steps were chosen by measuring.
    checks: errors that steps may report.
    first_write: the first step that writes into an argument; before it, a call can be given up.
    mesh: ranks along each axis that collectives name; ranks are numbered row-major.
    seal: the digest of all else (`program_form.seal`), by whoever made it.
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
