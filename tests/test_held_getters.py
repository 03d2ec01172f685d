"""Guards of what code reads by objects that hold names, or hold what they read: `operator.attrgetter` and its kind,
bound methods of built-in classes."""

from __future__ import annotations

import functools
import operator
from types import SimpleNamespace
from typing import Any

import torch

import gflow as flow


class Held:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def times(self, a: float, b: float = 1.0) -> float:
        return self.factor * a * b


def test_what_they_read_is_guarded() -> None:
    one, two, outer, three = Held(a=1.0), Held(factor=1.0), Held(inner=Held(b=1.0)), Held(c=1.0)
    table, row, four, five = {"k": 1.0}, [1.0], SimpleNamespace(d=1.0), Held(factor=1.0)
    by_name, called, dotted = (
        operator.attrgetter("a"), operator.methodcaller("times", 2.0), operator.attrgetter("inner.b"),
    )  # fmt: skip
    with_keyword = operator.methodcaller("times", 2.0, b=3.0)
    held, get, first = functools.partial(getattr, three, "c"), table.get, row.__getitem__
    any_name = four.__getattribute__

    def product(x: torch.Tensor) -> torch.Tensor:
        x = x * by_name(one) * called(two) * dotted(outer) * with_keyword(five)
        return x * held() * get("k") * first(0) * any_name("d")

    graph, x = flow.nn.Graph.trace(product), torch.ones(2)
    for name, change in {
        "attrgetter": lambda: setattr(one, "a", 2.0),
        "methodcaller": lambda: setattr(two, "factor", 3.0),
        "attrgetter with a dot": lambda: setattr(outer.inner, "b", 5.0),
        "methodcaller with a keyword": lambda: setattr(five, "factor", 7.0),
        "partial of getattr": lambda: setattr(three, "c", 11.0),
        "dict.get": lambda: table.update(k=13.0),
        "list.__getitem__": lambda: row.__setitem__(0, 17.0),
        "object.__getattribute__": lambda: setattr(four, "d", 19.0),
    }.items():
        graph(x)
        change()
        torch.testing.assert_close(graph(x), product(x), msg=name)
