"""The pass pipelines that the compile path runs, by target, and the switches that shape them."""

from __future__ import annotations

from gflow.dialects.records import record

from ..targets import KINDS, Target, parse_target
from ..targets.processors import host_level


@record
class PipelineOptions:
    """Switches of the pipelines. Every field acts through passes and their options.

    amp: element type of mixed precision, "f16" or "bf16"; "" without.
    memory_budget: the most bytes of the arena, kept by recomputation; 0 for no limit. memory_fraction: the same as a
        share of the arena without recomputation.
    straighten: the order of ops, as `gflow-schedule{algorithm=…}` names it.
    compress_memory: reuse memory of dead values. choose_best_allocation: try every allocation
        strategy, and a local search, rather than the three quickest.
    fuse_add_to_output: an addition after a contraction may become part of it.
    fuse_cast_scale: casts and scaling by constants may become part of other kernels.
    fuse_model_update_ops: the ops of one parameter's update may become one kernel.
    multi_tensor_update: all parameter updates become few kernels.
    zero: the stage of ZeRO, 0 without; under mixed precision, stages 1 and 2 divide float32 parameters, too.
    zero_min_size: the fewest elements that are divided. zero_restore_level: 0 gathers a parameter at each use, 1 for
        the forward and for the backward, 2 once.
    bucket_bytes: the most that ranks send as one collective.
    recognize_attention: attention that a program writes out becomes one op, without its scores in memory. None: where
        a processor's own kernel computes it as the program does.
    fold_batch_norm: batch norm in inference becomes part of convolutions' weights.
    freeze: what follows from arguments that are marked as frozen alone is a function of its own, which runs once.
    weight_bits: of a frozen graph, the bits of weights of matrix products, 8 or 4; 0 leaves them as they are.
    engine: the engine that runs what it has a form for; "" without. module_engines: functions say which modules
        engines run (`gflow.engines`).
    """

    amp: str = ""
    memory_budget: int = 0
    memory_fraction: float = 0.0
    straighten: str = "SpeedFirst"
    compress_memory: bool = True
    choose_best_allocation: bool = False
    fuse_add_to_output: bool = True
    fuse_cast_scale: bool = True
    fuse_model_update_ops: bool = True
    multi_tensor_update: bool = False
    recognize_attention: bool | None = None
    fold_batch_norm: bool = False
    freeze: bool = False
    weight_bits: int = 0
    engine: str = ""
    module_engines: bool = False
    zero: int = 0
    zero_min_size: int = 1024
    zero_restore_level: int = 1
    bucket_bytes: int = 25 << 20

    @property
    def for_onnx(self) -> bool:
        """Whether the engine reads ONNX: statistics of norms are then sums of float32, since such engines have float64
        for few ops or none, and maxima over windows stay ops, which engines have."""
        return self.engine not in ("", "xla")


def build_pipeline(options: PipelineOptions, target: Target, host: str = "") -> str:
    """The passes for a target. host: more options of `gflow-select-kernels`, each after a space.

    Raises:
        ValueError: an engine is switched on that does not run on the target.
    """
    passes = _front(options, None if options.engine else target)
    if options.engine or options.module_engines:
        if target.gpu:
            what = options.engine or "an engine of a module (XRTModule)"
            raise ValueError(f"{what} runs on the CPU so far, not for the target {target}")
        given = f"engine={options.engine}" if options.engine else "modules-only=true"
        passes += ["gflow-simplify", "cse", f"gflow-partition-engines{{{given}}}"]
    passes.append("gflow-assign-layout")
    if target.gpu:
        passes += ["gflow-narrow-positions", "gflow-narrow-sums"]
        passes += ["gflow-sink-reshapes", "gflow-sink-concatenations"]
    passes += ["gflow-simplify", "cse"]
    if options.freeze and not options.engine:  # an engine makes constants of its own
        if options.weight_bits:
            passes.append(f"gflow-quantize-weights{{bits={options.weight_bits}}}")
        if not target.gpu and host_level():
            passes.append("gflow-pack-weights")
        passes.append("gflow-freeze")
    passes += [_fuse(options, target)]
    if target.gpu:
        programs = _RUNS * target.device.multiprocessors
        passes.append(f"gflow-join-reductions{{programs={programs}}}")
    passes += [_schedule(options, target)]
    if target.gpu and options.straighten != "Disable":
        passes.append(f"gflow-group-products{{target={target}}}")
    counted = f"scratch={target}{_times(target)}"
    if options.memory_budget:
        passes.append(f"gflow-rematerialize{{budget={options.memory_budget} {counted}}}")
    elif options.memory_fraction:
        passes.append(f"gflow-rematerialize{{fraction={options.memory_fraction} {counted}}}")
    passes.append("gflow-materialize")
    if options.compress_memory:
        passes.append("gflow-repeat-copies")
    if options.multi_tensor_update:
        passes.append("gflow-merge-updates")
    if target.gpu:
        passes += ["gflow-hoist", "gflow-write-in-place"]
    passes += [_overlap(options, target), "gflow-split-collectives"]
    if target.gpu:
        passes.append("gflow-pad-rows")
    passes += [f"gflow-select-kernels{{target={target}{host}}}", _plan_memory(options)]
    if target.gpu:
        passes.append("gflow-merge-launches")
    return f"builtin.module(func.func({','.join(passes)}))"


def _front(options: PipelineOptions, target: Target | None = None) -> list[str]:
    """The first passes of every target; they keep the program a tensor program.

    target: whose kernels run attention; None where another engine does, which finds it by itself.
    """
    passes = ["gflow-checkpoint", "gflow-simplify", "cse"]
    if target is not None:
        found = _recognize_attention(options, target)
        passes += found
        # the next pass that reads more than convolutions and collectives; without one, what every target ends with does
        read = (
            target.gpu or options.freeze or options.amp or options.fold_batch_norm or options.zero
        )
        passes += ["gflow-simplify", "cse"] if found and read else []
        passes += ["gflow-recognize-windows"] if target.gpu else []
    passes.append("gflow-normalize-collectives")
    if options.freeze:  # before weights are rounded to halves
        passes.append("gflow-fold-batch-norm{frozen=true}")
    if options.amp:
        passes.append(f"gflow-amp{{dtype={options.amp}}}")
    if options.fold_batch_norm:
        passes.append("gflow-fold-batch-norm")
    return [*passes, *_distribution(options)]


def _recognize_attention(options: PipelineOptions, target: Target) -> list[str]:
    passes = []
    if options.recognize_attention is not False and _has_own_attention(options, target):
        passes.append(f"gflow-recognize-attention{{target={target} own=true}}")
    if options.recognize_attention:
        amp = " amp=true" if options.amp else ""
        passes.append(f"gflow-recognize-attention{{target={target}{amp}}}")
    return passes


def _has_own_attention(options: PipelineOptions, target: Target) -> bool:
    """Whether attention of float32 runs by a processor's own kernel."""
    return not target.gpu and not options.amp and bool(host_level())


def export_pipeline(options: PipelineOptions) -> str:
    """The passes that run before a program is exported for another engine."""
    return f"builtin.module(func.func({','.join([*_front(options), 'gflow-simplify', 'cse'])}))"


def _distribution(options: PipelineOptions) -> list[str]:
    """The passes that distribute a data-parallel step over ranks."""
    passes = []
    if options.zero:
        passes.append(f"gflow-zero-1{{min-size={options.zero_min_size}}}")
        passes += ["gflow-zero-2"] if options.zero > 1 else []
    if options.amp and 0 < options.zero < 3:
        given = f"min-size={options.zero_min_size} narrowed=true restore-level=2"
        passes.append(f"gflow-zero-3{{{given}}}")
    if options.zero > 2:
        choices = f"min-size={options.zero_min_size} restore-level={options.zero_restore_level}"
        passes.append(f"gflow-zero-3{{{choices}}}")
    return [*passes, f"gflow-bucket-collectives{{bytes={options.bucket_bytes}}}"]


#: a GPU has some 20 operations for each byte that it moves, and epilogues that cost no pass over memory
_GPU_FUSION = {"recompute-cost": "80", "recompute-normalized": "true", "split-reductions": "true"}


#: runs of rows for each multiprocessor, whose sums of columns are kept in registers
_RUNS = 4


def _fuse(options: PipelineOptions, target: Target) -> str:
    return _with_options(
        "gflow-fuse",
        {
            "add-to-output": options.fuse_add_to_output,
            "cast-scale": options.fuse_cast_scale,
            "update-ops": options.fuse_model_update_ops,
            "update-in-contraction": options.fuse_model_update_ops
            and not options.multi_tensor_update,
        },
        _GPU_FUSION if target.gpu else {},
    )


def _schedule(options: PipelineOptions, target: Target) -> str:
    if options.straighten == "SpeedFirst":
        return "gflow-schedule"
    more = f" scratch={target}" if options.straighten == "MemoryFirst" else ""
    if options.straighten in ("OverlapCpuGpu", "DelayShortGpu"):
        more = _times(target)
    return f"gflow-schedule{{algorithm={options.straighten}{more}}}"


def _times(target: Target) -> str:
    """The option that names the device whose times a pass uses; "" for the CPU."""
    return f" device={target.device.name}" if target.gpu else ""


def _overlap(options: PipelineOptions, target: Target) -> str:
    given = _times(target).split()
    if options.memory_budget or options.memory_fraction:
        given.append("growth=0")
    return (
        f"gflow-overlap-collectives{{{' '.join(given)}}}" if given else "gflow-overlap-collectives"
    )


def _plan_memory(options: PipelineOptions) -> str:
    if not options.compress_memory:
        return "gflow-plan-memory{compress=false}"
    if options.choose_best_allocation:
        return "gflow-plan-memory{strategies=all improve=2000}"
    return "gflow-plan-memory"


def _with_options(name: str, switches: dict[str, bool], more: dict[str, str]) -> str:
    """A pass with its disabled switches and more options, as pipeline text."""
    given = [f"{option}={value}" for option, value in more.items()]
    given += [f"{switch}=false" for switch, on in switches.items() if not on]
    return f"{name}{{{' '.join(given)}}}" if given else name


def pipeline_for(target: str, options: PipelineOptions | None = None) -> str:
    """The passes for a target by its name: `cpu`, `cuda:90`, `hip:gfx942`; what runs by default.

    Raises:
        ValueError: the target is unknown.
    """
    return build_pipeline(options or PipelineOptions(), parse_target(target))


#: by kind of target what runs when nothing is switched; of GPUs for the architecture that a target without one has
DEFAULT_PIPELINES = {kind: pipeline_for(kind) for kind in KINDS}
