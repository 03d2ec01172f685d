"""`gflow.from_onnx`: an ONNX model as a PyTorch module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch

from gflow.errors import GraphError, GraphInputError
from gflow.runtime.engines.packages import EngineUnavailable, require
from gflow.saved.engine_files import FIXED
from gflow.tracing.context.location import here

from .compiled import compile
from .onnx_ops import NUMBERED, OPS, Host, Unreadable, as_tensor

_OPSET = 13
#: inputs that are statistics, and no parameters
_STATISTICS = {"BatchNormalization": (3, 4)}
#: ops on shapes, whose values are known when the module is called
_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class _Node:
    """One node.

    Args:
        attrs: its attributes, and `outputs`, the number of results that are used.
        place: op type and name, for errors.
        proto: the node in the model.
    """

    kind: str
    attrs: dict[str, Any]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    place: str
    proto: Any


class OnnxModule(torch.nn.Module):
    """A model as PyTorch ops, so that it can be traced, differentiated and compiled like any module.

    Parameters are its floating-point initializers, by their dotted names. Scalars, and tensors that gflow's own files
    mark as non-parameters, are buffers or constants.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        # start-up: the package is loaded at its first use
        import onnx
        from onnx import numpy_helper

        graph = model.graph
        self._opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self._nodes = [_read_node(n) for n in graph.node]
        self._host: dict[str, Host] = {}
        self._places: dict[str, tuple[torch.nn.Module, str]] = {}
        fixed = {
            name for p in model.metadata_props if p.key == FIXED for name in json.loads(p.value)
        }
        fixed |= {n.operands[i] for n in self._nodes for i in _STATISTICS.get(n.kind, ())}
        for tensor in graph.initializer:
            if tensor.data_type in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16):
                raise GraphError(
                    f"{here()}: from_onnx() reads no half precision, which {tensor.name!r} has"
                )
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f" and array.ndim:
                self._hold(tensor.name, torch.from_numpy(array.copy()), tensor.name not in fixed)
            else:
                self._host[tensor.name] = array
        given = {t.name for t in graph.initializer}
        self._inputs = [i.name for i in graph.input if i.name not in given]
        self._results = [o.name for o in graph.output]

    def _hold(self, name: str, value: torch.Tensor, trained: bool) -> None:
        """Store a tensor by its dotted name, in modules of these names."""
        *path, last = [part or "_" for part in name.replace("/", ".").replace(":", "_").split(".")]
        place: torch.nn.Module = self
        for part in path:
            if not isinstance(getattr(place, part, None), torch.nn.Module):
                part = part if not hasattr(place, part) else f"{part}_"
                place.add_module(part, torch.nn.Module())
            place = getattr(place, part)
        while hasattr(place, last):
            last += "_"
        if trained:
            place.register_parameter(last, torch.nn.Parameter(value))
        else:
            place.register_buffer(last, value)
        self._places[name] = place, last

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Run the model.

        Args:
            inputs: the model's, in its order.

        Raises:
            GraphInputError: there are more or fewer.
            GraphError: PyTorch does not support an op's operands; the message names the op.
        """
        if len(inputs) != len(self._inputs):
            raise GraphInputError(
                f"{here()}: the ONNX model takes {', '.join(self._inputs)}; got {len(inputs)} inputs"
            )
        known: dict[str, Any] = dict(zip(self._inputs, inputs)) | self._host
        known |= {name: getattr(*place) for name, place in self._places.items()}
        for node in self._nodes:
            given = [known[name] if name else None for name in node.operands]
            try:
                found = _run(node, given, self._opset)
            except Unreadable as error:
                raise GraphError(
                    f"{here()}: {node.place}: {error}, which from_onnx() does not read"
                ) from None
            known.update(zip(node.results, found))
        results = tuple(known[name] for name in self._results)
        return results[0] if len(results) == 1 else results


def _run(node: _Node, given: Sequence[Any], opset: int) -> Sequence[Any]:
    if node.kind in _SHAPES:
        sizes = np.array([int(s) for s in given[0].shape], np.int64)
        if node.kind == "Size":
            return [np.prod(sizes)]
        return [sizes[node.attrs.get("start", 0) : node.attrs.get("end")]]
    if all(x is None or isinstance(x, Host) for x in given):
        return _on_host(node.proto, opset, given)
    device = next(x.device for x in given if isinstance(x, torch.Tensor))
    if node.kind in NUMBERED:  # the data operands come first
        given = [as_tensor(given[0], device), *given[1:]]
    else:
        given = [as_tensor(x, device) for x in given]
    found = OPS[node.kind](node.attrs, *given)
    found = found if isinstance(found, tuple) else (found,)
    if len(found) != len(node.results):
        raise Unreadable(f"{len(node.results)} results of it")
    return found


def _on_host(proto: Any, opset: int, given: Sequence[Host | None]) -> Sequence[Host]:
    """By ONNX's own reference."""
    # start-up: the package is loaded at its first use
    from onnx.reference import ReferenceEvaluator

    run = ReferenceEvaluator(proto, opsets={"": opset})
    feed = {name: x for name, x in zip(proto.input, given) if x is not None}
    return [np.asarray(x) for x in run.run(None, feed)]


def _read_node(proto: Any) -> _Node:
    # start-up: the package is loaded at its first use
    from onnx import helper

    attrs = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    attrs = {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
    attrs["outputs"] = len(proto.output)
    place = f"{proto.op_type} {proto.name!r}"
    return _Node(proto.op_type, attrs, tuple(proto.input), tuple(proto.output), place, proto)


def _problems(model: Any) -> list[str]:
    """Why a model cannot be read."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _OPSET:
        return [
            f"opset {opset}: from_onnx() reads {_OPSET} and later; onnx.version_converter converts models"
        ]
    known = {*OPS, *_SHAPES, "Constant", "ConstantOfShape", "Range"}
    return [
        f"{node.op_type} {node.name!r}" + (f" of {node.domain}" if node.domain else "")
        for node in model.graph.node
        if node.domain not in ("", "ai.onnx") or node.op_type not in known
    ]


def from_onnx(model: Any, /, **options: Any) -> torch.nn.Module:
    """An ONNX model as a module that runs compiled, like those of `gflow.compile`.

    It is called with the model's inputs, in order; one result is a tensor, several are a tuple. Floating-point
    initializers are its parameters, by their dotted names, so it can be trained; it may be called in an `nn.Graph`.
    Shapes that the model computes are those of the call. Constants, and the statistics of batch norm, are not trained,
    and dropout is omitted.

    Args:
        model: an `onnx.ModelProto`, its bytes, or the path of its file.
        options: as of `gflow.compile`.

    Raises:
        GraphError: onnx is not installed, or the model has an opset older than 13, half precision, or unsupported ops;
            the message names each.
    """
    return compile(read_onnx(model), **options)  # type: ignore[no-any-return]


def read_onnx(model: Any) -> OnnxModule:
    """A model in ONNX as a module that is not compiled.

    Raises:
        GraphError: as `from_onnx`.
    """
    try:
        require("onnx")
    except EngineUnavailable as error:
        raise GraphError(f"{here()}: from_onnx(): {error}") from None
    # start-up: the package is loaded at its first use
    import onnx

    if isinstance(model, bytes):
        model = onnx.load_from_string(model)
    elif isinstance(model, str | PathLike):
        model = onnx.load(model)
    problems = _problems(model)
    if problems:
        shown = "\n".join(f"  {p}" for p in problems[:20])
        raise GraphError(f"{here()}: from_onnx() does not read all of the model:\n{shown}")
    return OnnxModule(model)
