"""Writes a function of the dialect, or a region, as an ONNX model.

Arguments and results have the names of the author's program (`x`, `model.0.weight`). Intermediate values are named by
the module path and the node type (`model.0/MatMul`). Updates are outputs, named after the argument with the suffix
`.new`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gflow.compiler.ir.locations import source_of
from gflow.dialects.extents import current, varies
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, type_of

from ..expand import expanded
from ..form import EngineError, Form, call_of
from ..sizes import Found, size_arguments, size_in, size_values
from .patterns import write_found
from .rows import FORM
from .writer import IR_VERSION, NUMBERS, OPSET, Writer

#: the most bytes of a protocol-buffers file
_MOST_BYTES = 2_000_000_000


@record
class Written:
    """A written model. model: an `onnx.ModelProto`. checks: the number of checks that were left out."""

    model: Any
    checks: int


def write_function(
    function: func.FuncOp,
    checks: bool = False,
    values: Mapping[str, np.ndarray] | None = None,
    form: Form = FORM,
) -> Written:
    """Write a function as a model; `function` is not modified.

    Args:
        function: the function.
        checks: whether checks may be left out.
        values: the values of arguments that become initializers, by name.
        form: the format; an engine's own for code that replaces gflow's kernels.

    Raises:
        EngineError: the function has ops that ONNX does not support, or is too large for a file.
    """
    with expanded(function.operation, form, checks) as (block, dropped):
        names = _names(function, "arg_attrs", len(block.arguments))
        end = block.operations[-1].operation
        results = _names(function, "res_attrs", len(end.operands))
        given = size_arguments(function)
        shown = {
            names[n] for n in _shown(block, given)
        }  # not inputs: they are computed from shapes of other arguments
        return Written(_written(block, form, names, results, values or {}, given, shown), dropped)


def write_region(op: ir.Operation, form: Form, bytes_for_bools: bool = False) -> tuple[bytes, bool]:
    """Write the region of an op as a model file; the op is not modified.

    form: the engine's format. bytes_for_bools: bool inputs and outputs are uint8 in the file.

    Returns:
        The model, and whether its last output is a probe: a number that is finite if the results are right.

    Raises:
        EngineError: as `write_function`.
    """
    with expanded(op, form) as (block, _):
        names = [f"in{n}" for n in range(len(op.operands))]
        results = [f"out{n}" for n in range(len(op.results))]
        given = [list(op.operands).index(v) for v in size_values(op)]
        model = _written(block, form, names, results, {}, given, bytes_for_bools=bytes_for_bools)
        return model.SerializeToString(), len(model.graph.output) > len(results)


def _names(function: func.FuncOp, attribute: str, count: int) -> list[str]:
    prefix = "argument" if attribute == "arg_attrs" else "result"
    found = [f"{prefix}.{n}" for n in range(count)]
    if attribute in function.attributes:
        for n, given in enumerate(ir.ArrayAttr(function.attributes[attribute])):
            attrs = ir.DictAttr(given)
            if "gflow.name" in attrs:
                found[n] = ir.StringAttr(attrs["gflow.name"]).value
            if "gflow.alias" in attrs:
                found[n] += ".new"
    return found


def _written(
    block: ir.Block,
    form: Form,
    names: Sequence[str],
    results: Sequence[str],
    values: Mapping[str, np.ndarray],
    given: Sequence[int],
    dropped: Container[str] = (),
    bytes_for_bools: bool = False,
) -> Any:
    """Write a legalized block as a model.

    given: the arguments that are dynamic sizes. dropped: the names of arguments that are not inputs.
    """

    def passed(ty: TensorType) -> TensorType:
        return TensorType(ty.shape, "ui8") if bytes_for_bools and ty.dtype == "i1" else ty

    w = Writer()
    known: dict[ir.Value, str] = {}
    inputs = []
    for argument, name in zip(block.arguments, names):
        if name in dropped:
            continue
        if name in values:
            known[argument] = w.constant(values[name], name)
        else:
            known[argument] = w.name(name)
            ty = type_of(argument)
            inputs.append(_value(w, known[argument], passed(ty)))
            if passed(ty) != ty:
                known[argument] = w.cast(known[argument], ty.dtype)
    shown = _shown(block, given)
    for n in given:
        argument, at = block.arguments[n], shown.get(n)
        if at is not None:
            w.sizes.append(_read(w, known[block.arguments[at.argument]], at))
            known[argument] = w.reshape(w.sizes[-1], [])
        else:
            w.sizes.append(w.reshape(known[argument], [1]))
    *body, end = [o.operation for o in block.operations]
    for op in body:
        w.scope = source_of(op).module
        call = call_of(op)
        if (one := write_found(w, call, known)) is not None:
            known[op.results[0]] = one
            continue
        given_names = [known[v] for v in op.operands]
        if OPS[call.name].category == "elementwise":
            given_names = w.narrow(given_names)
        made = form.rows[call.name].write(w, call, given_names)
        known.update(zip(op.results, made))
    outputs = []
    made_here = {name for node in w.nodes for name in node.output}
    renamed: dict[str, str] = {}
    for v, wanted in zip(end.operands, results):
        name = w.name(wanted)
        ty = type_of(v)
        value = known[v] if passed(ty) == ty else w.cast(known[v], passed(ty).dtype)
        if value in made_here and value not in renamed:
            renamed[value] = name
        else:  # an argument, a constant, or a result already
            value = renamed.get(value, value)
            w.nodes.append(w.helper.make_node("Identity", [value], [name], name=name))
        outputs.append(_value(w, name, passed(ty)))
    if w.probes:
        name = w.name("probe")
        w.nodes.append(w.helper.make_node("Sum", w.probes, [name], name=name))
        outputs.append(_value(w, name, TensorType((), "f32")))
    if w.bytes > _MOST_BYTES:
        raise EngineError("the constants and weights have more bytes than a file of ONNX can hold")
    # a node of its own that gives a result another name trips ONNX Runtime's fusions where others read the value, too
    _rename(w.nodes, renamed)
    nodes = _needed([*w.constants, *w.nodes], {o.name for o in outputs})
    graph = w.helper.make_graph(nodes, "main", inputs, outputs, w.initializers)
    return w.helper.make_model(
        graph,
        opset_imports=[w.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="gflow",
    )


def _needed(nodes: Sequence[Any], wanted: set[str]) -> list[Any]:
    """The nodes on which the results depend. Engines run others, too, and do not fuse values with several users."""
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            for given in node.attribute:  # subgraphs of `If`
                wanted.update(name for inner in given.g.node for name in inner.input)
            kept.append(node)
    return kept[::-1]


def _rename(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    """Values by other names, in branches as well."""
    for node in nodes:
        for listed in (node.input, node.output):
            for n, name in enumerate(listed):
                if name in names:
                    listed[n] = names[name]
        for given in node.attribute:
            _rename(given.g.node, names)
            for output in given.g.output:
                output.name = names.get(output.name, output.name)


def _shown(block: ir.Block, given: Sequence[int]) -> dict[int, Found]:
    """For each argument that is a dynamic size: the dimension of another argument from which it can be computed."""
    symbol = current()
    if symbol is None:
        return {}
    types = [type_of(a) for a in block.arguments]
    found = {n: size_in(symbol, which, types) for which, n in enumerate(given)}
    return {n: at for n, at in found.items() if at is not None}


def _read(w: Writer, x: str, at: Found) -> str:
    """A dynamic size, computed from a shape."""
    size = w.node("Shape", [x], start=at.dim, end=at.dim + 1)
    if at.rest:
        size = w.node("Sub", [size, w.ints([at.rest])])
    return size if at.slope == 1 else w.node("Div", [size, w.ints([at.slope])])


def _value(w: Writer, name: str, ty: TensorType) -> Any:
    """The description of an input or output, with dynamic dimensions by name: `n`, `2*n + 1`.

    Raises:
        EngineError: gflow writes no values of the type.
    """
    if ty.dtype not in NUMBERS:
        raise EngineError(f"cannot be written as ONNX: {name} is of {ty.dtype}")
    symbol = current()
    shape = [symbol.text(s) if symbol is not None and varies(s) else s for s in ty.shape]
    return w.helper.make_tensor_value_info(name, NUMBERS[ty.dtype], shape)
