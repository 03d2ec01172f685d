"""Which function lowers which ATen call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

#: (emitter, *args, **kwargs) → a Value, or a tuple/list of Values and Nones, one for each result.
Rule = Callable[..., Any]
_F = TypeVar("_F", bound=Rule)

RULES: dict[str, Rule] = {}
_resolved: dict[torch._ops.OpOverload, Rule | None] = {}


def lowers(*names: str) -> Callable[[_F], _F]:
    """Register a rule for overloads ("aten.add.Tensor") or all overloads of an op ("aten.add").

    A rule raises `Unsupported` for calls that it can't express.
    """

    def register(rule: _F) -> _F:
        for name in names:
            assert name not in RULES, f"{name} has a lowering already"
            RULES[name] = rule
        return rule

    return register


def find_rule(func: torch._ops.OpOverload) -> Rule | None:
    """The rule of an overload, else the one of all overloads of its op."""
    try:
        return _resolved[func]
    except KeyError:
        name = str(func)
        rule = RULES.get(name) or RULES.get(name.rsplit(".", 1)[0])
        _resolved[func] = rule
        return rule
