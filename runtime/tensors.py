"""PyTorch tensors over memory of a program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from gflow.dialects.types import TensorType, share_memory

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "i1": torch.bool,
    "ui8": torch.uint8,
    "ui16": torch.uint16,
    "ui32": torch.uint32,
    "ui64": torch.uint64,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
    "complex<f16>": torch.complex32,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
    "f8E8M0FNU": torch.float8_e8m0fnu,
}


@contextmanager
def on_host() -> Iterator[None]:
    """Within, tensors are made on the CPU, whatever `torch.set_default_device` says."""
    with torch.device("cpu"):
        yield


class Placed(list[torch.Tensor]):
    """Arguments of a call, with their addresses. With thousands of arguments, reading the addresses takes most of a
    call's time, so a caller that knows them passes them along. A copy of the list is a plain list."""

    addresses: list[int]


def addresses_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The addresses of tensors; the list must not be changed."""
    if type(tensors) is Placed:
        return tensors.addresses
    return list(map(torch.Tensor.data_ptr, tensors))


_BY_NAME = {str(d).removeprefix("torch."): d for d in DTYPES.values()}


def dtype_named(name: object) -> torch.dtype:
    """A data type by PyTorch's name for it (`float32`).

    Raises:
        ValueError: there is none.
    """
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"{name!r:.40} is no data type")
    return found


def extent(ty: TensorType, strides: tuple[int, ...]) -> int:
    """The number of elements from the first to the last one of a strided tensor, both included."""
    if ty.numel == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(ty.shape, strides))


def with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor with the same values and these strides; of elements that share memory one is kept."""
    shape = tuple(tensor.shape)
    found = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    if not share_memory(shape, strides):
        return found.copy_(tensor.detach())
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    place = torch.zeros((), dtype=torch.int64, device="cpu")
    for n, s in zip(shape, strides):
        place = place.unsqueeze(-1) + torch.arange(n, device="cpu") * s
    memory = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
    memory[place.to(tensor.device)] = tensor.detach()
    return memory.as_strided(shape, strides)


def storage_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 for one without memory."""
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def width(tensor: torch.Tensor) -> int:
    """The number of bytes from a tensor's first to its last one, both included; 0 for one without elements."""
    if not tensor.numel():
        return 0
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return (reach + 1) * tensor.element_size()


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of a tensor's first byte, and the one after its last byte."""
    begin = tensor.data_ptr()
    return begin, begin + width(tensor)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors may share elements.

    The columns of one matrix, for example, interleave and share none: two tensors are disjoint if they are disjoint
    modulo one of their strides.
    """
    if not (a.numel() and b.numel()):
        return False
    (begin, end), (other, last) = span(a), span(b)
    if begin >= last or other >= end:
        return False
    steps = [
        [(s * t.element_size(), n) for s, n in zip(t.stride(), t.shape) if n != 1] for t in (a, b)
    ]
    for modulus in {s for own in steps for s, _ in own if s}:
        widths = [
            sum(s * (n - 1) for s, n in own if s % modulus) + t.element_size()
            for own, t in zip(steps, (a, b))
        ]
        behind = (other - begin) % modulus  # the distance from a's first byte to the next of b's
        if widths[0] <= behind and behind + widths[1] <= modulus:
            return False
        if a.element_size() == b.element_size():
            mine = _places(steps[0], 0, modulus)
            if mine and mine.isdisjoint(_places(steps[1], behind, modulus) or mine):
                return behind % a.element_size() != 0
    return True


#: up to how many elements of a tensor, modulo a stride, are compared one by one
_COMPARED = 1024


def _places(steps: Sequence[tuple[int, int]], start: int, modulus: int) -> set[int]:
    """The addresses of elements, modulo a number of bytes; empty if there are too many."""
    inner = [(s, n) for s, n in steps if s % modulus]
    if math.prod(n for _, n in inner) > _COMPARED:
        return set()
    found = {start}
    for stride, size in inner:
        found = {(p + i * stride) % modulus for p in found for i in range(size)}
    return found


def view_bytes(
    memory: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """A tensor in a flat uint8 tensor, from byte `offset` on.

    Raises:
        ValueError: the offset is no multiple of the element's size.
    """
    if offset % dtype.itemsize:
        raise ValueError(f"a {dtype} at byte {offset}")
    count = memory.numel() // dtype.itemsize
    raw = memory.narrow(0, 0, count * dtype.itemsize).view(dtype)
    return raw.as_strided(shape, strides, raw.storage_offset() + offset // dtype.itemsize)


def view_tensor(
    tensor: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """A tensor over the storage of `tensor`, from its byte `offset` on, reinterpreted if of another element type."""
    base = tensor.detach()
    if base.dtype != dtype:
        base = base.view(dtype)
    return base.as_strided(shape, strides, base.storage_offset() + offset // dtype.itemsize)
