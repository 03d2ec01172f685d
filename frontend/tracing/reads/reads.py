"""The Python state that functions can read: attributes, globals, closures, items of containers.

Python does not report which attributes of which objects were read. Therefore this file matches the names in the code
that ran with the objects that this code can reach. An attribute of a reachable object counts as read if its name
occurs in the code.
"""

from __future__ import annotations

import abc
import contextvars
import enum
import functools
import gc
import inspect
import operator
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, NamedTuple

import torch

from gflow.runtime.distributed.pieces import COPYING
from gflow.tracing.context.location import is_installed
from gflow.tracing.program.unwrapped import unwrapped

from ..data.containers import contents, length
from .names import is_library, names_of, read_names
from .settings import (
    MOST_BYTES,
    MOST_BYTES_ONCE,
    checksum,
    cleared_of,
    is_array,
    is_constant,
    is_iterator,
    is_unset,
    module_of,
    out_of_sight,
    putting_back,
    settings,
    size_of,
    value_of,
)

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, range,
    torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size,
)  # fmt: skip
#: attributes of every module, which are compared elsewhere, or not at all
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
#: attributes of modules that gflow itself reads: `no_sync()` sets the second
_ALWAYS = {"training", "require_backward_grad_sync"}
#: attributes of every class
_OF_CLASSES = {"__module__", "__qualname__", "__name__", "__doc__", "__dict__", "__class__"}
#: dicts of hooks of a tensor's gradient
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
#: dicts of a module's hooks
HOOKS = (
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip
#: dicts of hooks of all modules
_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks", "_global_forward_hooks",
    "_global_backward_pre_hooks", "_global_backward_hooks",
)  # fmt: skip
#: the prefix of their paths
OF_ALL_MODULES = "torch.nn.modules.module."
#: methods of modules that run implicitly
_CALLED = ("forward", "__call__")
#: the prefix of PyTorch's modules whose code is searched for the functions that it calls
_NETWORKS = "torch.nn."
#: methods that run although no code names them, like those of Python's operators
_UNNAMED = {"forward", "build"}
#: special methods that change or create an object, and special attributes of classes
_CHANGING = {
    "__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__", "__reduce__",
    "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__", "__sizeof__", "__annotations__",
    "__dataclass_fields__", "__match_args__", "__slots__", "__weakref__",
}  # fmt: skip
#: special methods that run when an object or a subclass is created, or when the last reference to an object goes
_MAKING = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__"}
#: special methods that convert an object to text
_WRITTEN = {"__repr__", "__str__", "__format__"}
#: names whose use calls these
_WRITING = {"repr", "str", "format", "print", "f-string"}
#: modules of the standard library whose objects hold values that are compared; other objects of libraries are not
#: inspected
_HOLDERS = (
    "argparse", "types", "collections", "concurrent", "configparser", "_thread", "threading", "queue", "weakref",
    "_weakrefset", "multiprocessing", "csv", "tempfile",
)  # fmt: skip
#: those whose objects store these values under private names
_WRAPPERS = (
    "collections", "concurrent", "configparser", "threading", "queue", "weakref", "_weakrefset", "multiprocessing",
    "csv", "tempfile",
)  # fmt: skip
#: containers in modules of the standard library that change without the author's doing
_VOLATILE = {("sys", "modules"), ("sys", "path_importer_cache"), ("linecache", "cache")}
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


class Reads:
    """What code can read, starting from some objects.

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
        self.computed = self.computed_by_user = self.assigning = False
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
        self._seen: dict[Any, Any] = {}
        self._own_names: set[str] = set()  # names in user code
        self._asked: set[str] = set()  # names in objects such as operator.attrgetter

    def walk(self, roots: Iterable[tuple[str, Any]]) -> Reads:
        """Find all that is read from `roots`, by name."""
        roots = list(roots)
        count = (-1, 0)
        while count != (len(self.codes), len(self._asked)):  # until no new function is found
            count = (len(self.codes), len(self._asked))
            self._begin()
            for code, names in list(self.codes.items()):
                if not is_library(code):
                    self._globals(code, names)
                elif str(names.get("__name__")).startswith(_NETWORKS):
                    self._functions(code, names)
            for path, value in roots:
                self._visit(value, path, root=True)
        self._methods_of_tensors()
        for path, read, put in settings(self.names, self._own_names if self.closely else ()):
            self._add("call", read, put, read(), path)
        return self

    def _begin(self) -> None:
        self.found, self.modules, self.tensors, self.reached = [], {}, [], []
        self.iterators, self.opaque, self.unset, self.cached = [], [], [], []
        self.scripted = []
        self.large, self.arrays, self.finalized = [], [], []
        self._seen = dict(self.known)
        self.names = set().union(*map(read_names, self.codes)) | _ALWAYS | self._asked
        own = [c for c in self.codes if not is_library(c)]
        self._own_names = set().union(*map(read_names, own)) | self._asked
        self.assigning = "setattr" in self.names or any(names_of(c).assigned for c in own)
        computing = [c for c in own if names_of(c).computed]
        self.computed = bool(computing)
        self.computed_by_user = not all(is_installed(code.co_filename) for code in computing)

    def _add(self, kind: str, holder: Any, key: Any, value: Any, path: str) -> None:
        self.found.append(Read(kind, holder, key, value, path))

    def _item(self, holder: dict[Any, Any], key: Any, path: str) -> None:
        """Record a read of a dict's value."""
        value = holder[key]
        self._add("item", holder, key, value, path)
        self._visit(value, path)

    # one method for each kind of value

    def _visit(self, value: Any, path: str, root: bool = False) -> None:
        value = unwrapped(value)
        if type(value) in weakref.ProxyTypes:
            value = _behind(value)
        if is_plain(value) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, torch.jit.ScriptModule):
            self.scripted.append(path)
        elif isinstance(value, torch.nn.Module):
            self._module(value, path)
        elif isinstance(value, FunctionType):
            self._function(value, path, root)
        elif isinstance(value, MethodType):
            self._visit(value.__self__, path.rpartition(".")[0] or path)
            self._visit(value.__func__, path, root)
        elif isinstance(value, functools.partial):
            for n, part in enumerate((value.func, *value.args)):
                self._visit(part, f"{path}.{n}")
            if not isinstance(value.func, FunctionType):  # of `getattr`, say
                self._asked.update(part for part in value.args if isinstance(part, str))
            self._visit(value.keywords, f"{path}.keywords")
        elif isinstance(value, (staticmethod, classmethod)):
            self._visit(value.__func__, path)
        elif isinstance(value, property):
            self._visit(value.fget, path)
        elif isinstance(value, functools.cached_property):
            self._visit(value.func, path)
        elif isinstance(value, functools.singledispatchmethod):
            self._visit(value.dispatcher, path)
        elif isinstance(value, functools.partialmethod):
            self._visit((value.func, value.args, value.keywords), path)
        elif isinstance(value, weakref.ref):
            self._visit(value(), path)
        elif isinstance(value, type):
            self._class(value, path)
            self._constructor(value, path)
        elif isinstance(value, ModuleType):
            self._python_module(value, path)
        elif isinstance(value, (list, tuple, dict, set, frozenset, deque)):
            self._container(value, path)
        elif isinstance(value, (MappingProxyType, *_VIEWS)):
            for part in gc.get_referents(value):  # it returns a copy of a read-only mapping
                self._visit(part, path)
        elif size := size_of(value):
            self._array(value, path, size)
        elif (read := value_of(value)) is not None:
            held = read()
            self._add("call", read, putting_back(value), held, path)
            if "set" in self.names and is_unset(value):
                self.unset.append(path)
            if isinstance(value, contextvars.ContextVar):
                self._visit(held, path)
        elif is_iterator(value):
            self.iterators.append((path, value))
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self._getter(value, path)
        elif isinstance(value, (BuiltinFunctionType, MethodWrapperType)) or isinstance(
            vars(type(value)).get("__self__"), GetSetDescriptorType
        ):
            if not isinstance(
                value.__self__, (ModuleType, type)
            ):  # a method of a value that it holds
                self._asked.add(value.__name__)
                self._visit(value.__self__, path)
        else:
            if said := out_of_sight(value, self._own_names):
                self.opaque.append((path, said))
            decorated = inspect.getattr_static(
                value, "__wrapped__", None
            )  # as by functools.lru_cache
            if isinstance(decorated, FunctionType):
                self._visit(decorated, path, root)
                if (cleared := cleared_of(value)) is not None:
                    self.cached.append((path, value))
                    self._add("call", cleared, None, cleared(), path)
            self._object(value, path)

    def _array(self, value: Any, path: str, size: int) -> None:
        """Memory that is compared by its bytes, unless it is too large."""
        if is_array(value):
            self.arrays.append((path, value))
        if size <= MOST_BYTES or (self.closely and size <= MOST_BYTES_ONCE):
            read = value_of(value) if size <= MOST_BYTES else functools.partial(checksum, value)
            assert read is not None
            self._add("call", read, putting_back(value), read(), path)
        if size > MOST_BYTES and not is_constant(value):
            self.large.append((path, size))

    def _getter(self, value: Any, path: str) -> None:
        """An object that reads attributes of other objects by names that it stores."""
        made, parts = value.__reduce__()
        if isinstance(made, functools.partial):  # with keywords
            self._visit(made.keywords, path)
            parts = (*made.args, *parts)
        names = parts if isinstance(value, operator.attrgetter) else parts[:1]
        self._asked.update(part for name in names for part in name.split("."))
        self._visit(parts, path)

    def _tensor(self, value: torch.Tensor, path: str) -> None:
        """Attributes of a tensor, such as `weight.is_embedding`."""
        self.tensors.append(value)
        for kind in TENSOR_HOOKS:
            for hook in list((getattr(value, kind) or {}).values()):
                self._visit(hook, f"{path}.{kind}")
        own = vars(value)
        asked = not _ASKING.isdisjoint(self.names)
        for name in list(own):
            if name in self.names and name not in OF_TENSORS:
                self._item(own, name, f"{path}.{name}")
        if asked or len(own.keys() - OF_TENSORS):
            self._add("names", own, None, frozenset(own), path)

    def _module(self, module: torch.nn.Module, path: str) -> None:
        self.modules.setdefault(path, module)
        self.reached.append(module)
        own = vars(module)
        for name in list(own):
            if name not in _OF_MODULES and (self.computed or name in self.names):
                self._item(own, name, f"{path}.{name}")
        self._add("names", own, self.computed, frozenset(own), path)
        for kind in HOOKS:
            hooks = own.get(kind)
            if hooks is not None:
                self._add("hooks", own, kind, tuple(hooks.items()), f"{path}.{kind}")
                for hook in hooks.values():
                    self._visit(hook, f"{path}.{kind}")
        self._add("class", module, None, type(module), path)
        self._add("attribute", module, "__dict__", own, f"{path}.__dict__")
        self._class(type(module), path)
        self._methods(type(module))
        self._hooks_of_all()
        for kind in ("_parameters", "_buffers", "_modules"):
            held = own.get(kind, {})
            self._add("slot", own, kind, held, f"{path}.{kind}")
            self._add("size", held, None, len(held), f"{path}.{kind}")
            self._add("keys", held, None, tuple(held), f"{path}.{kind}")
            for name, part in list(held.items()):
                self._add("slot", held, name, part, f"{path}.{name}")
                self._visit(part, f"{path}.{name}")

    def _methods(self, kind: type) -> None:
        """Methods of PyTorch's module classes that ran, since they may be replaced."""
        if ("methods", kind) in self._seen:
            return
        self._seen["methods", kind] = kind
        for name in _CALLED:
            self._add("attribute", kind, name, getattr(kind, name), f"{kind.__qualname__}.{name}")
        for base in kind.__mro__:
            if base is object or not _of_library(module_of(base)) or ("own", base) in self._seen:
                continue
            self._seen["own", base] = base
            own = vars(base)
            self._add("names", own, None, frozenset(own), base.__qualname__)
            for name, part in own.items():
                if isinstance(part, FunctionType) and part.__code__ in self.codes:
                    self._add("attribute", base, name, part, f"{base.__qualname__}.{name}")

    def _methods_of_tensors(self) -> None:
        """Methods of `torch.Tensor` that may be replaced; operators call methods that no code names."""
        own = vars(torch.Tensor)
        self._add("size", own, None, len(own), "torch.Tensor")
        for name in own.keys() & self.names:
            if isinstance(own[name], FunctionType):
                self._add("attribute", torch.Tensor, name, own[name], f"torch.Tensor.{name}")

    def _hooks_of_all(self) -> None:
        own = vars(torch.nn.modules.module)
        for kind in _GLOBAL_HOOKS:
            hooks = own[kind]
            if ("hooks", id(hooks)) not in self._seen:
                self._seen["hooks", id(hooks)] = hooks
                self._add("hooks", own, kind, tuple(hooks.items()), f"{OF_ALL_MODULES}{kind}")
                for hook in hooks.values():
                    self._visit(hook, kind)

    def _function(self, function: FunctionType, path: str, root: bool) -> None:
        code = function.__code__
        for name, part in vars(function).items():
            # a read-only mapping: the registry of `functools.singledispatch`
            if isinstance(part, (FunctionType, MappingProxyType)) or name in self.names:
                self._attribute(function, name, f"{path}.{name}")
        cells = list(zip(code.co_freevars, function.__closure__ or ()))
        if is_library(code):  # a decorator's wrapper: the decorated function may be the user's
            for name, cell in cells:
                part = _contents(cell)
                if callable(part) and not isinstance(part, type):
                    self._visit(part, getattr(part, "__name__", name), root)
            return
        if is_installed(code.co_filename) and not root and code not in self.codes:
            return
        self.codes.setdefault(code, function.__globals__)
        if self.assigning:
            self._add("names", vars(function), False, frozenset(vars(function)), path)
        for name in ("__code__", "__defaults__", "__kwdefaults__", *_DESCRIBING & self._own_names):
            self._add("attribute", function, name, getattr(function, name), f"{path}.{name}")
        for name, cell in cells:
            part = _contents(cell)
            if name != "__class__":
                self._add("cell", cell, None, part, name)
                self._visit(part, name)
        for part in (function.__defaults__, function.__kwdefaults__):
            if part is not None:
                self._visit(part, f"{path}()")
        self._globals(code, function.__globals__)

    def _globals(self, code: CodeType, names: dict[str, Any]) -> None:
        """The globals that a function reads."""
        used = names_of(code)
        asked, named = used.globals, used.globals
        if not _NAMESPACES.isdisjoint(used.read):  # any of them, by a computed name
            named = used.read
            asked |= {
                n for n, v in names.items() if not (n.startswith("__") or isinstance(v, ModuleType))
            }
        absent = named.difference(names)
        if absent and ("absent", id(names), absent) not in self._seen:
            self._seen["absent", id(names), absent] = None
            read = functools.partial(names.keys().isdisjoint, absent)
            self._add("call", read, None, True, f"a global of {names.get('__name__')}")
        for name in asked:
            if name not in names or ("global", id(names), name) in self._seen:
                continue
            self._seen["global", id(names), name] = None
            value = names[name]
            self._add("item", names, name, value, name)
            if not isinstance(value, ModuleType):
                self._visit(value, name)
        imports = used.imports
        if not _IMPORTING.isdisjoint(used.read):
            imports |= {(text, 0) for text in code.co_consts if isinstance(text, str)}
        for name, level in imports:
            module = sys.modules.get(_imported(name, level, names))
            if module is not None and ("import", id(module)) not in self._seen:
                self._seen["import", id(module)] = module
                self._python_module(module, name)
        for chain in used.chains:
            own, attribute = _holder(chain, names), chain[-1]
            if ("global", id(own), attribute) in self._seen:
                continue
            known = attribute in own
            if own and attribute in used.assigned and (known or attribute not in used.loaded):
                self._seen["global", id(own), attribute] = None
                self._add("item", own, attribute, own.get(attribute, MISSING), ".".join(chain))
                if known and not _of_library(own["__name__"]):
                    self._visit(own[attribute], ".".join(chain))
            elif not known:
                self._computed_attributes(own, chain[-2])
            elif not _of_library(own["__name__"]):
                self._seen["global", id(own), attribute] = None
                self._item(own, attribute, ".".join(chain))
            else:
                self._function_of(own, attribute, ".".join(chain))
                self._standard(own, attribute, ".".join(chain))

    def _functions(self, code: CodeType, names: dict[str, Any]) -> None:
        """Functions of PyTorch that its own code has called, such as `F.relu` in `nn.ReLU`."""
        used = names_of(code)
        for name in used.globals:
            self._function_of(names, name, name)
        for chain in used.chains:
            self._function_of(_holder(chain, names), chain[-1], ".".join(chain))

    def _function_of(self, own: dict[str, Any], name: str, path: str) -> None:
        """A function in a library's module, which may be replaced, such as `F.scaled_dot_product_attention`."""
        part = own.get(name)
        if ("global", id(own), name) not in self._seen and isinstance(
            part, (FunctionType, BuiltinFunctionType, type)
        ):
            self._seen["global", id(own), name] = None
            self._add("item", own, name, part, path)

    def _standard(self, own: dict[str, Any], name: str, path: str) -> None:
        """A list, dict, set or number in a module of the standard library, such as `sys.path`."""
        module, part = str(own.get("__name__")), own[name]
        standard = module.partition(".")[0] in sys.stdlib_module_names
        if not self.closely or not standard or (module, name) in _VOLATILE:
            return
        if ("global", id(own), name) in self._seen or name.startswith("__"):
            return
        self._seen["global", id(own), name] = None
        if type(part) is dict and len(part) <= MOST_ITEMS:
            self._add("dict", part, None, (*part.keys(), *part.values()), path)
        elif type(part) in (list, set) and len(part) <= MOST_ITEMS:
            self._add("list", part, None, tuple(part), path)
        elif is_plain(part):
            self._add("item", own, name, part, path)

    def _python_module(self, module: ModuleType, path: str) -> None:
        """A module that is reached as a value: its settings."""
        if _of_library(module.__name__) or "site-packages" in (vars(module).get("__file__") or ""):
            for name in self._own_names & vars(module).keys():
                self._standard(vars(module), name, f"{path}.{name}")
            return
        own = vars(module)
        for name in own:
            if name in self.names and not name.startswith("__"):
                self._item(own, name, f"{path}.{name}")
        self._computed_attributes(own, path)
        self._add("names", own, False, frozenset(own), path)

    def _computed_attributes(self, own: dict[str, Any], path: str) -> None:
        """The function that gives a user's module the attributes that it lacks."""
        found = own.get("__getattr__")
        if found is not None and not _of_library(own["__name__"]):
            self._visit(found, f"{path}.__getattr__")

    def _container(self, value: Any, path: str) -> None:
        if isinstance(value, dict):
            # as a dict, since attribute access may import a library's submodules
            parts = (*dict.keys(value), *dict.values(value))
            named = [(f"{path}[{k!r}]", v) for k, v in dict.items(value) if not is_plain(v)]
        else:
            parts = contents(value)
            named = [(f"{path}[{n}]", v) for n, v in enumerate(parts) if not is_plain(v)]
        if len(parts) > MOST_ITEMS:
            self._add("size", value, None, length(value), path)
            return
        if not isinstance(value, (tuple, frozenset)):
            kind = "dict" if isinstance(value, dict) else "list"
            self._add(kind, value, None, parts, path)
            if isinstance(value, OrderedDict):  # it has an order of its own
                order = Order(value)
                self._add("list", order, None, tuple(order), path)
            self.reached.append(value)
        for name, part in named:
            self._visit(part, name)
        if isinstance(value, defaultdict):
            self._visit(value.default_factory, f"{path}.default_factory")
        if type(value) not in (list, tuple, dict, set, frozenset, deque):
            self._attributes(value, path, False)
            self._class(type(value), path)

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        root = module_of(kind).partition(".")[0]
        if isinstance(value, threading.local):
            self._of_threads(value, path)
            return
        if isinstance(value, weakref.WeakSet):
            self._add("call", value.__len__, None, len(value), path)
        if root == "torch" and not _is_graph(value):
            self._stateful(value, path)
            return
        if _of_library(module_of(kind)) and root not in _HOLDERS and not _is_graph(value):
            self._public(value, path)
            return
        self.reached.append(value)
        home = sys.modules.get(module_of(kind))
        if is_installed(getattr(home, "__dict__", {}).get("__file__") or ""):
            self._public(value, path)
        # a class with its own attribute access may return anything
        computed = hasattr(kind, "__getattr__") and not _is_graph(value)
        computed |= any(_wraps(base) for base in kind.__mro__)
        self._attributes(value, path, computed or self.computed_by_user)
        self._add("class", value, None, kind, path)
        self._class(kind, path)

    def _public(self, value: Any, path: str) -> None:
        """Values and items in public attributes of a library's object, and in private containers of some objects of
        the standard library, such as the callbacks of `contextlib.ExitStack`."""
        own = getattr(value, "__dict__", None)
        standard = module_of(type(value)).partition(".")[0] in sys.stdlib_module_names
        for name, part in list(own.items()) if self.closely and type(own) is dict else []:
            where = f"{path}.{name}"
            if name.startswith("_") and (not standard or "cache" in name or is_plain(part)):
                continue
            if is_plain(part):
                self._add("item", own, name, part, where)
            elif type(part) in (list, set, deque) and len(part) <= MOST_ITEMS:
                self._add("list", part, None, tuple(part), where)
            elif type(part) is dict and len(part) <= MOST_ITEMS:
                self._add("dict", part, None, (*part.keys(), *part.values()), where)

    def _stateful(self, value: Any, path: str) -> None:
        """An object of PyTorch that is no tensor and no module, such as an optimizer, its schedule, a distribution."""
        for base in type(value).__mro__:
            for name, part in vars(base).items():
                part = part.fget if isinstance(part, property) else part
                if isinstance(part, FunctionType) and name in self.names:
                    self.codes.setdefault(part.__code__, part.__globals__)
        self.reached.append(value)
        self._attributes(value, path, False)

    def _constructor(self, kind: type, path: str) -> None:
        """The methods that run when code creates an object of a class. Modules are created before."""
        if issubclass(kind, torch.nn.Module):
            return
        for base in kind.__mro__:
            if not _of_library(module_of(base)):
                if "__del__" in vars(base):
                    self.finalized.append(path)
                for name in _MAKING & vars(base).keys():
                    self._visit(vars(base)[name], f"{path}.{name}", root=True)

    def _attributes(self, value: Any, path: str, all_of_them: bool) -> None:
        own = getattr(value, "__dict__", None)
        if type(own) is dict:
            for name in list(own):
                if (all_of_them or name in self.names) and not (
                    _is_graph(value) and name in _OF_GRAPHS
                ):
                    self._item(own, name, f"{path}.{name}")
            self._add("names", own, all_of_them, frozenset(own), path)
            if value.__dict__ is own:
                self._add("attribute", value, "__dict__", own, f"{path}.__dict__")
        kind: Any = type(value)
        for name in _slots(kind):
            if all_of_them or name in self.names:
                self._attribute(value, name, f"{path}.{name}")

    def _attribute(self, value: Any, name: str, path: str) -> None:
        """An attribute that is not stored in a dict, or not in a permanent one; it may be missing."""
        part = getattr(value, name, MISSING)
        if part is MISSING:
            self._add("missing", value, name, part, path)
        else:
            self._add("attribute", value, name, part, path)
            self._visit(part, path)

    def _of_threads(self, value: threading.local, path: str) -> None:
        """Thread-local attributes."""
        self.reached.append(value)
        names = None if self.computed_by_user else frozenset(self.names)
        held = _names_of_thread(value, names)
        read = functools.partial(_names_of_thread, value, names)
        self._add("call", read, functools.partial(_forget, value, read, held), held, path)
        for name in held:
            self._attribute(value, name, f"{path}.{name}")
        self._class(type(value), path)

    def _runs(self, name: str) -> bool:
        """Whether a method may run although no code names it."""
        if name in _WRITTEN:
            return not _WRITING.isdisjoint(self.names)
        if name in ("__setattr__", "__delattr__"):
            return self.assigning
        special = name.startswith("__") and name.endswith("__") and name not in _CHANGING
        return special or name in _UNNAMED

    def _class(self, kind: type, path: str) -> None:
        if ("class", id(kind)) in self._seen:
            return
        self._seen["class", id(kind)] = kind
        if type(kind) is not type:
            self._class(type(kind), f"type of {path}")
        done: set[str] = set()
        self._add("attribute", kind, "__mro__", kind.__mro__, kind.__qualname__)
        for name in () if _of_library(module_of(kind)) else _DESCRIBING & self._own_names:
            self._add("attribute", kind, name, getattr(kind, name), f"{kind.__qualname__}.{name}")
        if _is_protocol(kind) and not _CLASSES.isdisjoint(self.names):
            self._asked.update(
                n for n in (*vars(kind), *inspect.get_annotations(kind)) if n[:1] != "_"
            )
        if isinstance(kind, abc.ABCMeta) and not _CLASSES.isdisjoint(self.names):
            read = functools.partial(_registered, kind)
            self._add("call", read, None, read(), f"{kind.__qualname__}.register()")
        for base in kind.__mro__:
            if _of_library(module_of(base)):
                continue
            self._add("names", vars(base), base, frozenset(vars(base)), base.__qualname__)
            for name, part in list(vars(base).items()):
                if name in _OF_CLASSES or not (name in self.names or self._runs(name)):
                    continue
                if name in done and "super" not in self.names:
                    continue
                owner = (
                    base if name in done else kind
                )  # `super()` finds methods that this class overrides
                done.add(name)
                where = f"{owner.__qualname__}.{name}"
                if _is_stable(part):
                    self._add("attribute", owner, name, getattr(owner, name), where)
                else:
                    put = functools.partial(setattr, base, name, part)
                    self._add("call", functools.partial(vars(base).get, name), put, part, where)
                self._visit(part, where)


#: attributes that PyTorch stores on tensors
OF_TENSORS = {"_is_param", *TENSOR_HOOKS, "_gflow_dynamic", *COPYING}
#: functions that look up globals, and modules
_NAMESPACES, _IMPORTING = {"globals", "eval", "exec"}, {"modules", "import_module", "__import__"}
#: functions that look up attributes which may be missing
_ASKING = {"getattr", "hasattr"}
#: attributes of functions and classes that describe them
_DESCRIBING = {"__name__", "__qualname__", "__doc__"}
#: functions that ask an abstract class for the classes that are registered with it
_CLASSES = {"isinstance", "issubclass"}
#: types of views of dicts
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
#: attributes of the class of graphs
_OF_GRAPHS = ("_state", "config", "_seen")


def _holder(chain: tuple[str, ...], names: dict[str, Any]) -> dict[str, Any]:
    """The dict that holds the last name of a chain that begins with a global; empty if a name before it is no
    module."""
    module = names.get(chain[0])
    for name in chain[1:-1]:
        module = vars(module).get(name) if isinstance(module, ModuleType) else None
    return vars(module) if isinstance(module, ModuleType) else {}


def _behind(proxy: Any) -> Any:
    """The object of a `weakref.proxy`; None if it is gone."""
    try:
        return proxy.__sizeof__.__self__
    except ReferenceError:
        return None


def _wraps(kind: type) -> bool:
    module = module_of(kind)
    return module.partition(".")[0] in _WRAPPERS and module != "collections.abc"


def _registered(kind: abc.ABCMeta) -> tuple[int, ...]:
    """The classes that are registered with an abstract class."""
    registry, *_ = abc._get_dump(kind)  # type: ignore[attr-defined]
    return tuple(sorted(id(ref()) for ref in registry))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING


def _imported(name: str, level: int, names: dict[str, Any]) -> str:
    """The full name of a module that a function imports. level: of a relative import."""
    package = names.get("__package__") or ""
    parts = package.split(".")[: 1 - level or None] if level else []
    return ".".join([*filter(None, parts), *filter(None, [name])])


class Order:
    """The keys of an ordered dict, as a list by which their order can be restored."""

    def __init__(self, held: OrderedDict[Any, Any]) -> None:
        self.held = held

    def __iter__(self) -> Iterator[Any]:
        return iter(OrderedDict.keys(self.held))

    def __len__(self) -> int:
        return len(self.held)

    def clear(self) -> None:
        """Nothing: the keys are restored before, with their values."""

    def extend(self, keys: Iterable[Any]) -> None:
        for key in keys:
            OrderedDict.move_to_end(self.held, key)


def _names_of_thread(value: threading.local, names: frozenset[str] | None) -> frozenset[str]:
    """The attributes of a `threading.local` in this thread that the code names."""
    return frozenset(vars(value) if names is None else vars(value).keys() & names)


def _forget(
    value: threading.local, read: Callable[[], frozenset[str]], kept: frozenset[str]
) -> None:
    """Remove the attributes of a `threading.local` that were added since."""
    for name in read() - kept:
        delattr(value, name)


@functools.cache
def _of_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root in ("torch", "gflow", "builtins", "numpy") or root in sys.stdlib_module_names


def _is_stable(part: Any) -> bool:
    """Whether a class returns the same object for a name each time, without running user code."""
    return isinstance(part, (FunctionType, property, staticmethod)) or not hasattr(
        type(part), "__get__"
    )


def _is_graph(value: Any) -> bool:
    return isinstance(getattr(type(value), "build", None), FunctionType) and "_state" in vars(value)


@functools.lru_cache(maxsize=4096)
def _slots(kind: Any) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(s for s in found if s not in ("__dict__", "__weakref__"))


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


def _is_protocol(kind: type) -> bool:
    """Whether a class is a protocol, without the code of its metaclass, which may refuse names."""
    return next((bool(vars(c)[_MARK]) for c in kind.__mro__ if _MARK in vars(c)), False)


_MARK = "_is_protocol"
