"""Calls by which Python code asks for the time, for a random number, or for the state of PyTorch's generator: a trace
would hold one outcome for ever."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gflow.errors import GraphTraceError

from .location import here, is_user_code, user_frame

_TIMES = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
_RNG_STATE = "get_rng_state"
#: methods of generators that draw nothing
_STATE = {"seed", "getstate", "setstate", "get_state", "set_state"}


def _drawing(module: Any) -> Iterator[tuple[str, Any]]:
    """The functions of a module that draw from its own generator."""
    for name, value in vars(module).items():
        holder = type(getattr(value, "__self__", None)).__name__
        if holder in ("Random", "RandomState") and not name.startswith("_") and name not in _STATE:
            yield name, value


@contextlib.contextmanager
def watched_calls(
    met: Callable[[str, bool], None], importers: Sequence[dict[str, Any]] = ()
) -> Iterator[None]:
    """While active, `met` gets the name of each function that this thread's own code calls for the time, a random
    number or the state of PyTorch's generator, and whether it is the time. importers: the globals of modules that may
    have imported such functions by name."""
    thread = threading.get_ident()
    saved: list[tuple[dict[str, Any], str, Any]] = []
    found: list[tuple[Any, str, Any]] = [(time, name, getattr(time, name)) for name in _TIMES]
    numpy: Any = sys.modules.get("numpy")
    for module in (random, *((numpy.random,) if numpy is not None else ())):
        found += [(module, name, value) for name, value in _drawing(module)]
    found += [(m, _RNG_STATE, getattr(m, _RNG_STATE)) for m in (torch, torch.random)]
    originals = {}
    for module, name, original in found:

        def call(
            *args: Any,
            original: Any = original,
            what: str = f"{module.__name__}.{name}()",
            timed: bool = module is time,
            **kwargs: Any,
        ) -> Any:
            if threading.get_ident() == thread and is_user_code(sys._getframe(1).f_code):
                met(what, timed)
            return original(*args, **kwargs)

        originals[id(original)] = call
    for names in {id(n): n for n in (*(vars(m) for m, _, _ in found), *importers)}.values():
        for key, value in list(names.items()):
            if id(value) in originals:
                saved.append((names, key, value))
                names[key] = originals[id(value)]
    try:
        yield
    finally:
        for names, key, original in saved:
            names[key] = original


def asked_by_build(graph: str) -> Callable[[str, bool], None]:
    """What `watched_calls` calls while the `build()` of a graph runs: random numbers and the state of PyTorch's
    generator are errors, the time is told.

    Raises:
        GraphTraceError: (the function) for a random number or the state.
    """

    def met(name: str, time: bool) -> None:
        if name.partition("(")[0].endswith(_RNG_STATE):
            raise GraphTraceError(
                f"{here()}: build() calls {name}. build() runs once for each program, not at every call, so the state "
                "would stay the same. Ask for it before the call, and pass it as an argument."
            )
        if not time:
            raise GraphTraceError(
                f"{here()}: build() calls {name}. build() runs once for each program, not at every call, so "
                "the number would stay the same. Draw it as a tensor (torch.rand), or pass it as an argument."
            )
        file, line = user_frame(2)
        text = (
            f"build() of {graph} calls {name}. It runs once for each program, not at every call, so the time is a "
            "constant in the program. Pass it as an argument."
        )
        warnings.warn_explicit(text, UserWarning, file, line)

    return met


def globals_of(objects: Iterable[Any]) -> list[dict[str, Any]]:
    """The globals of the modules that define functions, or the classes of objects; without PyTorch's."""
    names = {getattr(o, "__module__", None) or type(o).__module__ for o in objects}
    modules = [sys.modules[n] for n in names if n in sys.modules and n.partition(".")[0] != "torch"]
    return [vars(m) for m in modules]
