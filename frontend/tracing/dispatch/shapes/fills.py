"""Which tensors hold one number everywhere, in a step of an optimizer that computes nothing.

State mostly begins as zeros. A real step on copies of all parameters reads and writes several times their memory to
find that out. Here the parameters are fake tensors. A tensor that a factory function made (`zeros_like`) and that no
op has written to since holds one number everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from .fakes import fake_call, new_fake, same_memory
from .in_place_rules import ELEMENTWISE

_aten = torch.ops.aten
#: ops whose result holds one number everywhere, with that number
_FACTORIES = {
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
    _aten.ones_like.default: 1,
    _aten.new_ones.default: 1,
}
_SAME = frozenset((_aten.detach.default, _aten.alias.default))


class ComputedState(Exception):
    """A first value of the state is computed, or a step does what fake tensors do not support."""


class Fills(TorchDispatchMode):
    """While active, ops on fake tensors compute nothing, and it is known which of these hold one number everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)
        #: by storage: the number, and a tensor that keeps the storage
        self._fills: dict[int, tuple[int, torch.Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or each call goes through a wrapper that switches TorchDynamo off, which runs in no trace

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor with the type of this one, on the CPU.

        Raises:
            ComputedState: a copy of the tensor has other strides.
        """
        if not is_non_overlapping_and_dense_or_false(tensor):
            raise ComputedState
        metadata = (tensor.shape, tensor.stride(), tensor.dtype, torch.device("cpu"))
        with torch._C._DisableTorchDispatch():
            return new_fake(self._fakes, metadata)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [*args, *kwargs.values()]
        if not any(_has_fake(value) for value in given):
            return func(*args, **kwargs)
        if func in _SAME:
            return same_memory(self._fakes, func, types, args)
        if func._schema.is_mutable:
            self._write(func, args, kwargs)
            if func in ELEMENTWISE and _alike(given):
                return args[0]
            return self._fakes.dispatch(func, types, args, kwargs)
        result = fake_call(self._fakes, func, types, args, kwargs)
        if func in _FACTORIES:
            self._fills[_storage(result)] = _FACTORIES[func], result
        return result

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forget what the tensors hold that an op writes to.

        Raises:
            ComputedState: one is a real tensor.
        """
        for n, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[n] if n < len(args) else kwargs.get(argument.name)
            if not isinstance(value, FakeTensor):
                raise ComputedState
            self._fills.pop(_storage(value), None)

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its elements.

        Raises:
            ComputedState: they are not known.
        """
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if not isinstance(tensor, FakeTensor):
                return tensor.detach().clone()
            known = self._fills.get(_storage(tensor))
            size = tensor.numel() * tensor.element_size()
            if known is None or tensor.untyped_storage().nbytes() != size:
                raise ComputedState
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            return made.fill_(known[0])


def _has_fake(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_fake, value))
    return isinstance(value, FakeTensor)


def _alike(given: list[Any]) -> bool:
    """Whether all are numbers, or tensors of one dtype and shape."""
    first = given[0]
    return all(
        type(value) in (int, float)
        or (
            isinstance(value, FakeTensor)
            and value.dtype is first.dtype
            and value.shape == first.shape
        )
        for value in given
    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
