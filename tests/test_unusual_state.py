"""State that is read by unusual ways, and changes between calls: descriptors, views of dicts, orders, registries."""

from __future__ import annotations

import abc
import collections
import functools
import os
import sys
import tempfile
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import pytest
import torch
from torch import nn

import gflow as flow

Tensor = torch.Tensor
Made = tuple[Callable[[Tensor], Tensor], list[Callable[[], Any]]]


class Given:
    """A descriptor, which a class may have replaced by another."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __get__(self, held: Any, owner: Any = None) -> float:
        return self.value


def _by(number: float) -> Callable[[Any, Tensor], Tensor]:
    return lambda self, x: x * number


def _times(self: Any, x: Tensor, number: float = 1.0) -> Tensor:
    return x * number


def _class_attributes() -> Made:
    class Held:
        scale: Any = Given(2.0)
        made: Any = classmethod(_by(3.0))
        partly: Any = functools.partialmethod(_times, number=4.0)

    held = Held()
    return lambda x: held.made(x) + held.partly(x) * held.scale, [
        lambda: setattr(Held, "scale", Given(5.0)),
        lambda: setattr(Held, "made", classmethod(_by(6.0))),
        lambda: setattr(Held, "partly", functools.partialmethod(_times, number=7.0)),
    ]


def _views_of_dicts() -> Made:
    held, ordered = {"a": 1.0}, collections.OrderedDict(a=1, b=2)
    values, keys = held.values(), ordered.keys()
    return lambda x: x * sum(values) + (next(iter(keys)) == "a"), [
        lambda: held.update(b=2.0),
        lambda: ordered.move_to_end("a"),
    ]


class Scaled:
    scale = 2.0


_kept = [nn.Sequential(nn.Linear(3, 3)), Scaled()]


def _weak_proxies() -> Made:
    model: Any
    held: Any
    model, held = _kept
    module, other = weakref.proxy(model), weakref.proxy(held)
    return lambda x: module(x) * other.scale, [
        lambda: setattr(held, "scale", 3.0),
        lambda: model[0].weight.data.mul_(2),
        lambda: model.append(nn.Tanh()),
    ]


@runtime_checkable
class Goes(Protocol):
    def goes(self) -> None: ...


def _kinds_of_classes() -> Made:
    class Abstract(abc.ABC):  # noqa: B024
        pass

    class Held:
        pass

    held: Any = Held()
    return lambda x: x * (1 + isinstance(held, Abstract) + 2 * isinstance(held, Goes)), [
        lambda: Abstract.register(Held),
        lambda: setattr(Held, "goes", lambda self: None),
    ]


def _orders() -> Made:
    children = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Tanh()})
    layer, row = nn.Linear(3, 3), nn.ParameterDict({"a": torch.ones(3), "b": torch.zeros(3)})

    def function(x: Tensor) -> Tensor:
        for child in children.values():
            x = child(x)
        for part in [*layer.parameters(), *row.values()]:
            x = x * 2 + part.sum()
        return x

    return function, [
        lambda: children.update({"a": children.pop("a")}),
        lambda: layer._parameters.update(weight=layer._parameters.pop("weight")),
        lambda: row.update({"a": row.pop("a")}),
    ]


def _dispatch() -> Made:
    class Held:
        @functools.singledispatchmethod
        def of(self, kind: Any, x: Tensor) -> Tensor:
            return x

    held = Held()
    register: Any = vars(Held)["of"].register
    return lambda x: held.of(1, x), [lambda: register(int, lambda self, kind, x: x * 3)]


def _classes_of_containers() -> Made:
    class Row(tuple):
        scale = 1.0

    class Table(collections.UserDict):  # type: ignore[type-arg]
        pass

    row, table = Row((1.0,)), Table(a=1.0)
    row.scale = 2.0
    return lambda x: x * row.scale * row[0] + table["a"], [
        lambda: setattr(row, "scale", 3.0),
        lambda: table.update(a=4.0),
    ]


def _descriptions() -> Made:
    class Held:
        pass

    def helper() -> None:
        """Ab."""

    def function(x: Tensor) -> Tensor:
        return x * len(Held.__name__) + len(helper.__name__) * len(helper.__doc__ or "")

    return function, [
        lambda: setattr(Held, "__name__", "Another"),
        lambda: setattr(helper, "__name__", "a"),
        lambda: setattr(helper, "__doc__", "abcdef"),
    ]


def _module_with_computed_attributes() -> Made:
    module: Any = types.ModuleType("computed")
    held = {"scale": 2.0}
    module.__getattr__ = lambda name: held["scale"]
    return lambda x: x * module.scale, [lambda: held.update(scale=3.0)]


def _process() -> Made:
    limit, folder = sys.getrecursionlimit(), os.getcwd()  # noqa: PTH109

    def function(x: Tensor) -> Tensor:
        return x * sys.getrecursionlimit() + len(os.getcwd())  # noqa: PTH109

    return function, [
        lambda: sys.setrecursionlimit(limit + 1),
        lambda: os.chdir(tempfile.gettempdir()),
        lambda: (sys.setrecursionlimit(limit), os.chdir(folder)),
    ]


@pytest.mark.parametrize(
    "make",
    [
        _class_attributes, _views_of_dicts, _weak_proxies, _kinds_of_classes, _orders, _dispatch,
        _classes_of_containers, _descriptions, _module_with_computed_attributes, _process,
    ],
)  # fmt: skip
@pytest.mark.parametrize("compiled", [flow.nn.Graph.trace, flow.compile])
def test_changes_are_seen(make: Callable[[], Made], compiled: Any) -> None:
    torch.manual_seed(0)
    function, changes = make()
    call, x = compiled(function), torch.rand(3)
    for change in [lambda: None, *changes]:
        change()
        torch.testing.assert_close(call(x), function(x), check_stride=False)
