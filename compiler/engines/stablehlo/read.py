"""Reads a StableHLO module as functions of the dialect.

    func.func public @main(%arg0: tensor<4x8xf32> loc("x"), %arg1: tensor<3x8xf32>) -> tensor<4x3xf32> {
      %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1] : …

becomes

    func.func public @main(%x: tensor<4x8xf32> {gflow.name = "x"}, %arg1: tensor<3x8xf32>) -> tensor<4x3xf32> {
      %0 = "gflow.transpose"(%arg1) {permutation = array<i64: 1, 0>} : …
      %1 = "gflow.matmul"(%x, %0) : …

Calls are inlined first (upstream `inline`), so only public functions remain. Ops keep their locations.
"""

from __future__ import annotations

from gflow.compiler.ir.diagnostics import file_line_column
from gflow.dialects.constants import externalize
from gflow.dialects.mlir import PassManager, func, ir, stablehlo
from gflow.dialects.opdef import VerifyError
from gflow.dialects.types import try_tensor_type

from ..form import EngineError, refuse
from .read_rows import READERS, Unreadable
from .read_windows import reduce_window

_ROWS = {**READERS, "reduce_window": reduce_window}


def prepare(context: ir.Context) -> None:
    """Register StableHLO's dialects in a context, so that it can parse StableHLO."""
    stablehlo().register_dialect(context)


def read_module(module: ir.Operation) -> ir.Module:
    """A parsed StableHLO module as a module of the dialect. Calls are inlined in `module` itself.

    Raises:
        EngineError: it has ops that gflow does not support. The message lists them with their locations.
    """
    with module.context, ir.Location.unknown():
        PassManager.parse("builtin.module(inline)").run(module)
        made = ir.Module.create(loc=module.location)
        problems: list[str] = []
        for view in module.regions[0].blocks[0].operations:
            op = view.operation
            with ir.InsertionPoint(made.body):
                if op.name != "func.func":
                    problems.append(f"{op.name}{_place(op)}: only functions are read")
                elif len(op.regions[0].blocks) != 1:
                    problems.append(f"{op.name}{_place(op)}: it must have a body of one block")
                else:
                    _function(op, problems)
        refuse("cannot be read from StableHLO", problems)
        externalize(made.operation)
        if not made.operation.verify():
            raise EngineError("what was read from StableHLO does not verify")
        return made


def _function(source: ir.Operation, problems: list[str]) -> None:
    """Read one function. Its problems are added to `problems`; it is then incomplete."""
    block = source.regions[0].blocks[0]
    found = len(problems)
    for argument in block.arguments:
        if try_tensor_type(argument.type) is None:
            problems.append(
                f"argument {argument.arg_number} of {_named(source)}: {_kind(argument)}"
            )
    if len(problems) > found:
        return
    types = [a.type for a in block.arguments]
    kind = ir.TypeAttr(source.attributes["function_type"]).value
    made = func.FuncOp(_named(source), kind, visibility="public", loc=source.location)
    entry = made.add_entry_block([a.location for a in block.arguments])
    made.operation.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [_attributes(block.arguments[n].location) for n in range(len(types))]
    )
    known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, entry.arguments))
    for view in block.operations:
        op = view.operation
        with ir.InsertionPoint(entry), op.location:
            if op.name == "func.return":
                if len(problems) == found:
                    func.ReturnOp([known[v] for v in op.operands])
                return
            try:
                results = _read(op, known)
            except (Unreadable, VerifyError) as error:
                problems.append(f"{op.name}{_place(op)}: {error}")
                continue
        known.update(zip(op.results, results, strict=True))


def _read(op: ir.Operation, known: dict[ir.Value, ir.Value]) -> list[ir.Value]:
    """Read one op; returns its results.

    Raises:
        Unreadable: gflow does not support it.
    """
    for value in (*op.operands, *op.results):
        if try_tensor_type(value.type) is None:
            raise Unreadable(_kind(value))
    row = _ROWS.get(op.name.removeprefix("stablehlo."))
    if row is None or not op.name.startswith("stablehlo."):
        raise Unreadable("gflow has no form for it")
    if any(v not in known for v in op.operands):
        # an operand could not be read, which was reported; only types are needed to continue
        return [_stand_in(v) for v in op.results]
    return row(op, [known[v] for v in op.operands])


def _stand_in(value: ir.Value) -> ir.Value:
    cast = ir.Operation.create("builtin.unrealized_conversion_cast", [value.type], [])
    return cast.results[0]


def _kind(value: ir.Value) -> str:
    return f"{value.type} is no tensor of static shape and of an element type that gflow has"


def _named(function: ir.Operation) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def _attributes(location: ir.Location) -> ir.Attribute:
    if not isinstance(location, ir.NameLoc):
        return ir.DictAttr.get({})
    text = location.name_str
    name = text if isinstance(text, str) else str(text)
    return ir.DictAttr.get({"gflow.name": ir.StringAttr.get(name)})


def _place(op: ir.Operation) -> str:
    place = file_line_column(op.location)
    return f" at {place[0]}:{place[1]}" if place else ""
