"""Settings of graphs for one module of a model: `BlockConfig`, and how users access them.

    module.to(nn.graph.GraphModule).activation_checkpointing = True
    graph.model.config.activation_checkpointing = True        # deprecated, on a graph's view of a module

Settings belong to the module and apply in every graph that contains it. They are stored outside of the modules, by
weak reference: a module's class, attributes, `state_dict()`, copies and pickles are unchanged, and so is
`torch.nn.Module`. `Module.to` accepts the class `GraphModule` by PyTorch's protocol: `GraphModule` has a
`__torch_function__`, which interprets the arguments.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from gflow.errors import GraphError
from gflow.tracing.context.debug_settings import DebugSettings, debug_settings
from gflow.tracing.context.deprecated_spellings import warn_older

from ..context.location import here, is_user_code
from .graph_blocks import GraphBlock


@dataclass
class BlockConfig:
    """Settings of one module.

    Args:
        activation_checkpointing: values of the module's forward are not kept for the backward, which recomputes them.
        stage_id: the pipeline stage of the module, from 0. Stages run in separate processes. In one process the
            setting has no effect.
        placement: the rank of the stage, `gflow.placement(kind, ranks=[rank])`; without it, stage n runs on rank n
            modulo the number of ranks.
    """

    activation_checkpointing: bool = False
    stage_id: int | None = None
    placement: Any = None

    def set_stage(self, stage_id: int | None = None, placement: Any = None) -> None:
        """Put the module into a pipeline stage: sets `stage_id` and `placement`."""
        self.stage_id, self.placement = stage_id, placement

    def __setattr__(self, name: str, value: Any) -> None:
        known = {f.name: f.default for f in fields(self)}
        if name not in known:
            raise GraphError(
                f"{here()}: a module of a graph has no setting {name!r}; known: {', '.join(known)}"
            )
        problem = _problem(name, value)
        if problem:
            raise GraphError(f"{here()}: {name} is {problem}; got {value!r}")
        if getattr(self, name, None) != value:
            _changes[0] += 1
        object.__setattr__(self, name, value)


def _problem(name: str, value: Any) -> str | None:
    """Why `value` is no valid value of a setting; None if it is."""
    if name == "activation_checkpointing" and not isinstance(value, bool):
        return "a bool"
    is_stage = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "stage_id" and value is not None and not is_stage:
        return "a stage's number, from 0, or None"
    return None


_MODULE_TO = torch.nn.Module.to.__code__


class GraphModule(BlockConfig, GraphBlock):
    """A graph's view of a module: `module.to(GraphModule)` returns its settings."""

    def _held(self) -> Any:
        return self._module()  # type: ignore[attr-defined]

    @property
    def stage_placement(self) -> Any:
        """The devices of the module's pipeline stage, as `placement`."""
        return self.placement

    @staticmethod  # if the class itself is an argument, PyTorch would warn of a bound method as deprecated
    def __torch_function__(
        func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by `Module.to(GraphModule)` to interpret its arguments: no device and no dtype."""
        if getattr(func, "__name__", "") != "_parse_to" or len(args) != 1 or kwargs:
            return NotImplemented
        frame = sys._getframe(1)
        while frame.f_code is not _MODULE_TO and not is_user_code(frame.f_code) and frame.f_back:
            frame = frame.f_back  # the function mode of a trace
        if frame.f_code is _MODULE_TO:
            _answer_with_settings(frame.f_locals["self"])
        return None, None, False, None

    def debug(
        self,
        v_level: int = 0,
        *,
        ranks: int | Sequence[int] | None = None,
        max_py_stack_depth: int = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
    ) -> None:
        """Print events of this module and its submodules while a graph with it is built. It has the parameters of
        `Graph.debug`, and overrides its setting. -1: print nothing."""
        chosen = debug_settings(
            v_level,
            ranks=ranks,
            max_py_stack_depth=max_py_stack_depth,
            only_user_py_stack=only_user_py_stack,
            op_repr_with_py_stack=op_repr_with_py_stack,
        )
        object.__setattr__(self, "_debug", (chosen,))


class OlderSpelling:
    """`module.config`: the same settings by OneFlow's earlier name."""

    __slots__ = ("_settings",)
    _settings: GraphModule

    def __init__(self, settings: GraphModule) -> None:
        object.__setattr__(self, "_settings", settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._settings, name, value)
        _warn(f"{name} = …")

    def set_stage(self, stage_id: int | None = None, placement: Any = None) -> None:
        """Put the module into a pipeline stage."""
        self._settings.set_stage(stage_id, placement)
        _warn("set_stage(…)")

    def __repr__(self) -> str:
        return repr(self._settings)


def _warn(what: str) -> None:
    warn_older(f"module.config.{what}", f"module.to(nn.graph.GraphModule).{what}")


#: module → the engine that runs it (`gflow.XRTModule`)
_engines: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()


def set_engine(module: torch.nn.Module, engine: str) -> None:
    """Let an engine run a module in graphs."""
    _engines[module] = engine


def engine_of(module: torch.nn.Module) -> str:
    """The engine that runs a module; "" if there is none."""
    return _engines.get(module, "")


#: counts changes of settings, so that graphs detect them
_changes = [0]
#: id of a module → the module, and its settings
_settings: dict[int, tuple[weakref.ref[torch.nn.Module], GraphModule]] = {}


def changes() -> int:
    """A number that increases whenever a setting of any module changes."""
    return _changes[0]


def settings_of(module: torch.nn.Module) -> GraphModule:
    """A module's settings; created with their defaults if it has none."""
    found = _settings.get(id(module))
    if found is None or found[0]() is not module:
        key = id(module)
        found = (weakref.ref(module, lambda _: _settings.pop(key, None)), GraphModule())
        object.__setattr__(found[1], "_module", found[0])
        _settings[key] = found
    return found[1]


def debug_of(module: torch.nn.Module) -> tuple[DebugSettings | None] | None:
    """What to print for a module for which `debug()` was called; (None,) means nothing."""
    found = _settings.get(id(module))
    if found is None or found[0]() is not module:
        return None
    return getattr(found[1], "_debug", None)


def is_checkpointed(module: torch.nn.Module) -> bool:
    """Whether values of a module are recomputed in the backward."""
    found = _settings.get(id(module))
    return found is not None and found[0]() is module and found[1].activation_checkpointing


def stage_setting(module: torch.nn.Module) -> tuple[int, Any] | None:
    """The pipeline stage that a module was put into, and its placement; None if there is none."""
    found = _settings.get(id(module))
    if found is None or found[0]() is not module or found[1].stage_id is None:
        return None
    return found[1].stage_id, found[1].placement


def check_settings(names: dict[int, str], modules: Iterable[torch.nn.Module]) -> None:
    """Check that nobody has tried to mark a module through an attribute `config` of its own.

    Raises:
        GraphError: someone has.
    """
    for module in modules:
        own = vars(module).get("config")
        if own is None or isinstance(own, (BlockConfig, OlderSpelling)) or id(module) in _settings:
            continue
        if getattr(own, "activation_checkpointing", None) is True:
            name = names.get(id(module), type(module).__name__)
            raise GraphError(
                f"{here()}: {name}.config.activation_checkpointing is set, but {name}.config is "
                f"the model's own {type(own).__name__}, which graphs do not read. Write "
                f"{name}.to(nn.graph.GraphModule).activation_checkpointing = True (or False, if "
                "the model means something else by it)."
            )


def _answer_with_settings(module: torch.nn.Module) -> None:
    """Let the call of `module._apply` that `Module.to` is about to make return the module's settings.

    For that one call, the module has an `_apply` of its own.
    """
    caller = threading.get_ident()

    def apply(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != caller:
            return type(module)._apply(module, *args, **kwargs)
        del vars(module)["_apply"]
        return settings_of(module)

    vars(module)["_apply"] = apply
