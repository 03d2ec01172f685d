"""Calls by which Python code asks for what is different at each call: the time, random numbers, files, the state of
PyTorch's generator, of which a trace would hold one outcome for ever; and calls that print, which it would not
repeat."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import io
import logging
import os
import random
import sys
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any, Literal

import torch

from gflow.dialects.records import record
from gflow.errors import GraphTraceError

from .location import here, is_installed, owner_of, user_frame
from .threads import here_only, replaced

Kind = Literal["time", "random", "state", "file", "output"]
#: what `watched_calls` tells: the name of a function that is called, and what it answers
Met = Callable[[str, Kind], None]

_TIMES = (
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns",
)  # fmt: skip
#: methods of classes of `datetime` that answer with the time
_NOW: dict[type, tuple[str, ...]] = {
    datetime.datetime: ("now", "utcnow", "today"),
    datetime.date: ("today",),
}
#: methods of generators that draw nothing
_STATE = {"seed", "getstate", "setstate", "get_state", "set_state"}
#: modules of the standard library that read files or numbers for purposes of their own
_FOR_THEMSELVES = {
    "ctypes", "encodings", "gettext", "importlib", "inspect", "linecache", "locale", "logging", "multiprocessing",
    "pkgutil", "platform", "pydoc", "sysconfig", "tempfile", "threading", "tokenize", "traceback", "unittest",
    "warnings", "zoneinfo",
}  # fmt: skip


_LOGGING = logging.Logger.handle.__code__.co_filename
#: lines that were told to print once
_told: dict[Any, Any] = {}


@record
class _Watched:
    """A function that is watched. through: also where the author's code calls it by the standard library."""

    module: ModuleType
    name: str
    original: Any
    kind: Kind
    through: bool = False

    def __str__(self) -> str:
        prefix = "" if self.module is builtins else f"{self.module.__name__}."
        return f"{prefix}{self.name}()"


def _functions() -> list[_Watched]:
    numpy: Any = sys.modules.get("numpy")
    found = [_Watched(time, name, getattr(time, name), "time") for name in _TIMES]
    for module in (random, *((numpy.random,) if numpy is not None else ())):
        found += [_Watched(module, name, value, "random") for name, value in _drawing(module)]
    for module, name in ((os, "urandom"), (uuid, "uuid1"), (uuid, "uuid4")):
        found.append(_Watched(module, name, getattr(module, name), "random", through=True))
    for module, name in ((builtins, "open"), (os, "open"), (os, "listdir"), (os, "scandir")):
        found.append(_Watched(module, name, getattr(module, name), "file", through=True))
    for module, name in ((builtins, "print"), (os, "write")):
        found.append(_Watched(module, name, getattr(module, name), "output"))
    files = ((torch, ("load",)), (numpy, ("load", "loadtxt", "genfromtxt", "fromfile")))
    for module, names in files if numpy is not None else files[:1]:
        found += [_Watched(module, name, getattr(module, name), "file") for name in names]
    found += [
        _Watched(m, "get_rng_state", m.get_rng_state, "state")  # type: ignore[attr-defined]
        for m in (torch, torch.random)
    ]
    return found


def _drawing(module: Any) -> Iterator[tuple[str, Any]]:
    """The functions of a module that draw from its own generator."""
    for name, value in vars(module).items():
        holder = type(getattr(value, "__self__", None)).__name__
        if holder in ("Random", "RandomState") and not name.startswith("_") and name not in _STATE:
            yield name, value


class _Clock:
    """Stands for a class of `datetime`, and tells of its methods that answer with the time."""

    def __init__(self, real: type, met: Callable[[str], None]) -> None:
        self._real, self._met = real, met

    def __getattr__(self, name: str) -> Any:
        if name in _NOW[self._real]:
            self._met(f"{self._real.__module__}.{self._real.__name__}.{name}()")
        return getattr(self._real, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real(*args, **kwargs)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._real)

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self._real)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (self._real,)

    def __or__(self, other: Any) -> Any:
        return self._real | other

    def __ror__(self, other: Any) -> Any:
        return other | self._real

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._real

    def __hash__(self) -> int:
        return hash(self._real)


@contextlib.contextmanager
def watched_calls(met: Met, importers: Sequence[dict[str, Any]] = ()) -> Iterator[None]:
    """While active, `met` gets the name of each function that this thread's own code calls for the time, a random
    number, a file or the state of PyTorch's generator, and by which code that is not installed prints. importers: the
    globals of modules that may have imported such functions by name; those of modules that are not installed are
    looked at, too."""
    thread = threading.get_ident()

    def asked(what: str, kind: Kind, through: bool, frame: FrameType) -> None:
        asks = threading.get_ident() == thread and _is_asked_by_user(frame, through)
        if asks and (kind != "output" or not is_installed(frame.f_code.co_filename)):
            met(what, kind)

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        frame = sys._getframe(2)  # behind the wrapper that asks for the thread
        while frame.f_code.co_filename == _LOGGING and frame.f_back is not None:
            frame = frame.f_back
        asked(f"the logger {logger.name}", "output", False, frame)
        emit(logger, record)

    emit = logging.Logger.handle
    found = _functions()
    stand_ins: dict[int, Any] = {}
    for watched in found:

        def call(*args: Any, of: _Watched = watched, **kwargs: Any) -> Any:
            asked(str(of), of.kind, of.through, sys._getframe(1))
            return of.original(*args, **kwargs)

        stand_ins[id(watched.original)] = call
    for real in _NOW:
        stand_ins[id(real)] = _Clock(
            real, lambda name: asked(name, "time", False, sys._getframe(2))
        )
    # a module may have a function by other names, too: `random` calls `os.urandom` by one of its own
    holders = [*(vars(w.module) for w in found), vars(datetime), vars(io), *importers, *_own()]
    places: list[tuple[dict[str, Any], str, Any]] = []
    for names in {id(n): n for n in holders}.values():
        places += [(names, *entry) for entry in list(names.items()) if id(entry[1]) in stand_ins]
    saved: list[tuple[dict[str, Any], str, Any]] = []

    def put_back() -> None:
        for names, key, original in saved:
            names[key] = original

    try:
        for names, key, value in places:
            saved.append((names, key, value))
            names[key] = stand_ins[id(value)]
        printing = [*_streams(asked), (logging.Logger, "handle", here_only(emit, handle))]
        with replaced(*printing):
            yield
    finally:
        try:
            put_back()
        finally:
            put_back()  # once more: an interrupt may have ended the first


def _streams(
    asked: Callable[[str, Kind, bool, FrameType], None],
) -> Iterator[tuple[Any, str, Any]]:
    """What `write` of the standard streams is replaced by, to tell of calls of it."""
    streams: dict[str, Any] = {"sys.__stdout__": sys.__stdout__, "sys.__stderr__": sys.__stderr__}
    streams |= {"sys.stdout": sys.stdout, "sys.stderr": sys.stderr}
    for name, stream in {id(s): (n, s) for n, s in streams.items() if s is not None}.values():
        if not hasattr(stream, "__dict__"):
            continue
        original = stream.write

        def write(*args: Any, of: str = f"{name}.write()", to: Any = original) -> Any:
            asked(of, "output", False, sys._getframe(2))  # behind the wrapper for the thread
            return to(*args)

        yield stream, "write", here_only(original, write)


def _is_asked_by_user(frame: FrameType | None, through: bool) -> bool:
    """Whether the author's code asks, and not a module that it imports."""
    while frame is not None and (owner := owner_of(frame.f_code.co_filename)) != "user":
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if not through or owner != "standard" or module in _FOR_THEMSELVES:
            return False
        frame = frame.f_back
    asking = frame
    while frame is not None and owner_of(frame.f_code.co_filename) != "gflow":
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    return asking is not None


def _own() -> Iterator[dict[str, Any]]:
    """The globals of modules that are the author's own: those that are not installed."""
    for name, module in list(sys.modules.items()):
        known = _OWN.get(name)
        if known is None or known[0]() is not module:
            if not isinstance(module, ModuleType):
                continue
            known = _OWN[name] = (weakref.ref(module), _is_own(vars(module).get("__file__")))
        if known[1]:
            yield vars(module)


#: names in sys.modules → the module, and whether it is the author's own: thousands are asked about at each first call
_OWN: dict[str, tuple[weakref.ref[ModuleType], bool]] = {}


def _is_own(file: object) -> bool:
    """Whether a file is the author's own."""
    return isinstance(file, str) and not is_installed(file) and owner_of(file) == "user"


def warn_once(text: str) -> None:
    """Warn at the author's line, once for each line and text."""
    warnings.warn_explicit(text, UserWarning, *user_frame(2), registry=_told)


def asked_by_build(graph: str, keeps_state: bool) -> Met:
    """What `watched_calls` calls while the `build()` of a graph runs: random numbers and the state of PyTorch's
    generator are errors, the time, files and what is printed are told. keeps_state: whether the program is one of a
    function that can run in pieces (`gflow.compile`): all of them are errors, so that it does.

    Raises:
        GraphTraceError: (the function) for a random number or the state.
    """

    def met(name: str, kind: Kind) -> None:
        begin = f"{here()}: build() calls {name}. build() runs once for each program, not at every call, so "
        if kind == "state":
            raise GraphTraceError(
                f"{begin}the state would stay the same. Ask for it before the call, and pass it as an argument."
            )
        if kind == "random":
            raise GraphTraceError(
                f"{begin}the number would stay the same. Draw it as a tensor (torch.rand), or pass it as an argument."
            )
        if kind == "output":
            if keeps_state:
                raise GraphTraceError(f"{begin}nothing would be printed in later calls.")
            text = (
                f"build() of {graph} calls {name}. It runs once for each program, not at every call, so later calls "
                "print nothing. Print outside of build(), or return what is to be printed."
            )
            warn_once(text)
            return
        what = "the time" if kind == "time" else "what it reads"
        if keeps_state:
            raise GraphTraceError(f"{begin}{what} would stay the same. Pass it as an argument.")
        file, line = user_frame(2)
        text = (
            f"build() of {graph} calls {name}. It runs once for each program, not at every call, so {what} is a "
            "constant in the program. Pass it as an argument."
        )
        warnings.warn_explicit(text, UserWarning, file, line)

    return met


def globals_of(objects: Iterable[Any]) -> list[dict[str, Any]]:
    """The globals of the modules that define functions, or the classes of objects; without PyTorch's."""
    names = {getattr(o, "__module__", None) or type(o).__module__ for o in objects}
    modules = [sys.modules[n] for n in names if n in sys.modules and n.partition(".")[0] != "torch"]
    return [vars(m) for m in modules]
