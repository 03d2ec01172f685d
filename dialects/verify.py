"""The verifier of every op: operand count, attributes, then the shape rule's result types."""

from __future__ import annotations

from typing import Any

from .aten.calls import AtenError, check_call
from .attributes import read
from .mlir import ir
from .opdef import OpDef, VerifyError
from .ops import CONTRACTIONS
from .ops.structure import ENGINE, ENGINE_YIELD
from .types import try_tensor_type

#: what the shape rules of ops have accepted: kind, types of operands and results, declared attributes. Most ops of a
#: program are like one that was verified before
_accepted: set[tuple[Any, ...]] = set()


def forget_accepted() -> None:
    """Empty the look-up: its entries keep the contexts of their types alive."""
    _accepted.clear()


def check(definition: OpDef, op: ir.Operation) -> None:
    """Raise VerifyError if `op` breaks the declaration of its kind."""
    key = _key(definition, op)
    if key is None:
        _check_types(definition, op)
    elif key not in _accepted:
        _check_types(definition, op)
        if len(_accepted) > 100_000:
            _accepted.clear()
        _accepted.add(key)
    if definition.regions:
        _check_region(op)
    if definition.name == "fused":
        _check_fused(op)
    elif definition.name == "aten":
        try:
            check_call(read(definition, op.attributes)["args"], len(op.operands))
        except AtenError as error:
            raise VerifyError(str(error)) from None


def _key(definition: OpDef, op: ir.Operation) -> tuple[Any, ...] | None:
    """All that `_check_types` reads of an op; None if an attribute is of a kind that the bindings cannot read."""
    found = [definition.name, len(op.regions), *[v.type for v in op.operands], None]
    found += [v.type for v in op.results]
    if definition.attrs:
        attributes = op.attributes
        try:
            found += [attributes.get(n) for n in definition.attrs]
        except TypeError:
            return None
    return tuple(found)


def _check_types(definition: OpDef, op: ir.Operation) -> None:
    """Check the numbers of operands, results and regions, the attributes, and the shape rule.

    Raises:
        VerifyError: `op` breaks the declaration of its kind.
    """
    operands = op.operands
    count = len(operands)
    low, high = definition.min_operands, definition.max_operands
    if count < low or (high is not None and count > high):
        wanted = (
            str(low) if low == high else f"{low} or more" if high is None else f"{low} to {high}"
        )
        raise VerifyError(
            f"expects {wanted} operands ({', '.join(definition.operands)}), found {count}"
        )
    results = op.results
    if definition.results is not None and len(results) != definition.results:
        raise VerifyError(f"expects {definition.results} results, found {len(results)}")
    if len(op.regions) != definition.regions:
        raise VerifyError(f"expects {definition.regions} regions, found {len(op.regions)}")
    types = []
    for i, operand in enumerate(operands):
        found = try_tensor_type(operand.type)
        if found is None:
            raise VerifyError(
                f"operand #{i} must be a tensor of static shape, found {operand.type}"
            )
        types.append(found)
    attrs = read(definition, op.attributes) if definition.attrs else {}
    if definition.infer is not None:
        wanted_types = definition.infer(types, attrs)
        if len(results) != len(wanted_types):
            raise VerifyError(f"expects {len(wanted_types)} results, found {len(results)}")
        for i, (result, want) in enumerate(zip(results, wanted_types)):
            if try_tensor_type(result.type) != want:
                raise VerifyError(f"result #{i} must be {want}, found {result.type}")


def _check_region(op: ir.Operation) -> None:
    blocks = list(op.regions[0].blocks)
    if len(blocks) != 1:
        raise VerifyError(f"the region must have one block, found {len(blocks)}")
    block = blocks[0]
    if [a.type for a in block.arguments] != [o.type for o in op.operands]:
        raise VerifyError("the block's arguments must have the operands' types, in their order")
    body = block.operations
    end = f"gflow.{ENGINE_YIELD if op.name == f'gflow.{ENGINE}' else 'yield'}"
    last = body[-1].operation if len(body) else None
    if last is None or last.name != end:
        raise VerifyError(f"the block must end in {end}")
    if [v.type for v in last.operands] != [r.type for r in op.results]:
        raise VerifyError(f"{end} must give values of the result types, in their order")


def _check_fused(op: ir.Operation) -> None:
    last = op.regions[0].blocks[0].operations[-1]
    if all(_is_contraction(v) for v in last.operands):
        raise VerifyError(
            "the region yields nothing but its contraction's result: a contraction without an epilogue "
            "stands alone, outside of gflow.fused"
        )


def _is_contraction(value: ir.Value) -> bool:
    """Whether a value is the result of a contraction, or a reshape of it."""
    while not isinstance(value.owner, ir.Block):
        name = value.owner.operation.name.removeprefix("gflow.")
        if name != "reshape":
            return name in CONTRACTIONS
        value = value.owner.operation.operands[0]
    return False
