"""`graph.config`: how a graph is compiled."""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .errors import GraphAttributeError, GraphError
from .inspection.against_eager import EagerCheck
from .oneflow.switches import NOT_THERE, OneFlowSwitches
from .runtime.engines.packages import EngineUnavailable, require
from .tracing.context.checked_values import count, flag
from .tracing.context.location import here
from .tracing.context.ranks import world_size

if TYPE_CHECKING:
    from .compiler import CompileOptions

_log = logging.getLogger("gflow")
#: why a graph is not frozen
TRAINS = (
    "config.freeze() is for inference, and a graph with an optimizer changes its parameters at each call; make "
    "another graph of the same modules, without an optimizer, and freeze that one"
)
_BITS = {"int8": 8, "int4": 4}
_STRAIGHTEN = ("SpeedFirst", "MemoryFirst", "Disable", "OverlapCpuGpu", "DelayShortGpu")


class GraphConfig(OneFlowSwitches):
    """Settings of one graph. A setting changed after the first call takes effect at the next call, which compiles
    again.

    A value that a switch does not accept raises a `GraphError`, which names the line and the accepted values.

    compile_options: options of the compiler itself (`gflow.compiler.CompileOptions`): target, threads, a pipeline
        as text. The switches below are applied on top of them.
    """

    def __init__(
        self,
        on_change: Callable[[], None] = lambda: None,
        resize: Callable[[int, bool], None] = lambda size, strict: None,
        trains: Callable[[], bool] = lambda: False,
    ) -> None:
        self._on_change, self._resize, self._trains = on_change, resize, trains
        self.compile_options: CompileOptions | None = None
        self._switches: dict[str, Any] = {}
        self._own: dict[str, Any] = {}
        self._check: EagerCheck | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        known = (
            "compile_options",
            "_on_change",
            "_resize",
            "_trains",
            "_switches",
            "_own",
            "_check",
        )
        if name not in known:
            more = _meant(name, known[:1])
            raise GraphError(f"{here()}: a graph's config has no setting {name!r}{more}")
        object.__setattr__(self, name, value)
        if name == "compile_options":
            self._on_change()

    def _set(self, **switches: Any) -> None:
        self._update(self._switches, switches)

    def _update(self, into: dict[str, Any], switches: dict[str, Any]) -> None:
        if any(into.get(name, self) != value for name, value in switches.items()):
            into.update(switches)
            self._on_change()

    def switches(self) -> dict[str, Any]:
        """The settings that were changed, by the compiler's names."""
        shown = {**self._switches, **self._own}
        if isinstance(self.kept_gradients, tuple):
            names = (p if isinstance(p, str) else f"{list(p.shape)}" for p in self.kept_gradients)
            shown["kept_gradients"] = tuple(names)
        return shown

    def resolved(self) -> CompileOptions:
        """The compiler's options, including the switches."""
        # start-up: the compiler is loaded at its first use
        from .compiler import CompileOptions

        options = self.compile_options or CompileOptions()
        if "outputs_buffer_size" in self._own:
            options = replace(options, kept_results=self._own["outputs_buffer_size"])
        if "autotune" in self._own:
            libraries = self._own["autotune_libraries"]
            wanted = self._own["autotune"]
            options = replace(
                options,
                tune_seconds=self._own["autotune_seconds"] if wanted else 0.0,
                tune_libraries=libraries,
                race_products=wanted and libraries,
            )
        if "eager_random" in self._own:
            options = replace(options, eager_random=self._own["eager_random"])
        switches = dict(self._switches)
        zero = self._own.get("zero")
        if zero is not None and zero[0] and world_size() > 1:
            stage, least, level = zero
            switches |= {"zero": stage, "zero_min_size": least, "zero_restore_level": level}
        return replace(options, passes=replace(options.passes, **switches)) if switches else options

    def check_against_eager(self, every: int | None = 1, *, on_difference: str = "raise") -> None:
        """Compare every `every`-th step with eager PyTorch, including the first: results, everything that the step
        updates, and other tensors that `build()` can reach. A difference beyond rounding is reported with the first op
        that differs, its module and its line.

        Args:
            every: the distance between checked steps; None checks none.
            on_difference: "raise" raises `gflow.EagerMismatch` after the step, "warn" warns.

        A checked step takes several times as long and twice the memory. It runs the Python code of `build()` and of the
        optimizers once more, and reverts its side effects on them. Other steps cost nothing.

        Raises:
            GraphError: `every` is no whole number from 1 on, or `on_difference` is neither of these words.
        """
        if every is None:
            self._check = None
            return
        if on_difference not in ("raise", "warn"):
            known = "'raise' or 'warn'"
            problem = f"check_against_eager() takes on_difference={known}; got {on_difference!r}"
            raise GraphError(f"{here()}: {problem}")
        self._check = EagerCheck(count("check_against_eager(every=…)", every), on_difference)

    def set_cache_size(self, size: int, *, strict: bool = False) -> None:
        """Set how many programs the graph keeps, one for each signature of its inputs. The default is 16.

        Args:
            size: the number of programs, from 1 on. A call that needs one more drops the least recently used one.
            strict: raise an error instead, which names the input that differs. `set_cache_size(1, strict=True)` fixes
                the graph to the inputs of its first call.

        Raises:
            GraphError: `size` is no whole number from 1 on, or `strict` is no bool.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise GraphError(
                f"{here()}: set_cache_size() takes an integer of 1 or more; got {size!r}"
            )
        self._resize(size, flag("set_cache_size", strict))

    def enable_dynamic_shapes(self, mode: bool = True) -> None:
        """Whether the second size of an input's dimension makes it dynamic, which is the default: one program then
        serves a range of sizes. A second value of a Python float or int among the arguments makes it an input.
        `False`: one program for each size and each number. Dimensions marked with `gflow.dynamic_dim` are dynamic in
        either case.

        Raises:
            GraphError: `mode` is no bool.
        """
        self._update(self._own, {"dynamic_shapes": flag("enable_dynamic_shapes", mode)})

    @property
    def dynamic_shapes(self) -> bool:
        """The value of `enable_dynamic_shapes`; default True."""
        return bool(self._own.get("dynamic_shapes", True))

    @property
    def sizes_may_vary(self) -> bool:
        """Whether dimensions become dynamic automatically, and no setting needs static shapes: an engine, a memory
        budget (the arena is planned for the largest size), a comparison with eager, a GPU."""
        if not self.dynamic_shapes or self._check is not None:
            return False
        fixed = ("engine", "memory_budget", "memory_fraction")
        if any(self._switches.get(name) for name in fixed):
            return False
        options = self.compile_options
        return options is None or (
            options.target == "cpu" and not any(getattr(options.passes, name) for name in fixed)
        )

    def enable_eager_random(self, mode: bool = True) -> None:
        """Whether random ops draw the numbers that eager ops draw, from PyTorch's generator and in program order, and
        leave it in the state in which eager leaves it (docs/random.md). They then run through ATen, on the CPU only. By
        default, kernels compute numbers of their own, which is faster.

        Raises:
            GraphError: `mode` is no bool.
        """
        self._update(self._own, {"eager_random": flag("enable_eager_random", mode)})

    def enable_amp(self, mode: bool = True, *, dtype: torch.dtype = torch.float16) -> None:
        """Mixed precision: contractions in `dtype` (float16 or bfloat16), everything else in float32.

        Parameters, optimizer state and all that `build()` returns keep their types. With float16,
        also set a scaler (`Graph.set_grad_scaler`).

        Raises:
            GraphError: `dtype` is another type, or `mode` is no bool.
        """
        names = {torch.float16: "f16", torch.bfloat16: "bf16"}
        if dtype not in names:
            raise GraphError(
                f"{here()}: enable_amp() takes dtype=torch.float16 or torch.bfloat16; got {dtype!r}"
            )
        self._set(amp=names[dtype] if flag("enable_amp", mode) else "")

    def freeze(self, mode: bool = True, *, weights: str | None = None) -> None:
        """Inference with parameters that rarely change (docs/freezing.md). What follows from parameters, buffers and
        captured tensors alone is computed once and kept: batch norm that is folded into weights, weights in the layout
        and element type in which kernels read them. A call after a parameter was changed computes it again.

        Args:
            weights: None keeps weights as they are. "int8" gives weights of linear layers 8 bits, with a scale for each
                output; "int4" 4 bits, with a scale for each 32 elements. Results change by that rounding:
                `graph.explain().frozen` has the error of each weight, and why others keep their type. For calls of few
                rows, which read each weight once, as in decoding; CPU, float32.

        Raises:
            GraphError: the graph has an optimizer, `mode` is no bool, or `weights` is none of these.
        """
        if flag("freeze", mode) and self._trains():
            raise GraphError(f"{here()}: {TRAINS}")
        if weights not in (None, *_BITS):
            known = " or ".join(map(repr, _BITS))
            raise GraphError(f"{here()}: freeze() takes weights={known}, or None; got {weights!r}")
        bits = _BITS[weights] if weights is not None and mode else 0
        self._set(freeze=mode, weight_bits=bits)

    @property
    def is_frozen(self) -> bool:
        """Whether `freeze` was switched on."""
        return bool(self._switches.get("freeze", False))

    def allow_fuse_add_to_output(self, mode: bool = True) -> None:
        """Whether an addition may be fused into the contraction that computes its operand, as an epilogue."""
        self._set(fuse_add_to_output=flag("allow_fuse_add_to_output", mode))

    def allow_fuse_cast_scale(self, mode: bool = True) -> None:
        """Whether casts and scaling by constants may be fused into other kernels."""
        self._set(fuse_cast_scale=flag("allow_fuse_cast_scale", mode))

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Whether the ops of one parameter's update may be fused into one kernel."""
        self._set(fuse_model_update_ops=flag("allow_fuse_model_update_ops", mode))

    def enable_multi_tensor_update(self, mode: bool = True) -> None:
        """Whether the updates of all parameters are grouped into few kernels."""
        self._set(multi_tensor_update=flag("enable_multi_tensor_update", mode))

    def enable_attention_recognition(self, mode: bool = True) -> None:
        """Whether attention written as softmax(q kᵀ) v becomes one op, which never stores the whole score matrix. By
        default, float32 attention on a CPU does, and runs in a kernel of gflow's own. True adds other element types
        and GPUs. Attention with dropout of its weights becomes one op in float32 and on GPUs."""
        self._set(recognize_attention=flag("enable_attention_recognition", mode))

    def enable_winograd(self, mode: bool = True) -> None:
        """Whether float32 convolutions on a CPU with a 3×3 kernel and stride 1, and their gradients, may run by
        Winograd's algorithm where it is faster (the default). It multiplies less than half as often. Its errors are
        those of PyTorch's convolution relative to the largest numbers of a window; a result that comes of the smallest
        numbers of a window beside far larger ones with weights near zero is less exact."""
        self._set(winograd=flag("enable_winograd", mode))

    def enable_compress_memory(self, mode: bool = True) -> None:
        """Whether values reuse the memory of values whose live ranges have ended."""
        self._set(compress_memory=flag("enable_compress_memory", mode))

    def enable_choose_best_memory_allocation(self, mode: bool = True) -> None:
        """Whether every allocation strategy and a local search are tried for the smallest arena."""
        name = "enable_choose_best_memory_allocation"
        self._set(choose_best_allocation=flag(name, mode))

    def set_memory_budget(self, budget: int | float | str) -> None:
        """Limit the memory of the intermediate values of a step; parameters and optimizer state are not counted. Values
        that do not fit are recomputed where they are needed.

        Args:
            budget: "2GB", "512MiB", a number of bytes, or a fraction in (0, 1] of the memory without recomputation.

        Raises:
            GraphError: the budget is none of these.
        """
        size, fraction = _budget(budget)
        self._set(memory_budget=size, memory_fraction=fraction)

    def set_recomputation_time(self, share: float) -> None:
        """Let recomputation lower the memory of a step while it adds at most this share of the step's predicted time.
        A memory budget takes precedence.

        Args:
            share: from 0 (no recomputation) to 1. The default is 0.02 on CPUs, 0.06 as long as more than
                65 % of the live values remain; and 0 on GPUs, for engines and with `enable_compress_memory(False)`.

        Raises:
            GraphError: `share` is not a number from 0 to 1.
        """
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise GraphError(
                f"{here()}: set_recomputation_time() takes a share from 0 to 1; got {share!r}"
            )
        self._set(recomputation_time=float(share))

    def enable_straighten_algorithm(self, mode: str = "MemoryFirst") -> None:
        """The order in which ops run: "MemoryFirst", "SpeedFirst", "Disable" (as built),
        "OverlapCpuGpu" or "DelayShortGpu".

        Raises:
            GraphError: `mode` is none of these words.
        """
        if mode not in _STRAIGHTEN:
            known = ", ".join(repr(m) for m in _STRAIGHTEN)
            raise GraphError(
                f"{here()}: enable_straighten_algorithm() takes one of {known}; got {mode!r}"
            )
        self._set(straighten=mode)

    def set_gradient_accumulation_steps(
        self, value: int = 1, *, stack_scalars: bool = False
    ) -> None:
        """Run each call of a training graph in `value` micro-batches, with the memory of one. For losses that are
        means over samples, loss and gradients are those of the whole batch.

        Tensors among the arguments are split along their first dimension; 0-d tensors go to every micro-batch. The
        results of `build()` are joined: tensors are concatenated along their first dimension, floating-point scalars
        are averaged, integer scalars are summed. Batch norm updates its statistics for each micro-batch, and each
        micro-batch has its own dropout masks. A graph without an optimizer runs whole batches.

        Args:
            value: the number of micro-batches, from 1 on.
            stack_scalars: return scalars as tensors of shape [value], one element for each micro-batch, as OneFlow
                does.

        Raises:
            GraphError: `value` is no whole number from 1 on, or `stack_scalars` is no bool.
        """
        name = "set_gradient_accumulation_steps"
        chosen = {"gradient_accumulation_steps": count(name, value)}
        if flag(f"{name}(stack_scalars=…)", stack_scalars) or self.stack_scalars:
            chosen["stack_scalars"] = stack_scalars
        self._update(self._own, chosen)

    @property
    def stack_scalars(self) -> bool:
        """Whether scalar results are stacked, one for each micro-batch."""
        return bool(self._own.get("stack_scalars", False))

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of one call."""
        return self._own.get("gradient_accumulation_steps", 1)

    def keep_gradients(self, *parameters: str | torch.Tensor | bool) -> None:
        """Keep the gradients of these parameters (of all, with none) after a step, for
        `Graph.grad`. It costs their memory. False: keep none.

        Raises:
            GraphError: an argument is neither a name, nor a parameter, nor a single bool.
        """
        wanted: Any = parameters or True
        if len(parameters) == 1 and isinstance(parameters[0], bool):
            wanted = parameters[0]
        elif any(not isinstance(p, (str, torch.Tensor)) for p in parameters):
            raise GraphError(
                f"{here()}: keep_gradients() takes names of parameters, or parameters; "
                f"got {parameters!r}"
            )
        self._own["kept_gradients"] = wanted
        self._on_change()

    @property
    def kept_gradients(self) -> bool | tuple[str | torch.Tensor, ...]:
        """The value of `keep_gradients`; False for none."""
        return self._own.get("kept_gradients", False)

    def set_outputs_buffer_size(self, value: int = 2) -> None:
        """Set how many buffers of each result are reused after the caller has dropped the result. The default is 4.
        Each takes the memory of the result; 0 allocates every result.

        Raises:
            GraphError: `value` is no whole number from 0 on.
        """
        size = count("set_outputs_buffer_size", value, least=0)
        self._update(self._own, {"outputs_buffer_size": size})

    def set_pipeline_schedule(self, name: str) -> None:
        """Set the order in which ranks run the forwards and backwards of micro-batches, for modules in pipeline stages
        (`set_stage`): "gpipe", "1f1b" (the default with one stage a rank) or "interleaved" (the default with several).

        Raises:
            GraphError: `name` is none of these.
        """
        names = ("gpipe", "1f1b", "interleaved")
        if name not in names:
            known = ", ".join(map(repr, names))
            raise GraphError(
                f"{here()}: set_pipeline_schedule() takes one of {known}; got {name!r}"
            )
        self._update(self._own, {"pipeline_schedule": name})

    @property
    def pipeline_schedule(self) -> str:
        """What `set_pipeline_schedule` has set; "" without it."""
        return str(self._own.get("pipeline_schedule", ""))

    def enable_zero(
        self,
        mode: bool = True,
        *,
        stage: int = 2,
        shard_min_size: int = 1024,
        shard_restore_level: int = 1,
    ) -> None:
        """Shard optimizer state (stage 1), also gradients (stage 2), also parameters (stage 3) over the processes of a
        data-parallel group (ZeRO). It has no effect in one process.

        Args:
            stage: 1, 2 or 3.
            shard_min_size: tensors with fewer elements are not sharded.
            shard_restore_level: for stage 3. 0 gathers a parameter at each use, 1 once in the forward and once in the
                backward, 2 once for both.

        Raises:
            GraphError: an argument is none of the values above.
        """
        mode = flag("enable_zero", mode)
        if stage not in (1, 2, 3) or isinstance(stage, bool):
            raise GraphError(f"{here()}: enable_zero() takes stage=1, 2 or 3; got {stage!r}")
        if shard_restore_level not in (0, 1, 2) or isinstance(shard_restore_level, bool):
            raise GraphError(
                f"{here()}: enable_zero() takes shard_restore_level=0, 1 or 2; "
                f"got {shard_restore_level!r}"
            )
        least = count("enable_zero(shard_min_size=…)", shard_min_size)
        chosen = (stage, least, shard_restore_level) if mode else None
        self._distributed("enable_zero", zero=chosen)

    def _distributed(self, name: str, **settings: Any) -> None:
        self._update(self._own, settings)
        if world_size() == 1:
            _log.info("%s() acts in graphs of more than one process; this is one", name)

    def enable_autotune(
        self, mode: bool = True, *, libraries: bool = True, seconds: float | None = None
    ) -> None:
        """Whether kernels are chosen by measurements when the graph is compiled. Results are cached on disk.

        On the cuda target, the candidates of each kernel are timed on the GPU. Without a call of this method that takes
        at most about 30 seconds, products, convolutions and attention first; launches that were not measured, as all
        without a GPU, run the cost model's choice. Nothing is measured by default under
        `torch.use_deterministic_algorithms(True)`, since another process could choose other kernels. On the cpu target,
        float32 matrix products are timed by default, gflow's kernel against the BLAS; `False` switches that off.

        Args:
            mode: False: nothing is measured.
            libraries: whether calls of PyTorch's libraries are candidates for products, convolutions and attention.
            seconds: the time after which nothing more is compiled for measurements, or measured, on a GPU; None: no
                limit; 0: nothing is measured.

        Raises:
            GraphError: `mode` or `libraries` is no bool, or `seconds` is neither None nor a number from 0 on.
        """
        chosen: dict[str, Any] = {"autotune": flag("enable_autotune", mode)}
        chosen["autotune_libraries"] = flag("enable_autotune(libraries=…)", libraries)
        chosen["autotune_seconds"] = math.inf if seconds is None else _seconds(seconds)
        self._update(self._own, chosen)

    def enable_xla_jit(self, value: bool = True) -> None:
        """Whether XLA compiles and runs the ops that it supports, in forward, backward and updates (docs/engines.md).
        Other ops keep gflow's kernels; `graph.explain()` lists them with the reason. Needs the extra
        `gflow-compiler[xla]`."""
        self._engine("enable_xla_jit", value, "xla")

    def _engine(self, name: str, value: bool, engine: str) -> None:
        if not flag(name, value):
            if self._switches.get("engine") == engine:
                self._set(engine="")
            return
        try:
            require(engine)
        except EngineUnavailable as error:
            raise GraphError(f"{here()}: {name}(): {error}") from None
        self._set(engine=engine)

    def enable_onnxruntime(self, value: bool = True) -> None:
        """Whether ONNX Runtime runs the ops that ONNX can express (docs/engines.md). For inference. Needs
        `pip install 'gflow-compiler[onnx]'`."""
        self._engine("enable_onnxruntime", value, "onnxruntime")

    def enable_openvino(self, value: bool = True) -> None:
        """Whether OpenVINO runs the ops that ONNX can express, in float32 (docs/engines.md). For inference. Needs
        `pip install 'gflow-compiler[openvino]'`."""
        self._engine("enable_openvino", value, "openvino")

    def enable_tensorrt(self, value: bool = True) -> None:
        """Not supported: raises GraphError with the install command if TensorRT is missing, else NotImplementedError.
        `gflow.save(graph, path, format="onnx")` writes a file that TensorRT reads."""
        if not flag("enable_tensorrt", value):
            return
        try:
            require("tensorrt")
        except EngineUnavailable as error:
            raise GraphError(f"{here()}: enable_tensorrt(): {error}") from None
        raise NotImplementedError(
            f"{here()}: enable_tensorrt(): TensorRT does not run graphs' steps yet; leave the call out, and give its "
            "own tools what gflow.save(graph, path, format='onnx') writes."
        )

    def __getattr__(self, name: str) -> Any:
        # only names that are not there arrive here
        if name.startswith("__"):
            raise AttributeError(name)
        if name in NOT_THERE:
            raise GraphAttributeError(f"{here()}: {NOT_THERE[name]}")
        more = _meant(name) or "; docs/config.md lists the settings"
        raise GraphAttributeError(f"{here()}: a graph's config has no setting {name!r}{more}")

    def __repr__(self) -> str:
        shown = self.switches()
        if self.compile_options is not None:
            shown["compile_options"] = self.compile_options
        lines = [f"  {name}: {value!r}," for name, value in shown.items()]
        return "\n".join(["GraphConfig(", *lines, ")"]) if lines else "GraphConfig()"


_UNITS = {"": 1, **{f"{p}B": 1000**i for i, p in enumerate(("", "K", "M", "G", "T"))}}
_UNITS |= {f"{p}iB": 1024**i for i, p in enumerate(("K", "M", "G", "T"), 1)}


def _budget(given: object) -> tuple[int, float]:
    """A memory budget as bytes, or as a fraction; the other is 0."""
    if isinstance(given, str):
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?i?B)?", given.strip(), re.IGNORECASE)
        units = {name.lower(): size for name, size in _UNITS.items()}
        if found and (found[2] or "").lower() in units:
            given = int(float(found[1]) * units[(found[2] or "").lower()])
    if isinstance(given, float) and 0 < given <= 1:
        return 0, given
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given >= 1:
        return int(given), 0.0
    raise GraphError(
        f"{here()}: set_memory_budget() takes bytes (2_000_000_000, '2GB', '512MiB') or a fraction "
        f"in (0, 1] (0.5); got {given!r}"
    )


def _seconds(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    raise GraphError(
        f"{here()}: enable_autotune(seconds=…) takes a number of seconds, or None for no limit; got {value!r}"
    )


def _meant(name: str, others: Sequence[str] = ()) -> str:
    """The end of a message that proposes the setting with a similar name; "" if none is. Most names share `enable_`."""
    names = [*others, *(n for n in dir(GraphConfig) if n[0] != "_")]
    hint = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return f"; did you mean {hint[0]}?" if hint else ""
