"""Reads of functions and Python modules: attributes, closure variables, defaults, globals, imports."""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Collection
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    ModuleType,
)
from typing import Any

import torch

from gflow.tracing.context.location import is_installed

from .names import is_library, names_of
from .of_classes import DESCRIBING, read_attribute
from .reach import MISSING, MOST_ITEMS, Reach, is_plain, of_library
from .settings import module_of

#: containers in modules of the standard library that change without the author's doing
_VOLATILE = {("sys", "modules"), ("sys", "path_importer_cache"), ("linecache", "cache")}
#: functions that look up globals, and modules
_NAMESPACES = {"globals", "f_globals", "eval", "exec"}
_IMPORTING = {"modules", "import_module", "__import__"}


def read_function(r: Reach, function: FunctionType, path: str, root: bool) -> None:
    """A function's attributes, defaults, closure variables and globals. root: whether it runs, whoever wrote it."""
    code = function.__code__
    for name, part in vars(function).items():
        # a read-only mapping: the registry of `functools.singledispatch`
        if isinstance(part, (FunctionType, MappingProxyType)) or name in r.names:
            read_attribute(r, function, name, f"{path}.{name}")
    cells = list(zip(code.co_freevars, function.__closure__ or ()))
    if is_library(code):  # a decorator's wrapper: the decorated function may be the user's
        for name, cell in cells:
            part = _contents(cell)
            if callable(part) and not isinstance(part, type):
                r.visit(part, getattr(part, "__name__", name), root)
        return
    if is_installed(code.co_filename) and not root and code not in r.codes:
        return
    r.codes.setdefault(code, function.__globals__)
    if r.assigning:
        r.add("names", vars(function), False, frozenset(vars(function)), path)
    for name in ("__code__", "__defaults__", "__kwdefaults__", *DESCRIBING & r.own_names):
        r.add("attribute", function, name, getattr(function, name), f"{path}.{name}")
    for name, cell in cells:
        if name != "__class__":
            read_cell(r, cell, name)
    for part in (function.__defaults__, function.__kwdefaults__):
        if part is not None:
            r.visit(part, f"{path}()")
    read_globals(r, code, function.__globals__)


def read_cell(r: Reach, cell: CellType, path: str) -> None:
    """The value of a closure variable."""
    part = _contents(cell)
    r.add("cell", cell, None, part, path)
    r.visit(part, path)


def read_globals(r: Reach, code: CodeType, names: dict[str, Any]) -> None:
    """The globals that a function reads."""
    used = names_of(code)
    asked, named = used.globals, used.globals
    if not _NAMESPACES.isdisjoint(used.read):  # any of them, by a computed name
        named = used.read
        asked |= {
            n for n, v in names.items() if not (n.startswith("__") or isinstance(v, ModuleType))
        }
    absent = named.difference(names)
    if absent and ("absent", id(names), absent) not in r.seen:
        r.seen["absent", id(names), absent] = None
        read = functools.partial(names.keys().isdisjoint, absent)
        r.add("call", read, None, True, f"a global of {names.get('__name__')}")
        for name in absent & vars(builtins).keys():
            _held_by_library(r, vars(builtins), name, name)
    for name in asked:
        if name not in names or ("global", id(names), name) in r.seen:
            continue
        r.seen["global", id(names), name] = None
        value = names[name]
        r.add("item", names, name, value, name)
        if not isinstance(value, ModuleType):
            r.visit(value, name)
    imports = used.imports
    if not _IMPORTING.isdisjoint(used.read):
        imports |= {
            (text, 0) for text in (*code.co_consts, names.get("__name__")) if isinstance(text, str)
        }
        if not is_installed(code.co_filename):  # a computed name: any of the user's modules
            for name, own_module in _of_user():
                _read_attributes(r, own_module, name, r.names if used.computed else used.read)
    for name, level in imports:
        module = sys.modules.get(_imported(name, level, names))
        if module is not None and ("import", id(module)) not in r.seen:
            r.seen["import", id(module)] = module
            read_python_module(r, module, name)
    for chain in used.chains:
        own, attribute = _holder(chain, names), chain[-1]
        if ("global", id(own), attribute) in r.seen:
            continue
        known = attribute in own
        if own and attribute in used.assigned and (known or attribute not in used.loaded):
            r.seen["global", id(own), attribute] = None
            r.add("item", own, attribute, own.get(attribute, MISSING), ".".join(chain))
            if known and not of_library(own["__name__"]):
                r.visit(own[attribute], ".".join(chain))
        elif not known:
            _computed_attributes(r, own, chain[-2])
        elif not of_library(own["__name__"]):
            r.seen["global", id(own), attribute] = None
            r.item(own, attribute, ".".join(chain))
        else:
            _held_by_library(r, own, attribute, ".".join(chain))
            _standard(r, own, attribute, ".".join(chain))


def _of_user() -> list[tuple[str, ModuleType]]:
    """The imported modules that belong to neither a library nor an installed package, by name."""
    return [
        (name, module)
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and not (of_library(name) or _is_installed(module))
    ]


def _is_installed(module: ModuleType) -> bool:
    return is_installed(vars(module).get("__file__") or "")


def read_functions_of_networks(r: Reach, code: CodeType, names: dict[str, Any]) -> None:
    """Functions of PyTorch that its own code has called, such as `F.relu` in `nn.ReLU`."""
    used = names_of(code)
    for name in used.globals:
        _function_of(r, names, name, name)
    for chain in used.chains:
        _function_of(r, _holder(chain, names), chain[-1], ".".join(chain))


def _function_of(r: Reach, own: dict[str, Any], name: str, path: str) -> None:
    """A function in a library's module, which may be replaced, such as `F.scaled_dot_product_attention`."""
    part = own.get(name)
    if ("global", id(own), name) not in r.seen and isinstance(
        part, (FunctionType, BuiltinFunctionType, type)
    ):
        r.seen["global", id(own), name] = None
        r.add("item", own, name, part, path)


def _held_by_library(r: Reach, own: dict[str, Any], name: str, path: str) -> None:
    """An attribute of a library's module: a function or class, which may be replaced, or what a user has stored there:
    a plain value, a tensor, a PyTorch module, an object of the user's own class."""
    part = own[name]
    kind = type(part)
    if (
        is_plain(part)
        or isinstance(part, (torch.Tensor, torch.nn.Module))
        or not of_library(module_of(kind))
    ):
        if ("global", id(own), name) not in r.seen:
            r.seen["global", id(own), name] = None
            r.item(own, name, path)
    else:
        _function_of(r, own, name, path)


def _standard(r: Reach, own: dict[str, Any], name: str, path: str) -> None:
    """A list, dict or set in a module of the standard library, such as `sys.path`."""
    module, part = str(own.get("__name__")), own[name]
    standard = module.partition(".")[0] in sys.stdlib_module_names
    if not r.closely or not standard or (module, name) in _VOLATILE:
        return
    if ("global", id(own), name) in r.seen or name.startswith("__"):
        return
    r.seen["global", id(own), name] = None
    if type(part) is dict and len(part) <= MOST_ITEMS:
        r.add("dict", part, None, (*part.keys(), *part.values()), path)
    elif type(part) in (list, set) and len(part) <= MOST_ITEMS:
        r.add("list", part, None, tuple(part), path)


def read_python_module(r: Reach, module: ModuleType, path: str) -> None:
    """A module that is reached as a value: its settings."""
    if of_library(module.__name__) or _is_installed(module):
        for name in r.own_names & vars(module).keys():
            if not name.startswith("__"):
                _held_by_library(r, vars(module), name, f"{path}.{name}")
            _standard(r, vars(module), name, f"{path}.{name}")
        return
    _read_attributes(r, module, path, r.names)
    _computed_attributes(r, vars(module), path)
    r.add("names", vars(module), False, frozenset(vars(module)), path)


def _read_attributes(r: Reach, module: ModuleType, path: str, names: Collection[str]) -> None:
    """The attributes of a user's module that have one of these names."""
    own = vars(module)
    for name in own:
        if name in names and not name.startswith("__") and ("global", id(own), name) not in r.seen:
            r.seen["global", id(own), name] = None
            r.item(own, name, f"{path}.{name}")


def _computed_attributes(r: Reach, own: dict[str, Any], path: str) -> None:
    """The function that gives a user's module the attributes that it lacks."""
    found = own.get("__getattr__")
    if found is not None and not of_library(own["__name__"]):
        r.visit(found, f"{path}.__getattr__")


def _holder(chain: tuple[str, ...], names: dict[str, Any]) -> dict[str, Any]:
    """The dict that holds the last name of a chain that begins with a global; empty if a name before it is no
    module."""
    module = names.get(chain[0])
    for name in chain[1:-1]:
        module = vars(module).get(name) if isinstance(module, ModuleType) else None
    return vars(module) if isinstance(module, ModuleType) else {}


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING


def _imported(name: str, level: int, names: dict[str, Any]) -> str:
    """The full name of a module that a function imports. level: of a relative import."""
    package = names.get("__package__") or ""
    parts = package.split(".")[: 1 - level or None] if level else []
    return ".".join([*filter(None, parts), *filter(None, [name])])
