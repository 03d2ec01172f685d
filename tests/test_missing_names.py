"""Names that are not there when a program is compiled, and classes that hide others' attributes."""

from __future__ import annotations

import enum
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gflow as flow
from gflow import nn

Made = tuple[Callable[[torch.Tensor], torch.Tensor], list[Callable[[], Any]]]


class _Plain:
    pass


def _attribute_of_a_class() -> Made:
    class Held:
        pass

    held = Held()
    return lambda x: x * getattr(held, "scale", 1.0) + hasattr(Held, "shift"), [
        lambda: setattr(Held, "scale", 4.0),
        lambda: setattr(Held, "shift", 1),
        lambda: delattr(Held, "scale"),
    ]


def _attribute_under_a_computed_name() -> Made:
    class Setting:
        def __set_name__(self, owner: type, name: str) -> None:
            self.name = f"_{name}"

        def __get__(self, held: Any, owner: Any) -> Any:
            return getattr(held, self.name, 1.0)

    class Held:
        scale = Setting()

    held = Held()
    return lambda x: x * held.scale, [
        lambda: setattr(held, "_scale", 3.0),
        lambda: delattr(held, "_scale"),
    ]


def _slot() -> Made:
    class Held:
        __slots__ = ("shift",)

    held: Any = Held()
    return lambda x: x + (held.shift if hasattr(held, "shift") else 0), [
        lambda: setattr(held, "shift", 5.0),
        lambda: delattr(held, "shift"),
    ]


def _one_for_another() -> Made:
    held: Any = _Plain()
    held.unread = 1.0

    def swap() -> None:
        del held.unread
        held.scale = 3.0

    return lambda x: x * getattr(held, "scale", 1.0), [swap]


def _global() -> Made:
    names = globals()

    def scaled(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * _defined_later  # type: ignore[name-defined]
        except NameError:
            return x

    return scaled, [
        lambda: names.__setitem__("_defined_later", 4.0),
        lambda: names.pop("_defined_later"),
    ]


def _global_by_name() -> Made:
    names = globals()
    return lambda x: x + globals().get("_shift", 0), [
        lambda: names.__setitem__("_shift", 4.0),
        lambda: names.pop("_shift"),
    ]


def _hidden_builtin() -> Made:
    names = globals()
    return lambda x: x * len([1, 2]), [
        lambda: names.__setitem__("len", lambda items: 9),
        lambda: names.pop("len"),
    ]


def _of_a_module() -> Made:
    module: Any = types.ModuleType("settings")
    return lambda x: x + getattr(module, "shift", 0), [
        lambda: setattr(module, "shift", 4.0),
        lambda: delattr(module, "shift"),
    ]


def _empty_variable() -> Made:
    def assign(value: float) -> None:
        nonlocal scale
        scale = value

    def scaled(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * scale
        except NameError:
            return x

    if False:
        scale = 1.0
    return scaled, [lambda: assign(4.0), lambda: assign(5.0)]


def _missing_item() -> Made:
    class Defaults(dict[str, float]):
        fallback = 3.0

        def __missing__(self, name: str) -> float:
            return self.fallback

    held = Defaults()
    return lambda x: x * held["scale"], [
        lambda: setattr(held, "fallback", 5.0),
        lambda: held.update(scale=7.0),
        lambda: (held.clear(), setattr(Defaults, "__missing__", lambda self, name: 1.0)),
    ]


def _list_of_ones_own() -> Made:
    class Scaled(list[float]):
        scale = 1.0

        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index) * self.scale

    held = Scaled([2.0])
    return lambda x: x * held[0], [lambda: setattr(held, "scale", 2.0)]


def _number_with_attributes() -> Made:
    class Number(float):
        unit = 1.0

    held = {"value": Number(2.0)}

    def another() -> None:
        held["value"] = Number(2.0)
        held["value"].unit = 7.0

    return lambda x: x * held["value"] * held["value"].unit, [
        lambda: setattr(held["value"], "unit", 4.0),
        another,
    ]


def _member_of_an_enumeration() -> Made:
    class Mode(enum.Enum):
        WIDE = 1

        def __init__(self, number: int) -> None:
            self.scale = 2.0

    return lambda x: x * Mode.WIDE.scale, [lambda: setattr(Mode.WIDE, "scale", 7.0)]


def _class_above() -> Made:
    class Above:
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Held(Above):
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return super().scaled(x) + 1

    held = Held()
    return lambda x: held.scaled(x), [
        lambda: setattr(Above, "scaled", lambda self, x: x * 5),
        lambda: setattr(held, "__class__", Above),
    ]


def _bases() -> Made:
    class Double:
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Triple:
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    class Held(Double, Triple):
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return super().scaled(x) + 1

    held = Held()
    return lambda x: held.scaled(x), [lambda: setattr(Held, "__bases__", (Triple, Double))]


@pytest.mark.parametrize(
    "make",
    [
        _attribute_of_a_class, _attribute_under_a_computed_name, _slot, _one_for_another, _global, _global_by_name,
        _hidden_builtin, _of_a_module, _empty_variable, _missing_item, _list_of_ones_own, _number_with_attributes,
        _member_of_an_enumeration, _class_above, _bases,
    ],
)  # fmt: skip
@pytest.mark.parametrize("compiled", [nn.Graph.trace, flow.compile])
def test_names_that_appear_are_seen(make: Callable[[], Made], compiled: Any) -> None:
    function, changes = make()
    call, x = compiled(function), torch.rand(3)
    for change in [lambda: None, *changes]:
        change()
        torch.testing.assert_close(call(x), function(x))


@pytest.mark.parametrize("compiled", [nn.Graph.trace, flow.compile])
def test_each_thread_has_attributes_of_its_own(compiled: Any) -> None:
    held = threading.local()
    held.scale = 1.0
    x, results = torch.rand(3), []
    call = compiled(lambda x: x * getattr(held, "scale", 9.0))

    def run(scale: float | None) -> None:
        if scale is not None:
            held.scale = scale
        results.append(call(x))

    run(None)
    for scale in (None, 5.0, 7.0):
        thread = threading.Thread(target=run, args=(scale,))
        thread.start()
        thread.join()
    run(3.0)
    torch.testing.assert_close(results, [x * scale for scale in (1.0, 9.0, 5.0, 7.0, 3.0)])


@pytest.mark.parametrize("slots", [False, True])
def test_attributes_that_a_function_makes(slots: bool) -> None:
    class Slotted:
        __slots__ = ("count",)

    held: Any = Slotted() if slots else _Plain()

    def counted(x: torch.Tensor) -> torch.Tensor:
        held.count = getattr(held, "count", 0) + 1
        return x * held.count

    x = torch.ones(2)
    call = flow.compile(counted)
    for count in (1, 2, 3):
        torch.testing.assert_close(call(x), x * count)
    assert held.count == 3
    del held.count
    graph = nn.Graph.trace(counted)
    graph(x)  # as in the first call, none is there
    with pytest.warns(UserWarning, match=r"held.count \(from 1 to 2\)"):
        torch.testing.assert_close(graph(x), x * 2)


def test_containers_that_a_function_changes_are_put_back() -> None:
    seen, latest = {0}, [0]

    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.add(len(seen))
        latest[0] = len(seen)
        return x * latest[0]

    call, x = flow.compile(counted), torch.ones(2)
    for count in (2, 3, 4):
        torch.testing.assert_close(call(x), x * count)
    assert seen == {0, 1, 2, 3}
