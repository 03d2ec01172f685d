"""A trace of global tensors: its mesh and shardings in the IR, and the program of each rank derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflow.compiler.driver.pass_manager import PipelineError, run_pipeline
from gflow.compiler.ir.collectives import GRADIENT, build_collective, thread
from gflow.dialects.attributes import from_mlir, to_mlir
from gflow.dialects.distribution.mesh import COPIES, MESH, SHARDING, Mesh
from gflow.dialects.mlir import ir
from gflow.dialects.opdef import Attr
from gflow.dialects.ops.distribution import COLLECTIVE
from gflow.dialects.ops.sharding import OPEN
from gflow.errors import GraphTraceError
from gflow.tracing.data.global_tensors import axes_of
from gflow.tracing.data.trace import Trace

_PROPAGATE = "builtin.module(func.func(gflow-propagate-shardings))"
_PARTITION = "builtin.module(func.func(gflow-partition))"


def placed(trace: Trace, own: Mapping[str, str]) -> tuple[str, ...]:
    """Placements on some axes extended to all of the program's mesh; along the other axes the sharding is open."""
    return tuple(own.get(axis, OPEN) for axis in axes_of(trace.mesh))


def mark(module: ir.Module, function: Any, trace: Trace) -> None:
    """Write the mesh, the shardings of arguments, and the axes along which ranks have copies of parameters. Plain
    tensors are replicated."""
    axes = axes_of(trace.mesh)
    module.operation.attributes[MESH] = Mesh(axes, tuple(trace.mesh.shape)).mlir()
    attrs = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])]
    for n, given in enumerate(trace.inputs):
        if given.layout is not None:
            sharding = to_mlir(Attr("str[]"), given.layout.along(axes))
            attrs[n] = ir.DictAttr.get({**_entries(attrs[n]), SHARDING: sharding})
        if given.role == "parameter" and trace.data_axes:
            copied = to_mlir(Attr("str[]"), trace.data_axes)
            attrs[n] = ir.DictAttr.get({**_entries(attrs[n]), COPIES: copied})
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attrs)


def draw_alike(function: Any, trace: Trace) -> None:
    """Draw random numbers from the generator state of the first rank, however the others are seeded: ranks with copies
    of a value draw the same numbers. `gflow-partition` makes those of different shards differ."""
    block = function.regions[0].blocks[0]
    argument = found = block.arguments[len(trace.inputs)]
    sizes, made = dict(zip(axes_of(trace.mesh), trace.mesh.shape)), []
    with ir.InsertionPoint.at_block_begin(block), ir.Location.name("rng"):
        for axis in trace.shared_axes:
            if sizes[axis] > 1:
                found = build_collective(
                    found, "broadcast", root=0, axes=(axis,), ranks=sizes[axis]
                )
                made.append(found.owner.operation)
    if made:
        argument.replace_all_uses_except(found, made[0])
        thread(function)


def _entries(attrs: Any) -> dict[str, ir.Attribute]:
    return {e.name: e.attr for e in attrs}


def propagated(module: ir.Module) -> ir.Module:
    """The module with the shardings of all values.

    Raises:
        GraphTraceError: an op, which is named, cannot work on shards.
    """
    try:
        run_pipeline(module, _PROPAGATE)
    except PipelineError as error:
        raise GraphTraceError("; ".join(map(str, error.diagnostics))) from error
    return module


def ranked(module: ir.Module) -> ir.Module:
    """The program of each rank."""
    run_pipeline(propagated(module), _PARTITION)
    return module


def has_gradients(module: ir.Module) -> bool:
    """Whether ranks with copies of a parameter sum its gradients."""
    with module.context:
        block = module.body.operations[0].operation.regions[0].blocks[0]
        return any(
            op.operation.name == f"gflow.{COLLECTIVE}" and GRADIENT in op.operation.attributes
            for op in block.operations
        )


def result_shardings(module: ir.Module) -> list[tuple[str, ...] | None]:
    """The shardings of the results of a program."""
    with module.context:
        function = module.body.operations[0].operation
        found: list[tuple[str, ...] | None] = []
        for given in ir.ArrayAttr(function.attributes["res_attrs"]):
            attrs = ir.DictAttr(given)
            has = SHARDING in attrs
            found.append(tuple(from_mlir(Attr("str[]"), attrs[SHARDING])) if has else None)
        return found
