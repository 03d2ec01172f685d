"""A trace as text: all that lowering reads of it. Equal texts give equal modules, so a stored program is found by the
text alone, without lowering."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import TraceValue

#: values of these types are written as Python shows them, which tells them apart exactly
_PLAIN = frozenset(
    (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)  # fmt: skip
#: namespaces whose ops PyTorch or gflow defines: the versions of both are part of an entry's name
_NAMESPACES = frozenset(("aten", "prims", "gflow"))


class _Unknown(Exception):
    """The text of a trace would not tell it apart from others."""


def text_of(trace: Trace) -> str | None:
    """The text of a trace; None if lowering reads more than the text holds: formulas of dynamic dimensions, process
    groups and meshes, engines, or what a user's op decomposes into."""
    if (
        trace.size is not None
        or trace.mesh is not None
        or trace.axes
        or trace.groups
        or trace.reduced
        or trace.copied
        or trace.engines
        or _decompositions_changed()
    ):
        return None
    try:
        return _Writer().trace(trace)
    except _Unknown:
        return None


class _Writer:
    """Writes one trace. Values are numbered in the order of their definition."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.places: dict[int, str] = {}

    def trace(self, trace: Trace) -> str:
        """The whole text."""
        lines = [trace.symbol]
        for given in trace.inputs:
            if given.layout is not None:
                raise _Unknown
            frozen = given.value.id in trace.frozen
            lines.append(f"{self.defined(given.value)} {given.role!r} {given.name!r} {frozen}")
        for op in trace.ops:
            if (
                not isinstance(op.func, torch._ops.OpOverload)
                or op.func.namespace not in _NAMESPACES
            ):
                raise _Unknown
            args = self.argument(op.args)
            words = ",".join([f"{k}={self.argument(v)}" for k, v in op.kwargs.items()])
            results = ",".join(["-" if r is None else self.defined(r) for r in op.results])
            proven = op in trace.proven
            lines.append(
                f"{results}={op.func}{args}{words} {self.place(op.loc)} {op.scope} {proven}"
            )
        for out in trace.outputs:
            lines.append(f"return {self.argument(out.value)} {out.alias} {out.name!r}")
        return "\n".join(lines)

    def defined(self, value: TraceValue) -> str:
        """A value with its type, at its definition."""
        self.numbers[value.id] = len(self.numbers)
        shape, strides = self.argument(value.shape), self.argument(value.strides)
        return f"{value.dtype}{shape}{strides}{value.device}{value.is_number}"

    def argument(self, item: Any) -> str:
        """An argument of an op."""
        kind = type(item)
        if kind is TraceValue:
            number = self.numbers.get(item.id)
            if number is None:
                raise _Unknown
            return f"%{number}"
        if kind in _PLAIN:
            return repr(item)
        if kind is tuple or kind is torch.Size:
            return f"({','.join(map(self.argument, item))})"
        if kind is list:
            return f"[{','.join(map(self.argument, item))}]"
        raise _Unknown

    def place(self, loc: Any) -> str:
        """A location."""
        found = self.places.get(id(loc))
        if found is None:
            found = self.places[id(loc)] = repr((loc.file, loc.line, loc.module, loc.phase))
        return found


def _decompositions_changed() -> bool:
    """Whether other code than PyTorch's has registered decompositions of PyTorch's ops."""
    loaded = sys.modules.get("torch._decomp")
    if loaded is None:
        return False
    return any(
        not getattr(function, "__module__", "").startswith("torch.")
        for op, function in loaded.decomposition_table.items()
        if getattr(op, "namespace", "") in _NAMESPACES
    )
