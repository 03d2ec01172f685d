"""Mixed precision: which ops gain from halves, and which need float32.

Ops of the dialect say so in their declaration (`OpDef.amp`); calls of ATen overloads are listed here. What is
not listed runs in float32.
"""

from __future__ import annotations

from .mlir import ir
from .ops import OPS
from .records import record


@record
class AtenAmp:
    """How a call takes part.

    kind: one of `AMP_CLASSES`. full_args: positions of arguments (of an op of ours: of operands), full_results:
    of results, that stay float32.
    """

    kind: str
    full_args: tuple[int, ...] = ()
    full_results: tuple[int, ...] = ()


_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"

#: by overload
ATEN: dict[str, AtenAmp] = {
    # the logarithms of sums are float32 whatever the element type
    f"{_ATTENTION}.default": AtenAmp("allow", full_results=(1,)),
    f"{_ATTENTION}_backward.default": AtenAmp("allow", full_args=(5,)),
}

_DENY = AtenAmp("deny")


def amp_of(op: ir.Operation) -> AtenAmp:
    """How an op takes part in mixed precision; ops of other dialects are left alone."""
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
