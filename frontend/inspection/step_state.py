"""The memory and the Python state around a step, which a check of the step restores."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.reads.changes import put_back
from gflow.tracing.reads.reach import MOST_ITEMS
from gflow.tracing.reads.reads import Reads, roots_of

Tensor = torch.Tensor
_CONTAINERS = (dict, list, set, deque, tuple)


class Memory:
    """The memory of tensors at one time, including aliases and gaps."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in self.tensors}
        self.saved = {at: storage.clone() for at, storage in self.storages.items()}

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in this memory."""
        return tensor.untyped_storage().data_ptr() in self.storages

    def restore(self) -> None:
        """Restore the memory."""
        for at, storage in self.storages.items():
            storage.copy_(self.saved[at])

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies of the tensors at that time, in new memory; tensors that shared memory still do."""
        fresh = {at: storage.clone() for at, storage in self.saved.items()}
        return [_like(t, fresh[t.untyped_storage().data_ptr()]) for t in tensors]


def _like(t: Tensor, storage: Any) -> Tensor:
    empty = torch.empty(0, dtype=t.dtype, device=t.device)
    return empty.set_(storage, t.storage_offset(), t.shape, t.stride())


class PythonState:
    """The Python state that a step and `build()` change: attributes of optimizers, of a scaler, of modules and of the
    graph, what these hold, and whatever else the code of `build()` reads; and gradients of tensors from outside.

    `tensors` are the tensors that `build()` and the step can reach, with names.
    """

    def __init__(self, graph: Any, call: BoundCall) -> None:
        state = graph.__dict__["_state"]
        self._held: list[tuple[Any, Any]] = [(vars(graph), dict(vars(graph)))]
        left: list[Any] = [*state.optimizers, state.scaler, *map(vars, state.table.modules)]
        left += [v for k, v in vars(graph).items() if k not in ("_state", "config")]
        seen: dict[int, Any] = {}
        while left:
            inside = _inside(left.pop())
            if inside is None or id(inside) in seen:
                continue
            seen[id(inside)] = inside
            if not isinstance(inside, tuple):
                self._held.append((inside, copy.copy(inside)))
            left += inside.values() if isinstance(inside, dict) else inside
        self._reads = Reads(closely=True).walk(roots_of(call.build, graph, graph._roots()))
        found = {id(t): (name, t) for name, t in self._named(state) if _has_memory(t)}
        self.tensors = [*found.values()]
        self._gradients = [
            (t, t.grad) for _, t in self.tensors if t.is_leaf and t.requires_grad
        ] + [(t, t.grad) for t in call.leaves if isinstance(t, Tensor) and t.is_leaf]

    def _named(self, state: Any) -> Iterator[tuple[str, Any]]:
        tables = [*state.table.roots.items(), *self._reads.modules.items()]
        for path, module in tables:
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                yield f"{path}.{name}", tensor
        for tensor in self._reads.tensors:
            yield "a tensor that build() reaches", tensor
        for n, optimizer in enumerate(state.optimizers):
            for group in optimizer.param_groups:
                for k, tensor in enumerate(group["params"]):
                    yield f"parameter {k} of optimizer {n}", tensor

    def restore(self) -> None:
        """Restore the state. Gradients are those of the time when it was saved."""
        for live, saved in self._held:
            live.clear()
            (live.extend if isinstance(live, (list, deque)) else live.update)(saved)
        put_back(self._reads.found, self._reads.names)
        for tensor, gradient in self._gradients:
            tensor.grad = gradient

    def clear_gradients(self) -> None:
        """Set all gradients to None."""
        for tensor, _ in self._gradients:
            tensor.grad = None


def _inside(value: Any) -> Any:
    """A container, or the attributes of an object; None for others, and for containers that no guard compares."""
    if isinstance(value, (Tensor, torch.nn.Module, type, ModuleType, FunctionType)):
        return None
    inside = value if isinstance(value, _CONTAINERS) else getattr(value, "__dict__", None)
    return inside if isinstance(inside, _CONTAINERS) and len(inside) <= MOST_ITEMS else None


def _has_memory(tensor: Tensor) -> bool:
    """Whether a tensor's elements lie in memory that can be copied."""
    return (
        tensor.layout == torch.strided
        and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
        and not (isinstance(tensor, FakeTensor) or torch.nn.parameter.is_lazy(tensor))
        and tensor.numel() > 0
    )
