"""Regions and the escape hatch."""

from __future__ import annotations

from ..opdef import Attr, OpDef

#: moves nothing: each result is its operand, seen through a view
BARRIER = "optimization_barrier"

OPS: tuple[OpDef, ...] = (
    OpDef(
        "fused",
        "structure",
        "a group of ops that becomes one kernel; the region sees its operands only as block arguments",
        ("*inputs",),
        {
            "kind": Attr(
                "str",
                "how the kernel walks its index space; chosen by the code generator if missing",
                optional=True,
                choices=("pointwise", "row", "column", "contraction"),
            )
        },
        results=None,
        mixed=True,
        regions=1,
    ),
    OpDef(
        "yield",
        "structure",
        "ends a region and gives its results",
        ("*values",),
        results=0,
        mixed=True,
        pure=False,
    ),
    OpDef(
        BARRIER,
        "structure",
        "result i is operand i, but not before all operands are there; no rewrite sees through it, "
        "and it costs nothing when the program runs",
        ("*inputs",),
        results=None,
        infer=lambda operands, attrs: list(operands),
        mixed=True,
    ),
    OpDef(
        "aten",
        "structure",
        'any ATen overload, run through PyTorch; `args` holds the call as JSON, with {"t": i} for operand i',
        ("*inputs",),
        {
            "overload": Attr("str", "as `aten.topk.default`"),
            "args": Attr("str", "JSON [positional, keyword]"),
            "unique": Attr(
                "i64",
                "tells apart calls that draw random numbers, so that cse does not merge them",
                optional=True,
            ),
        },
        results=None,
        mixed=True,
    ),
)
