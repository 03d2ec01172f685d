"""Regions and the escape hatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..distribution.sharding import ShardingRule
from ..opdef import Attr, OpDef, VerifyError
from ..types import TensorType
from . import factors

#: moves nothing: each result is its operand, seen through a view
BARRIER = "optimization_barrier"
#: ends a run with an error: no pass may drop it, or put an update of an argument before it
CHECK = "check"

#: a part of the program that another engine runs
ENGINE, ENGINE_YIELD = "engine", "engine_yield"
#: engines that may run one
ENGINES = ("xla", "onnxruntime", "openvino", "tensorrt")
#: runs of operands (or results) of one type that a region of an engine may have
_ENGINE_GROUPS = 256

#: exceptions that a check may raise, by the names that its attribute `error` takes
ERRORS = ("IndexError", "RuntimeError", "LinAlgError", "ValueError", "AssertionError")


def _check(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    if operands[0] != TensorType((), "i1"):
        raise VerifyError(f"operand #0 must be one bool, a tensor<i1>, found {operands[0]}")
    if len(operands) > 1 and operands[1] != TensorType((), "i64"):
        raise VerifyError(f"operand #1 must be one number, a tensor<i64>, found {operands[1]}")
    return []


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
        ENGINE,
        "structure",
        "a part of the program that another engine compiles and runs as a whole; the region sees its operands only as "
        "block arguments. The engine has read all operands when it writes the first result",
        ("*inputs",),
        {"engine": Attr("str", "which", choices=ENGINES)},
        results=None,
        mixed=True,
        groups=_ENGINE_GROUPS,
        regions=1,
    ),
    OpDef(
        ENGINE_YIELD,
        "structure",
        "ends a region of `gflow.engine` and gives its results",
        ("*values",),
        results=0,
        mixed=True,
        groups=_ENGINE_GROUPS,
        pure=False,
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
        sharding=ShardingRule(factors.barrier),
    ),
    OpDef(
        CHECK,
        "structure",
        "ends the run with an error if `bad` is true; it has an effect, so it stays where nothing reads a result, "
        "and whatever replaces an argument's value comes after it. On a device the run goes on, and the next "
        "call raises the error",
        ("bad", "found?"),
        {
            "error": Attr("str", "the exception", choices=ERRORS),
            "message": Attr("str", "its message; `{}` in it becomes `found`"),
        },
        results=0,
        infer=_check,
        pure=False,
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
