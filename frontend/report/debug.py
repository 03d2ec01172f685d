"""`graph.debug(…)` and `module.to(GraphModule).debug(…)`: lines on standard output while a graph is built, by level.

0  the phases of the build with their times; if it fails, a line that begins with [ERROR]
1  + modules with their tensors, as they are called: after a failure, the last one is where it happened
2  + every op with its operands, results, device, and the shardings of the arguments that it reads
3  + the Python lines of an op
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from gflow.tracing.context.debug_settings import DebugSettings
from gflow.tracing.context.watch import Infos, TensorInfo, Watcher
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import TraceInput, TraceOp

from .operators import OperatorNames, place
from .printing import graph_head, graph_tensors, module_head, state_lines, tensor_lines

#: phases up to here build the graph; all after it compile it
_BUILDING = ("trace", "first step")


class DebugPrinter(Watcher):
    """Prints events of a build.

    Args:
        name, kind: the graph's name and class.
        settings: of the graph, if it has any.
        modules: path of a module → its own settings (None: it prints nothing). They also apply to its submodules.
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
        """Print the duration of the previous phase, if this is another one."""
        if name == self._phase or self.settings is None:
            return
        if not self._phase:
            self._say("start building graph.")
        elif self._phase not in _BUILDING:
            self._say(f"  {self._phase}: {self._seconds():.2f}s")
        if name not in _BUILDING and (self._phase in _BUILDING):
            self._say("end building graph.")
            self._say(f"building graph Done! Cost time: {self._total():.2f}s.")
            self._say("start compiling plan and init graph runtime.")
            self._start = time.perf_counter()
        self._phase, self._begin = name, time.perf_counter()

    def done(self) -> None:
        """Print that the graph is ready to run."""
        self.phase("")
        if self.settings is not None:
            self._say("end compiling plan and init graph rumtime.")  # OneFlow's spelling
            self._say(
                f"compiling plan and init graph runtime Done! Cost time: {self._total():.2f}s."
            )

    def failed(self) -> None:
        """Print that the build has failed; the previous line shows where."""
        if self.settings is not None:
            what = "building graph" if self._phase in ("", *_BUILDING) else "building plan"
            print(f"[ERROR]{self.head} {what} got error.", flush=True)

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
        """Print the results of a module."""
        if self._level(path) >= 1:
            for line in tensor_lines("OUTPUT", path, outputs):
                self._show(self._depth + 1, line)
        self._depth -= 1

    def _of(self, path: str) -> DebugSettings | None:
        """The settings of a module: its own, or those of the module that contains it."""
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
        self._show(self._depth + 1, self._names.line(name, op, where, devices=True))

    def argument(self, given: TraceInput) -> None:
        """Print an input of the graph."""
        v, name = given.value, self._names.argument(given)
        if given.role == "input" and self._level("") >= 1:
            sharding = self._names.sharding(v)
            self._show(1, f"(INPUT:{name}:{TensorInfo(v.shape, v.dtype, v.device)}{sharding})")

    def traced(self, trace: Trace) -> None:
        """Print the results of the graph."""
        if self._level("") >= 1:
            for line in tensor_lines("OUTPUT", self.name, graph_tensors(trace)[1]):
                self._show(1, line)
