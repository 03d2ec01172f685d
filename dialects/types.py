"""Tensor types as plain data, and their way to and from MLIR types."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from .extents import at_most

if TYPE_CHECKING:
    from .mlir import ir
else:
    ir = None  # the bindings, once a type of theirs is met: saved programs run without them

HALVES = ("f16", "bf16")
FLOATS = ("f64", "f32", *HALVES)
SIGNED = ("i64", "i32", "i16", "i8")
UNSIGNED = ("ui8", "ui16", "ui32", "ui64")
INTEGERS = SIGNED + UNSIGNED
COMPLEX = ("complex<f32>", "complex<f64>", "complex<f16>")
FLOATS8 = ("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ", "f8E8M0FNU")
#: types that only PyTorch's ops compute with
NO_KERNELS = (*COMPLEX, *FLOATS8)
DTYPES = (*FLOATS, *INTEGERS, "i1", *NO_KERNELS)

_ITEM_BYTES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1,
    "ui64": 8, "ui32": 4, "ui16": 2, "ui8": 1,
    "complex<f32>": 8, "complex<f64>": 16, "complex<f16>": 4, **dict.fromkeys(FLOATS8, 1),
}  # fmt: skip


class TensorType(NamedTuple):
    """A ranked tensor with static shape.

    shape: sizes in elements. dtype: the element type as MLIR spells it (`f32`, `i1`, `ui8`).
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """The number of elements; 1 for rank 0."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense buffer, for the greatest size if the shape varies (`gflow.dialects.extents`);
        i1 is stored as one byte, as PyTorch stores bool."""
        return at_most(prod(self.shape)) * _ITEM_BYTES[self.dtype]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"

    def mlir(self) -> ir.Type:
        """The MLIR type in the current context."""
        if ir is None:
            _import_bindings()
        key = (ir.Context.current, self)
        found = _mlir.get(key)
        if found is None:
            element = ir.Type.parse(self.dtype)
            unknown = ir.Location.unknown()  # of the error, if the type is none
            found = ir.RankedTensorType.get(list(self.shape), element, loc=unknown)
            _mlir[key] = found
        return found


def counted(number: int) -> str:
    """A number for a message. Python writes none of more than 4,300 digits, which products of sizes may have."""
    return f"{number:,}" if number < 1 << 128 else "more than 2**128"


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a dense row-major buffer of `shape`."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements are contiguous and row-major; strides of dimensions of one element are ignored."""
    if strides == row_major_strides(shape) or 0 in shape:
        return True
    dense = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != dense:
            return False
        dense *= size
    return True


#: elements up to which `share_memory` compares addresses one by one
_COMPARED = 1 << 18


def share_memory(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements of a tensor may share an address, as those of an expanded tensor.

    Exact for tensors that are not large; for a large one with interleaving strides the answer is true.
    """
    dims = sorted((s, n) for s, n in zip(strides, shape) if n != 1)
    if any(n == 0 for _, n in dims):
        return False
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            break
        reach += (size - 1) * stride
    else:
        return False
    count = prod(n for _, n in dims)
    if count > _COMPARED or any(s == 0 for s, _ in dims):
        return True
    places = {0}
    for stride, size in dims:
        places = {p + i * stride for p in places for i in range(size)}
    return len(places) != count


def without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape without its dimensions of size 1."""
    return tuple([s for s in shape if s != 1])


# MLIR uniques types per context, and contexts are few: reading a shape through the bindings
# costs microseconds per dimension, a dictionary look-up a tenth of one.
_cache: dict[ir.Type, TensorType | None] = {}
_mlir: dict[tuple[ir.Context, TensorType], ir.Type] = {}


def _import_bindings() -> None:
    global ir
    # start-up: programs are read without the bindings of MLIR
    from . import mlir

    ir = mlir.ir


def forget_types() -> None:
    """Empty the look-up: its entries keep the contexts of their types alive."""
    _cache.clear()
    _mlir.clear()


def type_of(value: ir.Value) -> TensorType:
    """The tensor type of an SSA value.

    Raises:
        TypeError: the value isn't a ranked tensor of static shape and a known element type.
    """
    return tensor_type(value.type)


def tensor_type(ty: ir.Type) -> TensorType:
    """As `type_of`, from an MLIR type.

    Raises:
        TypeError: it is no tensor of static shape and known element type.
    """
    found = try_tensor_type(ty)
    if found is None:
        raise TypeError(f"expected a tensor of static shape and a known element type, found {ty}")
    return found


def try_tensor_type(ty: ir.Type) -> TensorType | None:
    """As `tensor_type`, with None where it isn't one."""
    try:
        return _cache[ty]
    except KeyError:
        pass
    if ir is None:
        _import_bindings()
    result = None
    if isinstance(ty, ir.RankedTensorType) and ty.has_static_shape:
        dtype = str(ty.element_type)
        if dtype in _ITEM_BYTES:
            result = TensorType(tuple(ty.shape), dtype)
    if len(_cache) > 100_000:
        _cache.clear()
    _cache[ty] = result
    return result
