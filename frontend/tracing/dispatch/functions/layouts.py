"""What an update in place leaves of a traced tensor's strides: all of them.

PyTorch's functionalization turns an update into an op with a result of its own, and the tensor takes the result's
strides. Whether `.contiguous()`, `.reshape()` or `.to(memory_format=…)` copies, or shows the tensor's own memory,
goes by strides; so does what `.stride()` and `.is_contiguous()` say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..recorder import Recorder, set_value, untraced

Tensor = torch.Tensor
#: an operand, and the tensor that its strides come from (itself, or what it is a view of) with its shape and strides
#: before a call
Layout = tuple[Tensor, Tensor, tuple[Any, ...], tuple[Any, ...]]

#: functions that are there to change a tensor's shape or strides
RESHAPING = frozenset({
    "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "as_strided_", "resize_", "resize_as_",
    "set_", "__set__",
})  # fmt: skip


class Mode(Protocol):
    """What layouts need of the mode that rewrites calls."""

    recorder: Recorder

    def concrete(self, size: Any) -> Any:
        """The value that a size has in this trace, as a plain int."""


def layouts(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Layout]:
    """How the tensors lie that a call may update: its operands, and what they are views of.

    A view takes its strides from its base, so that only the base's are to be kept. A row-major base stays one when
    rows of it are updated; through a transpose, it takes the transposed strides of the result."""
    found: list[Layout] = []
    for tensor in (*_tensors(args), *_tensors(kwargs.values())):
        base = tensor._base
        if tensor.layout != torch.strided:
            continue
        if base is not None and base.is_contiguous() and tensor.is_contiguous():
            continue
        holder = tensor if base is None else base
        if holder.dim():
            found.append((tensor, holder, tuple(holder.shape), tuple(holder.stride())))
    return found


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def restore(mode: Mode, before: Sequence[Layout]) -> None:
    """Give the tensors that a call has updated the strides that they had."""
    concrete = mode.concrete
    for operand, tensor, shape, strides in before:
        torch._sync(tensor)  # what was written through a view of it
        now = tuple(tensor.stride())
        if list(map(concrete, now)) == list(map(concrete, strides)):
            continue
        if len(now) == len(shape) and tuple(tensor.shape) == shape:
            _put(mode, tensor, strides)
            if operand is not tensor:
                torch._sync(
                    operand
                )  # a view has the result's strides until it is taken from its base again


def _put(mode: Mode, tensor: Tensor, strides: tuple[Any, ...]) -> None:
    """The same value, with other strides, as what a functional tensor holds."""
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
