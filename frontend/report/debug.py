"""`graph.debug(…)` and `module.to(GraphModule).debug(…)`: lines on standard output while a graph is
built, by level.

    0  the phases of the build with their times
    1  + modules with their tensors, as they are called
    2  + every op with its operands and results
    3  + the lines of Python that an op comes from
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gflow.errors import GraphError
from gflow.tracing.context.location import user_frame
from gflow.tracing.context.watch import Infos, TensorInfo, Watcher
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import TraceInput, TraceOp

from .operators import OperatorNames, place
from .printing import graph_head, graph_tensors, module_head, state_lines, tensor_lines

_LEVELS = range(-1, 4)
#: phases up to here build the graph; all after it compile it
_BUILDING = ("trace", "first step")


@dataclass(frozen=True)
class DebugSettings:
    """See `debug_settings`."""

    v_level: int = 0
    max_py_stack_depth: int = 2
    only_user_py_stack: bool = True
    op_repr_with_py_stack: bool = False

    @property
    def stack(self) -> bool:
        """Whether ops are printed with where they come from."""
        return self.v_level >= 3 or (self.v_level >= 2 and self.op_repr_with_py_stack)

    @property
    def listed_stack(self) -> bool:
        """Whether `print(graph)` shows where ops come from."""
        return self.v_level >= 3 or self.op_repr_with_py_stack


def debug_settings(
    v_level: int = 0,
    *,
    ranks: int | Sequence[int] | None = None,
    max_py_stack_depth: int = 2,
    only_user_py_stack: bool = True,
    op_repr_with_py_stack: bool = False,
) -> DebugSettings | None:
    """What to print on this process; None: nothing.

    Args:
        v_level: the level, 0 to 3; -1 turns printing off.
        ranks: the processes that print: None for the first only, -1 for all, a number or several.
        max_py_stack_depth: the most lines of Python that are shown of an op.
        only_user_py_stack: leave out lines inside of PyTorch, gflow and the standard library.
        op_repr_with_py_stack: show these lines at level 2, too, and at any level in `print(graph)`.

    Raises:
        GraphError: an argument is not one of these.
    """
    for name, value, good in (
        ("v_level", v_level, _whole(v_level) and v_level in _LEVELS),
        ("max_py_stack_depth", max_py_stack_depth, _whole(max_py_stack_depth)),
    ):
        if not good:
            what = "-1, 0, 1, 2 or 3" if name == "v_level" else "a number of lines"
            raise GraphError(f"{_here()}: debug() takes {what} as {name}; got {value!r}")
    chosen: Any = [ranks] if _whole(ranks) else ranks
    if chosen is not None and not (
        isinstance(chosen, (list, tuple)) and all(_whole(r) and r >= -1 for r in chosen)
    ):
        raise GraphError(
            f"{_here()}: debug() takes None (the first process), -1 (all), a rank or a list of "
            f"ranks as ranks; got {ranks!r}"
        )
    listed = [0] if chosen is None else list(chosen)
    if v_level < 0 or not (-1 in listed or _rank() in listed):
        return None
    return DebugSettings(v_level, max_py_stack_depth, only_user_py_stack, op_repr_with_py_stack)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _rank() -> int:
    """The number of this process among those that train together."""
    distributed = torch.distributed
    return (
        distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    )


class DebugPrinter(Watcher):
    """Prints what happens.

    Args:
        name, kind: the graph's name and class.
        settings: of the graph, if it has any.
        modules: path of a module → its own settings (None: it prints nothing). They hold for the
            modules in it, too.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        settings: DebugSettings | None,
        modules: Mapping[str, DebugSettings | None],
    ) -> None:
        self.name, self.head = name, graph_head(name, kind)
        self.settings, self.modules = settings, modules
        self._resolved: dict[str, DebugSettings | None] = {"": settings}
        self._start = self._begin = time.perf_counter()
        self._phase = ""
        self._depth = 0
        self._names = OperatorNames(name)

    # phases

    def phase(self, name: str, detail: str = "") -> None:
        """Print how long the phase before took, if this is another one."""
        if name == self._phase or self.settings is None:
            return
        if not self._phase:
            self._say("start building graph.")
        elif self._phase not in _BUILDING:
            self._say(f"  {self._phase}: {self._seconds():.2f}s")
        if name not in _BUILDING and (self._phase in _BUILDING):
            self._say(f"building graph Done! Cost time: {self._total():.2f}s.")
            self._say("start compiling plan and init graph runtime.")
            self._start = time.perf_counter()
        self._phase, self._begin = name, time.perf_counter()

    def done(self) -> None:
        """The graph is ready to run."""
        self.phase("")
        if self.settings is not None:
            self._say(
                f"compiling plan and init graph runtime Done! Cost time: {self._total():.2f}s."
            )

    def _seconds(self) -> float:
        return time.perf_counter() - self._begin

    def _total(self) -> float:
        return time.perf_counter() - self._start

    def _say(self, text: str) -> None:
        print(f"{self.head} {text}", flush=True)

    # modules

    def module_begins(self, path: str, module: torch.nn.Module, inputs: Infos) -> None:
        """Print a module and its tensors."""
        self._depth += 1
        if self._level(path) >= 1:
            self._show(self._depth, module_head(path, module))
            for line in (*tensor_lines("INPUT", path, inputs), *state_lines(path, module)):
                self._show(self._depth + 1, line)

    def module_ends(self, path: str, module: torch.nn.Module, outputs: Infos) -> None:
        """Print what it returned."""
        if self._level(path) >= 1:
            for line in tensor_lines("OUTPUT", path, outputs):
                self._show(self._depth + 1, line)
        self._depth -= 1

    def _of(self, path: str) -> DebugSettings | None:
        """The settings that hold for a module: its own, or those of what it is in."""
        if path not in self._resolved:
            outer = path.rpartition(".")[0]
            self._resolved[path] = self.modules[path] if path in self.modules else self._of(outer)
        return self._resolved[path]

    def _level(self, path: str) -> int:
        settings = self._of(path)
        return -1 if settings is None else settings.v_level

    def _show(self, depth: int, line: str) -> None:
        print("  " * depth + line, flush=True)

    # ops

    def op(self, op: TraceOp) -> None:
        """Print an op."""
        name = self._names.op(op)
        settings = self._of(op.loc.module)
        if settings is None or settings.v_level < 2:
            return
        where = ""
        if settings.stack:
            depth, only_user = settings.max_py_stack_depth, settings.only_user_py_stack
            where = place(op, depth, only_user) or "unknown"
        self._show(self._depth + 1, self._names.line(name, op, where))

    def argument(self, given: TraceInput) -> None:
        """Print an input of the graph."""
        v, name = given.value, self._names.argument(given)
        if given.role == "input" and self._level("") >= 1:
            self._show(1, f"(INPUT:{name}:{TensorInfo(v.shape, v.dtype, v.device)})")

    def traced(self, trace: Trace) -> None:
        """Print what the graph returns."""
        if self._level("") >= 1:
            for line in tensor_lines("OUTPUT", self.name, graph_tensors(trace)[1]):
                self._show(1, line)


def _here() -> str:
    file, line = user_frame(3)
    return f"{file}:{line}"
