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


#: how an op takes part in mixed precision.
#: allow: float operands and results are halves (contractions, which accumulate in float32).
#: deny: computed in float32. promote: computed in float32 too, or in halves where that gives the same bits.
#: clear: exact in every float type (moves, chooses or compares elements), so it takes what it is given.
AMP_CLASSES = ("allow", "deny", "promote", "clear")

#: runs of neighbouring operands (or results) of one type that a `mixed` op may have
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
    """One op.

    operands: names; a leading `*` marks a variadic tail, a trailing `?` an optional last operand
        (of a `mixed` op, optional last operands).
    results: number of results, or None for variadic (result types are then given by the
        builder's caller).
    infer: the shape rule; None for ops whose result types can't be inferred (`gflow.aten`,
        `gflow.fused`).
    cpu: the scalar expression for the CPU generator: a `vmath` name, or an MLIR template with
        {0}, {1}, … for operands and {t} for the type, by class of element type
        ("f" float, "s" signed, "u" unsigned, "b" bool; "*" any).
    triton: the same in Triton's Python, `{0}`… for operands, by the same classes, "d" for f64, and "h" for
        what only matters rounded to a half (else "f"). Halves are computed in float32. `libdevice.` and
        `gf.` (what code generation brings) precede functions.
    full_operands, full_results: in mixed precision, of an op that allows halves, the numbers of those that
        stay float32.
    mixed: variadic (or optional) operands and results differ in type. IRDL binds one type to a variadic group,
        so such an op has `MIXED_GROUPS` groups, each a run of neighbours of one type, and
        attributes with their lengths (`operandSegmentSizes`, `resultSegmentSizes`), which the
        builder writes. groups: how many groups, where they are not that many.
    cost: relative arithmetic cost of one element (an add is 1); fusion decides recomputation by it.
    amp: what mixed precision does with it, one of `AMP_CLASSES`; where that depends on the attribute
        `kind`, `amp_kinds` says how.
    sharding: which of its dimensions are split together over ranks; an op without a rule runs on whole values.
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
        """How many operands an op has at least: those that are neither optional (`?`) nor repeated (`*`)."""
        return sum(not (o.startswith("*") or o.endswith("?")) for o in self.operands)

    @cached_property
    def max_operands(self) -> int | None:
        """How many operands an op has at most; None where one is repeated."""
        if any(o.startswith("*") for o in self.operands):
            return None
        return len(self.operands)
