"""Mixed precision: which ops run in half precision, and which need float32.

An op of the dialect has its class in its declaration (`OpDef.amp`). ATen overloads are listed here. Overloads that are
not listed run in float32.
"""

from __future__ import annotations

from .mlir import ir
from .ops import OPS
from .records import record


@record
class AtenAmp:
    """The precision of an op or of a call of an ATen overload.

    kind: one of `AMP_CLASSES`. full_args: positions of arguments (for an op of the dialect, of operands) that stay
    float32. full_results: positions of results that stay float32.
    """

    kind: str
    full_args: tuple[int, ...] = ()
    full_results: tuple[int, ...] = ()


_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"

#: by overload
ATEN: dict[str, AtenAmp] = {
    # the log-sum-exp results are float32 for all element types
    f"{_ATTENTION}.default": AtenAmp("allow", full_results=(1,)),
    f"{_ATTENTION}_backward.default": AtenAmp("allow", full_args=(5,)),
}

_DENY = AtenAmp("deny")


def amp_of(op: ir.Operation) -> AtenAmp:
    """The precision of an op in mixed precision: class "deny", float32, for ops of other dialects."""
    name = op.name.removeprefix("gflow.")
    definition = OPS.get(name)
    if definition is None:
        return _DENY
    if name == "aten":
        return ATEN.get(ir.StringAttr(op.attributes["overload"]).value, _DENY)
    if definition.amp_kinds:
        kind = ir.StringAttr(op.attributes["kind"]).value
        return AtenAmp(definition.amp_kinds.get(kind, definition.amp))
    return AtenAmp(definition.amp, definition.full_operands, definition.full_results)
