"""Elementwise ops: every operand and the result have one shape; broadcasting is explicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..distribution.sharding import ShardingRule
from ..opdef import Attr, OpDef, ShapeRule, VerifyError
from ..types import FLOATS, INTEGERS, TensorType
from . import factors

_GROUPS = {
    "float": FLOATS,
    "number": FLOATS + INTEGERS,
    "integer": INTEGERS,
    "bits": (*INTEGERS, "i1"),
    "any": (*FLOATS, *INTEGERS, "i1"),
    "bool": ("i1",),
}


def _same(group: str, result: str | None = None) -> ShapeRule:
    allowed = _GROUPS[group]

    def rule(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        first = operands[0]
        for i, operand in enumerate(operands):
            if operand != first:
                raise VerifyError(
                    f"operands must have one type: operand #0 is {first}, operand #{i} is {operand}; "
                    "insert gflow.broadcast or gflow.convert"
                )
        if first.dtype not in allowed:
            raise VerifyError(f"element type {first.dtype} is not one of {', '.join(allowed)}")
        return [TensorType(first.shape, result or first.dtype)]

    return rule


def _select(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    pred, a, b = operands
    if pred.dtype != "i1":
        raise VerifyError(f"the predicate must have element type i1, found {pred.dtype}")
    if a != b or pred.shape != a.shape:
        raise VerifyError(
            f"operands must agree in shape, and the last two in type: found {pred}, {a}, {b}"
        )
    return [a]


def _convert(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    dtype = attrs["dtype"]
    if dtype not in _GROUPS["any"]:
        raise VerifyError(f"cannot convert to element type {dtype}")
    return [TensorType(operands[0].shape, dtype)]


#: every dimension can be split; by the operands in which they are linear, or the reductions that pass
_EACH = ShardingRule(factors.elementwise())
_BOTH = ShardingRule(factors.elementwise((0, 1)))
_EITHER = ShardingRule(factors.elementwise((0,), (1,)))
_ONE = ShardingRule(factors.elementwise((0,)))


def _unary(
    name: str,
    summary: str,
    group: str,
    cpu: dict[str, str],
    triton: str | dict[str, str],
    cost: int = 1,
    result: str | None = None,
    amp: str = "promote",
    sharding: ShardingRule = _EACH,
) -> OpDef:
    return OpDef(name, "elementwise", summary, ("x",), infer=_same(group, result), dtypes=group, cpu=cpu,
                 triton=_by_class(triton), cost=cost, amp=amp, sharding=sharding)  # fmt: skip


def _binary(
    name: str,
    summary: str,
    group: str,
    cpu: dict[str, str],
    triton: str | dict[str, str],
    cost: int = 1,
    amp: str = "promote",
    sharding: ShardingRule = _EACH,
) -> OpDef:
    return OpDef(name, "elementwise", summary, ("a", "b"), infer=_same(group), dtypes=group, cpu=cpu,
                 triton=_by_class(triton), cost=cost, amp=amp, sharding=sharding)  # fmt: skip


def _by_class(triton: str | dict[str, str]) -> dict[str, str]:
    return {"*": triton} if isinstance(triton, str) else triton


def _math(
    name: str, summary: str, triton: str | dict[str, str], cost: int = 12, amp: str = "promote"
) -> OpDef:
    """A float function that the CPU generator takes from its vector math library under the same name."""
    return _unary(name, summary, "float", {"f": f"vmath:{name}"}, triton, cost, amp=amp)


_LIB = "libdevice."

OPS: tuple[OpDef, ...] = (
    # -- arithmetic
    _binary("add", "a + b", "number", {"f": "arith.addf {0}, {1} : {t}", "*": "arith.addi {0}, {1} : {t}"}, "({0} + {1})", sharding=_BOTH),
    _binary("sub", "a - b", "number", {"f": "arith.subf {0}, {1} : {t}", "*": "arith.subi {0}, {1} : {t}"}, "({0} - {1})", sharding=_BOTH),
    _binary("mul", "a * b", "number", {"f": "arith.mulf {0}, {1} : {t}", "*": "arith.muli {0}, {1} : {t}"}, "({0} * {1})", sharding=_EITHER),
    _binary("div", "a / b. Integer quotients are truncated toward zero, and are 0 where b is 0", "number",
            {"f": "arith.divf {0}, {1} : {t}", "s": "int:div", "u": "int:div"}, {"f": "tl.div_rn({0}, {1})", "d": "({0} / {1})", "h": "({0} / {1})", "s": "gf.int_div({0}, {1})", "u": "gf.uint_div({0}, {1})"}, 4, sharding=ShardingRule(factors.division)),
    _binary("remainder", "a - b * floor(a / b), with the sign of b, as in `torch.remainder`", "number",
            {"f": "vmath:remainder", "s": "int:remainder", "u": "int:remainder"}, {"f": "gf.remainder({0}, {1})", "s": "gf.int_remainder({0}, {1})", "u": "gf.uint_fmod({0}, {1})"}, 8, amp="deny"),
    _binary("fmod", "The remainder of a / b, with the sign of a, as in `torch.fmod`", "number",
            {"f": "vmath:fmod", "s": "int:fmod", "u": "int:fmod"}, {"f": _LIB + "fmod({0}, {1})", "s": "gf.int_fmod({0}, {1})", "u": "gf.uint_fmod({0}, {1})"}, 8, amp="deny"),
    _binary("pow", "a to the power b", "number", {"f": "vmath:pow", "s": "int:pow", "u": "int:pow"}, {"f": _LIB + "pow({0}, {1})", "s": "gf.int_pow({0}, {1}, {bits})", "u": "gf.uint_pow({0}, {1}, {bits})"}, 24, amp="deny"),
    _binary("maximum", "The larger; NaN if either is NaN", "any",
            {"f": "arith.maximumf {0}, {1} : {t}", "s": "arith.maxsi {0}, {1} : {t}", "u": "arith.maxui {0}, {1} : {t}",
             "b": "arith.ori {0}, {1} : {t}"}, {"f": "tl.maximum({0}, {1}, tl.PropagateNan.ALL)", "b": "({0} | {1})", "*": "tl.maximum({0}, {1})"}, amp="clear", sharding=ShardingRule(factors.elementwise((0, 1), passes=("max",)))),
    _binary("minimum", "The smaller; NaN if either is NaN", "any",
            {"f": "arith.minimumf {0}, {1} : {t}", "s": "arith.minsi {0}, {1} : {t}", "u": "arith.minui {0}, {1} : {t}",
             "b": "arith.andi {0}, {1} : {t}"}, {"f": "tl.minimum({0}, {1}, tl.PropagateNan.ALL)", "b": "({0} & {1})", "*": "tl.minimum({0}, {1})"}, amp="clear", sharding=ShardingRule(factors.elementwise((0, 1), passes=("min",)))),
    _binary("atan2", "The angle of the point (b, a), as in `torch.atan2`", "float", {"f": "vmath:atan2"}, _LIB + "atan2({0}, {1})", 24, amp="deny"),
    _binary("copysign", "a's magnitude with b's sign", "float", {"f": "vmath:copysign"}, _LIB + "copysign({0}, {1})", amp="clear"),
    OpDef("fma", "elementwise", "a * b + c, rounded once", ("a", "b", "c"), infer=_same("float"), dtypes="float",
          cpu={"f": "math.fma {0}, {1}, {2} : {t}"}, triton={"*": "tl.fma({0}, {1}, {2})"}, cost=2, amp="promote",
          sharding=ShardingRule(factors.elementwise((0, 2), (1, 2)))),
    # -- bits and logic
    _binary("and", "Bitwise and; logical on i1", "bits", {"*": "arith.andi {0}, {1} : {t}"}, "({0} & {1})"),
    _binary("or", "Bitwise or; logical on i1", "bits", {"*": "arith.ori {0}, {1} : {t}"}, "({0} | {1})"),
    _binary("xor", "Bitwise exclusive or; logical on i1", "bits", {"*": "arith.xori {0}, {1} : {t}"}, "({0} ^ {1})"),
    _binary("shift_left", "a << b; 0 where b is out of range", "integer", {"s": "int:shift_left", "u": "int:shift_left"}, "gf.shift_left({0}, {1}, {bits})"),
    _binary("shift_right", "a >> b, arithmetic for signed types", "integer", {"s": "int:shift_right", "u": "int:shift_right"}, "gf.shift_right({0}, {1}, {bits})"),
    _unary("not", "Bitwise not; logical on i1", "bits", {"*": "int:not"}, "(~{0})"),
    OpDef("compare", "elementwise", "Compares a and b; the result is i1. Comparisons with NaN are false, except `ne`", ("a", "b"),
          {"predicate": Attr("str", "the relation", choices=("eq", "ne", "lt", "le", "gt", "ge"))},
          infer=_same("any", "i1"), dtypes="any", cpu={"*": "compare"}, triton={"*": "({0} {predicate} {1})"}, amp="clear", sharding=_EACH),
    OpDef("select", "elementwise", "`a` where pred, else `b`", ("pred", "a", "b"), infer=_select, dtypes="any",
          cpu={"*": "select"}, triton={"*": "tl.where({0}, {1}, {2})"}, amp="clear",
          sharding=ShardingRule(factors.elementwise((1, 2), passes=factors.MOVED))),
    OpDef("convert", "elementwise",
          "The value in another element type. Floats are truncated to integers; i1 is the comparison "
"with zero. Inside a fused region half-precision values are rounded only at a convert",
          ("x",), {"dtype": Attr("str", "the result's element type")}, infer=_convert, dtypes="any", cpu={"*": "convert"},
          triton={"*": "{0}.to({dtype})"}, sharding=ShardingRule(factors.conversion)),
    # -- simple unary
    _unary("neg", "-x", "number", {"f": "arith.negf {0} : {t}", "*": "int:neg"}, {"f": "({0} * -1.0)", "*": "(0 - {0})"}, amp="clear", sharding=_ONE),
    _unary("abs", "|x|", "number", {"f": "vmath:abs", "s": "int:abs", "u": "int:abs"}, {"u": "{0}", "*": "tl.abs({0})"}, amp="clear"),
    _unary("sign", "-1, 0 or 1; 0 for NaN, as `torch.sign`", "number", {"f": "vmath:sign", "s": "int:sign", "u": "int:sign"}, {"u": "tl.minimum({0}, 1)", "*": "gf.sign({0})"}, 3, amp="clear"),
    _unary("floor", "The largest integer not above x", "float", {"f": "vmath:floor"}, "tl.floor({0})", amp="deny"),
    _unary("ceil", "The smallest integer not below x", "float", {"f": "vmath:ceil"}, "tl.ceil({0})", amp="deny"),
    _unary("trunc", "x without its fraction", "float", {"f": "vmath:trunc"}, _LIB + "trunc({0})", amp="deny"),
    _unary("round", "The nearest integer, halves to even", "float", {"f": "vmath:round"}, _LIB + "rint({0})", amp="deny"),
    _unary("is_nan", "Whether x is NaN", "float", {"f": "is_nan"}, "({0} != {0})", result="i1", amp="clear"),
    _unary("is_inf", "Whether x is an infinity", "float", {"f": "is_inf"}, "(tl.abs({0}) == float('inf'))", result="i1", amp="clear"),
    # -- functions
    _unary("sqrt", "The square root", "float", {"f": "vmath:sqrt"}, {"f": "tl.sqrt_rn({0})", "d": "tl.sqrt({0})", "h": "tl.sqrt({0})"}, 6),
    _unary("rsqrt", "1 / sqrt(x)", "float", {"f": "vmath:rsqrt"}, _LIB + "rsqrt({0})", 8, amp="deny"),
    _unary("reciprocal", "1 / x", "float", {"f": "vmath:reciprocal"}, {"f": "tl.div_rn(1.0, {0})", "d": "(1.0 / {0})", "h": "(1.0 / {0})"}, 4, amp="deny"),
    _math("exp", "e to the x", {"h": _LIB + "fast_expf({0})", "*": _LIB + "exp({0})"}, amp="deny"),
    _math("exp2", "2 to the x", _LIB + "exp2({0})", amp="deny"),
    _math("expm1", "e to the x, minus 1, exact near 0", _LIB + "expm1({0})", amp="deny"),
    _math("log", "The natural logarithm", _LIB + "log({0})", amp="deny"),
    _math("log2", "The logarithm to base 2", _LIB + "log2({0})", amp="deny"),
    _math("log10", "The logarithm to base 10", _LIB + "log10({0})", amp="deny"),
    _math("log1p", "log(1 + x), exact near 0", _LIB + "log1p({0})", amp="deny"),
    _math("sin", "The sine", _LIB + "sin({0})", 20),
    _math("cos", "The cosine", _LIB + "cos({0})", 20),
    _math("tan", "The tangent", _LIB + "tan({0})", 24, amp="deny"),
    _math("asin", "The arc sine", _LIB + "asin({0})", 20, amp="deny"),
    _math("acos", "The arc cosine", _LIB + "acos({0})", 20, amp="deny"),
    _math("atan", "The arc tangent", _LIB + "atan({0})", 20),
    _math("sinh", "The hyperbolic sine", _LIB + "sinh({0})", 20, amp="deny"),
    _math("cosh", "The hyperbolic cosine", _LIB + "cosh({0})", 20, amp="deny"),
    _math("tanh", "The hyperbolic tangent", {"h": "gf.tanh({0})", "*": _LIB + "tanh({0})"}, 16),
    _math("asinh", "The inverse hyperbolic sine", _LIB + "asinh({0})", 24),
    _math("acosh", "The inverse hyperbolic cosine", _LIB + "acosh({0})", 24),
    _math("atanh", "The inverse hyperbolic tangent", _LIB + "atanh({0})", 24),
    _math("erf", "The error function", {"h": "gf.erf({0})", "*": _LIB + "erf({0})"}, 16),
    _math("erfc", "1 - erf(x), exact for large x", _LIB + "erfc({0})", 20),
    _math("erfinv", "The inverse of erf", _LIB + "erfinv({0})", 24, amp="deny"),
    _math("sigmoid", "1 / (1 + exp(-x))", {"f": "tl.div_rn(1.0, 1.0 + libdevice.exp({0} * -1.0))", "d": "(1.0 / (1.0 + libdevice.exp({0} * -1.0)))", "h": "libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf({0} * -1.0))"}, 14),
)  # fmt: skip
