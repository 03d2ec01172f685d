"""Keeps the strides of traced tensors at updates in place.

PyTorch's functionalization turns an update into an op with a new result, and the tensor takes the result's strides.
Whether `.contiguous()`, `.reshape()` or `.to(memory_format=…)` copies, or returns a view of the tensor, depends on
strides, and so do `.stride()` and `.is_contiguous()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..recorder import Recorder, set_value, untraced

Tensor = torch.Tensor
#: an operand, and the tensor that determines its strides (itself, or its base) with its shape and strides before a
#: call
Layout = tuple[Tensor, Tensor, tuple[Any, ...], tuple[Any, ...]]

#: functions whose purpose is to change a tensor's shape or strides
RESHAPING = frozenset({
    "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "as_strided_", "resize_", "resize_as_",
    "set_", "__set__",
})  # fmt: skip


class Mode(Protocol):
    """The interface of the function mode that this file uses."""

    recorder: Recorder

    def concrete(self, size: Any) -> Any:
        """The value of a size in this trace, as a plain int."""


def layouts(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Layout]:
    """The layouts of the tensors that a call may update: its operands and their bases.

    A view derives its strides from its base, so only those of the base are kept. A row-major base stays row-major if
    rows of it are updated; an update through a transpose would give it the transposed strides of the result.
    """
    found: list[Layout] = []
    for tensor in (*_tensors(args), *_tensors(kwargs.values())):
        base = tensor._base
        if tensor.layout != torch.strided:
            continue
        if base is not None and _is_row_major(base) and _is_row_major(tensor):
            continue
        holder = tensor if base is None else base
        if holder.dim():
            found.append((tensor, holder, tuple(holder.shape), tuple(holder.stride())))
    return found


def _is_row_major(tensor: Tensor) -> bool:
    """Whether a tensor is contiguous for all sizes. One whose size depends on values may be for 0 and 1 alone."""
    if not any(isinstance(n, torch.SymInt) for n in tensor.shape):
        return tensor.is_contiguous()
    # only here: it loads all of PyTorch's symbolic shapes
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    step: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if not guard_or_false(stride == step):
            return False
        step = step * size
    return True


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def restore(mode: Mode, before: Sequence[Layout]) -> None:
    """Give the tensors that a call has updated their previous strides."""
    concrete = mode.concrete
    for operand, tensor, shape, strides in before:
        torch._sync(tensor)  # applies writes through views
        now = tuple(tensor.stride())
        if list(map(concrete, now)) == list(map(concrete, strides)):
            continue
        if len(now) == len(shape) and tuple(tensor.shape) == shape:
            _put(mode, tensor, strides)
            if operand is not tensor:
                torch._sync(operand)  # otherwise a view keeps the result's strides


def _put(mode: Mode, tensor: Tensor, strides: tuple[Any, ...]) -> None:
    """Replace the value inside of a functional tensor by the same value with other strides."""
    recorder = mode.recorder
    with recorder.fake_mode, recorder:
        torch._sync(tensor)
        held = torch._from_functional_tensor(tensor)
    value = recorder.value_of(held)
    with untraced():
        meta = torch.empty_strided(held.shape, strides, dtype=held.dtype, device="meta")
        fake = FakeTensor(recorder.fake_mode, meta, held.fake_device)  # type: ignore[attr-defined]
    set_value(fake, value)
    torch._functionalize_replace(tensor, fake)
    torch._functionalize_commit_update(tensor)
