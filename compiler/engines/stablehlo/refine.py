"""Makes a StableHLO module with dynamic dimensions static, for given argument shapes, by StableHLO's shape refinement.

    func.func public @main(%x: tensor<?x4xf32>) -> tensor<?xf32> {
      %0 = stablehlo.get_dimension_size %x, dim = 0 …
      %1 = stablehlo.dynamic_reshape %x, …

becomes, for the shape 3x4,

    func.func public @main(%x: tensor<3x4xf32>) -> tensor<12xf32> {
      %0 = stablehlo.reshape %x …

JAX's assertions of shapes are evaluated. One that does not hold is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from gflow.dialects.mlir import PassManager, ir, stablehlo

from ..form import EngineError

_ASSERTION = "shape_assertion"


def make_static(module: ir.Operation, shapes: Sequence[Sequence[int]] | None, advice: str) -> None:
    """Refine a module for given shapes, in place. Without shapes, check that it is static.

    advice: how shapes are given, for the error.

    Raises:
        EngineError: as `refine`, or the module has dynamic dimensions and no shapes are given.
    """
    if shapes is not None:
        refine(module, shapes)
    elif found := _dynamic_types(module):
        raise EngineError(f"has dynamic dimensions ({', '.join(found)}): give {advice}")


def _dynamic_types(module: ir.Operation) -> list[str]:
    """The types of arguments with dynamic dimensions."""
    with module.context:
        types = [t for f in _public(module) for t in _types(f)]
    return [str(t) for t in types if isinstance(t, ir.RankedTensorType) and not t.has_static_shape]


def refine(module: ir.Operation, shapes: Sequence[Sequence[int]]) -> None:
    """Make a module static, in place. shapes: those of all arguments of its public function.

    Raises:
        EngineError: the shapes do not fit the function's arguments, an assertion does not hold for them, or a shape
            cannot be computed from them.
    """
    with module.context, ir.Location.unknown():
        _refine(module, [list(shape) for shape in shapes])


def _refine(module: ir.Operation, given: list[list[int]]) -> None:
    public = _public(module)
    if len(public) != 1:
        raise EngineError(f"must have one public function, it has {len(public)}")
    types = [ir.RankedTensorType(t) for t in _types(public[0])]
    if len(given) != len(types):
        raise EngineError(f"takes {len(types)} arguments, and shapes has {len(given)}")
    static = []
    for n, (ty, shape) in enumerate(zip(types, given)):
        fits = len(shape) == ty.rank and all(
            ty.is_dynamic_dim(d) or ty.get_dim_size(d) == size for d, size in enumerate(shape)
        )
        if not fits:
            raise EngineError(f"has {ty} as argument {n}, and shapes has {shape} for it")
        static.append(ir.RankedTensorType.get(shape, ty.element_type))
    _register()
    listed = ",".join(map(str, static))
    _run(module, f"stablehlo-refine-arguments{{types={listed}}},stablehlo-refine-shapes")
    for view in module.regions[0].blocks[0].operations:
        for region in view.operation.regions:
            for block in region.blocks:
                _check(block)
    _run(module, "func.func(stablehlo-canonicalize-dynamism),stablehlo-refine-shapes")


def _check(block: ir.Block) -> None:
    """Evaluate and remove the shape assertions of a function.

    Raises:
        EngineError: an assertion does not hold, or does not depend on shapes alone.
    """
    for view in list(block.operations):
        op = view.operation
        if op.name != "stablehlo.custom_call" or _text(op, "call_target_name") != _ASSERTION:
            continue
        holds, *shown = [_constant(v) for v in op.operands]
        if holds is None:
            raise EngineError(
                "asserts of its shapes what does not follow from those of its arguments"
            )
        if not holds:
            message = _text(op, "error_message")
            for n, value in enumerate(shown):
                message = message.replace(f"{{{n}}}", str(value))
            raise EngineError(f"does not take these shapes: {message}")
        op.erase()


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if not isinstance(owner, ir.Operation | ir.OpView) or "value" not in owner.operation.attributes:
        return None
    attribute = owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    return int(attribute.get_splat_value().value)  # type: ignore[attr-defined]


def _public(module: ir.Operation) -> list[ir.Operation]:
    found = [o.operation for o in module.regions[0].blocks[0].operations]
    found = [o for o in found if o.name == "func.func"]
    return [f for f in found if _text(f, "sym_visibility") in ("", "public")]


def _types(function: ir.Operation) -> list[ir.Type]:
    return list(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)


def _text(op: ir.Operation, name: str) -> str:
    return ir.StringAttr(op.attributes[name]).value if name in op.attributes else ""


@cache
def _register() -> None:
    stablehlo().register_stablehlo_passes()


def _run(module: ir.Operation, passes: str) -> None:
    """
    Raises:
        EngineError: shapes cannot be refined.
    """
    try:
        PassManager.parse(f"builtin.module({passes})").run(module)
    except ir.MLIRError as error:
        raise EngineError(f"cannot be read for these shapes: {error}") from None
