"""Modules of `parallelize_module` in a trace: their hooks, which convert to and from DTensors, become reshardings.

`ColwiseParallel`, `RowwiseParallel`, `SequenceParallel`, `PrepareModuleInput`, `PrepareModuleOutput` and
`PrepareModuleInputOutput` are supported. A hook that interprets a plain tensor as this rank's shard
(`input_layouts=Shard(…)`) or returns one (`use_local_output=True`, the default) lets ranks work on their shards
independently in between. The trace has the global value there; `gflow-propagate-shardings` refuses ops between the two
whose result on shards is not the shard of their global result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from gflow.errors import GraphTraceError

from .modules import ModuleTable
from .resharding import reshard

_STYLES = ("ColwiseParallel", "RowwiseParallel", "SequenceParallel")


@contextlib.contextmanager
def reshardings(table: ModuleTable, where: Callable[[], str], whole: bool) -> Iterator[None]:
    """While active, hooks of parallel modules are reshardings.

    Args:
        whole: whether the trace has global values, over which `SyncBatchNorm` computes the same statistics as batch
            norm.

    Raises:
        GraphTraceError: a module has other hooks of `distribute_module` or of a parallel style.
    """
    changed: list[tuple[Any, Any, Any]] = []
    replaced: list[torch.nn.Module] = []
    try:
        for module in table.modules:
            if (
                whole
                and isinstance(module, torch.nn.SyncBatchNorm)
                and "forward" not in vars(module)
            ):
                vars(module)["forward"] = partial(_BatchNorm.forward, module)
                replaced.append(module)
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for key, hook in list(hooks.items()):
                    made = _translated(hook, table.names[id(module)], where)
                    if made is not None:
                        changed.append((hooks, key, hook))
                        hooks[key] = made
        yield
    finally:
        for hooks, key, hook in changed:
            hooks[key] = hook
        for module in replaced:
            del vars(module)["forward"]


def _translated(hook: Any, name: str, where: Callable[[], str]) -> Any:
    """The replacement for a hook of PyTorch's; None if it is not one of them."""
    kind = getattr(hook, "__qualname__", "")
    if not getattr(hook, "__module__", "").startswith("torch.distributed.tensor"):
        return None
    cells = dict(zip(hook.__code__.co_freevars, (c.cell_contents for c in hook.__closure__ or ())))
    if kind.startswith(("PrepareModuleInput._apply.", "PrepareModuleOutput._apply.")):
        return (_inputs if "Input" in kind else _outputs)(cells["self"], cells["device_mesh"])
    if not kind.startswith("distribute_module."):
        raise _unknown(name, kind, where)
    function = cells.get("input_fn") or cells.get("output_fn")
    if not isinstance(function, partial):
        raise _unknown(name, getattr(function, "__qualname__", kind), where)
    style, _, which = function.func.__qualname__.partition(".")
    if style not in _STYLES:
        raise _unknown(name, style, where)
    mesh = cells["device_mesh"]
    if which == "_prepare_input_fn":
        return _input(function.args, mesh)
    if which == "_prepare_output_fn" and not (style == "SequenceParallel" and function.args[-1]):
        return _output(function.args, mesh)
    raise _unknown(name, function.func.__qualname__, where)


def _unknown(name: str, what: str, where: Callable[[], str]) -> GraphTraceError:
    return GraphTraceError(
        f"{where()}: {name} has a hook of {what}, which works on DTensors and which a graph does not know; it knows "
        f"those of {', '.join(_STYLES)} and PrepareModuleInput and …Output. Distribute its parameters without hooks "
        "(distribute_tensor), and say with gflow.to_global(x, placement, sbp) in build() how values are to lie."
    )


def _is_split(placements: Sequence[Any]) -> bool:
    return any(type(p).__name__ != "Replicate" for p in placements)


def _input(args: Sequence[Any], mesh: Any) -> Callable[..., Any]:
    given, wanted = args[0], args[-1]

    def hook(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Any:
        x = reshard(inputs[0], mesh, given, "leave" if _is_split(given) else "")
        return x if given == wanted else reshard(x, mesh, wanted)

    return hook


def _output(args: Sequence[Any], mesh: Any) -> Callable[..., Any]:
    placements = (
        args[0] if len(args) > 1 else None
    )  # SequenceParallel keeps the sharding of a DTensor
    local = args[-1]

    def hook(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if placements is None:
            return output
        return reshard(output, mesh, placements, _leaving(placements) if local else "")

    return hook


def _leaving(placements: Sequence[Any]) -> str:
    """The `side` of a resharding at which a DTensor becomes a plain tensor: this rank's shard, or a replicated one."""
    return "enter" if _is_split(placements) else "plain"


def _inputs(style: Any, mesh: Any) -> Callable[..., Any]:
    """The hook of `PrepareModuleInput`."""
    given, wanted = style.input_layouts, style.desired_input_layouts

    def placed(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if given is None:
            return inputs
        if len(inputs) != len(given):
            raise ValueError(f"{len(inputs)} module inputs and {len(given)} input_layouts")
        return tuple(_prepared(style, mesh, *each) for each in zip(inputs, given, wanted))

    def hook(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Any:
        return placed(inputs)

    def with_names(
        module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        own, other = style.input_kwarg_layouts, style.desired_input_kwarg_layouts
        return placed(inputs), {
            key: _prepared(style, mesh, x, own.get(key), other.get(key)) for key, x in named.items()
        }

    return with_names if style.with_kwargs else hook


def _outputs(style: Any, mesh: Any) -> Callable[..., Any]:
    """The hook of `PrepareModuleOutput`."""
    given, wanted = style.output_layouts, style.desired_output_layouts

    def hook(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        every = output if isinstance(output, tuple) else (output,)
        if len(every) != len(given):
            raise ValueError(f"{len(every)} module outputs and {len(given)} output_layouts")
        found = tuple(_prepared(style, mesh, *each) for each in zip(every, given, wanted))
        return found[0] if len(found) == 1 else found

    return hook


def _prepared(style: Any, mesh: Any, x: Any, given: Any, wanted: Any) -> Any:
    """A tensor with the placements `given` (None: it is unchanged), resharded to `wanted`."""
    if given is None:
        return x
    x = reshard(x, mesh, (given,), "leave" if _is_split((given,)) else "")
    wanted = (given if wanted is None else wanted,)
    if style.use_local_output:
        return reshard(x, mesh, wanted, _leaving(wanted))
    return x if wanted == (given,) else reshard(x, mesh, wanted)
