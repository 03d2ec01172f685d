"""`graph.config`: how a graph is compiled."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .errors import GraphError
from .tracing.location import user_frame

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions

_STRAIGHTEN = ("SpeedFirst", "MemoryFirst", "Disable", "OverlapCpuGpu", "DelayShortGpu")


class GraphConfig:
    """Settings of one graph. One that is set after the graph's first call takes effect at the next:
    the graph compiles again.

    compile_options: options of the compiler itself (`gflow.compiler.CompileOptions`): target,
        threads, a pipeline as text. The switches below add to them.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.compile_options: CompileOptions | None = None
        self._switches: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        known = ("compile_options", "_on_change", "_switches")
        if name not in known:
            hint = difflib.get_close_matches(name, [*known[:1], *vars(GraphConfig)], n=1)
            more = f"; did you mean {hint[0]}?" if hint else ""
            raise GraphError(f"{_here()}: a graph's config has no setting {name!r}{more}")
        object.__setattr__(self, name, value)
        if name == "compile_options":
            self._on_change()

    def _set(self, **switches: Any) -> None:
        if any(self._switches.get(name, self) != value for name, value in switches.items()):
            self._switches.update(switches)
            self._on_change()

    def resolved(self) -> CompileOptions:
        """The compiler's options, with the switches."""
        from gflow.compiler import CompileOptions

        options = self.compile_options or CompileOptions()
        if not self._switches:
            return options
        return replace(options, passes=replace(options.passes, **self._switches))

    def enable_amp(self, mode: bool = True, *, dtype: torch.dtype = torch.float16) -> None:
        """Mixed precision: contractions in `dtype` (float16 or bfloat16), everything else in float32.

        Parameters, optimizer state and all that `build()` returns keep their types. With float16,
        also set a scaler (`Graph.set_grad_scaler`)."""
        names = {torch.float16: "f16", torch.bfloat16: "bf16"}
        if dtype not in names:
            raise GraphError(
                f"{_here()}: enable_amp() takes dtype=torch.float16 or torch.bfloat16; got {dtype!r}"
            )
        self._set(amp=names[dtype] if _flag("enable_amp", mode) else "")

    def allow_fuse_add_to_output(self, mode: bool = True) -> None:
        """Whether an addition may become part of the contraction that makes its operand."""
        self._set(fuse_add_to_output=_flag("allow_fuse_add_to_output", mode))

    def allow_fuse_cast_scale(self, mode: bool = True) -> None:
        """Whether casts and scaling by constants may become part of other kernels."""
        self._set(fuse_cast_scale=_flag("allow_fuse_cast_scale", mode))

    def allow_fuse_model_update_ops(self, mode: bool = True) -> None:
        """Whether the ops of one parameter's update may become one kernel."""
        self._set(fuse_model_update_ops=_flag("allow_fuse_model_update_ops", mode))

    def enable_multi_tensor_update(self, mode: bool = True) -> None:
        """Whether the updates of all parameters become few kernels."""
        self._set(multi_tensor_update=_flag("enable_multi_tensor_update", mode))

    def enable_compress_memory(self, mode: bool = True) -> None:
        """Whether values share memory that others no longer need."""
        self._set(compress_memory=_flag("enable_compress_memory", mode))

    def enable_choose_best_memory_allocation(self, mode: bool = True) -> None:
        """Whether every allocation strategy and a local search are tried for the smallest arena."""
        name = "enable_choose_best_memory_allocation"
        self._set(choose_best_allocation=_flag(name, mode))

    def set_memory_budget(self, budget: int | float | str) -> None:
        """The most memory that the values of a step may take, parameters and optimizer state not
        counted: "2GB", "512MiB", a number of bytes, or a fraction in (0, 1] of what the step needs
        otherwise. What does not fit is computed again where it is needed."""
        size, fraction = _budget(budget)
        self._set(memory_budget=size, memory_fraction=fraction)

    def enable_straighten_algorithm(self, mode: str = "MemoryFirst") -> None:
        """The order in which ops run: "MemoryFirst", "SpeedFirst", "Disable" (as built),
        "OverlapCpuGpu" or "DelayShortGpu"."""
        if mode not in _STRAIGHTEN:
            known = ", ".join(repr(m) for m in _STRAIGHTEN)
            raise GraphError(
                f"{_here()}: enable_straighten_algorithm() takes one of {known}; got {mode!r}"
            )
        self._set(straighten=mode)


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
        f"{_here()}: set_memory_budget() takes bytes (2_000_000_000, '2GB', '512MiB') or a fraction "
        f"in (0, 1] (0.5); got {given!r}"
    )


def _flag(name: str, mode: object) -> bool:
    if not isinstance(mode, bool):
        raise GraphError(f"{_here()}: {name}() takes True or False; got {mode!r}")
    return mode


def _here() -> str:
    file, line = user_frame(2)
    return f"{file}:{line}"
