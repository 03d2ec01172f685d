"""Calls by which an optimizer's step would depend on more than its state: random numbers and the time of Python. A
trace would keep one value for all calls."""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import random
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from gflow.errors import GraphTraceError
from gflow.tracing.reads.settings import is_iterator

from ..context.location import is_user_code
from ..context.watched_calls import Kind, warn_once, watched_calls


def _error(where: str, name: str) -> GraphTraceError:
    return GraphTraceError(
        f"{where}: step() calls {name}. step() runs once, while it is traced, so the value would be "
        "the same at each step. Draw random numbers as tensors (torch.rand), and keep counters in the "
        "state."
    )


class Refused:
    """Replaces a value of an optimizer that a trace cannot have: any use of it is an error with this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise GraphTraceError(self._text)


def _use(self: Refused, *args: Any, **kwargs: Any) -> Any:
    raise GraphTraceError(self._text)


_BINARY = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "xor",
    "or",
)  # fmt: skip
for _name in (
    *(prefix + name for name in _BINARY for prefix in ("", "r", "i")), "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos",
    "abs", "invert", "bool", "int", "float", "complex", "index", "round", "len", "iter", "next", "reversed", "contains",
    "getitem", "setitem", "delitem", "call", "enter", "exit", "array", "str", "format", "bytes",
):  # fmt: skip
    setattr(Refused, f"__{_name}__", _use)

#: containers that mirrors support
_CONTAINERS = (dict, list, tuple, set, deque, bytearray, OrderedDict, defaultdict, Counter)


def refused(where: str, name: Any, value: Any) -> Refused | None:
    """The `Refused` for a value that a trace cannot have; None for other values."""
    if type(value) in _CONTAINERS or isinstance(value, tuple):
        return None
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, random.Random) or kind.startswith("numpy.random."):
        return Refused(str(_error(where, f"a function of {name!r}, a {kind},")))
    if is_iterator(value):
        return Refused(
            f"{where}: step() takes values from {name!r}, a {kind}: a graph runs step() once, while it is "
            "traced. Keep a counter in the state, or the values in a list, and index it by the counter."
        )
    if isinstance(value, (dict, list)) and _has_methods(type(value)):
        return Refused(
            f"{where}: step() uses {name!r}, a {kind}, whose class has methods of its own: a graph sees what changes "
            "in a plain dict or list. Keep it as one of those."
        )
    own = type(value).__module__.partition(".")[0]
    if (
        not hasattr(value, "__dict__")
        and hasattr(type(value), "__slots__")
        and own not in sys.stdlib_module_names
        and own not in ("torch", "numpy")
    ):
        return Refused(
            f"{where}: step() uses {name!r}, a {kind}, whose class has __slots__: a graph cannot see what "
            "changes in it. Leave __slots__ out, or keep its values in the parameter groups or the state."
        )
    if _may_change(value):
        return Refused(
            f"{where}: step() uses {name!r}, a {kind}: a graph cannot see what changes in it. Keep it as a list, a "
            "dict or a tensor."
        )
    return None


def _has_methods(kind: type) -> bool:
    """Whether a subclass of dict or list has methods that those do not have."""
    own = [cls for cls in kind.__mro__ if cls not in (*_CONTAINERS, object)]
    return any(callable(v) or hasattr(type(v), "__get__") for cls in own for v in _functions(cls))


def _functions(cls: type) -> list[Any]:
    return [v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")]


def _may_change(value: Any) -> bool:
    """Whether an object without a `__dict__` is mutable: by Python's convention, mutable objects have no hash."""
    if isinstance(value, (memoryview, contextvars.ContextVar, threading.local)):
        return True
    return (
        type(value).__hash__ is None
        and not hasattr(value, "__dict__")
        and not isinstance(value, (*_CONTAINERS, slice))
    )


def module_names(kind: type) -> list[dict[str, Any]]:
    """The globals of the modules that a class's code is likely to use: its own module, its siblings, and those of its
    bases."""
    packages = {
        cls.__module__.rpartition(".")[0] or cls.__module__
        for cls in kind.__mro__
        if cls.__module__.partition(".")[0] not in ("builtins", "torch", "typing", "abc")
    }
    names = {cls.__module__ for cls in kind.__mro__} - {"builtins"}
    return [
        vars(module)
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and (name in names or name.rpartition(".")[0] in packages)
        and name.partition(".")[0] != "torch"
    ]


def refused_calls(
    where: str, importers: Sequence[dict[str, Any]] = ()
) -> contextlib.AbstractContextManager[None]:
    """While active, calls by this thread's user code for the time, a random number or a file are errors: a step makes
    them.

    importers: as for `watched_calls`.
    """

    def refuse(name: str, kind: Kind) -> None:
        if kind not in ("output", "effect"):
            raise _error(where, name)
        left = "print nothing" if kind == "output" else "do not repeat that"
        text = f"{where}: step() calls {name}. A graph runs step() once, while it is traced, so later steps {left}."
        warn_once(text)

    return watched_calls(refuse, importers)


@contextlib.contextmanager
def real_ids(real: Callable[[object], object]) -> Iterator[None]:
    """While active, `id` returns to this thread's user code the id of the tensor that a traced one represents: an
    optimizer may have stored parameters by their ids. real: gives that tensor, or the object itself."""
    thread, original = threading.get_ident(), builtins.id

    def call(value: object, /) -> int:
        if threading.get_ident() == thread and is_user_code(sys._getframe(1).f_code):
            return original(real(value))
        return original(value)

    builtins.id = call
    try:
        yield
    finally:
        builtins.id = original
