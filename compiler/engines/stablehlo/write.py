"""Writes a function of the dialect as a StableHLO module.

    func.func @f(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>) -> tensor<4x3xf32> {
      %0 = "gflow.matmul"(%x, %w) : …

becomes

    func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8x3xf32>) -> tensor<4x3xf32> {
      %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : …

Names of arguments and results are in the locations. Updates are results after the others, as in the dialect.
"""

from __future__ import annotations

from collections.abc import Sequence

from gflow.dialects.extents import current
from gflow.dialects.mlir import func, ir, stablehlo
from gflow.dialects.records import record

from ...ir.modules import text_of
from ..expand import expanded
from ..form import EngineError, call_of
from ..sizes import size_arguments
from .dynamic import make_dynamic
from .rows import FORM
from .writer import Writer


@record
class Written:
    """A written module, verified.

    checks: the number of checks that were left out. dropped: arguments that the module's function does not have: sizes,
    which the shapes of other arguments have.
    """

    module: ir.Module
    checks: int
    dropped: tuple[int, ...] = ()


def write_function(function: func.FuncOp, checks: bool = False) -> Written:
    """Write a function as a module with one public function, `main`; `function` is not modified.

    Dynamic dimensions are dynamic in the module.

    checks: whether checks may be left out.

    Raises:
        EngineError: the function has ops that StableHLO does not support.
    """
    stablehlo().register_dialect(function.context)
    with expanded(function.operation, FORM, checks) as (block, dropped):
        module = _written(block, _names(function))
        if current() is None:
            return Written(module, dropped)
        main = module.body.operations[0]
        assert isinstance(main, func.FuncOp)
        gone = make_dynamic(main, size_arguments(function))
        _verify(module)
        return Written(module, dropped, tuple(gone))


def portable(module: ir.Module) -> bytes:
    """A module as a portable artifact (VHLO bytecode), which other versions of StableHLO can read."""
    bindings = stablehlo()
    version = bindings.get_current_version()
    return bindings.serialize_portable_artifact_str(str(module), version)


def write_region(op: ir.Operation) -> ir.Module:
    """Write the region of an op as a module; the op is not modified.

    Raises:
        EngineError: as `write_function`.
    """
    stablehlo().register_dialect(op.context)
    with expanded(op, FORM) as (block, _):
        return _written(block, [])


def _names(function: func.FuncOp) -> list[str]:
    if "arg_attrs" not in function.attributes:
        return []
    found = []
    for given in ir.ArrayAttr(function.attributes["arg_attrs"]):
        attrs = ir.DictAttr(given)
        found.append(text_of(attrs, "gflow.name", ""))
    return found


def _written(block: ir.Block, names: Sequence[str]) -> ir.Module:
    module = ir.Module.create()
    types = [a.type for a in block.arguments]
    *body, end = [o.operation for o in block.operations]
    results = [v.type for v in end.operands]
    with ir.InsertionPoint(module.body):
        main = func.FuncOp("main", ir.FunctionType.get(types, results), visibility="public")
    locations = [
        ir.Location.name(names[n]) if n < len(names) and names[n] else ir.Location.unknown()
        for n in range(len(types))
    ]
    main.regions[0].blocks.append(*types, arg_locs=locations)
    entry = main.regions[0].blocks[0]
    known = dict(zip(block.arguments, entry.arguments))
    writer = Writer()
    with ir.InsertionPoint(entry):
        for op in body:
            with op.location:
                call = call_of(op)
                row = FORM.rows[call.name]
                made = row.write(writer, call, [known[v] for v in op.operands])
            known.update(zip(op.results, made))
        func.ReturnOp([known[v] for v in end.operands])
    _verify(module)
    return module


def _verify(module: ir.Module) -> None:
    if not module.operation.verify():
        raise EngineError("the StableHLO module does not verify")
