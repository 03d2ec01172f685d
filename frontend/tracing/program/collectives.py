"""Collectives in `build()`: which functions of `torch.distributed` a graph supports.

Functional collectives (`torch.distributed._functional_collectives`, `torch.ops._c10d_functional`) are recorded as they
are. While `build()` runs, functions of `torch.distributed` that write into a tensor become a functional collective and
a copy. Every collective is complete when its step ends, so `wait()` does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gflow.dialects.aten.collectives import is_collective as is_collective_name
from gflow.errors import GraphTraceError

from ..context.location import here
from ..context.threads import here_only
from ..data.values import TraceOp

Tensor = torch.Tensor
_ADVICE = (
    "In a graph, use the functional collectives: y = torch.distributed._functional_collectives."
    "all_reduce(x, 'sum', group), and likewise all_gather_single, reduce_scatter_single, "
    "all_to_all_single, broadcast."
)


def is_collective(op: TraceOp) -> bool:
    """Whether all ranks take part in an op. Such an op is never dropped, nor repeated."""
    func = op.func
    return func.namespace == "_c10d_functional" and is_collective_name(str(func))


def refuse(func: Any, where: str) -> None:
    """Refuse an op.

    Raises:
        GraphTraceError: it is an op of a process group, but no functional collective.
    """
    if func.namespace == "c10d":
        raise GraphTraceError(
            f"{where}: {func} (torch.distributed.{func._opname.strip('_')}) is called in build() on "
            f"tensors of the graph, and updates them in a way that tracing cannot see. {_ADVICE}"
        )
    if func.namespace == "_c10d_functional" and func._opname in ("isend", "irecv", "batch_p2p_ops"):
        raise GraphTraceError(
            f"{where}: {func} is called in build(); a graph supports collectives, but not messages between "
            "two ranks. Send and receive outside of build()."
        )


# the in-place ones of torch.ops._c10d_functional


def in_place() -> dict[Any, Callable[..., Any]]:
    """Handlers for the ops that write into a tensor, which autograd and functionalization refuse."""
    if not dist.is_available():
        return {}
    ops = torch.ops._c10d_functional

    def one(plain: Any) -> Callable[..., Any]:
        return lambda mode, func, args, kwargs: args[0].copy_(plain(*args, **kwargs))

    def several(plain: Any) -> Callable[..., Any]:
        def handler(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
            results = plain(*args, **kwargs)
            return [target.copy_(value) for target, value in zip(args[0], results, strict=True)]

        return handler

    def out(plain: Any) -> Callable[..., Any]:
        def handler(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
            words = dict(kwargs)
            return words.pop("out").copy_(plain(*args, **words))

        return handler

    found = {
        ops.all_reduce_: one(ops.all_reduce),
        ops.broadcast_: one(ops.broadcast),
        ops.all_reduce_coalesced_: several(ops.all_reduce_coalesced),
        ops.all_gather_into_tensor_out: out(ops.all_gather_into_tensor),
        ops.reduce_scatter_tensor_out: out(ops.reduce_scatter_tensor),
    }
    return {**found, **{packet.default: handler for packet, handler in found.items()}}


# the functions of torch.distributed


class Done:
    """The result of a collective with `async_op=True`: it has completed."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def result(self) -> Any:
        """The tensors that it has written to."""
        return self._result


def _reduction(op: Any) -> str:
    names = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
    for name in names:
        if (isinstance(op, str) and op.lower() == name) or op == getattr(
            dist.ReduceOp, name.upper()
        ):
            return name
    raise GraphTraceError(
        f"{here()}: collectives in a graph support the reductions {', '.join(names)}; got {op}"
    )


def _group(group: Any) -> Any:
    found = group or dist.group.WORLD
    if dist.get_rank(found) < 0:
        raise GraphTraceError(
            f"{here()}: a collective is called with a process group that does not contain this rank; call "
            "it only on the ranks of the group."
        )
    return found


def _size(group: Any) -> int:
    return dist.get_world_size(group)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1)


def _done(result: Any, async_op: bool) -> Done | None:
    return Done(result) if async_op else None


def _wait(value: Any) -> Any:
    wait = torch.ops._c10d_functional.wait_tensor
    return [wait(v) for v in value] if isinstance(value, (list, tuple)) else wait(value)


def all_reduce(tensor: Tensor, op: Any = "sum", group: Any = None, async_op: bool = False) -> Any:
    """`torch.distributed.all_reduce`."""
    name = _group(group).group_name
    ops = torch.ops._c10d_functional
    return _done(tensor.copy_(_wait(ops.all_reduce(tensor, _reduction(op), name))), async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """`torch.distributed.broadcast`."""
    group = _group(group)
    root = group_src if group_src is not None else dist.get_group_rank(group, src or 0)
    value = torch.ops._c10d_functional.broadcast(tensor, root, group.group_name)
    return _done(tensor.copy_(_wait(value)), async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Any:
    """`torch.distributed.all_gather_into_tensor`: concatenated or stacked, depending on the output's shape."""
    group = _group(group)
    ops = torch.ops._c10d_functional
    flat = _wait(ops.all_gather_into_tensor(_flat(input_tensor), _size(group), group.group_name))
    return _done(output_tensor.copy_(flat.reshape(output_tensor.shape)), async_op)


def all_gather(
    tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
) -> Any:
    """`torch.distributed.all_gather` of tensors of one shape.

    Raises:
        GraphTraceError: shapes differ, or the number of tensors is not that of the ranks.
    """
    group = _group(group)
    if any(t.shape != tensor.shape for t in tensor_list) or len(tensor_list) != _size(group):
        raise GraphTraceError(
            f"{here()}: in a graph, all_gather() takes one tensor of the same shape for each of the "
            f"{_size(group)} ranks."
        )
    ops = torch.ops._c10d_functional
    flat = _wait(ops.all_gather_into_tensor(_flat(tensor), _size(group), group.group_name))
    for target, part in zip(tensor_list, flat.reshape(_size(group), *tensor.shape)):
        target.copy_(part)
    return _done(tensor_list, async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = "sum", group: Any = None, async_op: bool = False
) -> Any:
    """`torch.distributed.reduce_scatter_tensor`."""
    group = _group(group)
    ops = torch.ops._c10d_functional
    flat = ops.reduce_scatter_tensor(_flat(input), _reduction(op), _size(group), group.group_name)
    return _done(output.copy_(_wait(flat).reshape(output.shape)), async_op)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: Any = "sum",
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """`torch.distributed.reduce_scatter`."""
    return reduce_scatter_tensor(output, torch.stack(list(input_list)), op, group, async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """`torch.distributed.all_to_all_single`."""
    group = _group(group)
    size = _size(group)
    sends = list(input_split_sizes or [input.shape[0] // size] * size)
    takes = list(output_split_sizes or [output.shape[0] // size] * size)
    ops = torch.ops._c10d_functional
    value = ops.all_to_all_single(input.contiguous(), takes, sends, group.group_name)
    return _done(output.copy_(_wait(value)), async_op)


def barrier(*_: Any, **__: Any) -> None:
    """Refuse a barrier, which has no data by which a graph could order it.

    Raises:
        GraphTraceError: always.
    """
    raise GraphTraceError(
        f"{here()}: build() calls torch.distributed.barrier(), which would run once, while the graph is "
        "traced. Call it outside of build(); collectives in it wait for all ranks by themselves."
    )


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise GraphTraceError(
            f"{here()}: build() calls torch.distributed.{name}(), which a graph does not support. "
            f"{_ADVICE}"
        )

    return call


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "all_gather_into_tensor": all_gather_into_tensor,
    "_all_gather_base": all_gather_into_tensor,
    "all_gather": all_gather,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "_reduce_scatter_base": reduce_scatter_tensor,
    "reduce_scatter": reduce_scatter,
    "all_to_all_single": all_to_all_single,
    "barrier": barrier,
    **{
        name: _refused(name)
        for name in (
            "monitored_barrier", "send", "recv", "isend", "irecv", "batch_isend_irecv", "scatter", "gather",
            "reduce", "all_to_all", "all_reduce_coalesced", "all_gather_coalesced", "all_gather_object",
            "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
            "recv_object_list",
        )
    },
}  # fmt: skip


def replaced() -> list[tuple[Any, str, Any]]:
    """(module, name, function) of replacements for functions of `torch.distributed` while `build()` runs; other
    threads keep the originals."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    found = []
    for name, function in _FUNCTIONS.items():
        for module in (dist, dist.distributed_c10d):
            original = vars(module).get(name)
            if original is not None:
                found.append((module, name, here_only(original, function)))
    return found
