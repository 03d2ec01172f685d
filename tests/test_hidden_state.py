"""State that Python keeps from sight: in arrays, context variables, decorators, classes, tensors' attributes,
settings of the process; and what an optimizer's step reads outside of the optimizer."""

from __future__ import annotations

import array
import asyncio
import builtins
import collections
import concurrent.futures
import configparser
import contextlib
import contextvars
import csv
import ctypes
import dataclasses
import datetime
import decimal
import functools
import io
import itertools
import logging
import mmap
import os
import queue
import random
import re
import secrets
import shutil
import sqlite3
import string
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import uuid
import warnings
import weakref
from collections.abc import Callable, Generator
from datetime import datetime as moment
from pathlib import Path
from types import CellType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import tqdm
from torch import from_numpy
from torch.nn import functional

import gflow as flow
from gflow import nn

Made = tuple[Callable[[torch.Tensor], torch.Tensor], list[Callable[[], Any]]]


def _numpy() -> Made:
    held = np.array([1.0, 2.0])
    return lambda x: x * float(held[0]), [lambda: held.__setitem__(0, 5.0)]


def _array() -> Made:
    held, raw = array.array("d", [1.0]), bytearray(b"\x01")
    return lambda x: x * held[0] + raw[0], [
        lambda: held.__setitem__(0, 5.0),
        lambda: raw.__setitem__(0, 7),
    ]


def _context() -> Made:
    held = contextvars.ContextVar("held", default=1.0)
    return lambda x: x * held.get(), [lambda: held.set(4.0)]


def _thread_local() -> Made:
    held = threading.local()
    held.scale = 1.0
    return lambda x: x * held.scale, [lambda: setattr(held, "scale", 2.0)]


def _cached() -> Made:
    held = {"scale": 1.0}

    @functools.lru_cache
    def scale() -> float:
        return held["scale"]

    return lambda x: x * scale(), [lambda: (held.update(scale=3.0), scale.cache_clear())]


def _kept_by_a_cache() -> Made:
    held = {"scale": 1.0}

    @functools.lru_cache
    def scale() -> float:
        return held["scale"]

    return lambda x: x * scale(), [lambda: held.update(scale=3.0), scale.cache_clear]


def _inside_a_context() -> Made:
    held = contextvars.ContextVar[dict[str, float]]("inside", default={"scale": 1.0})  # noqa: B039
    return lambda x: x * held.get()["scale"], [lambda: held.get().update(scale=4.0)]


def _words_of_a_partial() -> Made:
    held = functools.partial(lambda x, scale: x * scale, scale=1.0)
    return lambda x: held(x), [lambda: held.keywords.update(scale=4.0)]


def _parts_of_a_function() -> Made:
    def scaled(x: torch.Tensor, scale: float = 1.0, *, shift: float = 0.0) -> torch.Tensor:
        return x * scale + shift

    return lambda x: scaled(x), [
        lambda: setattr(scaled, "__defaults__", (3.0,)),
        lambda: setattr(scaled, "__kwdefaults__", {"shift": 1.0}),
        lambda: setattr(
            scaled, "__code__", (lambda x, scale=1.0, *, shift=0.0: x - scale).__code__
        ),
    ]


def _found_by_getattr() -> Made:
    store = {"scale": 1.0}

    class Finding:
        def __getattr__(self, name: str) -> float:
            return store[name]  # KeyError for what it has not

    held = Finding()
    return lambda x: x * held.scale, [lambda: store.update(scale=4.0)]


def _imported_inside() -> Made:
    module: Any = types.ModuleType("imported_inside")
    module.scale = module.shift = 1.0
    sys.modules["imported_inside"] = module

    def scaled(x: torch.Tensor) -> torch.Tensor:
        import imported_inside  # type: ignore[import-not-found]
        from imported_inside import shift

        return x * imported_inside.scale + shift

    return scaled, [lambda: setattr(module, "scale", 2.0), lambda: setattr(module, "shift", 3.0)]


def _dropout_of_nothing() -> Made:
    layers = torch.nn.Sequential(torch.nn.Dropout(0.0))
    return lambda x: layers(x), [lambda: setattr(layers[0], "p", 1.0)]


def _hook_in_the_place_of_another() -> Made:
    linear = torch.nn.Linear(4, 4)
    handle = linear.register_forward_hook(lambda module, inputs, result: result * 2)
    hooks: Any = linear._forward_hooks
    return lambda x: linear(x), [
        lambda: hooks.update({handle.id: lambda module, inputs, result: result * 3})
    ]


def _seed() -> Made:
    torch.manual_seed(1)
    return lambda x: x * (torch.initial_seed() % 7), [lambda: torch.manual_seed(4)]


def _metaclass() -> Made:
    held = types.SimpleNamespace(scale=1.0)

    class Meta(type):
        @property
        def scale(cls) -> float:
            return held.scale

    class Settings(metaclass=Meta):
        pass

    return lambda x: x * Settings.scale, [lambda: setattr(held, "scale", 2.0)]


def _wrappers() -> Made:
    own = {"a": 1.0}
    shown, chain = types.MappingProxyType(own), collections.ChainMap({}, {"a": 1.0})
    user: Any = collections.UserDict(a=1.0)
    return lambda x: x * shown["a"] + chain["a"] * user["a"], [
        lambda: own.update(a=3.0),
        lambda: chain.maps[1].update(a=5.0),
        lambda: user.update(a=7.0),
    ]


def _order() -> Made:
    held = collections.OrderedDict(a=1.0, b=2.0)
    return lambda x: x * next(iter(held.values())), [lambda: held.move_to_end("a")]


def _environment() -> Made:
    os.environ.pop("GFLOW_TEST_SCALE", None)
    return lambda x: x * float(os.environ.get("GFLOW_TEST_SCALE", "1")), [
        lambda: os.environ.__setitem__("GFLOW_TEST_SCALE", "2"),
        lambda: os.environ.pop("GFLOW_TEST_SCALE"),
    ]


def _threads() -> Made:
    count = torch.get_num_threads()
    return lambda x: x * torch.get_num_threads(), [
        lambda: torch.set_num_threads(count + 1),
        lambda: torch.set_num_threads(count),
    ]


def _kernels() -> Made:
    set_fast = torch.backends.mha.set_fastpath_enabled

    def deterministic(value: bool) -> None:
        with torch.backends.__allow_nonbracketed_mutation():  # PyTorch's tests forbid it
            torch.backends.mkldnn.deterministic = value

    return (
        lambda x: (
            x
            * (
                2
                + torch.backends.mha.get_fastpath_enabled()
                + 3 * torch.backends.mkldnn.deterministic
            )
        ),
        [
            lambda: set_fast(False),
            lambda: set_fast(True),
            lambda: deterministic(True),
            lambda: deterministic(False),
        ],
    )


def _deterministic() -> Made:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if torch.are_deterministic_algorithms_enabled() else 3)

    return scaled, [
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ]


def _hook_of_all() -> Made:
    linear, hooks = torch.nn.Linear(4, 4), []
    register = torch.nn.modules.module.register_module_forward_hook

    def triple(module: Any, inputs: Any, result: Any) -> Any:
        return result * 3 if module is linear else None

    return lambda x: linear(x), [
        lambda: hooks.append(register(triple)),
        lambda: hooks.pop().remove(),
    ]


def _class_of_module() -> Made:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    return lambda x: layers(x), [lambda: setattr(layers[1], "__class__", torch.nn.Tanh)]


def _attribute_of_parameter() -> Made:
    linear: Any = torch.nn.Linear(4, 4)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return linear(x) * getattr(linear.weight, "scale", 1.0)

    return scaled, [
        lambda: setattr(linear.weight, "scale", 2.0),
        lambda: setattr(linear.weight, "scale", 3.0),
        lambda: delattr(linear.weight, "scale"),
    ]


def _sign_of_zero() -> Made:
    held = [0.0]
    return lambda x: 1 / (x * 0 + held[0]), [lambda: held.__setitem__(0, -0.0)]


def _memory() -> Made:
    raw, number = array.array("d", [1.0, 2.0]), ctypes.c_double(1.0)
    view = memoryview(raw)
    return lambda x: x * view[0] + number.value, [
        lambda: raw.__setitem__(0, 5.0),
        lambda: setattr(number, "value", 7.0),
    ]


def _of_the_standard_library() -> Made:
    key = Settings()
    weak, waiting = weakref.WeakKeyDictionary({key: 1.0}), queue.Queue[float]()
    event = threading.Event()
    waiting.put(1.0)
    waiting.put(2.0)
    return lambda x: x * weak[key] * waiting.queue[0] + event.is_set(), [
        lambda: weak.__setitem__(key, 4.0),
        lambda: waiting.get() and None,
        event.set,
    ]


def _written_out() -> Made:
    class Named:
        name = "a"

        def __repr__(self) -> str:
            return self.name

    held = Named()
    scales = {"a": 1.0, "b": 2.0}
    return lambda x: x * scales[f"{held}"], [lambda: setattr(held, "name", "b")]


def _by_the_kind() -> Made:
    @functools.singledispatch
    def scale(value: Any) -> float:
        return 1.0

    return lambda x: x * scale(3), [lambda: scale.register(int)(lambda value: 7.0)]


def _made_inside() -> Made:
    held = {"scale": 1.0, "shift": 1.0}

    class Plain:
        def __init__(self) -> None:
            self.scale = held["scale"]

    @dataclasses.dataclass
    class Data:
        shift: float = dataclasses.field(default_factory=lambda: held["shift"])

        def __post_init__(self) -> None:
            self.shift *= held["scale"]

    return lambda x: x * Plain().scale + Data().shift, [
        lambda: held.update(scale=3.0),
        lambda: held.update(shift=5.0),
    ]


def _of_pytorch() -> Made:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    normal = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))

    def scaled(x: torch.Tensor) -> torch.Tensor:
        rate = optimizer.param_groups[0]["lr"] + schedule.get_last_lr()[0]
        return normal.log_prob(x) * rate

    return scaled, [
        lambda: optimizer.param_groups[0].update(lr=2.0),
        lambda: (optimizer.step(), schedule.step()),
        lambda: setattr(normal, "loc", torch.tensor(1.0)),
    ]


def _average_that_stands() -> Made:
    torch.manual_seed(0)
    layer = torch.nn.BatchNorm1d(4, momentum=None)
    layer.track_running_stats = False
    return lambda x: layer(x) + layer.running_mean, [lambda: None]


def _gradient() -> Made:
    held: Any = torch.nn.Parameter(torch.ones(4))
    return lambda x: x * (2 if held.grad is None else 3), [lambda: setattr(held, "grad", None)]


def _overridden() -> Made:
    class Base:
        def scale(self) -> float:
            return 1.0

    class Middle(Base):
        def scale(self) -> float:
            return super().scale() + 1

    class Last(Middle):
        def scale(self) -> float:
            return super().scale() * 2

    held = Last()
    return lambda x: x * held.scale(), [
        lambda: setattr(Base, "scale", lambda self: 3.0),
        lambda: setattr(Middle, "scale", lambda self: 5.0),
    ]


_found_by_name = 1.0


def _names_of_globals() -> Made:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        own = sys.modules["test_hidden_state"]
        return (
            x * globals()["_found" + "_by_name"] + own._found_by_name + eval("_found_by_name * 2")
        )

    return scaled, [lambda: globals().update(_found_by_name=4.0)]


def _objects_and_settings() -> Made:
    held = np.array([1.0, None])
    words = configparser.ConfigParser()
    words["model"] = {"scale": "1"}
    return lambda x: x * held[0] + words.getfloat("model", "scale"), [
        lambda: held.__setitem__(0, 5.0),
        lambda: words.set("model", "scale", "3"),
    ]


def _beside_the_code() -> Made:
    """Values in a library's module, in builtins, in this module by its computed name, and in objects of Python."""
    sys.gflow_scale = 2.0  # type: ignore[attr-defined]
    torch.gflow_shift = torch.ones(4)  # type: ignore[attr-defined]
    vars(builtins)["gflow_power"] = 2.0
    cell, error = CellType(1.5), ValueError(3.0)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        own = sys.modules[__name__]._found_by_name
        x = x * sys.gflow_scale + torch.gflow_shift  # type: ignore[attr-defined]
        return x**gflow_power * own + cell.cell_contents * error.args[0]  # type: ignore[name-defined] # noqa: F821

    return scaled, [
        lambda: setattr(sys, "gflow_scale", 3.0),
        lambda: setattr(torch, "gflow_shift", torch.zeros(4)),
        lambda: setattr(builtins, "gflow_power", 3.0),
        lambda: setattr(sys.modules[__name__], "_found_by_name", 7.0),
        lambda: setattr(cell, "cell_contents", 0.5),
        lambda: setattr(error, "args", (1.0,)),
    ]


def _globals_of_a_frame() -> Made:
    return lambda x: x * sys._getframe(0).f_globals["_found_by_name"], [
        lambda: globals().update(_found_by_name=8.0)
    ]


def _modules_beside_the_code() -> Made:
    held = np.empty(1, dtype=object)
    held[0] = sys.gflow_norm = torch.nn.BatchNorm1d(4)  # type: ignore[attr-defined]

    def normalized(x: torch.Tensor) -> torch.Tensor:
        return held[0](x) + sys.gflow_norm(x)  # type: ignore[attr-defined, no-any-return]

    return normalized, [
        lambda: held[0].eval(),
        lambda: setattr(sys.gflow_norm, "weight", torch.nn.Parameter(torch.full((4,), 2.0))),  # type: ignore[attr-defined]
        lambda: setattr(held[0], "eps", 0.5),
        lambda: held.__setitem__(0, torch.nn.Identity()),
    ]


@pytest.mark.parametrize(
    "make",
    [
        _beside_the_code, _modules_beside_the_code, _globals_of_a_frame,
        _overridden, _names_of_globals, _objects_and_settings,
        _memory, _of_the_standard_library, _written_out, _by_the_kind, _made_inside, _of_pytorch,
        _average_that_stands, _gradient,
        _numpy, _array, _context, _thread_local, _cached, _metaclass, _wrappers, _order, _environment,
        _threads, _kernels, _deterministic, _hook_of_all, _class_of_module, _attribute_of_parameter, _sign_of_zero,
        _kept_by_a_cache, _inside_a_context, _words_of_a_partial, _parts_of_a_function, _found_by_getattr,
        _imported_inside, _dropout_of_nothing, _hook_in_the_place_of_another, _seed,
    ],
)  # fmt: skip
@pytest.mark.parametrize("compiled", [nn.Graph.trace, flow.compile])
@torch.no_grad()
def test_state_that_changes_is_seen(make: Callable[[], Made], compiled: Any) -> None:
    function, changes = make()
    call, x = compiled(function), torch.rand(3, 4) + 1
    for change in [lambda: None, *changes]:
        change()
        torch.testing.assert_close(call(x), function(x))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.random(),
        lambda: float(np.random.rand()),
        lambda: np.random.default_rng(0).permutation(3)[0] * 0 + random.randint(1, 9),
    ],
)
def test_random_numbers_of_python_are_errors(draw: Callable[[], float]) -> None:
    with pytest.raises(flow.GraphTraceError, match=r"test_hidden_state.py:\d+: build\(\) calls "):
        nn.Graph.trace(lambda x: x * draw())(torch.ones(1))


def test_a_generator_of_random_numbers_goes_on() -> None:
    drawn = random.Random(0)
    call = flow.compile(lambda x: x * drawn.random())
    expected = random.Random(0)
    for _ in range(3):
        torch.testing.assert_close(call(torch.ones(1)).item(), expected.random())


def test_numbers_that_dynamo_draws_have_their_own_type() -> None:
    call = torch.compile(lambda x: x * random.random(), backend="gflow")
    random.seed(0)
    got = [call(torch.ones(1)).item() for _ in range(2)]
    random.seed(0)
    torch.testing.assert_close(got, [random.random(), random.random()])


def test_functions_of_a_library_that_are_exchanged_are_seen() -> None:
    call = nn.Graph.trace(lambda x: functional.relu(x) * 2)
    x, relu = torch.ones(1), functional.relu
    assert call(x).item() == 2
    try:
        functional.relu = lambda x: x * 5
        assert call(x).item() == 10
    finally:
        functional.relu = relu


def test_a_gradient_from_outside_is_an_error() -> None:
    held = torch.nn.Parameter(torch.ones(1))
    call = nn.Graph.trace(lambda x: x * (2 if held.grad is None else 3))
    assert call(torch.ones(1)).item() == 2
    held.grad = torch.ones(1)
    with pytest.raises(flow.GraphTraceError, match=r"reads \.grad before its first backward"):
        call(torch.ones(1))
    with pytest.raises(flow.GraphTraceError, match=r"reads \.grad before its first backward"):
        nn.Graph.trace(lambda x: x if x.grad is None else x * 2)(torch.ones(1))


def test_a_conversion_to_the_same_dtype_reads_no_gradient() -> None:
    """`module.to()`, as routers of experts call it in their forward, converts gradients that are left, too."""
    linear, x = torch.nn.Linear(2, 2), torch.ones(3, 2)
    linear(x).sum().backward()
    same = nn.Graph.trace(lambda x: linear.to(torch.float32)(x))
    torch.testing.assert_close(same(x), linear(x).detach())
    rounded = nn.Graph.trace(lambda x: linear.half().float()(x))
    with pytest.raises(flow.GraphTraceError, match=r"reads \.grad before its first backward"):
        rounded(x)


@pytest.mark.parametrize("compiled", [nn.Graph.trace, flow.compile])
def test_inference_mode_is_seen(compiled: Any) -> None:
    """Beside no_grad; tensors from before it are of no inference."""

    def asked(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.is_inference_mode_enabled() * 10 + x.is_inference() * 100

    call, x = compiled(asked), torch.ones(2)
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with mode():
            for given in (x, torch.ones(2)):
                assert torch.equal(call(given), asked(given))


@pytest.mark.parametrize("kind", ["tensor", "module"])
@torch.no_grad()
def test_what_is_found_in_no_place(kind: str) -> None:
    """A tensor behind an address; a module behind one is guarded, since its call is seen."""
    held: list[Any] = [torch.ones(3) if kind == "tensor" else torch.nn.BatchNorm1d(3)]
    address = id(held[0])

    def function(x: torch.Tensor) -> torch.Tensor:
        found = ctypes.cast(address, ctypes.py_object).value
        return found(x) if kind == "module" else x * found  # type: ignore[no-any-return]

    graph, x = nn.Graph.trace(function), torch.randn(2, 3)
    if kind == "tensor":
        with pytest.warns(
            UserWarning, match=r"tensor of shape \(3,\), whose place no name in the code tells"
        ):
            graph(x)
    else:
        graph(x)
        held[0].eval()
    torch.testing.assert_close(graph(x), function(x))
    torch.testing.assert_close(flow.compile(function)(x), function(x))


def test_local_variables_of_callers_are_told_of() -> None:
    scale = 2.0  # noqa: F841

    def function(x: torch.Tensor) -> torch.Tensor:
        frame: Any = sys._getframe(0)
        while "scale" not in frame.f_locals:
            frame = frame.f_back
        return x * frame.f_locals["scale"]  # type: ignore[no-any-return]

    with pytest.warns(UserWarning, match="f_locals, the local variables of other functions"):
        nn.Graph.trace(function)(torch.ones(2))


def test_lists_of_arguments_that_are_changed() -> None:
    def appends(x: torch.Tensor, found: list[torch.Tensor]) -> torch.Tensor:
        found.append(x * 2)
        return x + 1

    with pytest.warns(UserWarning, match="changes items of argument 1"):
        nn.Graph.trace(appends)(torch.ones(1), [])
    call, found = flow.compile(appends), list[torch.Tensor]()
    for n in range(2):
        call(torch.full((1,), float(n)), found)
    assert [t.item() for t in found] == [0.0, 2.0]


def test_random_numbers_of_python_are_drawn_at_each_call_of_a_function() -> None:
    call = flow.compile(lambda x: x * random.random())
    random.seed(0)
    got = [call(torch.ones(1)).item() for _ in range(3)]
    assert len(set(got)) == 3


_FILE = Path(tempfile.gettempdir()) / f"gflow-hidden-state-{os.getpid()}"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: time.perf_counter(),
        lambda: datetime.datetime.now().timestamp(),
        lambda: moment.now().microsecond + moment.now().second * 1e6,
        lambda: float(_FILE.read_text()),
        lambda: len(os.listdir(_FILE.parent)) * 0 + float(open(_FILE).read()),  # noqa: PTH123, PTH208, SIM115
        lambda: float(np.loadtxt(_FILE)),
        lambda: torch.load(_FILE.with_suffix(".pt")),
    ],
)
def test_the_time_and_files_are_told_of(ask: Callable[[], float]) -> None:
    def write(value: float) -> None:
        _FILE.write_text(str(value))
        torch.save(value, _FILE.with_suffix(".pt"))

    write(1.0)
    with pytest.warns(UserWarning, match=r"test_hidden_state.py|calls .*\(\)\. It runs once"):
        nn.Graph.trace(lambda x: x * ask())(torch.ones(1))
    for file in (_FILE, _FILE.with_suffix(".pt")):
        file.unlink()


def test_the_time_and_files_are_asked_for_at_each_call_of_a_function() -> None:
    call, got = flow.compile(lambda x: x * float(_FILE.read_text()) + time.perf_counter()), []
    for n in range(3):
        _FILE.write_text(str(n * 1e9))
        got.append(call(torch.ones(1, dtype=torch.float64)).item())
    assert [round(value / 1e9) for value in got] == [0, 1, 2]
    assert len({value % 1e9 for value in got}) == 3
    _FILE.unlink()


@pytest.mark.parametrize(
    "change",
    [
        lambda: shutil.rmtree(_FILE),
        lambda: _FILE.rmdir(),
        lambda: subprocess.run(["rmdir", _FILE], check=True),
        lambda: os.system(f"rmdir {_FILE}"),
    ],
    ids=["shutil", "os", "subprocess", "system"],
)
def test_changes_of_files_and_settings(change: Callable[[], object]) -> None:
    """A graph tells that they are not repeated; `gflow.compile` makes them at each call."""
    _FILE.mkdir()
    with pytest.warns(UserWarning, match=r"calls .*\(\)\. It runs once .* do not repeat that"):
        nn.Graph.trace(lambda x: (change(), x + 1)[1])(torch.ones(1))
    compiled = flow.compile(lambda x: (change(), x + 1)[1])
    for _ in range(3):
        _FILE.mkdir()
        compiled(torch.ones(1))
        assert not _FILE.exists()


_ARRAY = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.from_numpy(_ARRAY),
        lambda: torch.as_tensor(_ARRAY),
        lambda: torch.asarray(_ARRAY),
        lambda: torch.from_numpy(_ARRAY[::-1].copy()[::2] * 0 + _ARRAY[:2]),
        lambda: torch.as_tensor(_ARRAY, dtype=torch.float64),
        lambda: torch.from_numpy(_ARRAY[1:]),
        lambda: from_numpy(_ARRAY),
        lambda convert=from_numpy: convert(_ARRAY)[:1],
    ],
    ids=["from_numpy", "as_tensor", "asarray", "new", "converted", "part", "by name", "default"],
)
def test_updates_of_arrays(made: Callable[[], torch.Tensor]) -> None:
    """An array that exists without `build()` is not updated by a program; one that it makes is its own."""

    def update(x: torch.Tensor) -> torch.Tensor:
        return made().add_(x) * 2

    wanted: list[Any] = []
    _ARRAY.fill(0)
    for n in range(3):
        wanted.append((update(torch.tensor(n + 1.0)).tolist(), _ARRAY.tolist()))
    shared = bool(_ARRAY.any())
    for call in (nn.Graph.trace(update), flow.compile(update)):
        _ARRAY.fill(0)
        if shared and isinstance(call, nn.Graph):
            with pytest.raises(flow.GraphTraceError, match=r"test_hidden_state.py:\d+: .*NumPy"):
                call(torch.tensor(1.0))
            continue
        for n, (result, held) in enumerate(wanted):
            assert call(torch.tensor(n + 1.0)).tolist() == result
            assert _ARRAY.tolist() == held


class _Setter:
    def __init__(self) -> None:
        self.__dict__["set"] = 0

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["set"] += 1


_SETTER = _Setter()


@pytest.mark.parametrize("kind", ["module", "library", "setter"])
def test_attributes_of_modules_and_setters(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("settings")
    monkeypatch.setitem(globals(), "settings", module)
    module.count = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(string, "count", 0, raising=False)
    _SETTER.__dict__["set"] = 0

    def change(x: torch.Tensor) -> torch.Tensor:
        if kind == "module":
            settings.count += 1  # type: ignore[name-defined]  # noqa: F821
        elif kind == "library":
            string.count += 1  # type: ignore[attr-defined]
        else:
            _SETTER.value = 1
        return x + 1

    def counted() -> int:
        return module.count + string.count + _SETTER.__dict__["set"]  # type: ignore[attr-defined, no-any-return]

    with pytest.warns(UserWarning, match=r"build\(\) of .* changes "):
        nn.Graph.trace(change)(torch.ones(1))
    begin, call = counted(), flow.compile(change)
    for n in range(3):
        call(torch.ones(1))
        assert counted() == begin + n + 1


@pytest.mark.parametrize(
    "draw", [lambda: os.urandom(1)[0], lambda: secrets.randbelow(9), lambda: uuid.uuid4().int % 9]
)
def test_numbers_of_the_system_are_errors(draw: Callable[[], float]) -> None:
    with pytest.raises(flow.GraphTraceError, match=r"test_hidden_state.py:\d+: build\(\) calls "):
        nn.Graph.trace(lambda x: x * draw())(torch.ones(1))
    compiled = flow.compile(lambda x: x * draw())
    assert len({compiled(torch.ones(1)).item() for _ in range(20)}) > 1


def test_classes_of_dates_are_classes_while_a_graph_is_traced() -> None:
    held = moment(2020, 1, 2)

    def function(x: torch.Tensor, when: Any = held) -> torch.Tensor:
        class Later(moment):
            pass

        assert isinstance(when, moment)
        assert issubclass(Later, datetime.date)
        assert type(when) == moment  # noqa: E721
        return x * moment(when.year, 1, 1).year

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nn.Graph.trace(function)(torch.ones(1)).item() == 2020
    assert moment is datetime.datetime is type(held)
    assert open is io.open


def test_files_that_an_import_reads_are_no_constants(tmp_path: Path) -> None:
    source = "import pathlib, time, uuid\nbegan = time.time()\nname = uuid.uuid4()\n"
    source += "text = pathlib.Path(__file__).read_text()\n"
    (tmp_path / "module_that_reads.py").write_text(source)

    def function(x: torch.Tensor) -> torch.Tensor:
        import module_that_reads

        return x * (module_that_reads.began > 0)

    sys.path.insert(0, str(tmp_path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert nn.Graph.trace(function)(torch.ones(1)).item() == 1
    finally:
        sys.path.remove(str(tmp_path))


def test_zeros_of_both_signs_are_two_arguments() -> None:
    call = nn.Graph.trace(lambda x, scale: 1 / (x * scale))
    assert call(torch.ones(1), 0.0).item() == float("inf")
    assert call(torch.ones(1), -0.0).item() == float("-inf")


def test_iterators_are_told_of() -> None:
    numbers = itertools.count(1)
    with pytest.warns(UserWarning, match="values from numbers, an iterator"):
        nn.Graph.trace(lambda x: x * next(numbers))(torch.ones(1))


class _Waiting:
    def __init__(self, n: int) -> None:
        self.n = n

    def __await__(self) -> Generator[int]:
        yield self.n


def _changing() -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], Any]]]:
    """Functions that change what Python keeps at each call, and what shows it."""
    grown, fresh = [1.0], array.array("d", [1.0])
    raw, one, numbers = bytearray(b"\x01"), ctypes.c_int(0), np.zeros(2)
    drawn, default = np.random.default_rng(0), contextvars.ContextVar("default", default=0)
    unset: contextvars.ContextVar[int] = contextvars.ContextVar("unset")
    local, kind, text = threading.local(), type("Kind", (), {}), "GFLOW_TEST_CHANGED"
    count, cycle = itertools.count(), itertools.cycle([1, 2, 3])
    os.environ.pop(text, None)

    def helper() -> None:
        pass

    def put(holder: Any, name: str) -> float:
        setattr(holder, name, getattr(holder, name, 0) + 1)
        return float(getattr(holder, name))

    def item(holder: Any) -> float:
        holder[0] += 1
        return float(holder[0])

    def add() -> int:
        one.value += 1
        return one.value

    def of_context(variable: contextvars.ContextVar[int]) -> int:
        variable.set(variable.get(0) + 1)
        return variable.get()

    def environ() -> int:
        os.environ[text] = os.environ.get(text, "") + "a"
        return len(os.environ[text])

    text_file, byte_file, mapped = io.StringIO(), io.BytesIO(bytes(range(1, 99))), mmap.mmap(-1, 9)
    real: Any = tempfile.TemporaryFile("w+")  # noqa: SIM115
    waiting, rows = queue.SimpleQueue[int](), csv.reader(map(str, range(1, 99)))
    found, flat = re.finditer("a", "a" * 99), np.arange(1.0, 99.0).flat
    decimals, numbered = decimal.Context(), collections.defaultdict(itertools.count(1).__next__)
    base, grows, hooked = sqlite3.connect(":memory:"), torch.nn.ModuleList(), torch.nn.ReLU()
    bar, kept, members = tqdm.tqdm(disable=False, file=io.StringIO()), [], weakref.WeakSet[Any]()
    loading = iter(torch.utils.data.DataLoader(torch.arange(1.0, 99.0)))  # type: ignore[arg-type]
    logger, shown = logging.Logger("changing"), io.StringIO()
    logger.addHandler(logging.StreamHandler(shown))
    base.execute("create table held (n)")
    stack, root = contextlib.ExitStack(), ElementTree.Element("root")

    large, bits, context = np.ones(1 << 15), np.random.PCG64(0), contextvars.copy_context()
    futures = [concurrent.futures.Future[int]() for _ in range(99)]
    seeded = torch.Generator().manual_seed(1)
    ordered = collections.OrderedDict(a=1, b=2, c=3)
    before, gone, subclasses = len(sys.path), list[int](), list[type]()

    class Member:
        pass

    class Other(Member):
        pass

    class Going:
        def __del__(self) -> None:
            gone.append(1)

    class Registered:
        def __init_subclass__(cls) -> None:
            subclasses.append(cls)

    class Lazy:
        @functools.cached_property
        def scale(self) -> int:
            grown.append(2.0)
            return len(grown)

    lazy, swapped = Lazy(), Member()

    def once() -> int:
        vars(lazy).pop("scale", None)
        return lazy.scale

    def derived() -> int:
        class Derived(Registered):
            pass

        return len(subclasses)

    def of_other_class() -> int:
        swapped.__class__ = Other if type(swapped) is Member else Member
        return 1 + (type(swapped) is Other)

    async def counting() -> None:
        for n in range(1, 99):
            await _Waiting(n)

    coroutine = counting()
    coroutine.send(None)
    decimal.getcontext().clear_flags()
    shaped, folder = np.ones(6), tempfile.TemporaryDirectory()

    def reshape(array: np.ndarray[Any, Any]) -> None:
        array.shape = (3, 2) if array.ndim == 1 else 6

    async def awaited() -> None:
        grown.append(3)

    def precise() -> int:
        decimals.prec += 1
        return decimals.prec

    def joined() -> int:
        kept.append(Member())
        members.add(kept[-1])
        return len(members)

    def mapped_item() -> int:
        mapped[0] += 1
        return mapped[0]

    return {
        "large array": (lambda x: x * item(large), lambda: large[0]),
        "bit generator": (lambda x: x * (bits.random_raw() % 9), bits.random_raw),
        "context": (lambda x: x * context.run(of_context, default), lambda: context.get(default)),
        "future": (
            lambda x: (next(f for f in futures if not f.done()).set_result(1), x)[1],
            lambda: sum(f.done() for f in futures),
        ),
        "__del__": (lambda x: (Going(), x)[1], lambda: len(gone)),
        "subclasses": (lambda x: x * derived(), lambda: len(subclasses)),
        "cached property": (lambda x: x * once(), lambda: grown),
        "class of an object": (lambda x: x * of_other_class(), lambda: type(swapped).__name__),
        "coroutine": (lambda x: x * coroutine.send(None), lambda: coroutine.send(None)),
        "seed": (
            lambda x: (seeded.manual_seed(seeded.initial_seed() + 1), x)[1],
            seeded.initial_seed,
        ),
        "filters of warnings": (
            lambda x: (warnings.filterwarnings("ignore", f"a{next(count)}"), x)[1],
            lambda: sum(f[1] is not None and f[1].pattern[0] == "a" for f in warnings.filters),
        ),
        "order": (
            lambda x: (ordered.move_to_end(next(iter(ordered))), x)[1],
            lambda: list(ordered),
        ),
        "sys.path": (
            lambda x: (sys.path.append("nowhere"), x)[1],
            lambda: [len(sys.path), sys.path.__delitem__(slice(before, None))][0] - before,
        ),
        "sys.modules": (
            lambda x: (sys.modules.__setitem__("nowhere", types.ModuleType("nowhere")), x)[1],
            lambda: [sys.modules.pop("nowhere", None) is not None],
        ),
        "flags of decimals": (
            lambda x: (decimal.Decimal(1) / 3, x)[1],
            lambda: [decimal.getcontext().flags[decimal.Inexact]],
        ),
        "shape of an array": (
            lambda x: (reshape(shaped), x)[1],
            lambda: shaped.shape,
        ),
        "directories": (
            lambda x: (tempfile.mkdtemp(dir=folder.name), x)[1],
            lambda: len([*Path(folder.name).iterdir()]),
        ),
        "coroutine that is run": (
            lambda x: (asyncio.run(awaited()), x)[1],
            lambda: grown,
        ),
        "file in memory": (lambda x: (text_file.write("a"), x)[1], text_file.getvalue),
        "what a file in memory gives": (lambda x: x * byte_file.read(1)[0], byte_file.tell),
        "file": (lambda x: (print("a", file=real), x)[1], real.tell),
        "exit stack": (
            lambda x: (stack.callback(int), x)[1],
            lambda: len(stack._exit_callbacks),  # type: ignore[attr-defined]
        ),
        "element": (lambda x: (ElementTree.SubElement(root, "a"), x)[1], lambda: len(root)),
        "mapped memory": (lambda x: x * mapped_item(), lambda: mapped[0]),
        "simple queue": (lambda x: (waiting.put(1), x)[1], waiting.qsize),
        "rows of a file": (lambda x: x * int(next(rows)[0]), lambda: rows.line_num),
        "found text": (lambda x: x * (next(found).start() + 1), lambda: next(found).start()),
        "iterator of NumPy": (lambda x: x * next(flat), lambda: flat.index),
        "iterator of PyTorch": (lambda x: x * next(loading), lambda: next(loading)),
        "decimal context": (lambda x: x * precise(), lambda: decimals.prec),
        "default": (lambda x: x * numbered[len(numbered)], lambda: dict(numbered)),
        "database": (
            lambda x: (base.execute("insert into held values (1)"), x)[1],
            lambda: base.total_changes,
        ),
        "modules": (
            lambda x: (grows.append(torch.nn.Identity()), x * len(grows))[1],
            lambda: len(grows),
        ),
        "hooks": (
            lambda x: (hooked.register_forward_hook(print), hooked(x))[1],
            lambda: len(hooked._forward_hooks),
        ),
        "installed": (lambda x: (bar.update(), x)[1], lambda: bar.n),
        "set of weak references": (lambda x: x * joined(), lambda: len(members)),
        "logger": (lambda x: (logger.error("a"), x)[1], shown.getvalue),
        "list": (lambda x: x * (grown.append(3) or len(grown)), lambda: grown),
        "array": (lambda x: x * (fresh.append(3) or len(fresh)), lambda: fresh),
        "bytearray": (lambda x: x * item(raw), lambda: raw),
        "ctypes": (lambda x: x * add(), lambda: one.value),
        "NumPy": (lambda x: x * item(numbers), lambda: numbers.tolist()),
        "numbers that NumPy draws": (lambda x: x * float(drawn.random()), drawn.random),
        "context variable": (lambda x: x * of_context(default), default.get),
        "unset context variable": (lambda x: x * of_context(unset), unset.get),
        "thread": (lambda x: x * put(local, "n"), lambda: local.n),
        "function": (lambda x: x * put(helper, "n"), lambda: helper.n),  # type: ignore[attr-defined]
        "class": (lambda x: x * put(kind, "n"), lambda: kind.n),  # type: ignore[attr-defined]
        "environment": (lambda x: x * environ(), lambda: os.environ.pop(text)),
        "count": (lambda x: x * next(count), lambda: next(count)),
        "cycle": (lambda x: x * next(cycle), lambda: next(cycle)),
    }


@pytest.mark.filterwarnings("ignore:Dynamo does not know")
@pytest.mark.parametrize("name", _changing())
def test_a_compiled_function_changes_state_once_a_call(name: str) -> None:
    """Also at the first call, which is traced and then runs in pieces."""
    (want, held), (target, mine) = _changing()[name], _changing()[name]
    call, x = flow.compile(target), torch.ones(2)
    expected = [want(x).tolist() for _ in range(4)]
    shown = held()
    assert [call(x).tolist() for _ in range(4)] == expected
    assert mine() == shown


@pytest.mark.parametrize(
    "name",
    [name for name in _changing() if not name.startswith(("numbers", "unset"))],
)
def test_a_graph_tells_of_state_that_build_changes(name: str) -> None:
    graph = nn.Graph.trace(_changing()[name][0])
    with pytest.warns(UserWarning, match="It runs once for each program"):
        _ = [graph(torch.ones(2)) for _ in range(2)]


@pytest.mark.parametrize(
    "write",
    [print, lambda text: sys.stdout.write(text), lambda text: sys.stderr.writelines([text])],
)
def test_what_is_printed_is_told(
    write: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    """A graph says that it prints once; `gflow.compile` prints at each call."""

    def build(x: torch.Tensor) -> torch.Tensor:
        write("a word")
        return x * 2

    with pytest.warns(UserWarning, match="later calls print nothing"):
        nn.Graph.trace(build)(torch.ones(2))
    call = flow.compile(build)
    capsys.readouterr()
    _ = [call(torch.ones(2)) for _ in range(3)]
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("a word") == 3


def test_what_does_not_change_is_not_told() -> None:
    lock, pattern, silent = threading.Lock(), re.compile("a"), logging.getLogger(f"{__name__}.off")
    record, numbers = struct.Struct("i"), io.StringIO("1\n2")
    silent.setLevel(logging.CRITICAL)
    named = dataclasses.make_dataclass("Named", [("name", int, 1)])()  # its fields have names, too

    def build(x: torch.Tensor) -> torch.Tensor:
        silent.error("a")
        with lock:
            return (
                x * named.name * len(pattern.findall("aa")) * record.size * len(numbers.getvalue())
            )

    graph = nn.Graph.trace(build)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert graph(torch.ones(1)).item() == 24
        numbers.write("345")
        assert graph(torch.ones(1)).item() == 24
        numbers.write("6")
        assert graph(torch.ones(1)).item() == 32


def test_large_arrays_are_told_of_unless_they_are_read_only() -> None:
    held = np.ones(1 << 15)

    def build(x: torch.Tensor) -> torch.Tensor:
        return x * torch.from_numpy(held)[1]

    with pytest.warns(UserWarning, match=r"read or change held, an array of 0.2 MiB.*read-only"):
        nn.Graph.trace(build)(torch.ones(1))
    call = flow.compile(build)
    for n in range(3):
        held[1] = n
        assert call(torch.ones(1)).item() == n
    held.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nn.Graph.trace(build)(torch.ones(1)).item() == 2


def test_arrays_over_the_memory_of_updated_tensors() -> None:
    tensor = torch.ones(2)
    array_of_it = tensor.numpy()

    def build(x: torch.Tensor) -> torch.Tensor:
        tensor.add_(1)
        return x * float(array_of_it[0])

    with pytest.raises(flow.GraphTraceError, match=r"reads array_of_it, a NumPy array over the"):
        nn.Graph.trace(build)(torch.ones(1))
    call = flow.compile(build)
    begin = tensor[0].item()
    assert [call(torch.ones(1)).item() for _ in range(3)] == [begin + n for n in (1, 2, 3)]


@pytest.mark.parametrize("kind", ["list", "function", "count"])
def test_a_warning_names_the_line_that_changes_state(kind: str) -> None:
    held, numbers = [1.0], itertools.count()

    def helper() -> None:
        pass

    def build(x: torch.Tensor) -> torch.Tensor:
        if kind == "list":
            held.append(2.0)
        elif kind == "function":
            helper.n = getattr(helper, "n", 0) + 1  # type: ignore[attr-defined]
        else:
            x = x * next(numbers)
        return x * 2

    graph = nn.Graph.trace(build)
    with pytest.warns(UserWarning, match="It runs once for each program") as told:
        _ = [graph(torch.ones(2)) for _ in range(2)]
    line = next(w.lineno for w in told if ("an iterator" in str(w.message)) == (kind == "count"))
    text = Path(__file__).read_text().splitlines()[line - 1]
    assert {"list": "held.append", "function": "helper.n =", "count": "next(numbers)"}[kind] in text


# optimizers

SCALE, TENSOR = 1.0, torch.tensor(1.0)
SCALES = [1.0]
STEPS: dict[int, int] = {}


class Settings:
    scale = 1.0


def _scale() -> float:
    return SCALE


class Scaled(torch.optim.Optimizer):
    """SGD whose rate is multiplied by what `read` gives."""

    def __init__(self, parameters: Any, read: Callable[[Any, Any], Any]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.read = read

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * group["lr"] * self.read(self, p))


class Training(nn.Graph):
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def _train(read: Callable[[Any, Any], Any], change: Callable[[Any], None], graph: bool) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = Scaled(model.parameters(), read)
    call = Training(model, optimizer) if graph else None
    x = torch.ones(4, 3)
    try:
        for step in range(6):
            if step == 3:
                change(optimizer)
            if call is not None:
                call(x)
                continue
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        globals().update(SCALE=1.0, TENSOR=torch.tensor(1.0))
        SCALES[0] = Settings.scale = 1.0
    return [p.detach() for p in model.parameters()]


def _parameters(optimizer: Any) -> list[Any]:
    return optimizer.param_groups[0]["params"]


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (lambda o, p: SCALE, lambda o: globals().update(SCALE=3.0)),
        (lambda o, p: _scale(), lambda o: globals().update(SCALE=3.0)),
        (lambda o, p: SCALES[0], lambda o: SCALES.__setitem__(0, 3.0)),
        (lambda o, p: Settings.scale, lambda o: setattr(Settings, "scale", 3.0)),
        (lambda o, p: TENSOR, lambda o: globals().update(TENSOR=torch.tensor(3.0))),
        (
            lambda o, p: getattr(p, "scale", 1.0),
            lambda o: [setattr(p, "scale", 3.0) for p in _parameters(o)],
        ),
        (
            lambda o, p: 3.0 if hasattr(p, "special") else 1.0,
            lambda o: setattr(_parameters(o)[0], "special", True),
        ),
        (
            lambda o, p: o.state.get(p, {}).get("scale", 1.0),
            lambda o: o.state[_parameters(o)[0]].update(scale=3.0),
        ),
    ],
)
def test_what_a_step_reads_elsewhere_is_seen(read: Any, change: Any) -> None:
    for ours, theirs in zip(_train(read, change, True), _train(read, change, False)):
        torch.testing.assert_close(ours, theirs)


def _counter() -> Callable[[Any, Any], int]:
    count = 0

    def advance(optimizer: Any, parameter: Any) -> int:
        nonlocal count
        count += 1
        return count

    return advance


def _global_counter(optimizer: Any, parameter: Any) -> int:
    STEPS[0] = STEPS.get(0, 0) + 1
    return STEPS[0]


def _generator() -> Callable[[Any, Any], float]:
    numbers = (0.9**n for n in itertools.count())
    return lambda optimizer, parameter: next(numbers)


def _marks(optimizer: Any, parameter: Any) -> int:
    parameter.count = getattr(parameter, "count", 0) + 1
    return parameter.count


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (_counter(), "step() changes count"),
        (_global_counter, "step() changes STEPS"),
        (_generator(), "numbers, an iterator"),
        (_marks, "sets the attribute 'count' of model.weight"),
    ],
)
def test_what_a_step_cannot_repeat_is_refused(read: Any, said: str) -> None:
    with pytest.raises(flow.GraphTraceError) as error:
        _train(read, lambda o: None, True)
    assert said in str(error.value)


def test_numbers_of_numpy_are_refused_by_name() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=np.float32(0.5))  # type: ignore[arg-type]
    with pytest.raises(flow.GraphTraceError, match="a NumPy number; a graph needs a Python number"):
        Training(model, optimizer)(torch.ones(1, 2))


# hooks


def _double(g: torch.Tensor) -> torch.Tensor:
    return g * 2


def _triple(p: torch.Tensor) -> None:
    assert p.grad is not None
    p.grad.mul_(3)


def test_hooks_of_gradients_that_come_later_are_seen() -> None:
    def trained(graph: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model, hooks = torch.nn.Linear(3, 2), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        call = Training(model, optimizer) if graph else None
        for step in range(6):
            if step == 2:
                hooks.append(model.weight.register_hook(_double))
            elif step == 4:
                hooks.pop().remove()
            if call is not None:
                call(torch.ones(4, 3))
                continue
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach()

    torch.testing.assert_close(trained(True), trained(False))


def test_hooks_that_a_graph_has_no_place_for_are_refused_later_too() -> None:
    model = torch.nn.Linear(3, 2)
    call = Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    call(torch.ones(4, 3))
    model.weight.register_post_accumulate_grad_hook(_triple)
    with pytest.raises(flow.GraphTraceError, match="register_post_accumulate_grad_hook"):
        call(torch.ones(4, 3))


def _shrink(optimizer: Any, args: Any, kwargs: Any) -> None:
    for p in optimizer.param_groups[0]["params"]:
        p.data.mul_(0.5)


def test_a_hook_before_the_step_cannot_change_parameters() -> None:
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = Training(model, optimizer)
    handle = optimizer.register_step_pre_hook(_shrink)
    with pytest.raises(
        flow.GraphError, match="a hook before an optimizer's step changes a parameter"
    ):
        call(torch.ones(4, 3))
    assert torch.equal(model.weight, before)
    handle.remove()
    optimizer.register_step_post_hook(_shrink)
    call(torch.ones(4, 3))


@pytest.mark.parametrize("key", ["lr_mult", "momentun"])
def test_keys_of_groups_that_come_later_are_refused_as_at_first(key: str) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = Training(model, optimizer)
    call(torch.ones(4, 3))
    optimizer.param_groups[0]["name"] = "all"
    call(torch.ones(4, 3))
    optimizer.param_groups[0][key] = 0.5
    with pytest.raises(flow.GraphTraceError, match=f"has the key '{key}'"):
        call(torch.ones(4, 3))


@pytest.mark.parametrize("key", ["lr_scale", "clip_grad_max_norm"])
def test_keys_of_groups_that_come_later_act(key: str) -> None:
    def trained(when: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        call = Training(model, optimizer)
        for step in range(2):
            if step == when:
                optimizer.param_groups[0][key] = 0.0
            after_first = model.weight.detach().clone()
            call(torch.ones(4, 3))
        return model.weight.detach() - after_first

    assert trained(1).abs().max() == 0
    assert trained(2).abs().max() > 0


@pytest.mark.parametrize(
    "compiled", [flow.compile, functools.partial(torch.compile, backend="gflow")]
)
def test_the_default_device_is_seen(compiled: Any) -> None:
    call = compiled(lambda x: torch.ones(3))
    assert call(torch.ones(1)).device.type == "cpu"
    with torch.device("meta"):
        assert call(torch.ones(1, device="cpu")).device.type == "meta"
    assert call(torch.ones(1)).device.type == "cpu"


@pytest.mark.parametrize("make", [nn.Graph.trace, flow.compile])
def test_the_cache_of_autocast_is_seen(make: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.is_autocast_cache_enabled() else x * 3

    call, x = make(function), torch.ones(2)
    for enabled in (True, False, True):
        with torch.autocast("cpu", cache_enabled=enabled):
            assert torch.equal(call(x), function(x))


def test_tensors_without_memory_are_errors() -> None:
    call = nn.Graph.trace(lambda x: torch.ones(3))
    call(torch.ones(1))
    with (
        torch.device("meta"),
        pytest.raises(
            flow.GraphTraceError,
            match=r"test_hidden_state.py:\d+: a tensor is created on the device meta",
        ),
    ):
        call(torch.ones(1, device="cpu"))


def test_the_state_of_the_generator_is_an_error() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        return x + torch.get_rng_state().float().sum()

    with pytest.raises(
        flow.GraphTraceError, match=r"test_hidden_state.py:\d+: build\(\) calls torch.*rng_state"
    ):
        nn.Graph.trace(read)(torch.ones(1))
    call = flow.compile(read)
    for _ in range(2):
        torch.testing.assert_close(call(torch.ones(1)), read(torch.ones(1)))
        torch.rand(1000)


def test_a_refused_call_changes_no_state() -> None:
    """What is refused after the trace has not run: neither has the Python code in it."""
    seen = {"calls": 0, "scale": 2.0}

    @flow.nn.Graph.trace
    def graph(x: torch.Tensor) -> torch.Tensor:
        seen["calls"] = 7
        x.mul_(seen["scale"])
        return x + 1

    with pytest.raises(flow.GraphError, match="one in memory"):
        graph(torch.ones(1, 3).expand(2, 3))
    assert seen["calls"] == 0
