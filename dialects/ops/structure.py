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

#: the exception of a condition that the following ops are for: those that may fail come after it
BRANCH = "OtherBranch"
#: exceptions that a check may raise, by the names that its attribute `error` takes
ERRORS = ("IndexError", "RuntimeError", "LinAlgError", "ValueError", "AssertionError", BRANCH)


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
        "A group of ops that becomes one kernel. The region accesses its operands only as block "
        "arguments",
        ("*inputs",),
        {
            "kind": Attr(
                "str",
                "the loop structure of the kernel; chosen by the code generator if missing",
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
        "A part of the program that another engine compiles and runs as a whole. The region "
        "accesses its operands only as block arguments. The engine reads all operands before it "
        "writes the first result",
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
        "Terminates a region of `gflow.engine` and returns its results",
        ("*values",),
        results=0,
        mixed=True,
        groups=_ENGINE_GROUPS,
        pure=False,
    ),
    OpDef(
        "yield",
        "structure",
        "Terminates a region of `gflow.fused` and returns its results",
        ("*values",),
        results=0,
        mixed=True,
        pure=False,
    ),
    OpDef(
        BARRIER,
        "structure",
        "Result i is operand i, available only after all operands are computed. No rewrite looks "
        "through it, and it has no cost at run time",
        ("*inputs",),
        results=None,
        infer=lambda operands, attrs: list(operands),
        mixed=True,
        sharding=ShardingRule(factors.barrier),
    ),
    OpDef(
        CHECK,
        "structure",
        "Ends the run with an error if `bad` is true. The op has a side effect, so it is not "
        "removed although it has no results, and every write to an argument is ordered after it. On"
        " a GPU the run continues, and the next call raises the error",
        ("bad", "found?"),
        {
            "error": Attr("str", "the class of the exception", choices=ERRORS),
            "message": Attr("str", "its message; `{}` in it is replaced by `found`"),
        },
        results=0,
        infer=_check,
        pure=False,
    ),
    OpDef(
        "aten",
        "structure",
        "A call of any ATen overload through PyTorch. `args` holds the call's arguments as JSON, "
        'with {"t": i} for operand i',
        ("*inputs",),
        {
            "overload": Attr("str", "the overload, as in `aten.topk.default`"),
            "args": Attr("str", "JSON [positional, keyword]"),
            "unique": Attr(
                "i64",
                "a number that distinguishes calls that draw random numbers, so cse does not merge them",
                optional=True,
            ),
        },
        results=None,
        mixed=True,
    ),
)
