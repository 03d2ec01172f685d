"""A program is run only while the Python state that `build()` read is what it was."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gflow as flow
from gflow import nn
from gflow.tracing.data.unchanged import AVAILABLE, is_a_word, unchanged

Module = torch.nn.Module
Tensor = torch.Tensor


class Net(Module):
    """Dropout, running statistics, a plain number and a parameter that is used without its module."""

    kind = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(4, 4)
        self.k = 2.0
        self.settings = {"gain": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(self.first(x)))
        return F.linear(x, self.last.weight) * self.k * self.kind * self.settings["gain"]


@dataclasses.dataclass
class Holder:
    model: Any


class Plain:
    model: Any

    def run(self, x: Tensor) -> Tensor:
        return self.model(x)


class Shared:
    model: Any


_model: Any = None


def _by_closure(model: Module) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x)


def _by_global(model: Module) -> Callable[[Tensor], Tensor]:
    global _model
    _model = model
    return lambda x: _model(x)


def _by_object(model: Module) -> Callable[[Tensor], Tensor]:
    plain = Plain()
    plain.model = model
    return lambda x: plain.model(x)


def _by_bound_method(model: Module) -> Callable[[Tensor], Tensor]:
    plain = Plain()
    plain.model = model
    return plain.run


def _by_dict(model: Module) -> Callable[[Tensor], Tensor]:
    held = {"models": [model]}
    return lambda x: held["models"][0](x)


def _by_partial(model: Module) -> Callable[[Tensor], Tensor]:
    call = functools.partial(lambda m, x: m(x), model)
    return lambda x: call(x)


def _by_dataclass(model: Module) -> Callable[[Tensor], Tensor]:
    holder = Holder(model)
    return lambda x: holder.model(x)


def _by_unregistered_list(model: Module) -> Callable[[Tensor], Tensor]:
    class Outer(Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = [model]

        def forward(self, x: Tensor) -> Tensor:
            return self.held[0](x)

    outer = Outer()
    return lambda x: outer(x)


def _by_hidden_attribute(model: Module) -> Callable[[Tensor], Tensor]:
    outer = torch.nn.Identity()
    object.__setattr__(outer, "hidden", model)
    return lambda x: outer.hidden(x)


def _by_class_attribute(model: Module) -> Callable[[Tensor], Tensor]:
    Shared.model = model
    return lambda x: Shared.model(x)


def _by_weak_reference(model: Module) -> Callable[[Tensor], Tensor]:
    found = weakref.ref(model)
    return lambda x: found()(x)  # type: ignore[misc]


def _by_default(model: Module) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor, m: Module = model) -> Tensor:
        return m(x)

    return lambda x: call(x)


WAYS = [
    _by_closure, _by_global, _by_object, _by_bound_method, _by_dict, _by_partial, _by_dataclass,
    _by_unregistered_list, _by_hidden_attribute, _by_class_attribute, _by_weak_reference, _by_default,
]  # fmt: skip


class _Doubled(Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def _replace_parameter(model: Net) -> None:
    model.last.weight = torch.nn.Parameter(torch.randn(4, 4))


def _replace_module(model: Net) -> None:
    model.first = torch.nn.Linear(4, 4)


def _load(model: Net) -> None:
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)


def _assign_buffer(model: Net) -> None:
    model.norm.running_mean = torch.randn(4)


def _halve(model: Net) -> None:
    model.drop.p = 0.25
    model.k = 3.0


def _set_class(model: Net) -> None:
    type(model).kind = 5.0


def _set_item(model: Net) -> None:
    model.settings["gain"] = 4.0


def _hook(model: Net) -> None:
    model.first.register_forward_hook(lambda m, args, out: out + 1)


def _pre_hook(model: Net) -> None:
    model.norm.register_forward_pre_hook(lambda m, args: (args[0] * 2,))


def _replace_hooks(model: Net) -> None:
    """By another dict, not by an entry of it."""
    model.first._forward_hooks = OrderedDict({0: lambda m, args, out: out + 1})
    model.norm._forward_pre_hooks = OrderedDict({0: lambda m, args: (args[0] * 2,)})


def _replace_dicts(model: Net) -> None:
    model.last._parameters = {
        k: torch.nn.Parameter(p + 1) for k, p in model.last._parameters.items()
    }
    model.norm._buffers = {k: b + 1 for k, b in model.norm._buffers.items()}


def _replace_own_dict(model: Net) -> None:
    model.__dict__ = {**model.__dict__, "k": 7.0}


def _other_class(model: Net) -> None:
    model.drop.__class__ = _Doubled  # type: ignore[assignment]


def _parametrize(model: Net) -> None:
    torch.nn.utils.parametrize.register_parametrization(model.last, "weight", _Doubled())


def _method(model: Net) -> None:
    model.first.forward = types.MethodType(lambda self, x: -F.linear(x, self.weight), model.first)


def _in_place(model: Net) -> None:
    with torch.no_grad():
        model.first.weight.zero_()


CHANGES = [
    _replace_parameter, _replace_module, _load, _assign_buffer, _halve, _set_class, _set_item, _hook,
    _pre_hook, _parametrize, _method, _in_place, _replace_hooks, _replace_dicts, _replace_own_dict,
    _other_class, Net.train, Net.double,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _classes_as_before() -> Any:
    yield
    Net.kind = 1.0


def _wrapped(function: Callable[..., Any], compiled: str) -> Callable[..., Any]:
    return nn.Graph.trace(function) if compiled == "trace" else flow.compile(function)


@pytest.mark.parametrize("way", WAYS)
def test_modules_however_reached(way: Callable[[Module], Callable[[Tensor], Tensor]]) -> None:
    torch.manual_seed(0)
    model = Net()
    function = way(model)
    graph = nn.Graph.trace(lambda x: function(x))
    x = torch.randn(8, 4)
    with torch.no_grad():
        graph(x)
        model.eval()
        mean = model.norm.running_mean.clone()  # type: ignore[union-attr]
        torch.testing.assert_close(graph(x), function(x))
        assert torch.equal(mean, model.norm.running_mean)  # type: ignore[arg-type]
        for change in (_load, _replace_module, _halve, _hook):
            change(model)
            torch.testing.assert_close(graph(x), function(x), msg=change.__name__)
        model.train()
        mean = model.norm.running_mean.clone()  # type: ignore[union-attr]
        graph(x)
        assert not torch.equal(mean, model.norm.running_mean)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("compiled", ["trace", "compile"])
def test_changes_of_modules(change: Callable[[Net], Any], compiled: str) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    model.drop.p = 0.0
    function = _by_closure(model)
    graph = _wrapped(function, compiled)
    x = torch.randn(8, 4)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(graph(x), function(x))
        change(model)
        if change is _halve:
            model.eval()
        if change is Net.double:
            x = x.double()
        for _ in range(2):
            torch.testing.assert_close(graph(x), function(x))


class _Part(Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class _Small(Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = _Part(), torch.nn.Dropout(0.0)
        self.k, self.settings = 2.0, {"gain": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.first(x)) * self.k * self.settings["gain"]


def test_changes_one_after_another() -> None:
    """Each, also those that change nothing that is read, is followed by others of the same objects."""
    model = _Small().eval()
    function = _by_closure(model)
    graph = nn.Graph.trace(function)
    x = torch.ones(4)

    def doubled(module: Any, args: Any, out: Tensor) -> Tensor:
        return 2 * out

    def plain_training(on: bool) -> None:
        """A class that tells the mode of its objects itself."""
        if on:
            _Doubled.training = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]
        else:
            del _Doubled.training

    changes: list[Callable[[], Any]] = [
        lambda: setattr(model.first, "_forward_hooks", OrderedDict()),
        lambda: model.first._forward_hooks.update({5: doubled}),
        lambda: model.first._forward_hooks.clear(),
        lambda: setattr(model, "unread", 1),
        lambda: setattr(model, "unread", 2),
        lambda: setattr(model, "k", 3.5),
        lambda: model.train().eval(),
        lambda: model.train().eval(),
        lambda: model.train().eval(),
        lambda: model.train().eval(),
        lambda: model.__dict__.update(k=4.5),
        lambda: setattr(model, "__dict__", {**model.__dict__}),
        lambda: setattr(model, "k", 5.5),
        lambda: setattr(model.drop, "__class__", _Doubled),
        lambda: plain_training(True),
        lambda: plain_training(False),
        lambda: model.first._parameters.update(w=torch.nn.Parameter(torch.ones(4))),
        lambda: model._modules.update(first=_Part().eval()),
        lambda: model.settings.update(gain=3.0),
        lambda: model.settings.update(other=3.0),
        lambda: torch.nn.modules.module._global_forward_hooks.update({7: doubled}),
        lambda: torch.nn.modules.module._global_forward_hooks.clear(),
    ]
    with torch.no_grad():
        for change in (lambda: None, *changes):
            change()
            for _ in range(2):
                torch.testing.assert_close(graph(x), function(x))


class _Object:
    def __init__(self) -> None:
        self.a, self.b = 0, 0

    def set(self, value: int) -> None:
        self.a = value


@pytest.mark.parametrize("kind", [dict, OrderedDict, type("Own", (dict,), {})])
def test_changes_of_dicts_are_told(kind: type) -> None:
    """By the numbers that CPython gives them, where gflow goes by these."""
    held, many, names = kind(a=1), [_Object() for _ in range(3)], {"k": 0}
    exec("def f(n):\n    global k\n    k = n", names)
    one = many[1]
    changes: list[Callable[[int], Any]] = [
        lambda n: held.__setitem__("a", n), lambda n: held.update(a=-n), lambda n: held.update({n: n}),
        lambda n: held.setdefault(-n, n), lambda n: held.__delitem__(n), lambda n: held.pop(-n),
        lambda n: held.__ior__({"b": n}), lambda n: held.popitem(), lambda n: held.clear(),
        one.set, lambda n: setattr(one, "b", n), lambda n: object.__setattr__(one, "a", -n),
        lambda n: vars(one).update(a=n / 2), lambda n: delattr(one, "b"), names["f"],
        lambda n: setattr(one, "__dict__", {"a": n}),
    ]  # fmt: skip
    dicts = [held, *map(vars, many), names]
    if (told := unchanged(dicts, many)) is None:
        assert sys.version_info >= (3, 13)
        return
    for n in range(1000, 1100):  # bytecode is specialized once it has run often
        for change in changes:
            assert told.same()
            assert told.changed()[0] == []
            change(n)
            assert not told.same()
            if (found := told.changed()) is not None:
                assert len(found[0]) == 1
                found[1]()
            else:
                told = unchanged([held, *map(vars, many), names], many)
                assert told is not None
        vars(one).update(a=0, b=0)
        told = unchanged([held, *map(vars, many), names], many)
        assert told is not None
    one.__class__ = type("Other", (_Object,), {})
    assert not told.same()
    assert told.changed() is None


def test_changes_of_modules_with_gradients() -> None:
    torch.manual_seed(0)
    model = Net().eval()
    function = flow.compile(lambda x: model(x))
    x = torch.randn(8, 4)
    for change in (None, _halve, lambda m: m.first.requires_grad_(False), _replace_parameter):
        if change is not None:
            change(model)
        found, want = function(x), model(x)
        torch.testing.assert_close(found, want)
        for loss in (found, want):
            model.zero_grad()
            loss.square().sum().backward()
            grads = [p.grad for p in model.parameters()]
        assert (model.first.weight.grad is None) == (not model.first.weight.requires_grad)
        for grad, p in zip(grads, model.parameters()):
            assert (grad is None) == (p.grad is None)


# -- Python values

factor: Any = 2.0
offset = torch.ones(4)


class Config:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("gain",)

    def __init__(self) -> None:
        self.gain = 2.0


def _helper(x: Tensor) -> Tensor:
    return x * factor


def _graph_attribute() -> tuple[Any, Any, Any]:
    class Scaled(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 1.0

        def build(self, x: Tensor) -> Tensor:
            return x * self.scale

    graph = Scaled()
    return graph, lambda x: x * graph.scale, lambda: setattr(graph, "scale", 2.0)


def _set_global(name: str, value: Any) -> Callable[[], None]:
    return lambda: globals().__setitem__(name, value)


def _global_number() -> tuple[Any, Any, Any]:
    globals()["factor"] = 2.0
    return None, lambda x: _helper(x), _set_global("factor", 3.0)


def _global_tensor() -> tuple[Any, Any, Any]:
    globals()["offset"] = torch.ones(4)
    return None, lambda x: x + offset, _set_global("offset", torch.full((1,), 5.0))


def _global_function() -> tuple[Any, Any, Any]:
    original = _helper

    def change() -> None:
        globals()["_helper"] = lambda x: x - 7

    globals()["factor"] = 2.0

    def call(x: Tensor) -> Tensor:
        return _helper(x)

    call.restore = lambda: globals().__setitem__("_helper", original)  # type: ignore[attr-defined]
    return None, call, change


def _closure_number() -> tuple[Any, Any, Any]:
    gain = 2.0

    def change() -> None:
        nonlocal gain
        gain = 4.0

    return None, lambda x: x * gain, change


def _closure_tensor() -> tuple[Any, Any, Any]:
    held = torch.ones(4)

    def change() -> None:
        nonlocal held
        held = torch.zeros(4, dtype=torch.float64)

    return None, lambda x: x * held, change


def _tensor_in_place() -> tuple[Any, Any, Any]:
    held = torch.ones(4)
    return None, lambda x: x * held, lambda: held.mul_(3)


def _tensor_reshaped() -> tuple[Any, Any, Any]:
    held = torch.ones(4)

    def change() -> None:
        held.data = torch.full((8, 4), 2.0)

    return None, lambda x: x * held, change


def _entry() -> tuple[Any, Any, Any]:
    settings = {"scale": {"value": 1.0}, "names": ["a"]}

    def call(x: Tensor) -> Tensor:
        return x * settings["scale"]["value"] + len(settings["names"])  # type: ignore[call-overload]

    return None, call, lambda: settings["scale"].__setitem__("value", 9.0)  # type: ignore[union-attr]


def _appended() -> tuple[Any, Any, Any]:
    gains = [1.0, 2.0]

    def call(x: Tensor) -> Tensor:
        for gain in gains:
            x = x * gain
        return x

    return None, call, lambda: gains.append(3.0)


def _listed_objects() -> tuple[Any, Any, Any]:
    configs = [Config(gain=1.0), Config(gain=2.0)]

    def call(x: Tensor) -> Tensor:
        for config in configs:
            x = x * config.gain
        return x

    return None, call, lambda: setattr(configs[1], "gain", 5.0)


def _nested_object() -> tuple[Any, Any, Any]:
    config = Config(inner=Config(gain=1.0))
    return None, lambda x: x * config.inner.gain, lambda: setattr(config.inner, "gain", 5.0)


def _local_name() -> tuple[Any, Any, Any]:
    config = Config(inner=Config(gain=1.0))

    def call(x: Tensor) -> Tensor:
        inner = config.inner
        return x * getattr(inner, "gain")  # noqa: B009

    return None, call, lambda: setattr(config.inner, "gain", 5.0)


def _callable_object() -> tuple[Any, Any, Any]:
    class Call:
        def __init__(self) -> None:
            self.gain, self.modules = 2.0, (torch.nn.Linear(4, 4),)

        def __call__(self, x: Tensor) -> Tensor:
            return self.modules[0](x) * self.gain

    call = Call()
    return None, call, lambda: setattr(call, "gain", 5.0)


def _slot() -> tuple[Any, Any, Any]:
    held = Slotted()
    return None, lambda x: x * held.gain, lambda: setattr(held, "gain", 5.0)


class Doubled(Slotted):
    """Its property hides the slot of the same name."""

    __slots__ = ()

    @property
    def gain(self) -> float:  # type: ignore[override]
        return 2 * Slotted.gain.__get__(self)  # type: ignore[attr-defined]

    @gain.setter
    def gain(self, value: float) -> None:
        Slotted.gain.__set__(self, value)  # type: ignore[attr-defined]


def _hidden_slot() -> tuple[Any, Any, Any]:
    held = Doubled()
    return None, lambda x: x * held.gain, lambda: setattr(held, "gain", 5.0)


def _property() -> tuple[Any, Any, Any]:
    class Schedule:
        def __init__(self) -> None:
            self._step = 1

        @property
        def value(self) -> float:
            return 1.0 / self._step

    schedule = Schedule()
    return None, lambda x: x * schedule.value, lambda: setattr(schedule, "_step", 4)


def _frozen_dataclass() -> tuple[Any, Any, Any]:
    @dataclasses.dataclass
    class Options:
        gain: float = 1.0

    held = {"options": Options()}
    return None, lambda x: x * held["options"].gain, lambda: held.update(options=Options(3.0))


def _heads() -> tuple[Any, Any, Any]:
    class Heads(Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 2

        def forward(self, x: Tensor) -> Tensor:
            return x.view(8, self.heads, -1).softmax(-1).view(8, 4)

    model = Heads()
    return None, lambda x: model(x), lambda: setattr(model, "heads", 4)


def _own_training() -> tuple[Any, Any, Any]:
    class Noisy(Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.training else x

    model = Noisy()
    return None, lambda x: model(x), model.eval


def _computed_name() -> tuple[Any, Any, Any]:
    class Computed(Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain_1 = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return x * getattr(self, f"gain_{int(len(x) > 1)}")

    model = Computed()
    return None, lambda x: model(x), lambda: setattr(model, "gain_1", 3.0)


def _tensor_attribute() -> tuple[Any, Any, Any]:
    class Held(Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale_tensor = [torch.ones(4)]

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale_tensor[0]

    model = Held()
    return None, lambda x: model(x), lambda: model.scale_tensor.__setitem__(0, torch.zeros(4))


VALUES = [
    _graph_attribute, _global_number, _global_tensor, _global_function, _closure_number,
    _closure_tensor, _tensor_in_place, _tensor_reshaped, _entry, _appended, _listed_objects,
    _nested_object, _local_name, _callable_object, _slot, _hidden_slot, _property, _frozen_dataclass, _heads,
    _own_training, _computed_name, _tensor_attribute,
]  # fmt: skip


@pytest.mark.parametrize("make", VALUES)
@pytest.mark.parametrize("compiled", ["trace", "compile"])
def test_values_that_build_reads(make: Callable[[], tuple[Any, Any, Any]], compiled: str) -> None:
    graph, eager, change = make()
    if graph is None:
        graph = _wrapped(eager, compiled)
    elif compiled == "compile":
        pytest.skip("a graph")
    x = torch.randn(8, 4)
    try:
        for _ in range(2):
            torch.testing.assert_close(graph(x), eager(x))
        change()
        for _ in range(2):
            torch.testing.assert_close(graph(x), eager(x))
    finally:
        getattr(eager, "restore", lambda: None)()


def test_an_equal_value_compiles_nothing() -> None:
    class Scaled(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = Net().eval()
            self.scale, self.other = 1000.5, 1

        def build(self, x: Tensor) -> Tensor:
            return self.model(x) * self.scale

    graph, x = Scaled(), torch.randn(8, 4)
    for n in range(4):
        graph(x)
        graph.scale = float("1000.5")  # another object
        graph.other = n  # which no code reads
        graph.model.note = n
        graph.model.k = float("2.0")
    assert len(graph._state.plans) == 1
    graph.model.train()
    graph(x)
    graph.model.eval()
    graph(x)
    assert len(graph._state.plans) == 2  # both are kept


@pytest.mark.parametrize("changes", ["modes", "attributes"])
def test_many_modules_that_change_between_calls(changes: str) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(24)))
    graph, x = nn.Graph.trace(lambda x: model(x)), torch.randn(3, 2)
    for step in range(5):
        for module in model.modules():
            if changes == "modes":
                module.eval()
                module.train()
            else:
                module.step = step  # type: ignore[assignment]
        torch.testing.assert_close(graph(x), model(x))


def test_a_count_of_calls_stays_live() -> None:
    """gflow.compile splits a call that changes Python state, so nothing is frozen."""

    class Counting(Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.seen: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(self.calls)
            self.latest = x * 2
            return x + 1

    model = Counting()
    function = flow.compile(model)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            function(torch.ones(2))
    assert not [w for w in seen if "runs once" in str(w.message)]
    assert (model.calls, model.seen) == (3, [1, 2, 3])
    assert torch.equal(model.latest, torch.full((2,), 2.0))


def test_a_value_that_changes_at_every_call_is_told() -> None:
    class Stepping(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def build(self, x: Tensor) -> Tensor:
            return x * self.step

    graph, x = Stepping(), torch.ones(2)
    for n in range(8):
        graph.step = n
        assert torch.equal(graph(x), x * n)
    graph.step = 8
    with pytest.warns(UserWarning, match=r"compiled 8 times .* graph\.step is 8, and was"):
        assert torch.equal(graph(x), x * 8)


def test_buffers_of_modules_that_a_closure_holds() -> None:
    class Counting(Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.total = torch.zeros(2)

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            self.total = self.total + x
            return x * self.count

    model = Counting()
    graph = nn.Graph.trace(lambda x: model(x))
    x = torch.ones(2)
    for n in range(1, 4):
        assert torch.equal(graph(x), x * n)
        assert model.count == n
        assert torch.equal(model.total, x * n)


def _train_graph(model: nn.Module) -> Any:
    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.Adam(model.parameters()))

        def build(self, x: Tensor) -> Tensor:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    return Train()


def _backward(call: Callable[..., Tensor]) -> Callable[[Tensor], None]:
    return lambda x: call(x.clone().requires_grad_()).sum().backward()


STEADY: dict[str, Callable[[nn.Module], Callable[[Tensor], Any]]] = {
    "graph": lambda m: flow.nn.Graph.trace(lambda x: m(x)),
    "training": _train_graph,
    "function": lambda m: flow.compile(lambda x: m(x)),
    "module with gradients": lambda m: _backward(flow.compile(m)),
    "function with gradients": lambda m: _backward(flow.compile(lambda x: m(x) * 2)),
    "function of its argument": lambda m: _backward(flow.compile(lambda x: x * 2)),
}


@pytest.mark.parametrize("kind", STEADY)
def test_equal_calls_are_compiled_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gflow.call.plans.cache import PlanCache

    added: list[Any] = []
    add = PlanCache.add
    monkeypatch.setattr(
        PlanCache, "add", lambda self, key, plan: (added.append(key), add(self, key, plan))
    )
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    call = STEADY[kind](model)
    for _ in range(4):
        call(torch.randn(8, 4))
    assert len(added) == 1


def _twice(x: Any, by: float = 2.0, *, plus: float = 1.0) -> Any:
    return x * by + plus


#: an attribute of a function, its other value, and one that is equal to the first but another object
_OTHERS: list[tuple[str, Any, Any]] = [
    ("__code__", (lambda x, by=2.0, *, plus=1.0: x - by).__code__, None),
    ("__defaults__", (3.0,), (float("2"),)),
    ("__kwdefaults__", {"plus": 5.0}, {"plus": float("1")}),
]


@pytest.mark.parametrize(("name", "other", "equal"), _OTHERS, ids=[o[0] for o in _OTHERS])
def test_functions_that_change_after_several_calls(name: str, other: Any, equal: Any) -> None:
    function = types.FunctionType(_twice.__code__, globals(), "mine", (2.0,))
    function.__kwdefaults__ = {"plus": 1.0}
    graph = flow.compile(lambda x: function(x))
    x, before = torch.randn(3), getattr(function, name)
    for value in (before, before, equal or before, other, other, before):
        setattr(function, name, value)
        for _ in range(3):
            torch.testing.assert_close(graph(x), function(x))
    assert len(graph.explain_recompiles()) <= 3  # a dict is compared by identity


@pytest.mark.skipif(not AVAILABLE, reason="this Python has no version numbers of dicts")
def test_attributes_of_functions_are_words() -> None:
    def function(x: int = 1) -> None: ...

    names = ("__code__", "__defaults__", "__kwdefaults__", "__name__")
    assert all(is_a_word(function, name) for name in names)
    assert not is_a_word(len, "__name__")
    assert not is_a_word(function, "__doc__")
    changes: list[tuple[str, Any]] = [
        ("__code__", (lambda x=1: x).__code__), ("__defaults__", None), ("__defaults__", (2,)),
        ("__kwdefaults__", {}), ("__kwdefaults__", None), ("__name__", "another"),
    ]  # fmt: skip
    for name, value in changes:
        told = unchanged([], [], [(function, each) for each in names])
        assert told is not None
        assert told.same()
        setattr(function, name, value)
        assert not told.same()
        assert told.changed() is None


@pytest.mark.skipif(not AVAILABLE, reason="this Python has no version numbers of dicts")
@pytest.mark.parametrize("kind", [Tensor, nn.Parameter])
def test_hooks_of_tensors_are_words(kind: type[Tensor]) -> None:
    """Not those of subclasses, which may have attributes of their own."""

    class Own(Tensor):
        pass

    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    assert not any(is_a_word(torch.ones(2).as_subclass(Own), name) for name in (*names, "grad"))
    tensor = nn.Parameter(torch.ones(2)) if kind is nn.Parameter else torch.ones(2).requires_grad_()
    for register in (tensor.register_hook, tensor.register_post_accumulate_grad_hook):
        assert all(is_a_word(tensor, name) for name in names)
        told = unchanged([], [], [(tensor, name) for name in names])
        assert told is not None
        tensor.sum().backward()  # type: ignore[no-untyped-call]
        assert told.same()
        register(lambda x: None)
        assert not told.same()


class _Silent(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise NotImplementedError

    __iter__ = __len__  # type: ignore[assignment]


class _Unsized(tuple):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise NotImplementedError


def test_containers_that_do_not_say_what_they_hold() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.fixed = _Silent([2.0]), _Unsized((1.0, 3.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * list.__getitem__(self.items, 0) + tuple.__getitem__(self.fixed, 1)

    model = Model()
    run = flow.compile(model)
    for value in (2.0, 2.0, 5.0, 2.0):
        list.__setitem__(model.items, 0, value)
        assert run(torch.ones(2)).tolist() == [value + 3.0] * 2
    assert len(run.explain_recompiles()) == 2


class _Refusing(type):
    """As libraries of type hints have: a name that the class lacks is an error that is no AttributeError."""

    def __getattr__(cls, name: str) -> Any:
        raise AssertionError(name)


class _Checked(metaclass=_Refusing):
    scale = 2.0


def test_a_class_that_refuses_names() -> None:
    graph = nn.Graph.trace(lambda x: x * _Checked.scale)
    x = torch.ones(2)
    torch.testing.assert_close(graph(x), x * 2)
    _Checked.scale = 3.0
    torch.testing.assert_close(graph(x), x * 3)
