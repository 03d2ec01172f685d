"""The Python state that functions can read: attributes, globals, closures, items of containers.

Python does not report which attributes of which objects were read. Therefore this file matches the names in the code
that ran with the objects that this code can reach. An attribute of a reachable object counts as read if its name
occurs in the code.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import inspect
import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import torch

from gflow.tracing.program.unwrapped import unwrapped

from .names import is_library
from .of_classes import read_class, read_constructor
from .of_functions import (
    read_cell,
    read_function,
    read_functions_of_networks,
    read_globals,
    read_python_module,
)
from .of_modules import read_methods_of_tensors, read_module, read_tensor
from .of_objects import read_array, read_container, read_getter, read_object
from .reach import Reach, is_plain
from .settings import (
    cleared_of,
    is_iterator,
    is_unset,
    out_of_sight,
    putting_back,
    settings,
    size_of,
    value_of,
)

#: the prefix of PyTorch's modules whose code is searched for the functions that it calls
_NETWORKS = "torch.nn."
#: types of views of dicts
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class Reads(Reach):
    """A walk over what code can read, starting from some objects; see `Reach` for what it finds."""

    def walk(self, roots: Iterable[tuple[str, Any]]) -> Reads:
        """Find all that is read from `roots`, by name."""
        roots = list(roots)
        count = (-1, 0)
        while count != (len(self.codes), len(self.asked)):  # until no new function is found
            count = (len(self.codes), len(self.asked))
            self.begin()
            for code, names in list(self.codes.items()):
                if not is_library(code):
                    read_globals(self, code, names)
                elif str(names.get("__name__")).startswith(_NETWORKS):
                    read_functions_of_networks(self, code, names)
            for path, value in roots:
                self.visit(value, path, root=True)
        if self.locals_read:
            self.opaque.append(("f_locals", "the local variables of other functions"))
        read_methods_of_tensors(self)
        for path, read, put in settings(self.names, self.own_names if self.closely else ()):
            self.add("call", read, put, read(), path)
        return self

    def visit(self, value: Any, path: str, root: bool = False) -> None:
        value = unwrapped(value)
        if type(value) in weakref.ProxyTypes:
            value = _behind(value)
        if is_plain(value) or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            read_tensor(self, value, path)
        elif isinstance(value, torch.jit.ScriptModule):
            self.scripted.append(path)
        elif isinstance(value, torch.nn.Module):
            read_module(self, value, path)
        elif isinstance(value, FunctionType):
            read_function(self, value, path, root)
        elif isinstance(value, MethodType):
            self.visit(value.__self__, path.rpartition(".")[0] or path)
            self.visit(value.__func__, path, root)
        elif isinstance(value, functools.partial):
            for n, part in enumerate((value.func, *value.args)):
                self.visit(part, f"{path}.{n}")
            if not isinstance(value.func, FunctionType):  # of `getattr`, say
                self.asked.update(part for part in value.args if isinstance(part, str))
            self.visit(value.keywords, f"{path}.keywords")
        elif isinstance(value, (staticmethod, classmethod)):
            self.visit(value.__func__, path)
        elif isinstance(value, property):
            self.visit(value.fget, path)
        elif isinstance(value, functools.cached_property):
            self.visit(value.func, path)
        elif isinstance(value, functools.singledispatchmethod):
            self.visit(value.dispatcher, path)
        elif isinstance(value, functools.partialmethod):
            self.visit((value.func, value.args, value.keywords), path)
        elif isinstance(value, weakref.ref):
            self.visit(value(), path)
        elif isinstance(value, slice):
            self.visit((value.start, value.stop, value.step), path)
        elif isinstance(value, CellType):
            read_cell(self, value, path)
        elif isinstance(value, type):
            read_class(self, value, path)
            read_constructor(self, value, path)
        elif isinstance(value, ModuleType):
            read_python_module(self, value, path)
        elif isinstance(value, (list, tuple, dict, set, frozenset, deque)):
            read_container(self, value, path)
        elif isinstance(value, (MappingProxyType, *_VIEWS)):
            for part in gc.get_referents(value):  # it returns a copy of a read-only mapping
                self.visit(part, path)
        elif size := size_of(value):
            read_array(self, value, path, size)
        elif (read := value_of(value)) is not None:
            held = read()
            self.add("call", read, putting_back(value), held, path)
            if "set" in self.names and is_unset(value):
                self.unset.append(path)
            if isinstance(value, contextvars.ContextVar):
                self.visit(held, path)
        elif is_iterator(value):
            self.iterators.append((path, value))
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            read_getter(self, value, path)
        elif isinstance(value, (BuiltinFunctionType, MethodWrapperType)) or isinstance(
            vars(type(value)).get("__self__"), GetSetDescriptorType
        ):
            if not isinstance(
                value.__self__, (ModuleType, type)
            ):  # a method of a value that it holds
                self.asked.add(value.__name__)
                self.visit(value.__self__, path)
        else:
            if said := out_of_sight(value, self.own_names):
                self.opaque.append((path, said))
            decorated = inspect.getattr_static(
                value, "__wrapped__", None
            )  # as by functools.lru_cache
            if isinstance(decorated, FunctionType):
                self.visit(decorated, path, root)
                if (cleared := cleared_of(value)) is not None:
                    self.cached.append((path, value))
                    self.add("call", cleared, None, cleared(), path)
            read_object(self, value, path)


def _behind(proxy: Any) -> Any:
    """The object of a `weakref.proxy`; None if it is gone."""
    try:
        return proxy.__sizeof__.__self__
    except ReferenceError:
        return None


def roots_of(
    build: Callable[..., Any], graph: Any, modules: Mapping[str, torch.nn.Module]
) -> Iterator[tuple[str, Any]]:
    """The roots of a graph: its modules by their names, the graph, its `build()`, and the function that a graph of
    `gflow.compile` runs."""
    yield from modules.items()
    yield "graph", graph
    for name, held in graph.__dict__["_state"].modules.items():
        yield f"graph.{name}", held
    yield "build", build
    target = vars(graph).get("_target")
    if target is not None:
        yield getattr(target, "__name__", "function"), target
