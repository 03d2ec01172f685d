"""`graph.config`: how a graph is compiled."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable
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
_STRAIGHTEN = ("SpeedFirst", "MemoryFirst", "Disable", "OverlapCpuGpu", "DelayShortGpu")


class GraphConfig(OneFlowSwitches):
    """Settings of one graph. One that is set after the graph's first call takes effect at the next:
    the graph compiles again.

    A value that a switch does not take raises a `GraphError` that names the line and what would be
    right.

    compile_options: options of the compiler itself (`gflow.compiler.CompileOptions`): target,
        threads, a pipeline as text. The switches below add to them.
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
            hint = difflib.get_close_matches(
                name, [*known[:1], *(n for n in dir(GraphConfig) if n[0] != "_")], n=1
            )
            more = f"; did you mean {hint[0]}?" if hint else ""
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
        """What was switched, by the compiler's name of it."""
        shown = {**self._switches, **self._own}
        if isinstance(self.kept_gradients, tuple):
            names = (p if isinstance(p, str) else f"{list(p.shape)}" for p in self.kept_gradients)
            shown["kept_gradients"] = tuple(names)
        return shown

    def resolved(self) -> CompileOptions:
        """The compiler's options, with the switches."""
        # start-up: the compiler is loaded by who sets its options, or compiles
        from .compiler import CompileOptions

        options = self.compile_options or CompileOptions()
        if "outputs_buffer_size" in self._own:
            options = replace(options, kept_results=self._own["outputs_buffer_size"])
        if "autotune" in self._own:
            libraries = self._own["autotune_libraries"]
            wanted = self._own["autotune"]
            options = replace(
                options, tune=wanted, tune_libraries=libraries, race_products=wanted and libraries
            )
        switches = dict(self._switches)
        zero = self._own.get("zero")
        if zero is not None and zero[0] and world_size() > 1:
            stage, least, level = zero
            switches |= {"zero": stage, "zero_min_size": least, "zero_restore_level": level}
        return replace(options, passes=replace(options.passes, **switches)) if switches else options

    def check_against_eager(self, every: int | None = 1, *, on_difference: str = "raise") -> None:
        """Run every `every`-th step beside eager, the first included: results and all that the step
        updates are compared, and where they differ by more than rounding, the first op that parts is named,
        with its module and line. None: no step.

        on_difference: "raise" a `gflow.EagerMismatch`, after the step was made; or "warn".

        A checked step takes a few times as long and twice the memory; the Python of `build()` and of
        optimizers runs once more, and its effects on them are taken back. Other steps cost nothing.

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
        """How many programs the graph keeps, one for each signature of its inputs (16 without it).

        A call that needs one more drops the one that was not used for longest. strict: it is an error
        instead, which names the input that differs; `set_cache_size(1, strict=True)` fixes the graph
        to the inputs of its first call.

        Raises:
            GraphError: `size` is no whole number from 1 on, or `strict` is no bool.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise GraphError(f"{here()}: set_cache_size() takes a number from 1 on; got {size!r}")
        self._resize(size, flag("set_cache_size", strict))

    def enable_dynamic_shapes(self, mode: bool = True) -> None:
        """Whether a dimension of the inputs becomes dynamic by itself when a second size of it comes, as is the
        default: one program then serves a range of sizes. Python floats among the arguments become inputs likewise.
        `False`: one program for each size and each float. Dimensions marked with `gflow.dynamic_dim` vary in either
        case.

        Raises:
            GraphError: `mode` is no bool.
        """
        self._update(self._own, {"dynamic_shapes": flag("enable_dynamic_shapes", mode)})

    @property
    def dynamic_shapes(self) -> bool:
        """What `enable_dynamic_shapes` was told; True without it."""
        return bool(self._own.get("dynamic_shapes", True))

    @property
    def sizes_may_vary(self) -> bool:
        """Whether dimensions become dynamic by themselves, and no setting wants programs of fixed sizes: an engine, a
        budget of memory (what is planned is the memory of the greatest size), a check beside eager, a GPU."""
        if not self.dynamic_shapes or self._check is not None:
            return False
        fixed = ("engine", "memory_budget", "memory_fraction")
        if any(self._switches.get(name) for name in fixed):
            return False
        options = self.compile_options
        return options is None or (
            options.target == "cpu" and not any(getattr(options.passes, name) for name in fixed)
        )

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

    def allow_fuse_add_to_output(self, mode: bool = True) -> None:
        """Whether an addition may become part of the contraction that makes its operand."""
        self._set(fuse_add_to_output=flag("allow_fuse_add_to_output", mode))

    def allow_fuse_cast_scale(self, mode: bool = True) -> None:
        """Whether casts and scaling by constants may become part of other kernels."""
        self._set(fuse_cast_scale=flag("allow_fuse_cast_scale", mode))

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Whether the ops of one parameter's update may become one kernel."""
        self._set(fuse_model_update_ops=flag("allow_fuse_model_update_ops", mode))

    def enable_multi_tensor_update(self, mode: bool = True) -> None:
        """Whether the updates of all parameters become few kernels."""
        self._set(multi_tensor_update=flag("enable_multi_tensor_update", mode))

    def enable_attention_recognition(self, mode: bool = True) -> None:
        """Whether attention that a program writes out, softmax(q kᵀ) v, becomes one op, whose scores are never in
        memory as a whole. Without this call, that of float32 on a CPU does, which a kernel of gflow's own makes as the
        program says; with True that of other element types and on GPUs, too. Dropout of its weights is taken in
        float32 and on GPUs."""
        self._set(recognize_attention=flag("enable_attention_recognition", mode))

    def enable_compress_memory(self, mode: bool = True) -> None:
        """Whether values share memory that others no longer need."""
        self._set(compress_memory=flag("enable_compress_memory", mode))

    def enable_choose_best_memory_allocation(self, mode: bool = True) -> None:
        """Whether every allocation strategy and a local search are tried for the smallest arena."""
        name = "enable_choose_best_memory_allocation"
        self._set(choose_best_allocation=flag(name, mode))

    def set_memory_budget(self, budget: int | float | str) -> None:
        """The most memory that the values of a step may take, parameters and optimizer state not
        counted: "2GB", "512MiB", a number of bytes, or a fraction in (0, 1] of what the step needs
        otherwise. What does not fit is recomputed where it is needed.

        Raises:
            GraphError: the budget is none of these.
        """
        size, fraction = _budget(budget)
        self._set(memory_budget=size, memory_fraction=fraction)

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
        """In how many micro-batches a training graph runs each call: the memory of one, and the loss
        and gradients of the whole batch, for losses that are means over samples.

        Tensors among the arguments are split along their first dimension; 0-d tensors go to every
        micro-batch. What `build()` returns is joined: tensors along their first dimension, single
        numbers as their mean, single integers as their sum. Batch norm updates its statistics for
        each micro-batch, and each has its own dropout masks. A graph without an optimizer runs
        whole batches.

        stack_scalars: single numbers come as tensors with one element for each micro-batch, as in
            OneFlow: a loss has the shape [value].

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
        """Whether single numbers come one for each micro-batch."""
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
        """What `keep_gradients` was told; False for none."""
        return self._own.get("kept_gradients", False)

    def set_outputs_buffer_size(self, value: int = 2) -> None:
        """How many buffers of each result are used again once the caller has dropped it (4 without
        this). Each costs the result's memory; 0 makes every result anew.

        Raises:
            GraphError: `value` is no whole number from 0 on.
        """
        size = count("set_outputs_buffer_size", value, least=0)
        self._update(self._own, {"outputs_buffer_size": size})

    def set_pipeline_schedule(self, name: str) -> None:
        """The order in which ranks run forwards and backwards of micro-batches, where modules are in pipeline stages
        (`set_stage`): "gpipe", "1f1b" (without this, with one stage a rank) or "interleaved" (with several).

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
        """Split optimizer state (stage 1), gradients (2) and parameters (3) among the processes of a
        data-parallel group. In one process there is nothing to split, and a graph runs as without.

        shard_min_size: the fewest elements that are worth splitting. shard_restore_level: of stage 3; 0 puts
        a parameter together at each use, 1 once in the forward and once in the backward, 2 once for both.

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

    def enable_autotune(self, mode: bool = True, *, libraries: bool = True) -> None:
        """On the cuda target, whether kernels' configurations (and, for products, convolutions and attention,
        a library's call) are chosen by measuring them on the GPU when the graph is compiled. Without it, or
        where there is no GPU, the cost model's first choice runs. Answers are kept on disk. On the cpu target
        products of float32 are measured, our own kernel beside the BLAS, unless this is called with False.

        libraries: PyTorch's libraries take part; without, generated kernels alone do."""
        chosen = {"autotune": flag("enable_autotune", mode)}
        chosen["autotune_libraries"] = flag("enable_autotune(libraries=…)", libraries)
        self._update(self._own, chosen)

    def enable_xla_jit(self, value: bool = True) -> None:
        """Whether XLA compiles and runs what it has a form for, forward, backward and updates (docs/engines.md); the
        rest keeps gflow's kernels, and `graph.explain()` says what and why. Needs the extra `gflow-compiler[xla]`."""
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
        """Whether ONNX Runtime runs what ONNX has a form for (docs/engines.md); meant for inference. Needs
        `pip install 'gflow-compiler[onnx]'`."""
        self._engine("enable_onnxruntime", value, "onnxruntime")

    def enable_openvino(self, value: bool = True) -> None:
        """Whether OpenVINO runs what ONNX has a form for, in float32 (docs/engines.md); meant for inference. Needs
        `pip install 'gflow-compiler[openvino]'`."""
        self._engine("enable_openvino", value, "openvino")

    def enable_tensorrt(self, value: bool = True) -> None:
        """Not there: a GraphError with the install command where TensorRT is missing, else NotImplementedError.
        `gflow.save(graph, path, format="onnx")` writes what it reads."""
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
        hint = difflib.get_close_matches(name, [n for n in dir(GraphConfig) if n[0] != "_"], n=1)
        more = f"; did you mean {hint[0]}?" if hint else "; docs/config.md lists the settings"
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
