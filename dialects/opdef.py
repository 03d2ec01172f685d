"""How an op of the dialect is declared: once, as data.

An `OpDef` holds all that the project knows of an op: its summary (for the docs), operands,
attributes, the shape rule (which the builder uses to infer result types and the verifier to
check them), the rule by which it is split over ranks, and for elementwise ops the scalar expression of both code
generators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from .distribution.sharding import ShardingRule
from .records import record
from .types import TensorType


class VerifyError(ValueError):
    """An op breaks its own rules; the message is shown to the user as an MLIR diagnostic."""


#: operand types, attributes as plain Python data → result types. Raises VerifyError.
ShapeRule = Callable[[Sequence[TensorType], dict[str, Any]], list[TensorType]]


#: the classes of ops in mixed precision.
#: allow: float operands and results have half precision (contractions, which accumulate in float32).
#: deny: computed in float32. promote: computed in float32, or in half precision where the results are bitwise equal.
#: clear: exact in every float type (moves, selects or compares elements), so it keeps the type of its operands.
AMP_CLASSES = ("allow", "deny", "promote", "clear")

#: the most groups of adjacent operands (or results) of one type in a `mixed` op
MIXED_GROUPS = 8


@record
class Attr:
    """An attribute: its kind (how it is read and written) and its meaning.

    kind: "i64", "f64", "bool", "str", "i64[]", "str[]", "elements", "type" (a tensor type) or
        "any".
    """

    kind: str
    doc: str = ""
    optional: bool = False
    choices: tuple[str, ...] = ()


@record
class OpDef:
    """The declaration of an op.

    operands: names; a leading `*` marks a variadic tail, a trailing `?` an optional last operand
        (in a `mixed` op, optional last operands).
    results: the number of results; None for variadic results, whose types the caller of the builder passes.
    infer: the shape rule; None for ops whose result types cannot be inferred (`gflow.aten`, `gflow.fused`).
    cpu: the scalar expression for the CPU generator: a `vmath` name, or an MLIR template with
        {0}, {1}, … for operands and {t} for the type, by class of element type
        ("f" float, "s" signed, "u" unsigned, "b" bool; "*" any).
    triton: the same in Triton's Python, `{0}`… for operands, by the same classes, "d" for f64, and "h" for results that
        are used only after rounding to half precision (without an entry, "f"). Half-precision values are computed in
        float32. Functions are prefixed by `libdevice.` or `gf.` (functions of gflow's own code generation).
    full_operands, full_results: the numbers of the operands and results that stay float32 in mixed precision, for an op
        of class "allow".
    mixed: variadic (or optional) operands and results differ in type. IRDL binds one type to a variadic group, so such
        an op has `MIXED_GROUPS` groups, each of adjacent values of one type, and attributes with the lengths of the
        groups (`operandSegmentSizes`, `resultSegmentSizes`), which the builder writes.
    groups: the number of groups of a `mixed` op, if it is not `MIXED_GROUPS`.
    cost: the arithmetic cost of one element relative to an add; fusion decides recomputation by it.
    amp: the op's class in mixed precision, one of `AMP_CLASSES`. amp_kinds: the class by the value of the attribute
        `kind`, for ops whose class depends on it.
    sharding: the sharding rule; None for an op that needs replicated values.
    """

    name: str
    category: str
    summary: str
    operands: tuple[str, ...]
    attrs: dict[str, Attr] = field(default_factory=dict)
    results: int | None = 1
    infer: ShapeRule | None = None
    dtypes: str = ""
    cpu: dict[str, str] = field(default_factory=dict)
    triton: dict[str, str] = field(default_factory=dict)
    cost: int = 1
    amp: str = "deny"
    amp_kinds: dict[str, str] = field(default_factory=dict)
    full_operands: tuple[int, ...] = ()
    full_results: tuple[int, ...] = ()
    pure: bool = True
    mixed: bool = False
    groups: int = MIXED_GROUPS
    regions: int = 0
    example: str = ""
    sharding: ShardingRule | None = None

    @cached_property
    def min_operands(self) -> int:
        """The least number of operands: those that are neither optional (`?`) nor variadic (`*`)."""
        return sum(not (o.startswith("*") or o.endswith("?")) for o in self.operands)

    @cached_property
    def max_operands(self) -> int | None:
        """The greatest number of operands; None if one is variadic."""
        if any(o.startswith("*") for o in self.operands):
            return None
        return len(self.operands)
