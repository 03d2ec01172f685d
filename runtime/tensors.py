"""PyTorch tensors over memory of a program."""

from __future__ import annotations

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
    return raw.as_strided(shape, strides, offset // dtype.itemsize)


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
