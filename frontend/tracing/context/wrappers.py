"""Refuses modules and tensors whose behaviour a graph would lose.

These are modules that work across processes by hooks of autograd or by a tensor class (in a group of more than one
rank), tensor classes that override ops or that results have in eager, and tensors whose memory does not hold their
elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from gflow.errors import GraphTraceError

from ..data.global_tensors import is_global
from .ranks import world_size

#: the error for a parameter or buffer that a module creates in its first call
LAZY = (
    "of a lazy module has no shape yet; call the model once with a batch, outside of the graph, before the graph's "
    "first call."
)

#: the default implementations of `__torch_function__`
_FUNCTION = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]

_GRADIENTS = (
    "Train it in an nn.Graph that has the optimizer, which averages the gradients; or compile the inner module with "
    "gflow.compile() and wrap the result, DistributedDataParallel(gflow.compile(module))."
)


def _ranks(group: Any) -> int:
    if group is None:
        return world_size()
    return dist.get_world_size(group) if isinstance(group, dist.ProcessGroup) else world_size()


def _problem(module: torch.nn.Module) -> tuple[str, str] | None:
    """What a graph would lose of a module's behaviour, and what to do; None if nothing."""
    if isinstance(module, torch.nn.DataParallel):
        if len(module.device_ids) < 2:
            return None
        return (
            "it copies the model to several devices at every call, which one program cannot hold",
            "Pass the inner module ({name}.module), and use one process for each device.",
        )
    if world_size() == 1:
        return None
    kinds = {k.__name__ for k in type(module).__mro__}
    if "DistributedDataParallel" in kinds and _ranks(getattr(module, "process_group", None)) > 1:
        return ("hooks of autograd synchronize its gradients, and a graph has none", _GRADIENTS)
    replicated = "torch.distributed._composable.replicate"  # and replicate_with_fsdp
    if any(k.__module__.startswith(replicated) for k in type(module).__mro__):
        return (
            "replicate() synchronizes its gradients by hooks of autograd, and a graph has none",
            "Use DistributedDataParallel({name}), and for tensor parallelism besides fully_shard() over the other "
            "dimension of the mesh.",
        )
    if "FullyShardedDataParallel" in kinds:
        return (
            "it gathers its parameters from the other ranks by hooks at each call, which a graph does not run",
            "Use torch.distributed.fsdp.fully_shard(), which a graph knows, or DistributedDataParallel and "
            "config.enable_zero(stage=3); or leave the graph out (torch.compile(backend='gflow') compiles what is "
            "between its hooks).",
        )
    if (
        isinstance(module, torch.nn.SyncBatchNorm)
        and module.training
        and "forward" not in vars(module)  # handled in `program/parallel_modules.py`
        and _ranks(module.process_group) > 1
    ):
        return (
            "its statistics are those of all ranks, which a graph does not compute yet",
            "Use BatchNorm, whose statistics are each rank's own, or average them by a functional "
            "collective in build().",
        )
    return None


def check_module(module: torch.nn.Module, name: str, here: Callable[[], str]) -> None:
    """Check that a graph can have a module.

    Args:
        here: gives file and line of the user's frame.

    Raises:
        GraphTraceError: a call of `module` works across processes in a way that a graph would lose.
    """
    found = _problem(module)
    if found is not None:
        what, advice = found
        label = name or "module"
        raise GraphTraceError(
            f"{here()}: {label} is a {type(module).__name__} in a group of {world_size()} ranks: {what}. "
            + advice.replace("{name}", label)
        )


def check_optimizer(optimizer: torch.optim.Optimizer) -> str | None:
    """Why an optimizer of `torch.distributed.optim` cannot be used by a graph in a group of several ranks; None if it
    can."""
    module = type(optimizer).__module__
    if not module.startswith("torch.distributed") or world_size() == 1:
        return None
    return (
        f"{type(optimizer).__name__} exchanges parameters or state between {world_size()} ranks in its "
        "step(), which a graph does not do yet. Use the optimizer that it wraps, or step it outside of a "
        "graph."
    )


def check_tensor(tensor: torch.Tensor, name: str) -> None:
    """Check that a graph can have a tensor.

    Raises:
        GraphTraceError: it belongs to a lazy module, is sharded, or its memory does not hold its elements.
    """
    if torch.nn.parameter.is_lazy(tensor):
        raise GraphTraceError(f"{name} {LAZY}")
    kind = type(tensor)
    data = type(tensor.data) if isinstance(tensor, torch.nn.Parameter) else kind
    for k in (kind, data):
        if k.__name__ in ("ShardedTensor", "AsyncCollectiveTensor"):
            raise GraphTraceError(
                f"{name} is a {k.__module__}.{k.__name__}, a sharded tensor of a deprecated kind, or one whose "
                "collective is not complete; a graph takes plain tensors and DTensors. Pass a DTensor, or "
                "wait for the collective."
            )
    if tensor.is_neg():
        raise GraphTraceError(
            f"{name} is a negative view (such as z.conj().imag): its memory holds the negated elements, "
            f"which graphs do not support. Pass {name}.resolve_neg()."
        )
    if tensor._is_zerotensor():
        raise GraphTraceError(
            f"{name} is a tensor of zeros without memory, which graphs do not support; pass a copy "
            "(.clone())."
        )
    if not is_global(tensor) and not isinstance(tensor, FakeTensor) and _computes(kind):
        error = GraphTraceError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, a tensor class that overrides operations "
            "(__torch_function__ or __torch_dispatch__); a graph would ignore that. Pass the plain "
            "tensors that it wraps, or .as_subclass(torch.Tensor) if it only adds methods."
        )
        if _overrides_functions(kind):  # results would lose the class
            raise error.to_eager(f"the class of {name} overrides __torch_function__")
        raise error

    if _gives_itself(kind):
        raise GraphTraceError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}; in eager, results of ops on it have this class, and "
            "those of a graph are plain tensors. Pass .as_subclass(torch.Tensor), and give results the class after "
            "the call."
        )


def _gives_itself(kind: type[Any]) -> bool:
    """Whether results of PyTorch's functions have this tensor class, although the class overrides no op."""
    if kind is torch.Tensor or issubclass(kind, (torch.nn.Parameter, FakeTensor)):
        return False
    function = getattr(kind.__torch_function__, "__func__", None)
    return function is _FUNCTION and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _computes(kind: type[Any]) -> bool:
    """Whether a tensor class overrides ops."""
    return (
        _overrides_functions(kind) or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    )


def _overrides_functions(kind: type[Any]) -> bool:
    """Whether a tensor class overrides `__torch_function__`."""
    own = kind.__torch_function__
    disabled = own is torch._C._disabled_torch_function_impl
    return not disabled and getattr(own, "__func__", None) is not _FUNCTION
