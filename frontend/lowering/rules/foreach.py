"""`_foreach_*`: the rule of the plain op, for each tensor of the lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import Unsupported
from ..emitter import Emitter, Value
from ..registry import RULES, lowers

_PLAIN = (
    "add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min", "pow", "lerp",
    "addcmul", "addcdiv", "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc",
    "exp", "expm1", "floor", "frac", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "copy",
)  # fmt: skip
_RENAMED = {"norm": "aten.linalg_vector_norm", "zero": "aten.zeros_like", "max": "aten.max.default"}


def _rule(name: str) -> Callable[..., Any]:
    return RULES.get(f"aten.{name}") or RULES[f"aten.{name}.Tensor"]


def _each(rule: Callable[..., Any]) -> Callable[..., list[Value]]:
    def lowered(em: Emitter, *args: Any, **kwargs: Any) -> list[Value]:
        count = next(len(a) for a in args if isinstance(a, list))
        for a in args:
            if isinstance(a, Value) and a.shape:
                raise Unsupported("a tensor of scalars")
        calls = ([a[i] if isinstance(a, list) else a for a in args] for i in range(count))
        return [rule(em, *call, **kwargs) for call in calls]

    return lowered


for _name in _PLAIN:
    lowers(f"aten._foreach_{_name}")(_each(_rule(_name)))
for _name, _target in _RENAMED.items():
    lowers(f"aten._foreach_{_name}")(_each(RULES[_target]))
