"""A table of rules by op, and by the kinds of operands that they match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS

#: The value of a splat constant: a Python number, exact in the element type.
Scalar = float | int | bool

#: Takes an op (`rewriter.Node`) and the `Rewriter`; returns the value that replaces the op's result, or None.
Rule = Callable[[Any, Any], "ir.Value | None"]

#: The kind of an operand: the name of its producer, `SPLAT`, or "" for anything else.
Kind = str

#: The kind of splat constants; other constants have the kind "constant".
SPLAT: Kind = "splat"

ELEMENTWISE = tuple(name for name, op in OPS.items() if op.category == "elementwise")


class Rules:
    """The rules by op name, in the order in which they are tried.

    For most ops no rule matches the operands. So a rule states the kinds of operands that it matches, and the rules to
    try are looked up by the kinds of all operands.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, list[tuple[Rule, frozenset[Kind]]]] = {}
        self._found: dict[tuple[str, tuple[Kind, ...]], tuple[Rule, ...]] = {}

    def add(self, *names: str, on: Sequence[Kind] = ()) -> Callable[[Rule], Rule]:
        """Register a rule for the ops `names`.

        on: the op must have an operand of one of these kinds; empty: any operands.
        """

        def add(function: Rule) -> Rule:
            for name in names:
                assert name in OPS, name
                self._by_name.setdefault(name, []).append((function, frozenset(on)))
            return function

        assert all(kind == SPLAT or kind in OPS for kind in on), on
        return add

    def find(self, name: str, kinds: tuple[Kind, ...]) -> tuple[Rule, ...]:
        """The rules to try on op `name` with operands of these kinds."""
        key = (name, kinds)
        found = self._found.get(key)
        if found is None:
            rules = self._by_name.get(name, ())
            found = tuple(rule for rule, on in rules if not on or not on.isdisjoint(kinds))
            self._found[key] = found
        return found

    def of(self, name: str) -> list[Rule]:
        """All rules for op `name`."""
        return [rule for rule, _ in self._by_name.get(name, ())]

    def all(self) -> list[Rule]:
        """Each rule once."""
        return list(dict.fromkeys(rule for name in self._by_name for rule in self.of(name)))


def joined(*tables: Rules) -> Rules:
    """A table with the rules of all tables, in order."""
    out = Rules()
    for table in tables:
        for name, rules in table._by_name.items():
            out._by_name.setdefault(name, []).extend(rules)
    return out
