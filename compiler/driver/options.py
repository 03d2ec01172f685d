"""Options of a compilation, and the programs that it gives: what finding a stored program needs of the compiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gflow.dialects.program import OnKernels, Program
from gflow.dialects.records import record

from ..targets import parse_target
from ..targets.host import host_blas
from ..targets.processors import host_level
from .pipelines import PipelineOptions, build_pipeline

if TYPE_CHECKING:
    from .races import Racing


#: the default of `CompileOptions.tune_seconds`
TUNE_SECONDS = 30.0


@dataclass
class CompileOptions:
    """Options of one compilation.

    Attributes:
        target: "cpu", "cuda:90", "hip:gfx942".
        passes: switches of the target's pipeline.
        pipeline: a textual pass pipeline to run instead of the target's; None for the target's.
        threads: the most threads that kernels may use; 0 for all cores.
        blas: whether generated code may call the BLAS in PyTorch; None to find out whether there is one.
        timing: the compiler adds seconds by phase and by pass here.
        kept_results: how many buffers of each result the runtime keeps for reuse.
        reproducer_dir: the directory of reproducers of failing passes; "" for the one in `GFLOW_REPRODUCER_DIR`.
        tune_seconds: the most seconds in which variants of GPU kernels are compiled and timed on the device, if it is
            present, to choose between them. 0: none. Infinity: no limit. None: `TUNE_SECONDS`, or 0 if PyTorch is asked
            for deterministic algorithms.
        tune_libraries: include calls of PyTorch's libraries among the variants.
        eager_random: draw the random numbers of eager ops, from PyTorch's generator and through ATen (on the CPU).
        race_products: choose between gflow's own kernel and the library's for CPU products by timing them.
        racing: how CPU kernels are timed; None to choose by the cost model.
        on_phase: called when a phase begins, with its name ("passes", "codegen") and the pass's name or "".
        on_kernels: called with kernels for the CPU and the declarations of what they call, by name, while code
            generation makes those that come next.
    """

    target: str = "cpu"
    passes: PipelineOptions = field(default_factory=PipelineOptions)
    pipeline: str | None = None
    threads: int = 0
    blas: bool | None = None
    timing: dict[str, float] = field(default_factory=dict)
    kept_results: int = 4
    reproducer_dir: str = ""
    tune_seconds: float | None = None
    tune_libraries: bool = True
    eager_random: bool = False
    race_products: bool = True
    racing: Racing | None = None
    on_phase: Callable[[str, str], None] | None = None
    on_kernels: OnKernels | None = None


class Resolved(NamedTuple):
    """Options with all defaults filled in: all inputs of a compilation besides the module."""

    target: str
    pipeline: str
    threads: int
    blas: bool
    isa: str


def resolve(options: CompileOptions) -> Resolved:
    """Fill in the defaults of options.

    Raises:
        ValueError: the target is unknown, or `GFLOW_CPU_ISA` names instruction sets that the processor lacks.
    """
    target = parse_target(options.target)
    threads = options.threads or os.cpu_count() or 1
    blas = host_blas() if options.blas is None else options.blas
    host = ""
    if not target.gpu:
        host += f" threads={options.threads}" if options.threads else ""
        host += "" if blas else " blas=false"
    pipeline = options.pipeline or build_pipeline(options.passes, target, host)
    isa = "" if target.gpu else host_level()
    return Resolved(str(target), pipeline, threads, blas, isa)


@record
class Programs:
    """The programs of a module: the main program, and the prologue that computes with frozen arguments, if any.

    given: the source of each argument of the main program: the number of the module's argument, or -1 - n for result n
    of the prologue. reads: the same for the arguments of the prologue.
    """

    main: Program
    prologue: Program | None = None
    given: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
