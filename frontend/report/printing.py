"""`print(graph)`: configuration, modules, parameters and buffers; after a call also the inputs and outputs of the
graph and of each module, and the ops of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.tracing.context.watch import Infos, TensorInfo, Watcher, tensor_info
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import OutputRef, TailRef, TraceOp, TraceValue
from gflow.tracing.program.modules import collect_modules
from gflow.tracing.program.unwrapped import unwrapped

from .operators import operator_lines, place


@dataclass
class ModuleCall:
    """The first call of a module: its input tensors, and its output tensors."""

    inputs: Infos = ()
    outputs: Infos = ()


@dataclass
class Calls:
    """What a build records for the listing: calls of modules by their paths, and locations of ops by their results, if
    `debug()` requested them."""

    modules: dict[str, ModuleCall] = field(default_factory=dict)
    places: dict[TraceValue, str] = field(default_factory=dict)


class CallRecorder(Watcher):
    """Records the first call of every module. depth: the number of Python lines for each op; only_user: only lines
    outside of libraries."""

    def __init__(self, depth: int = 0, only_user: bool = True) -> None:
        self.calls = Calls()
        self._depth, self._only_user = depth, only_user
        self._open: list[ModuleCall] = []

    def module_begins(self, path: str, module: torch.nn.Module, inputs: Infos) -> None:
        call = ModuleCall(inputs)
        self.calls.modules.setdefault(path, call)
        self._open.append(call)

    def module_ends(self, path: str, module: torch.nn.Module, outputs: Infos) -> None:
        self._open.pop().outputs = outputs

    def op(self, op: TraceOp) -> None:
        result = next((r for r in op.results if r is not None), None)
        if self._depth and result is not None:
            self.calls.places[result] = place(op, self._depth, self._only_user)


def graph_head(name: str, kind: str) -> str:
    """The line of a graph, as OneFlow prints it."""
    return f"(GRAPH:{name}:{kind})"


def module_head(path: str, module: torch.nn.Module) -> str:
    """The line of a module, as OneFlow prints it."""
    extra = " ".join(line.strip() for line in module.extra_repr().splitlines())
    return f"(MODULE:{path}:{module._get_name()}({extra}))"


def state_lines(path: str, module: torch.nn.Module) -> Iterator[str]:
    """A module's own parameters and buffers."""
    for kind, held in (("PARAMETER", module._parameters), ("BUFFER", module._buffers)):
        for key, tensor in held.items():
            if tensor is not None:
                yield f"({kind}:{path}.{key}:{tensor_info(tensor)})"


def tensor_lines(kind: str, owner: str, tensors: Sequence[TensorInfo]) -> Iterator[str]:
    """INPUT or OUTPUT lines of a graph or module."""
    for i, info in enumerate(tensors):
        yield f"({kind}:_{owner}-{kind.lower()}_{i}:{info})"


def config_line(training: bool, switches: Mapping[str, Any]) -> str:
    """The line of the configuration, as OneFlow prints it."""
    shown = {"training": training, **switches}
    return f"(CONFIG:config:GraphConfig({''.join(f'{k}={v!r}, ' for k, v in shown.items())}))"


def graph_text(
    name: str,
    kind: str,
    training: bool,
    switches: Mapping[str, Any],
    roots: Mapping[str, torch.nn.Module],
    trace: Trace | None,
    calls: Calls,
) -> str:
    """The listing. `trace`, `calls`: of the latest compilation, if there is one."""
    names = collect_modules(roots).names
    given, returned = graph_tensors(trace) if trace is not None else ((), ())
    operators = {}
    if trace is not None:
        operators = operator_lines(name, trace, names.values(), calls.places)
    listed = _Listed(names, calls.modules, operators)
    lines = [config_line(training, switches)]
    if trace is not None and trace.size is not None:
        lines.append(f"(SIZE:{trace.size})")
    lines += tensor_lines("INPUT", name, given)
    for path, module in roots.items():
        lines += _module_lines(path, module, listed)
    lines += listed.operators.get("", [])
    lines += tensor_lines("OUTPUT", name, returned)
    return "\n".join(_nested(graph_head(name, kind), lines))


@record
class _Listed:
    """Names of modules by id, and by name their calls and ops."""

    names: Mapping[int, str]
    calls: Mapping[str, ModuleCall]
    operators: Mapping[str, list[str]]


def _module_lines(path: str, module: torch.nn.Module, listed: _Listed) -> list[str]:
    module = unwrapped(module)
    name = listed.names.get(id(module), path)
    call = listed.calls.get(name, ModuleCall())
    lines = list(tensor_lines("INPUT", path, call.inputs))
    lines += [f"{line}: ()" for line in state_lines(path, module)]
    for key, child in module.named_children():
        lines += _module_lines(f"{path}.{key}", child, listed)
    if name == path:
        lines += listed.operators.get(name, [])
    lines += tensor_lines("OUTPUT", path, call.outputs)
    return _nested(module_head(path, module), lines)


def _nested(head: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return [f"{head}: ()"]
    return [f"{head}: (", *(f"  {line}" for line in lines), ")"]


def graph_tensors(trace: Trace) -> tuple[Infos, Infos]:
    """The inputs and outputs of the graph in a call."""
    given = {
        trace.input_leaves[i.value]: i.value for i in trace.inputs if i.value in trace.input_leaves
    }
    late = [] if trace.tail is None else trace.tail.results
    returned = [
        trace.outputs[x.index].value if isinstance(x, OutputRef) else late[x.index]
        for x in trace.out_leaves
        if isinstance(x, (OutputRef, TailRef))
    ]
    count = trace.micro_batches
    inputs = [_info(v, count) for _, v in sorted(given.items())]
    return inputs, [_info(v, count, True, trace.stacked) for v in returned]


def _info(value: TraceValue, count: int, lazy: bool = False, stacked: bool = False) -> TensorInfo:
    """The metadata of a tensor. count: the number of micro-batches. stacked: also for single numbers."""
    shape = value.shape or ((1,) if stacked else ())
    if count > 1:
        shape = (*(count * size for size in shape[:1]), *shape[1:])
    return TensorInfo(shape, value.dtype, value.device, lazy=lazy)
