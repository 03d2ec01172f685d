"""Reads of tensors and PyTorch modules: their attributes, hooks, slots and methods."""

from __future__ import annotations

from types import FunctionType

import torch

from gflow.runtime.distributed.pieces import COPYING

from .of_classes import read_class
from .reach import Reach, of_library
from .settings import module_of

#: attributes of every module, which are compared elsewhere, or not at all
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
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
#: attributes that PyTorch stores on tensors
OF_TENSORS = {"_is_param", *TENSOR_HOOKS, "_gflow_dynamic", *COPYING}
#: functions that look up attributes which may be missing
_ASKING = {"getattr", "hasattr"}


def read_tensor(r: Reach, value: torch.Tensor, path: str) -> None:
    """Attributes of a tensor, such as `weight.is_embedding`."""
    r.tensors.append(value)
    for kind in TENSOR_HOOKS:
        for hook in list((getattr(value, kind) or {}).values()):
            r.visit(hook, f"{path}.{kind}")
    own = vars(value)
    asked = not _ASKING.isdisjoint(r.names)
    for name in list(own):
        if name in r.names and name not in OF_TENSORS:
            r.item(own, name, f"{path}.{name}")
    if asked or len(own.keys() - OF_TENSORS):
        r.add("names", own, None, frozenset(own), path)


def read_module(r: Reach, module: torch.nn.Module, path: str) -> None:
    """Attributes, hooks, slots and the class of a module, and all that is read from these."""
    r.modules.setdefault(path, module)
    r.reached.append(module)
    own = vars(module)
    for name in list(own):
        if name not in _OF_MODULES and (r.computed or name in r.names):
            r.item(own, name, f"{path}.{name}")
    r.add("names", own, r.computed, frozenset(own), path)
    for kind in HOOKS:
        hooks = own.get(kind)
        if hooks is not None:
            r.add("hooks", own, kind, tuple(hooks.items()), f"{path}.{kind}")
            for hook in hooks.values():
                r.visit(hook, f"{path}.{kind}")
    r.add("class", module, None, type(module), path)
    r.add("attribute", module, "__dict__", own, f"{path}.__dict__")
    read_class(r, type(module), path)
    _methods(r, type(module))
    _hooks_of_all(r)
    for kind in ("_parameters", "_buffers", "_modules"):
        held = own.get(kind, {})
        r.add("slot", own, kind, held, f"{path}.{kind}")
        r.add("size", held, None, len(held), f"{path}.{kind}")
        r.add("keys", held, None, tuple(held), f"{path}.{kind}")
        for name, part in list(held.items()):
            r.add("slot", held, name, part, f"{path}.{name}")
            r.visit(part, f"{path}.{name}")


def _methods(r: Reach, kind: type) -> None:
    """Methods of PyTorch's module classes that ran, since they may be replaced."""
    if ("methods", kind) in r.seen:
        return
    r.seen["methods", kind] = kind
    for name in _CALLED:
        r.add("attribute", kind, name, getattr(kind, name), f"{kind.__qualname__}.{name}")
    for base in kind.__mro__:
        if base is object or not of_library(module_of(base)) or ("own", base) in r.seen:
            continue
        r.seen["own", base] = base
        own = vars(base)
        r.add("names", own, None, frozenset(own), base.__qualname__)
        for name, part in own.items():
            if isinstance(part, FunctionType) and part.__code__ in r.codes:
                r.add("attribute", base, name, part, f"{base.__qualname__}.{name}")


def read_methods_of_tensors(r: Reach) -> None:
    """Methods of `torch.Tensor` that may be replaced; operators call methods that no code names."""
    own = vars(torch.Tensor)
    r.add("size", own, None, len(own), "torch.Tensor")
    for name in own.keys() & r.names:
        if isinstance(own[name], FunctionType):
            r.add("attribute", torch.Tensor, name, own[name], f"torch.Tensor.{name}")


def _hooks_of_all(r: Reach) -> None:
    own = vars(torch.nn.modules.module)
    for kind in _GLOBAL_HOOKS:
        hooks = own[kind]
        if ("hooks", id(hooks)) not in r.seen:
            r.seen["hooks", id(hooks)] = hooks
            r.add("hooks", own, kind, tuple(hooks.items()), f"{OF_ALL_MODULES}{kind}")
            for hook in hooks.values():
                r.visit(hook, kind)
