"""Equal calls, however they are spelled, are one call: one program."""

from __future__ import annotations

import copy
import enum
import itertools
import math
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

import gflow as flow
from gflow import nn
from gflow.call.signature import Parameters, bind_call


def programs(graph: nn.Graph) -> int:
    return len(graph._state.plans)


class Scaled(nn.Graph):
    def build(
        self, x: Tensor, y: Tensor | None = None, scale: float = 2.0, *, flip: bool = False
    ) -> Tensor:
        x = x if y is None else x + y
        return -x * scale if flip else x * scale


def test_spellings_are_one_program() -> None:
    graph, x, y = Scaled(), torch.randn(3), torch.randn(3)
    for call in (
        lambda: graph(x),
        lambda: graph(x=x),
        lambda: graph(x, None),
        lambda: graph(x, scale=2.0),
        lambda: graph(flip=False, scale=2.0, y=None, x=x),
        lambda: graph(x, None, 2.0, flip=False),
    ):
        torch.testing.assert_close(call(), x * 2)
    assert programs(graph) == 1
    for call in (lambda: graph(x, y, flip=True), lambda: graph(flip=True, y=y, x=x)):
        torch.testing.assert_close(call(), -(x + y) * 2)
    assert programs(graph) == 2


@pytest.mark.parametrize("value", [2, 2.5, -0.0, math.nan, True])
def test_other_values_are_other_programs(value: Any) -> None:
    graph, x = Scaled(), torch.ones(3)
    graph(x)
    graph(x, None, 0.0)
    found = graph(x, scale=value)
    torch.testing.assert_close(found, x * value, equal_nan=True)
    assert torch.equal(found.signbit(), (x * value).signbit())
    assert programs(graph) == 3
    graph(x, None, value)
    assert programs(graph) == 3


def test_a_default_that_is_replaced() -> None:
    class Own(nn.Graph):
        def build(self, x: Tensor, scale: float = 2.0) -> Tensor:
            return x * scale

    graph, x = Own(), torch.ones(3)
    torch.testing.assert_close(graph(x), x * 2)
    Own.build.__defaults__ = (3.0,)
    torch.testing.assert_close(graph(x), x * 3)
    torch.testing.assert_close(graph(x, scale=2.0), x * 2)
    assert programs(graph) == 2


class Color(enum.Enum):
    RED = 1


class Settings:
    factor = 4.0


def test_defaults_that_are_no_arguments() -> None:
    """An object and a tensor as a default are what `build()` reads; they are never passed to a program."""
    table, settings = torch.arange(3.0), Settings()

    class Own(nn.Graph):
        def build(
            self, x: Tensor, s: Any = settings, t: Tensor = table, c: Color = Color.RED, k: int = 1
        ) -> Tensor:
            return x * s.factor + t * k if c is Color.RED else x

    graph, x = Own(), torch.ones(3)
    for call in (lambda: graph(x), lambda: graph(x=x, k=1), lambda: graph(c=Color.RED, x=x)):
        torch.testing.assert_close(call(), x * 4 + table)
    assert programs(graph) == 1
    table += 1  # it is live
    torch.testing.assert_close(graph(x, k=2), x * 4 + table * 2)


def test_what_sees_the_spelling_gets_it_as_it_is() -> None:
    class Own(nn.Graph):
        def build(self, *args: Any, **kwargs: Any) -> Any:
            return args[0] * len(args) + sum(kwargs.values())

    graph, x = Own(), torch.ones(2)
    torch.testing.assert_close(graph(x, x), x * 2)
    torch.testing.assert_close(graph(x, y=x), x * 2)
    torch.testing.assert_close(graph(x, y=x, z=x), x * 3)
    assert programs(graph) == 3


@pytest.mark.parametrize(
    ("args", "names", "what"),
    [
        ((), (), "missing a required argument: 'x'"),
        ((1, 2, 3, 4), (), "too many positional arguments"),
        ((1,), ("x",), "multiple values for argument 'x'"),
        ((1,), ("other",), "unexpected keyword argument 'other'"),
    ],
)
def test_calls_that_do_not_fit(args: Any, names: Any, what: str) -> None:
    with pytest.raises(flow.GraphInputError, match=what) as caught:
        Scaled()(*args, **dict.fromkeys(names, 1))
    assert __file__ in str(caught.value)


def _random_function(choose: random.Random) -> Callable[..., Any]:
    """A function with parameters of all kinds, some of them with defaults."""
    names = iter("abcdefgh")
    parts: list[str] = []
    defaults = False
    for kind, most in (("/", 2), ("", 2)):
        for _ in range(choose.randint(0, most)):
            defaults = defaults or choose.random() < 0.5
            parts.append(next(names) + (f"={choose.randint(0, 9)}" if defaults else ""))
        if kind and parts:
            parts.append(kind)
    more = choose.random() < 0.3
    only = choose.randint(0, 2)
    if more or only:
        parts.append("*rest" if more else "*")
    parts += [next(names) + choose.choice(["", "=7", "=None"]) for _ in range(only)]
    parts += ["**others"] if choose.random() < 0.3 else []
    scope: dict[str, Any] = {}
    exec(f"def build({', '.join(parts)}): return dict(locals())", scope)
    build: Callable[..., Any] = scope["build"]
    return build


@pytest.mark.parametrize("seed", range(60))
def test_random_calls(seed: int) -> None:
    """Bound as Python binds them: calls that fit, and those that do not."""
    choose = random.Random(seed)
    build = _random_function(choose)
    parameters = Parameters(build)
    keys: dict[Any, Any] = {}
    for _ in range(40):
        args = tuple(choose.randint(0, 1) for _ in range(choose.randint(0, 4)))
        names = choose.sample("abcdefghxy", choose.randint(0, 4))
        kwargs = {name: choose.randint(0, 1) for name in names}
        try:
            wanted = build(*args, **kwargs)
        except TypeError:
            assert parameters.bind(args, dict(kwargs)) is None
            continue
        found = bind_call(build, args, kwargs, parameters)
        assert build(*found.args, **found.kwargs) == wanted
        assert keys.setdefault(repr(wanted), found.key) == found.key
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize("kind", ["function", "module"])
def test_compiled_functions(kind: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor | None = None, scale: float = 2.0) -> Tensor:
            return (x if y is None else x - y) * scale

    model = Model()
    target = model if kind == "module" else model.forward
    compiled, x, y = flow.compile(target), torch.randn(3), torch.randn(3)
    for call in (lambda f: f(x, y), lambda f: f(y=y, x=x), lambda f: f(x, scale=2.0, y=y)):
        torch.testing.assert_close(call(compiled), call(model))
    if kind == "module":
        assert programs(compiled._runner.program) == 1
        seen: list[Any] = []
        model.register_forward_pre_hook(
            lambda m, args, kwargs: seen.append((len(args), sorted(kwargs))), with_kwargs=True
        )
        torch.testing.assert_close(compiled(x, y=y), model(x, y=y))
        assert seen[0] == seen[-1] == (1, ["y"])


def test_a_training_step() -> None:
    class Train(nn.Graph):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), 0.1))

        def build(self, x: Tensor, target: Tensor, weight: float = 1.0) -> Tensor:
            loss = (self.model(x) - target).square().mean() * weight
            loss.backward()
            return loss

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    graphs = Train(copy.deepcopy(model)), Train(model)
    x, target = torch.randn(3, 4), torch.randn(3, 2)
    spelled: list[Callable[[Any], Any]] = [
        lambda g: g(x, target),
        lambda g: g(target=target, x=x),
        lambda g: g(x, target, weight=1.0),
    ]
    for call in itertools.islice(itertools.cycle(spelled), 6):
        torch.testing.assert_close(call(graphs[0]), graphs[1](x, target))
    assert [programs(g) for g in graphs] == [1, 1]


def test_saved_programs(tmp_path: Path) -> None:
    graph, x = Scaled(), torch.randn(3)
    wanted = graph(x)
    flow.save(graph, tmp_path / "model")
    loaded = flow.load(tmp_path / "model")
    for found in (loaded(x), loaded(x=x), loaded(x, None, 2.0), loaded(flip=False, x=x, scale=2.0)):
        torch.testing.assert_close(found, wanted)
    with pytest.raises(ValueError, match="by more than their tensors"):
        loaded(x, scale=3.0)


def test_structures_of_plain_arguments() -> None:
    """Leaves are those of `tree_flatten`, in its order, and calls of different structures have different keys."""
    x, y = torch.ones(2), torch.ones(3)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, y), {}), ((x,), {"b": y}), ((x,), {"c": y}), (([x, y],), {}), (((x, y),), {}),
        (([x], y), {}), (({"b": y, "a": x},), {}), (({"a": x, "b": y},), {}), (({"a": [x, {}], "b": y},), {}),
        (([x, None, 2.0, (), y],), {}), (([x, None, 2, (), y],), {}), ((x, {"k": {"b": y}}), {}),
        ((OrderedDict(a=x, b=y),), {}), (((x, y), []), {}), (({1: x},), {}), (({True: x},), {}),
    ]  # fmt: skip
    keys = set()
    for args, kwargs in calls:
        call = bind_call(lambda *args, **kwargs: None, args, kwargs)
        leaves = tree_flatten((args, kwargs))[0]
        assert len(call.leaves) == len(leaves)
        assert all(a is b for a, b in zip(call.leaves, leaves))
        keys.add(call.key)
    assert len(keys) == len(calls)


def test_repeated_calls_have_the_key_of_a_fresh_one() -> None:
    """Guards of PyTorch's stand for it."""

    def build(x: Tensor, y: Tensor | None = None) -> None: ...

    class Own(Tensor): ...

    x, conjugate = torch.randn(2, 3), torch.randn(2, dtype=torch.complex64)
    with torch.inference_mode():
        inference = torch.randn(2, 3)
    others: list[Any] = [
        torch.randn(2, 3), torch.randn(3, 2), torch.randn(3, 2).t(), torch.randn(2, 1, 3)[:, 0],
        torch.ones(2, 3).double(),
        torch.randn(2, 3, requires_grad=True), torch.randn(2, 3).to("meta"), torch.nn.Parameter(torch.randn(2, 3)),
        torch.randn(2, 3).as_subclass(Own), inference, conjugate, conjugate.conj(), conjugate.conj().imag,
        torch._efficientzerotensor(2, 3), [torch.randn(2, 3)], None, 2,
    ]  # fmt: skip
    parameters, drawn = Parameters(build), random.Random(0)
    calls: list[tuple[Any, ...]] = [(a,) for a in (x, *others)] + [(x, a) for a in (x, *others)]
    alike = 0
    for _ in range(1500):
        args = drawn.choice(calls)
        kwargs = {"y": x} if len(args) == 1 and drawn.random() < 0.1 else {}
        with (
            torch.set_grad_enabled(drawn.random() < 0.5),
            torch.autocast("cpu", enabled=drawn.random() < 0.2),
        ):
            for _ in range(drawn.randrange(1, 4)):
                known = parameters.alike
                call = bind_call(build, args, kwargs, parameters)
                fresh = bind_call(build, args, kwargs)
                assert call.key == fresh.key
                assert all(a is b for a, b in zip(call.leaves, fresh.leaves, strict=True))
                alike += known is not None and call.key is known.key
    assert alike > 100
