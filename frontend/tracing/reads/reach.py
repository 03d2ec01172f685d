"""What a walk over the Python state that code can read has found so far."""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Iterable, Mapping
from types import CodeType
from typing import Any, NamedTuple

import torch

from gflow.tracing.context.location import is_installed

from .names import is_library, names_of, read_names

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, range,
    torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size,
)  # fmt: skip
#: attributes of modules that gflow itself reads: `no_sync()` sets the second
_ALWAYS = {"training", "require_backward_grad_sync"}
#: containers with more items are compared by identity and length
MOST_ITEMS = 10_000
#: the value of a missing attribute or item
MISSING = object()


class Read(NamedTuple):
    """One value that is read.

    Args:
        kind: how it is read, see `state.now`.
        path: its name in messages.
        key: for "names", whether code may read any name, or the class that the names belong to; for "call", the
            function that restores the value, if there is one.
    """

    kind: str
    holder: Any
    key: Any
    value: Any
    path: str


def is_plain(value: Any) -> bool:
    """Whether a value is completely described by equality."""
    if isinstance(value, (tuple, frozenset)):
        return not hasattr(value, "__dict__") and all(map(is_plain, value))
    return isinstance(value, _PLAIN) and not hasattr(value, "__dict__")


@functools.cache
def of_library(module: str) -> bool:
    """Whether a module, by its name, belongs to Python, PyTorch, NumPy or gflow."""
    root = module.partition(".")[0]
    return root in ("torch", "gflow", "builtins", "numpy") or root in sys.stdlib_module_names


class Reach:
    """What code can read, starting from some objects: the state of a walk (`reads.Reads`), and its results.

    Args:
        codes: functions that ran, with their globals.
        known: objects that are not inspected.
        closely: whether values in public attributes of libraries' objects, containers in the standard library's
            modules and large arrays count, too: functions, which are not inspected, may change them. A guard does not
            compare them.

    Its attributes have the results:

        modules    PyTorch modules that were reached, by name
        tensors    tensors that were reached
        iterators  objects that return other values at each use, by name
        opaque     names of objects that change invisibly, with their descriptions
        large      names of arrays that are too large to be compared at each call, with their sizes in bytes
        arrays     NumPy arrays, by name
        unset      variables that may be set, and have no value
        finalized  names of classes with `__del__` of their own
        cached     functions of `functools.lru_cache`, with their names
    """

    def __init__(
        self,
        codes: Mapping[CodeType, dict[str, Any]] | None = None,
        known: Iterable[Any] = (),
        closely: bool = False,
    ) -> None:
        self.closely = closely
        self.codes: dict[CodeType, dict[str, Any]] = dict(codes or {})
        self.known = {id(k): k for k in known}
        self.names: set[str] = set()
        self.computed = self.computed_by_user = self.assigning = self.locals_read = False
        self.found: list[Read] = []
        self.modules: dict[str, torch.nn.Module] = {}
        self.tensors: list[torch.Tensor] = []
        self.iterators: list[tuple[str, Any]] = []
        self.scripted: list[str] = []
        self.opaque: list[tuple[str, str]] = []
        self.large: list[tuple[str, int]] = []
        self.arrays: list[tuple[str, Any]] = []
        self.unset: list[str] = []
        self.finalized: list[str] = []
        self.cached: list[tuple[str, Any]] = []
        self.reached: list[Any] = []
        self.seen: dict[Any, Any] = {}
        self.own_names: set[str] = set()  # names in user code
        self.asked: set[str] = set()  # names in objects such as operator.attrgetter

    def begin(self) -> None:
        """Forget what was found; functions and names stay."""
        self.found, self.modules, self.tensors, self.reached = [], {}, [], []
        self.iterators, self.opaque, self.unset, self.cached = [], [], [], []
        self.scripted = []
        self.large, self.arrays, self.finalized = [], [], []
        self.seen = dict(self.known)
        self.names = set().union(*map(read_names, self.codes)) | _ALWAYS | self.asked
        own = [c for c in self.codes if not is_library(c)]
        self.own_names = set().union(*map(read_names, own)) | self.asked
        self.locals_read = any(
            "f_locals" in read_names(c) for c in own if not is_installed(c.co_filename)
        )
        self.assigning = "setattr" in self.names or any(names_of(c).assigned for c in own)
        computing = [c for c in own if names_of(c).computed]
        self.computed = bool(computing)
        self.computed_by_user = not all(is_installed(code.co_filename) for code in computing)

    def add(self, kind: str, holder: Any, key: Any, value: Any, path: str) -> None:
        """Record a read."""
        self.found.append(Read(kind, holder, key, value, path))

    def item(self, holder: dict[Any, Any], key: Any, path: str) -> None:
        """Record a read of a dict's value."""
        value = holder[key]
        self.add("item", holder, key, value, path)
        self.visit(value, path)

    def visit(self, value: Any, path: str, root: bool = False) -> None:
        """Find all that is read from a value. root: whether a function counts as one that runs."""
        raise NotImplementedError
