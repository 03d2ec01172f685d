"""Functions whose kernels write only to a tensor (`out=`) of the result's dtype, where others convert. PyTorch's
functionalization converts for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..recorder import untraced
from ..symbols.number_nodes import number_of

Tensor = torch.Tensor

#: by name, in PyTorch 2.13; some of them have forms that convert (`_converts`)
EXACT = frozenset({
    "_native_batch_norm_legit", "abs", "addbmm", "addmm", "addmv", "alias_copy", "all", "amax", "amin",
    "aminmax", "any", "argmax", "argmin", "as_strided_copy", "avg_pool2d", "avg_pool3d", "baddbmm",
    "bitwise_not", "bmm", "bucketize", "ceil", "complex", "conj_physical", "cross", "cummax", "cummin", "diag",
    "diagonal_copy", "diff", "dot", "expand_copy", "fft_ihfft", "float_power", "floor", "frac", "frexp",
    "gather", "gelu", "hardshrink", "heaviside", "histc", "histogram", "index_add", "index_copy",
    "index_reduce", "index_select", "inner", "isin", "isneginf", "isposinf", "kthvalue", "linalg_cholesky",
    "linalg_cholesky_ex", "linalg_cross", "linalg_det", "linalg_eigh", "linalg_eigvalsh", "linalg_inv",
    "linalg_inv_ex", "linalg_ldl_factor", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lu",
    "linalg_lu_factor", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_matrix_norm", "linalg_multi_dot",
    "linalg_norm", "linalg_qr", "linalg_slogdet", "linalg_solve", "linalg_solve_ex", "linalg_solve_triangular",
    "linalg_svd", "linalg_svdvals", "linalg_vecdot", "linalg_vector_norm", "linear", "log_sigmoid",
    "log_softmax", "logcumsumexp", "lu_solve", "lu_unpack", "matmul", "max", "min", "mm", "mode", "msort",
    "multinomial", "mv", "nan_to_num", "nanquantile", "narrow_copy", "native_batch_norm", "neg", "norm",
    "ormqr", "permute_copy", "polar", "qr", "quantile", "renorm", "round", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "sgn", "sign", "signbit", "slice_scatter", "softmax", "softplus",
    "softshrink", "sort", "split_with_sizes_copy", "squeeze_copy", "svd", "t_copy", "take", "take_along_dim",
    "tensordot", "topk", "transpose_copy", "triangular_solve", "tril", "triu", "trunc", "unbind_copy",
    "unfold_copy", "unsqueeze_copy", "vdot", "view_copy", "where",
})  # fmt: skip


def _converts(name: str, args: Sequence[Any], target: Tensor, alone: bool) -> bool:
    """Whether one form of a function of `EXACT` converts to the dtype of `out`. alone: whether `out` is the only
    tensor that it writes."""
    if name in ("max", "min"):  # reductions of all elements, or binary functions
        return alone
    if name in ("all", "any"):
        return target.dtype == torch.uint8
    return name == "abs" and isinstance(args[0], Tensor) and args[0].is_complex()


def dtype_problem(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    concrete: Callable[[Any], Any],
) -> str | None:
    """Why a call may not write to `out`, judged by dtypes alone; None if it may. concrete: converts a size to an
    integer."""
    name = getattr(func, "__name__", "")
    if name not in EXACT:
        return None
    targets = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    results = [r for r in results_on_meta(func, args, kwargs, concrete) if isinstance(r, Tensor)]
    for result, target in zip(results, targets):
        if result.dtype == target.dtype or _converts(name, args, target, len(targets) == 1):
            continue
        return (
            f"{name}(out=…) gives {dtype_name(result.dtype)} here and converts nothing, and the tensor that takes it "
            f"is {dtype_name(target.dtype)}. Pass one of the same dtype, or write the result to a new tensor."
        )
    return None


def results_on_meta(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], concrete: Callable[[Any], Any]
) -> list[Any]:
    """The results of a call without `out=`, as tensors on the device meta; empty if the call fails, since it will then
    raise the error itself."""
    meta = functools.partial(_on_meta, concrete=concrete)
    with untraced():
        try:
            result = func(*map(meta, args), **{k: meta(v) for k, v in kwargs.items() if k != "out"})
        except Exception:  # any kind of exception: PyTorch's functions check their arguments
            return []
    return tree_leaves(result)


def _on_meta(value: Any, concrete: Callable[[Any], Any]) -> Any:
    """An argument on the device meta, with the same shape, strides and dtype."""
    if isinstance(value, Tensor):
        shape, strides = [concrete(s) for s in value.shape], [concrete(s) for s in value.stride()]
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)([_on_meta(v, concrete) for v in value])
    node = number_of(value)
    return value if node is None else node.hint


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as messages show it."""
    return str(dtype).removeprefix("torch.")
