"""The default pass pipelines by target, and the switches that change them."""

from __future__ import annotations

from gflow.dialects.records import record

from ..targets import KINDS, Target, parse_target
from ..targets.devices import MMA_SHARED
from ..targets.processors import host_level


@record
class PipelineOptions:
    """Switches of the pipelines. Each one selects passes or sets their options.

    Attributes:
        amp: the half-precision type of mixed precision, "f16" or "bf16"; "" for none.
        memory_budget: the most bytes of the arena, met by recomputation; 0 for no limit.
        memory_fraction: the same as a share of the arena without recomputation, from 0 to 1.
        recomputation_time: without a budget, the share of the predicted time of a step that recomputation may add to
            lower its memory, from 0 to 1. None: 0.02 for CPUs, 0 for GPUs, for engines and without `compress_memory`.
            With 0, casts and copies are not repeated on GPUs either.
        straighten: the algorithm that orders ops, the `algorithm` option of `gflow-schedule`.
        compress_memory: reuse the memory of values that are no longer live.
        choose_best_allocation: try all allocation strategies and a local search, not only the three fastest strategies.
        fuse_add_to_output: fuse an addition into the epilogue of the contraction before it.
        fuse_cast_scale: fuse casts and scaling by constants into other kernels.
        fuse_model_update_ops: fuse the ops of one parameter's update into one kernel.
        multi_tensor_update: update all parameters in few kernels.
        zero: the stage of ZeRO, 0 for none. Under mixed precision, stages 1 and 2 also shard float32 parameters.
        zero_min_size: the fewest elements of a tensor that is sharded.
        zero_restore_level: when stage 3 gathers a parameter: 0 at each use, 1 once in the forward and once in the
            backward, 2 once.
        bucket_bytes: the most bytes of one bucket of collectives.
        unfused: on GPUs, the groups of kernels whose contraction runs apart from its epilogue (`gflow-unfuse`).
        recognize_attention: replace attention that the program writes out by one op that keeps no scores in memory.
            None does so only where a CPU kernel computes it in the program's precision.
        winograd: whether 3×3 convolutions on a CPU may run by Winograd's algorithm.
        fold_batch_norm: fold batch norm of inference into the weights of convolutions.
        freeze: move ops that depend on frozen arguments alone into a function that runs once, the prologue.
        weight_bits: the bits of quantized weights of matrix products in a frozen graph, 8 or 4; 0 for no quantization.
        engine: the engine that runs the ops that it supports; "" for none.
        module_engines: functions name the modules that engines run (`gflow.engines`).
    """

    amp: str = ""
    memory_budget: int = 0
    memory_fraction: float = 0.0
    recomputation_time: float | None = None
    straighten: str = "SpeedFirst"
    compress_memory: bool = True
    choose_best_allocation: bool = False
    fuse_add_to_output: bool = True
    fuse_cast_scale: bool = True
    fuse_model_update_ops: bool = True
    multi_tensor_update: bool = False
    recognize_attention: bool | None = None
    winograd: bool = True
    fold_batch_norm: bool = False
    freeze: bool = False
    weight_bits: int = 0
    engine: str = ""
    module_engines: bool = False
    zero: int = 0
    zero_min_size: int = 1024
    zero_restore_level: int = 1
    bucket_bytes: int = 25 << 20
    unfused: tuple[str, ...] = ()

    @property
    def for_onnx(self) -> bool:
        """Whether the engine reads ONNX.

        Statistics of norms are then summed in float32, since such engines support float64 in few ops or none. Max
        pooling is not decomposed, since engines support it.
        """
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
        passes += ["gflow-narrow-masks", "gflow-narrow-positions", "gflow-narrow-sums"]
        passes += ["gflow-sink-reshapes", "gflow-sink-concatenations"]
    passes += ["gflow-simplify", "cse"]
    if options.freeze and not options.engine:  # an engine makes constants of its own
        if options.weight_bits:
            passes.append(f"gflow-quantize-weights{{bits={options.weight_bits}}}")
        if not target.gpu and host_level():
            passes.append("gflow-pack-weights" + ("" if options.winograd else "{winograd=false}"))
        passes.append("gflow-freeze")
    # it makes additions between a product and its softmax part of the product's kernel, too. Where tensor cores do not
    # read shared memory, registers hold operands, and leave no room for scaled ones
    if target.gpu and target.has(MMA_SHARED) and options.fuse_add_to_output:
        passes.append("gflow-split-softmax")
    passes += [_fuse(options, target)]
    if target.gpu:
        programs = target.device.partial_sums * target.device.multiprocessors
        passes.append(f"gflow-join-operand-sums{{target={target}}}")
        passes.append(f"gflow-join-reductions{{programs={programs}}}")
        passes.append(f"gflow-join-columns{{target={target}}}")
        groups = ",".join(options.unfused)
        passes.append(f"gflow-unfuse{{groups={groups}}}" if groups else "gflow-unfuse")
    passes += [_schedule(options, target)]
    if target.gpu and options.straighten != "Disable":
        passes.append(f"gflow-group-products{{target={target}}}")
    counted = f"scratch={target}{_times(target)}{_fused_again(options, target)}"
    if options.memory_budget:
        passes.append(f"gflow-rematerialize{{budget={options.memory_budget} {counted}}}")
    elif options.memory_fraction:
        passes.append(f"gflow-rematerialize{{fraction={options.memory_fraction} {counted}}}")
    elif share := _recomputation_time(options, target):
        enough = options.recomputation_time is None
        more = f" slowdown-to-enough={_RECOMPUTATION_TO_ENOUGH}" if enough else ""
        passes.append(f"gflow-rematerialize{{slowdown={share}{more}{_times(target)}}}")
    passes.append("gflow-materialize")
    if options.compress_memory and (not target.gpu or _takes_time(options, target)):
        passes.append("gflow-repeat-copies")
    if options.multi_tensor_update:
        passes.append("gflow-merge-updates")
    if target.gpu:
        passes += ["gflow-hoist", "gflow-write-in-place"]
    passes += [_overlap(options, target), "gflow-split-collectives"]
    if target.gpu:
        passes.append("gflow-pad-rows")
    if not options.winograd and not target.gpu:
        host += " winograd=false"
    passes += [f"gflow-select-kernels{{target={target}{host}}}", _plan_memory(options)]
    if target.gpu:
        passes.append("gflow-merge-launches")
    return f"builtin.module(func.func({','.join(passes)}))"


def _front(options: PipelineOptions, target: Target | None = None) -> list[str]:
    """The first passes of every target. Their results are functions on tensors.

    target: the target whose kernels run attention; None for an engine, which recognizes attention itself.
    """
    passes = ["gflow-checkpoint", "gflow-simplify", "cse"]
    if target is not None:
        found = _recognize_attention(options, target)
        passes += found
        # only if a pass before the target's own simplification reads more than convolutions and collectives
        read = (
            target.gpu or options.freeze or options.amp or options.fold_batch_norm or options.zero
        )
        passes += ["gflow-simplify", "cse"] if found and read else []
        passes += ["gflow-recognize-windows"] if target.gpu else []
    passes.append("gflow-normalize-collectives")
    if options.freeze:  # before weights are rounded to half precision
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
    """Whether float32 attention runs by gflow's own CPU kernel."""
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


def _fuse(options: PipelineOptions, target: Target) -> str:
    device = target.device
    gpu = {
        "recompute-cost": str(device.recompute), "recompute-normalized": "true", "recompute-small": "true",
        "column-length": str(device.column), "split-reductions": "true",
    }  # fmt: skip
    return _with_options(
        "gflow-fuse",
        {
            "add-to-output": options.fuse_add_to_output,
            "cast-scale": options.fuse_cast_scale,
            "update-ops": options.fuse_model_update_ops,
            "update-in-contraction": options.fuse_model_update_ops
            and not options.multi_tensor_update,
        },
        gpu if target.gpu else {},
    )


def _schedule(options: PipelineOptions, target: Target) -> str:
    if options.straighten == "SpeedFirst":
        return "gflow-schedule"
    more = f" scratch={target}" if options.straighten == "MemoryFirst" else ""
    if options.straighten in ("OverlapCpuGpu", "DelayShortGpu"):
        more = _times(target)
    return f"gflow-schedule{{algorithm={options.straighten}{more}}}"


#: the share of a CPU step's predicted time that recomputation may add. Steps of seven models took 0.95 to 1.03 of their
#: time without it, since less memory is moved
_RECOMPUTATION_TIME = 0.02

#: the same, as long as more than 65 % of the live bytes remain
_RECOMPUTATION_TO_ENOUGH = 0.06


def _recomputation_time(options: PipelineOptions, target: Target) -> float:
    """The share of a step's predicted time that recomputation may add."""
    if options.recomputation_time is not None:
        return options.recomputation_time
    plain = not target.gpu and not options.engine and not options.module_engines
    return _RECOMPUTATION_TIME if plain and options.compress_memory else 0.0


def _fused_again(options: PipelineOptions, target: Target) -> str:
    """The options of `gflow-rematerialize` that fuse recomputed kernels with their readers; "" for GPUs, where more
    passes follow the fusion."""
    if target.gpu:
        return ""
    fuse = _fuse(options, target).removeprefix("gflow-fuse").strip("{}")
    schedule = _schedule(options, target).removeprefix("gflow-schedule").strip("{}")
    return f" fuse={{{fuse}}} schedule={{{schedule}}}"


def _takes_time(options: PipelineOptions, target: Target) -> bool:
    """Whether a step may take longer for the sake of its memory."""
    wanted = options.memory_budget or options.memory_fraction or options.straighten == "MemoryFirst"
    return bool(wanted or _recomputation_time(options, target))


def _times(target: Target) -> str:
    """The option with the device whose cost model a pass uses; "" for the CPU."""
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
    """The pipeline for a target by its name, `cpu`, `cuda:90` or `hip:gfx942`; without `options`, the default one.

    Raises:
        ValueError: the target is unknown.
    """
    return build_pipeline(options or PipelineOptions(), parse_target(target))


#: the default pipeline by kind of target; for GPUs, that of the default architecture
DEFAULT_PIPELINES = {kind: pipeline_for(kind) for kind in KINDS}
