"""Pooling as ATen calls: PyTorch's CPU kernels support both layouts."""

from __future__ import annotations

import json
from typing import Any

from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.pooling import POSITIONS
from gflow.dialects.program import AtenStep, TensorRef
from gflow.dialects.types import TensorType

from ..ir.errors import CannotLower
from ..ir.ssa import Op
from .aten_ops import channels_first
from .placement import Placement


def pool(b: Placement, o: Op) -> None:
    """Add the call of a pooling op.

    Raises:
        CannotLower: positions of maxima are relative to windows (`gflow-narrow-positions`), which PyTorch lacks.
    """
    attrs = read(OPS[o.name], o.op.attributes)
    if any(b.body.types[v].dtype == POSITIONS["window"] for v in (*o.operands[1:], *o.results[1:])):
        raise CannotLower(f"gflow.{o.name} on the CPU supports only positions in planes")
    if b.body.types[o.results[0]].numel == 0:
        return
    inputs, outputs = (
        [_planar(channels_first(b.ref(v), attrs["layout"])) for v in values]
        for values in (o.operands, o.results)
    )
    kind = "max" if o.name.startswith("max") else "avg"
    overload, windows = (_adaptive if attrs.get("size") is not None else _regular)(o.name, attrs)
    planar = outputs[0].type.rank - 2
    name = overload.format(kind=kind, n=planar)
    args: list[Any] = [{"t": 0}]
    if o.name.endswith("_grad"):
        # ATen reads only shape and layout of the input, which its gradient has, too
        inputs.insert(1, outputs[0])
        args.append({"t": 1})
    args += windows
    if o.name == "max_pool_grad":
        args.append({"t": 2})
    if kind == "max" and len(outputs) == 1 and not o.name.endswith("_grad"):
        call: tuple[TensorRef | None, ...] = (outputs[0], None)
    else:
        call = tuple(outputs)
    b.steps.append(AtenStep(name, json.dumps([args, {}]), tuple(inputs), call, b.label(o)))


def _adaptive(name: str, attrs: dict[str, Any]) -> tuple[str, list[Any]]:
    backward = name.endswith("_grad")
    overload = "aten.adaptive_max_pool{n}d" if name.startswith("max") else "aten._adaptive_avg_pool{n}d"  # fmt: skip
    size = _plane(attrs["size"], 1)
    return overload + ("_backward.default" if backward else ".default"), [] if backward else [size]


def _regular(name: str, attrs: dict[str, Any]) -> tuple[str, list[Any]]:
    walk = [_plane(attrs["kernel"], 1), _plane(attrs["stride"], 1), _plane(attrs["padding"], 0)]
    ceil = bool(attrs.get("ceil_mode"))
    backward = name.endswith("_grad")
    if name.startswith("max"):
        dilation = _plane(attrs.get("dilation") or (1,) * len(attrs["kernel"]), 1)
        overload = "aten.max_pool{n}d_with_indices" + ("_backward.default" if backward else ".default")  # fmt: skip
        return overload, [*walk, dilation, ceil]
    overload = "aten.avg_pool{n}d" + ("_backward.default" if backward else ".default")
    return overload, [*walk, ceil, bool(attrs.get("count_padding")), attrs.get("divisor")]


def _plane(entries: tuple[int, ...], missing: int) -> list[int]:
    """Two numbers for a one-dimensional pooling, which runs as a two-dimensional one of height 1."""
    return [missing, *entries] if len(entries) == 1 else list(entries)


def _planar(ref: TensorRef) -> TensorRef:
    """A [n, c, length] tensor as [n, c, 1, length]; others are returned as they are."""
    if ref.type.rank != 3:
        return ref
    (n, c, size), (outer, channel, step) = ref.type.shape, ref.strides
    ty = TensorType((n, c, 1, size), ref.type.dtype)
    return TensorRef(ref.place, ty, (outer, channel, size * step, step))
