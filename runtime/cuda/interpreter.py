"""A device without hardware: kernels run as Python on CPU tensors, by Triton's interpreter.

It is slow, for tests and debugging. Every address is checked before an access: it must belong to a tensor, and no
program of a launch may access memory that another program of the launch writes. Programs run in a shuffled order, which
depends only on the kernel's name, so a failure is reproducible.

Triton decides at import whether functions are compiled or interpreted. Here its language is switched to the interpreter
while a launch runs and restored afterwards, so both work in one process.
"""

from __future__ import annotations

import contextlib
import linecache
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from operator import methodcaller
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from gflow.dialects.program import DeviceCode, Program, TritonKernel

from ..device import DeviceError, Span
from ..steps.host_step import HostStep
from .device import Launch
from .interpreter_repair import repair
from .ownership import Owners
from .recording import Recorder

_lock = threading.RLock()


class InterpreterDevice(Recorder):
    """Interprets Triton kernels."""

    def check(self, program: Program) -> None:
        if program.target == "cpu":
            raise DeviceError(f"{program.name} is compiled for {program.target}, not for a GPU")

    def load(self, kernel: TritonKernel, config: int, code: DeviceCode | None) -> Any:
        return _load(kernel)

    def launch(self, launch: Launch) -> None:
        self.begin(self._run, launch)

    def _run(self, launch: Launch) -> None:
        try:
            with _lock, interpreting():
                _interpret(launch, self.spans)
        except Exception as error:
            reason = "\n".join(dict.fromkeys(_reasons(error)))
            raise DeviceError(
                f"{launch.kernel.name}{_line(error, launch.kernel)}: {reason}"
            ) from error

    def call(self, call: HostStep) -> None:
        self.begin(methodcaller("run"), call)

    def mark(self) -> float:
        return time.perf_counter()


def _reasons(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__


def _line(error: BaseException, kernel: TritonKernel) -> str:
    """The last line of the kernel's source in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == _path(kernel) and f.lineno]
    texts = kernel.source.split("\n")
    return f" at {texts[lines[-1] - 1].strip()!r}" if lines and lines[-1] <= len(texts) else ""


def _path(kernel: TritonKernel) -> str:
    return f"<{kernel.name}.py>"


def _load(kernel: TritonKernel) -> Any:
    """The kernel's function, loaded from its source."""
    # Triton need not be installed where nothing is interpreted
    import triton

    path = _path(kernel)
    linecache.cache[path] = (len(kernel.source), None, kernel.source.splitlines(True), path)
    module = ModuleType(kernel.name)
    module.__file__ = path
    before = triton.knobs.runtime.interpret
    triton.knobs.runtime.interpret = True
    try:
        exec(compile(kernel.source, path, "exec"), module.__dict__)
    finally:
        triton.knobs.runtime.interpret = before
    return getattr(module, kernel.name)


def _interpret(launch: Launch, spans: Sequence[Span]) -> None:
    """Run a launch, program by program."""
    # Triton need not be installed where nothing is interpreted
    import triton.language as tl
    from triton.runtime import interpreter

    kernel, step = launch.kernel, launch.step
    config = kernel.configs[step.config]
    values: dict[str, Any] = {**kernel.constants, **config.constants}
    for (name, kind), word in zip(kernel.parameters.items(), launch.words):
        ty = tl.str_to_ty(kind, None)
        if kind.startswith("*"):
            data = np.array([word], dtype=np.int64).view(np.uint64)
        else:
            data = np.frombuffer(word.tobytes(), interpreter._get_np_dtype(ty), 1).copy()
        if name in kernel.multiples and int(word) % 16:
            raise DeviceError(f"{name} is {int(word)}, which is no multiple of 16 as was promised")
        values[name] = tl.tensor(interpreter.TensorHandle(data, ty), ty)
    builder: Any = interpreter.interpreter_builder
    builder.gflow_regions = _sorted([(s.begin, s.begin + s.size) for s in spans if s.size])
    builder.set_grid_dim(*step.grid)
    builder.gflow_owners = owners = Owners()
    function = launch.function.rewrite()
    wanted = {n: v for n, v in values.items() if n in launch.function.arg_names}
    try:
        with np.errstate(all="ignore"):
            for number in _shuffled(prod(step.grid), kernel.name):
                across, rest = step.grid[0], number // step.grid[0]
                builder.set_grid_idx(number % across, rest % step.grid[1], rest // step.grid[1])
                owners.program = number
                function(**wanted)
    finally:
        builder.gflow_owners = None  # it may be large


def _shuffled(count: int, name: str) -> list[int]:
    """The numbers below `count`, in an order that depends only on a name."""
    numbers = [*range(count)]
    random.Random(name).shuffle(numbers)
    return numbers


def _sorted(regions: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    begin, end = np.array(sorted(regions), dtype=np.uint64).reshape(-1, 2).T
    return begin, np.maximum.accumulate(end)


class _Callable:
    """A function of Triton's own library, interpreted."""

    def __init__(self, function: Any) -> None:
        self.fn = function.fn
        self._rewrite: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Triton need not be installed where nothing is interpreted
        from triton.runtime.interpreter import InterpretedFunction

        if self._rewrite is None:
            self._rewrite = InterpretedFunction(self.fn).rewrite()
        return self._rewrite(*args, **kwargs)


_library: list[tuple[ModuleType, str, Any]] = []


def _functions() -> list[tuple[ModuleType, str, Any]]:
    """What is compiled in Triton's own library: module, name, and its interpreted form."""
    if not _library:
        # Triton need not be installed where nothing is interpreted
        import triton.language as tl
        from triton.language.extra import libdevice
        from triton.language.extra.cuda import libdevice as interpreted
        from triton.runtime.interpreter import interpreter_semantic
        from triton.runtime.jit import JITFunction

        known: dict[int, _Callable] = {}
        modules = [tl, tl.standard, tl.random, tl.math, tl.core]
        for module in modules:
            for name, value in vars(module).items():
                if isinstance(value, JITFunction):
                    known.setdefault(id(value), _Callable(value))
                    _library.append((module, name, known[id(value)]))
        for name, value in vars(interpreted).items():
            if tl.core.is_builtin(value):
                bound = partial(value, _semantic=interpreter_semantic)
                _library.append((libdevice, name, bound))
        repair()
    return _library


_depth = 0


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """A context manager in which Triton's language works on NumPy arrays."""
    global _depth
    # Triton need not be installed where nothing is interpreted
    import triton.language as tl
    from triton.runtime import interpreter

    if _depth:
        yield
        return
    # both names of the language, so that all that is changed is restored
    everything: Any = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    library = _functions()
    replaced = [(m, n, getattr(m, n)) for m, n, _ in library]
    for module, name, function in library:
        setattr(module, name, function)
    scope = interpreter._patch_lang(everything)
    # Triton 3.6 gives `int` an array of one element, which NumPy refuses since 2.4
    scope.set_attr(tl.core.tensor, "__index__", lambda x: int(x.handle.data.item()))
    own_call = interpreter.InterpretedFunction.__call__
    interpreter.InterpretedFunction.__call__ = lambda f, *a, **k: f.rewrite()(*a, **k)
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        interpreter.InterpretedFunction.__call__ = own_call
        scope.restore()
        for module, name, value in replaced:
            setattr(module, name, value)
