"""Detects calls by which Python code reads a value that differs at each call: the time, random numbers, files, the
state of PyTorch's generator. A trace would keep one value for all calls. Calls that print, or change files, the
process or settings of libraries, are detected as well, since a program does not repeat them."""

from __future__ import annotations

import builtins
import contextlib
import datetime
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

Kind = Literal["time", "random", "state", "file", "output", "effect", "text"]
#: the callback of `watched_calls`: gets the name of the called function, and the kind of its value
Met = Callable[[str, Kind], None]

_TIMES = (
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns",
)  # fmt: skip
#: methods of classes of `datetime` that return the time
_NOW: dict[type, tuple[str, ...]] = {
    datetime.datetime: ("now", "utcnow", "today"),
    datetime.date: ("today",),
}
#: functions that change files, the process or settings, by module: the first module that has a name counts
_EFFECTS: dict[str, tuple[str, ...]] = {
    "os": (
        "remove", "unlink", "rename", "replace", "mkdir", "rmdir", "link", "symlink", "truncate", "chmod", "chown",
        "utime", "chdir", "umask", "putenv", "unsetenv", "system", "posix_spawn", "posix_spawnp", "fork", "kill",
    ),
    "_posixsubprocess": ("fork_exec",),
    "_winapi": ("CreateProcess",),
    "signal": ("signal", "alarm", "setitimer"),
    "atexit": ("register", "unregister"),
    "gc": ("enable", "disable", "freeze", "set_threshold"),
    "sys": ("setrecursionlimit", "setswitchinterval", "settrace", "setprofile"),
    "random": ("seed", "setstate"),
    "numpy.random": ("seed", "set_state"),
    "numpy": ("seterr", "seterrcall", "setbufsize", "set_printoptions", "save", "savez", "savez_compressed", "savetxt"),
    "torch": (
        "save", "set_default_dtype", "set_default_device", "set_num_threads", "set_float32_matmul_precision",
        "use_deterministic_algorithms", "set_flush_denormal", "set_printoptions",
    ),
}  # fmt: skip
#: methods of generators that draw no random number
_STATE = {"seed", "getstate", "setstate", "get_state", "set_state"}
#: modules of the standard library that read files or random numbers internally
_FOR_THEMSELVES = {
    "ctypes", "encodings", "gettext", "importlib", "inspect", "linecache", "locale", "logging", "multiprocessing",
    "pkgutil", "platform", "pydoc", "sysconfig", "threading", "tokenize", "traceback", "unittest", "warnings",
    "zoneinfo",
}  # fmt: skip
#: functions of the standard library that open files to find something out
_PROBES = {"_get_default_tempdir"}


_LOGGING = logging.Logger.handle.__code__.co_filename
#: the registry of warnings that are issued once for each line
_warned: dict[Any, Any] = {}


@record
class _Watched:
    """A function that is watched. through: whether calls of it by the standard library on behalf of the author's code
    count."""

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
    for module, reading in files if numpy is not None else files[:1]:
        found += [_Watched(module, name, getattr(module, name), "file") for name in reading]
    found += [
        _Watched(m, "get_rng_state", m.get_rng_state, "state")  # type: ignore[attr-defined]
        for m in (torch, torch.random)
    ]
    for module_name, names in _EFFECTS.items():
        if (holder := sys.modules.get(module_name)) is None:
            continue
        # the standard library changes files on behalf of the author's code (shutil, pathlib, subprocess)
        through = module_name in ("os", "_posixsubprocess", "_winapi")
        found += [
            _Watched(holder, name, getattr(holder, name), "effect", through)
            for name in names
            if hasattr(holder, name)
        ]
    return found


def _drawing(module: Any) -> Iterator[tuple[str, Any]]:
    """The functions of a module that draw from its global generator."""
    for name, value in vars(module).items():
        holder = type(getattr(value, "__self__", None)).__name__
        if holder in ("Random", "RandomState") and not name.startswith("_") and name not in _STATE:
            yield name, value


class _Clock:
    """Replaces a class of `datetime`, and reports calls of its methods that return the time."""

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
    """While active, report calls of watched functions by this thread's user code.

    Args:
        met: gets the name and the kind of each call for the time, a random number, a file or the state of PyTorch's
            generator. Calls that print or have another effect are reported only for code that is not installed.
        importers: globals of modules that may have imported such functions by name. Those of modules that are not
            installed are always searched.
    """
    thread = threading.get_ident()

    def asked(what: str, kind: Kind, through: bool, frame: FrameType) -> None:
        asks = threading.get_ident() == thread and _is_asked_by_user(frame, through)
        effect = kind in ("output", "effect")
        if asks and not (effect and is_installed(frame.f_code.co_filename)):
            met(what, kind)

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        frame = sys._getframe(2)  # above the wrapper that checks the thread
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
    # a module may have a function under other names: `random` has a name of its own for `os.urandom`
    under = (vars(m) for name in ("io", "subprocess") if (m := sys.modules.get(name)) is not None)
    holders = [*(vars(w.module) for w in found), vars(datetime), *under, *importers, *_own()]
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
            put_back()  # repeated, since an interrupt may have ended the first attempt


def _streams(
    asked: Callable[[str, Kind, bool, FrameType], None],
) -> Iterator[tuple[Any, str, Any]]:
    """Replacements of `write` of the standard streams that report calls, as arguments of `replaced`."""
    streams: dict[str, Any] = {"sys.__stdout__": sys.__stdout__, "sys.__stderr__": sys.__stderr__}
    streams |= {"sys.stdout": sys.stdout, "sys.stderr": sys.stderr}
    for name, stream in {id(s): (n, s) for n, s in streams.items() if s is not None}.values():
        if not hasattr(stream, "__dict__"):
            continue
        original = stream.write

        def write(*args: Any, of: str = f"{name}.write()", to: Any = original) -> Any:
            asked(of, "output", False, sys._getframe(2))  # above the wrapper that checks the thread
            return to(*args)

        yield stream, "write", here_only(original, write)


def _is_asked_by_user(frame: FrameType | None, through: bool) -> bool:
    """Whether the call comes from user code, and not from the import of a module."""
    while frame is not None and (owner := owner_of(frame.f_code.co_filename)) != "user":
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if not through or owner != "standard" or module in _FOR_THEMSELVES:
            return False
        if frame.f_code.co_name in _PROBES:
            return False
        frame = frame.f_back
    asking = frame
    while frame is not None and owner_of(frame.f_code.co_filename) != "gflow":
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    return asking is not None


#: what is known of modules: name in sys.modules → the module, and whether a predicate holds for it
KnownModules = dict[str, tuple[weakref.ref[ModuleType], bool]]


def globals_of_modules(
    known: KnownModules, wanted: Callable[[str, ModuleType], bool]
) -> Iterator[dict[str, Any]]:
    """The globals of the loaded modules for which `wanted` holds.

    known: earlier answers, which are added to; thousands of modules are looked up at each first call.
    """
    for name, module in list(sys.modules.items()):
        found = known.get(name)
        if found is None or found[0]() is not module:
            if not isinstance(module, ModuleType):
                continue
            found = known[name] = (weakref.ref(module), wanted(name, module))
        if found[1]:
            yield vars(module)


#: whether modules are user modules
_OWN: KnownModules = {}


def _own() -> Iterator[dict[str, Any]]:
    """The globals of user modules: those that are not installed."""
    return globals_of_modules(_OWN, lambda _, module: _is_own(vars(module).get("__file__")))


def _is_own(file: object) -> bool:
    """Whether a file is user code that is not installed."""
    return isinstance(file, str) and not is_installed(file) and owner_of(file) == "user"


def warn_once(text: str) -> None:
    """Warn at the author's line, once for each line and text."""
    warnings.warn_explicit(text, UserWarning, *user_frame(2), registry=_warned)


def asked_by_build(graph: str, keeps_state: bool) -> Met:
    """The callback of `watched_calls` for the time in which the `build()` of a graph runs.

    Random numbers and the state of PyTorch's generator are errors; for the time, files, printing, other effects and
    the text of tensors it warns.

    Args:
        graph: the name of the graph.
        keeps_state: whether the function can run in pieces (`gflow.compile`). Then all of them are errors, so that it
            does.

    Raises:
        GraphTraceError: raised by the callback.
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
        if kind == "text":
            where = "while a graph is traced, has no values"
            if keeps_state:
                raise GraphTraceError(f"{here()}: Python asks for {name}, which, {where}.")
            warn_once(
                f"{graph} takes {name}, which, {where}: it has the dtype and shape. Return the tensor, and convert it "
                "outside of build()."
            )
            return
        if kind == "output":
            if keeps_state:
                raise GraphTraceError(f"{begin}nothing would be printed in later calls.")
            text = (
                f"build() of {graph} calls {name}. It runs once for each program, not at every call, so later calls "
                "print nothing. Print outside of build(), or return what is to be printed."
            )
            warn_once(text)
            return
        if kind == "effect":
            if keeps_state:
                raise GraphTraceError(f"{begin}later calls would not repeat that.")
            warn_once(
                f"build() of {graph} calls {name}. It runs once for each program, not at every call, so later calls do "
                "not repeat that. Call it outside of build()."
            )
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
    """The globals of the modules that define these functions, or the classes of these objects; without PyTorch's."""
    names = {getattr(o, "__module__", None) or type(o).__module__ for o in objects}
    modules = [sys.modules[n] for n in names if n in sys.modules and n.partition(".")[0] != "torch"]
    return [vars(m) for m in modules]
