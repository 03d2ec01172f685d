"""Which strides ops support for their operands and results."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.dialects.mlir import ir
from gflow.dialects.ops.distribution import ORDERED, SHARD
from gflow.dialects.types import is_row_major

from ..ir.fused import root_of, root_operands
from ..ir.ssa import Op
from ..ir.views import PADDED, Layout, is_view

#: operands that must be dense and row-major: activations (weights may have any dimension order), indices
_DENSE = {
    "convolution": (0,),
    "convolution_input_grad": (0,),
    "convolution_weight_grad": (0, 1),
    "take": (1,),
    "packed_product": (0, 1),
    "quantized_matmul": (0, 1, 2),
    "index_add": (1, 2),
}

#: PyTorch's attention kernels. PyTorch's dispatch does not call them with such operands
_ATTENTION = "aten._scaled_dot_product_"
#: the number of the first operand that isn't q, k, v, y or one of their gradients
_EXTRAS = {"attention": 3, "attention_grad": 6}
#: ATen calls that factor a row-major matrix as its transpose, and others as they are. Their results have
#: the meaning that traces rely on only for row-major ones (see gflow.tracing.dispatch.functions.networks)
_FACTORS = ("_linalg_det.default", "_linalg_slogdet.default", "_linalg_solve_ex.default")
#: ATen calls whose CPU kernels give wrong results where elements share memory, as in a constant with strides of 0:
#: medians permute a copy that has the operand's strides
_PERMUTES = ("median.default", "median.dim", "nanmedian.default", "nanmedian.dim")
#: ATen calls whose kernels raise an error if an operand isn't row-major
_CHECKS = (
    "_pdist_forward.default", "_pdist_backward.default",
    "native_group_norm.default", "native_group_norm_backward.default",
)  # fmt: skip
#: ATen calls that give results of other shapes if an operand isn't row-major
_SHAPES = ("_embedding_bag.default", "_embedding_bag_forward_only.default")
_ROW_MAJOR_CALLS = frozenset(f"aten.{name}" for name in (*_FACTORS, *_PERMUTES, *_CHECKS, *_SHAPES))

#: ops that can write results with any strides; the others write row-major ones
_WRITES_STRIDES = frozenset((
    "fused", "pad", "concatenate", "reverse", "iota", "aten", "attention", "attention_grad", "index_copy", "put",
))  # fmt: skip


def gemm_ready(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether BLAS can read the last two dimensions as a matrix or its transpose."""
    (rows, cols), (row, col) = shape[-2:], strides[-2:]
    if rows * cols == 0 or min(strides, default=1) < 0:
        return rows * cols == 0
    dense = (cols == 1 or col == 1) and (rows == 1 or row >= cols)
    transposed = (rows == 1 or row == 1) and (cols == 1 or col >= rows)
    return dense or transposed


def readable(o: Op, n: int, shape: tuple[int, ...], at: Sequence[Layout]) -> bool:
    """Whether an op supports the strides of operand `n`, which has this shape. at: the layouts of all values."""
    if o.name == "reshape":
        return is_view(o, at)
    strides = at[o.operands[n]].strides
    if o.name in ORDERED or o.name == SHARD:
        return is_row_major(shape, strides)
    if _is_attention(o):
        if n >= _EXTRAS.get(o.name, n + 1):  # a bias may also have strides of 0
            return _neighbours(shape, strides) or strides[-1] == 0
        return _rows_apart(o, shape, strides)
    name, numbers = o.name, [n]
    if name == "aten" and ir.StringAttr(o.op.attributes["overload"]).value in _ROW_MAJOR_CALLS:
        return is_row_major(shape, strides)
    if o.name == "fused" and (root := root_of(o.op)) is not None:
        name = root.name.removeprefix("gflow.")
        numbers = [i for i, operand in enumerate(root_operands(root)) if operand == n]
    if name == "scaled_matmul" and 2 in numbers:
        return is_row_major(shape, strides)
    if name in ("matmul", "scaled_matmul"):
        return not numbers or gemm_ready(shape, strides)
    dense = _DENSE.get(name, ())
    return is_row_major(shape, strides) or not any(i in dense for i in numbers)


def _is_attention(o: Op) -> bool:
    if o.name == "aten":
        return ir.StringAttr(o.op.attributes["overload"]).value.startswith(_ATTENTION)
    return o.name in ("attention", "attention_grad")


def _neighbours(shape: Sequence[int], strides: Sequence[int]) -> bool:
    return len(shape) < 4 or shape[-1] == 1 or strides[-1] == 1


def _rows_apart(o: Op, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether an operand of attention has strides that PyTorch's kernels support; they do not check this themselves.

    Channels, the last dimension, must be contiguous, and the channels of different positions must not overlap, since
    the kernels pass them to the BLAS as matrices. Heads and batches may have stride 0, but must not overlap otherwise:
    PyTorch's kernel gives its result strides in the order of q's strides, and assumes that channels come last.
    """
    if len(shape) < 4:
        return True
    position = 2 if o.name == "aten" else 1
    apart = all(
        size == 1 or stride >= shape[-1] or (stride == 0 and d != position)
        for d, (size, stride) in enumerate(zip(shape[:-1], strides))
    )
    return _neighbours(shape, strides) and apart


def writable(o: Op, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether an op can write a result of this shape with these strides."""
    if _is_attention(o):
        return _rows_apart(o, shape, strides)
    if o.name in _WRITES_STRIDES or is_row_major(shape, strides):
        return True
    return o.name == "matmul" and PADDED in o.op.attributes  # on a GPU
