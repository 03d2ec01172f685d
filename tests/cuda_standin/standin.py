"""The Python side of the stand-in for CUDA (runtime.c): launches are interpreted, graphs are lists of them.

PyTorch takes the library for a GPU's runtime, so that modules, gradients and optimizers on `cuda` are traced as on
a machine with a GPU, and gflow's kernels, compiled for it and loaded as such, run in Triton's interpreter. PyTorch's
own kernels don't run, but for those that fill memory: `own` counts them by name.
"""

from __future__ import annotations

import collections
import ctypes
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gflow.dialects.program import DeviceCode, TritonKernel
from gflow.runtime.cuda import interpreter
from gflow.runtime.cuda.device import Launch
from gflow.runtime.cuda.gpu import Gpu
from gflow.runtime.cuda.launches import size_of
from gflow.runtime.device import Span

#: PyTorch's kernels that were launched, which did nothing
own: collections.Counter[str] = collections.Counter()
#: what went wrong in launches
errors: list[str] = []
#: launches since the start, and launches of graphs
launched: collections.Counter[str] = collections.Counter()

_kernels: dict[int, tuple[TritonKernel, int, Any]] = {}
_graphs: dict[int, list[Callable[[], None]]] = collections.defaultdict(list)
_spans: Sequence[Span] = ()
_library: Any = None
_told: list[Any] = []


def active() -> bool:
    """Whether this process was started with the library in the place of CUDA's."""
    return hasattr(ctypes.CDLL(None), "standin_tell")


def updates() -> int:
    """How often a launch in an instantiated graph has got other arguments."""
    return int(_library.standin_updates())


def do_nothing() -> None:
    """Tell the library of kernels' parameters. Launches do nothing."""
    global _library
    _library = ctypes.CDLL(None)
    _library.standin_capturing.restype = _library.standin_updates.restype = ctypes.c_long
    load = Gpu.load

    def loading(self: Gpu, kernel: TritonKernel, config: int, code: DeviceCode | None) -> Any:
        found = load(self, kernel, config, code)
        sizes = [*map(size_of, kernel.parameters.values()), 8, 8]
        _library.standin_parameters(
            ctypes.c_void_p(found.function), len(sizes), (ctypes.c_int * len(sizes))(*sizes)
        )
        return found

    Gpu.load = loading  # type: ignore[method-assign]


def install() -> None:
    """Interpret launches."""
    if _library is not None:
        return
    do_nothing()
    u, p = ctypes.c_uint, ctypes.c_void_p
    kinds = [
        (_launch, [p, u, u, u, p]),
        (_graph, [ctypes.c_long]),
        (_copy, [p, p, ctypes.c_size_t, ctypes.c_int]),
        (_own, [ctypes.c_char_p, p]),
    ]
    for function, arguments in kinds:
        _told.append(ctypes.CFUNCTYPE(None, *arguments)(_noting_errors(function)))
    _library.standin_tell(*_told)
    load = Gpu.load

    def loading(self: Gpu, kernel: TritonKernel, config: int, code: DeviceCode | None) -> Any:
        found = load(self, kernel, config, code)
        _kernels[found.function] = kernel, config, interpreter._load(kernel)
        return found

    def placed(self: Gpu, spans: Sequence[Span]) -> None:
        global _spans
        _spans = list(spans)

    begin = Gpu.__init__

    def checked(self: Gpu, *args: Any) -> None:
        begin(self, *args)
        self.checks = True

    Gpu.load, Gpu.placed, Gpu.__init__ = loading, placed, checked  # type: ignore[method-assign]


def _noting_errors(function: Callable[..., None]) -> Callable[..., None]:
    def run(*args: Any) -> None:
        try:
            function(*args)
        except BaseException:
            errors.append(traceback.format_exc())

    return run


def _do(action: Callable[[], None]) -> None:
    graph = _library.standin_capturing()
    if graph:
        _graphs[graph].append(action)
    else:
        action()


@dataclass(frozen=True)
class _Step:
    """What the interpreter reads of a `LaunchStep`."""

    grid: tuple[int, int, int]
    config: int


def _launch(function: int, x: int, y: int, z: int, parameters: int) -> None:
    kernel, config, loaded = _kernels[function]
    addresses = (ctypes.c_void_p * len(kernel.parameters)).from_address(parameters)
    step = _Step((x, y, z), config)

    def run() -> None:
        words = np.array([ctypes.c_int64.from_address(a).value for a in addresses], dtype=np.int64)
        launch = Launch(step, kernel, loaded, words, 0)  # type: ignore[arg-type]
        launched[kernel.name] += 1
        with interpreter._lock, interpreter.interpreting():
            interpreter._interpret(launch, _spans)

    _do(run)


def _graph(graph: int) -> None:
    launched["graph"] += 1
    for action in _graphs[graph]:
        action()


def _copy(to: int, source: int | None, size: int, value: int) -> None:
    if source is None:
        _do(lambda: ctypes.memset(to, value, size) and None)
    else:
        _do(lambda: ctypes.memmove(to, source, size) and None)


#: how a C++ name spells the type of the elements that are filled, and their size
_FILL = re.compile(r"FillFunctorI(N3c10\d+(?:Half|BFloat16)|[a-z])E")
_SIZES = {"f": 4, "d": 8, "l": 8, "i": 4, "s": 2, "a": 1, "h": 1, "b": 1}


def _own(name: bytes, arguments: int) -> None:
    """A kernel of PyTorch's: one that fills memory (elements, value, address) is done, others are
    counted."""
    text = name.decode()
    fill = _FILL.search(text)
    if fill is None or "vectorized_elementwise_kernel" not in text:
        own[text] += 1
        return
    size = _SIZES.get(fill[1], 2)
    elements, value, to = (ctypes.c_void_p * 3).from_address(arguments)
    count = ctypes.c_int.from_address(elements).value
    data = ctypes.string_at(value, size) * count
    address = ctypes.c_void_p.from_address(to).value
    _do(lambda: ctypes.memmove(address, data, len(data)) and None)
