"""OPERATOR lines: an op with its operands, results and location, for `print(graph)` and `debug()`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from gflow.tracing.context.location import is_user_code
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import TraceInput, TraceOp, TraceValue, values_in


class OperatorNames:
    """Names of ops and values: `model.fc-addmm-0` and `model.fc-addmm-0/out_0`.

    graph: the graph's name, which its inputs are named after.
    """

    def __init__(self, graph: str) -> None:
        self.graph = graph
        self._values: dict[TraceValue, str] = {}
        self._counts: dict[str, int] = {}
        self._inputs = 0
        self._shardings: dict[TraceValue, str] = {}

    def argument(self, given: TraceInput) -> str:
        """Name an argument of the program."""
        name = given.name
        if given.role == "input":
            name = f"_{self.graph}-input_{self._inputs}"
            self._inputs += 1
        self._values[given.value] = name
        if given.layout is not None:
            self._shardings[given.value] = f", sharding=({', '.join(given.layout.placements)})"
        return name

    def sharding(self, value: TraceValue) -> str:
        """The sharding of an argument as a part of a line; "" if it is replicated."""
        return self._shardings.get(value, "")

    def op(self, op: TraceOp) -> str:
        """Name an op, and its results after it."""
        kind = op.func.overloadpacket.__name__
        where = op.loc.module if op.loc.phase == "forward" else f"{op.loc.phase}:{op.loc.module}"
        stem = "-".join(filter(None, (where.rstrip(":"), kind)))
        number = self._counts.get(stem, 0)
        self._counts[stem] = number + 1
        name = f"{stem}-{number}"
        for i, result in enumerate(op.results):
            if result is not None:
                self._values.setdefault(result, f"{name}/out_{i}")
        return name

    def line(self, name: str, op: TraceOp, location: str = "", devices: bool = False) -> str:
        """The line of a named op. devices: with the devices of its results."""
        operands = [*map(self._operand, op.args)]
        operands += [f"{k}={self._operand(v)}" for k, v in op.kwargs.items()]
        results = ", ".join(self._operand(r) for r in op.results if r is not None)
        where = f", location=({location})" if location else ""
        if devices:
            found = dict.fromkeys(f"{r.device}" for r in op.results if r is not None)
            where = f", device={'/'.join(found)}{where}"
        return f"(OPERATOR: {name}({', '.join(operands)}) -> ({results}){where})"

    def _operand(self, value: Any) -> str:
        if isinstance(value, TraceValue):
            name = self._values.get(value) or f"%{value.id}"
            return f"{name}:(size={value.shape}, dtype={value.dtype}{self.sharding(value)})"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._operand, value))}]"
        return repr(value)


def operator_lines(
    graph: str, trace: Trace, modules: Iterable[str], places: Mapping[TraceValue, str]
) -> dict[str, list[str]]:
    """The lines of a trace's ops by their module; "" is the graph itself. An op of the backward belongs to the module
    of its forward op, one of an optimizer to that of the only parameter that it updates.

    Args:
        modules: the paths under which lines can be listed.
        places: locations of ops to list, by their results.
    """
    names, known = OperatorNames(graph), set(modules)
    for entry in _by_leaf(trace):
        names.argument(entry)
    owners = _owners(trace)
    lines: dict[str, list[str]] = {}
    for op in trace.ops:
        owner = owners.get(op, op.loc.module)
        where = next((places[r] for r in op.results if r is not None and r in places), "")
        line = names.line(names.op(op), op, where)
        lines.setdefault(owner if owner in known else "", []).append(line)
    return lines


def _by_leaf(trace: Trace) -> list[TraceInput]:
    """The arguments, those of the graph in the order of the call."""
    return sorted(trace.inputs, key=lambda entry: trace.input_leaves.get(entry.value, -1))


def _owners(trace: Trace) -> dict[TraceOp, str]:
    """The module of each op of an optimizer that is for one parameter only."""
    parameters = {i.name for i in trace.inputs if i.role == "parameter"}
    wanted: dict[TraceValue, set[str]] = {}
    for out in trace.outputs:
        if out.alias is not None:
            wanted.setdefault(out.value, set()).add(_parameter(out.name, parameters))
    owners: dict[TraceOp, str] = {}
    for op in reversed(trace.ops):
        if op.loc.phase != "optimizer":
            continue
        served = {name for r in op.results if r is not None for name in wanted.get(r, ())}
        owners[op] = next(iter(served)).rpartition(".")[0] if len(served) == 1 else ""
        for value in values_in((op.args, op.kwargs)):
            wanted.setdefault(value, set()).update(served)
    return owners


def _parameter(name: str, parameters: set[str]) -> str:
    """The parameter of an updated tensor: `optimizer.0.fc.weight.exp_avg` belongs to `fc.weight`."""
    if name in parameters:
        return name
    parts = name.split(".")
    for end in range(len(parts), 2, -1):
        inner = ".".join(parts[2:end])
        if inner in parameters:
            return inner
    return ""


def place(op: TraceOp, depth: int, only_user: bool) -> str:
    """The location of the op that is being recorded: its innermost `depth` Python lines, outermost first. An op of the
    backward has the line of its forward op."""
    if op.loc.phase == "backward":
        return _stack([(op.loc.file, op.loc.line, "")], False) if depth > 0 else ""
    frames: list[tuple[str, int, str]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) <= depth:
        code = frame.f_code
        if not only_user or is_user_code(code):
            frames.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return _stack(frames[:depth], len(frames) > depth)


def _stack(frames: Sequence[tuple[str, int, str]], more: bool) -> str:
    shown = [
        f"Python Stack[-{i}]: {f'{name!r} ' if name else ''}at {file!r}: line {line}"
        for i, (file, line, name) in enumerate(frames, 1)
    ]
    return "; ".join([*shown[::-1], *(["... more"] if more else [])])
