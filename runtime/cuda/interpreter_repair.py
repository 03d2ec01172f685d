"""Additions to Triton's interpreter, and corrections. Only classes of the interpreter are changed.

- functions of libdevice are PyTorch's;
- scalar results of comparisons stay bool when they are broadcast;
- bfloat16 is rounded to nearest even, as by the hardware, also in matrix products;
- reductions with a custom combine function work on whole arrays; sums are pairwise;
- an access outside of the memory of a launch is an error, not a crash;
- a data race between programs of a launch is an error (`ownership.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_LOAD, _STORE, _ATOMIC = "a load", "a store", "an atomic update"
_TORCH_NAMES = {"rint": "round", "fast_exp": "exp", "fast_fdivide": "divide"}


def repair() -> None:
    """Apply all corrections to the interpreter."""
    # Triton need not be installed where nothing is interpreted
    import triton.language as tl
    from triton.runtime import interpreter as it

    builder: Any = it.InterpreterBuilder

    def extern(self: Any, lib: str, path: str, symbol: str, args: Any, ty: Any, pure: bool) -> Any:
        arrays = np.broadcast_arrays(*[a.data for a in args])
        name = symbol.removeprefix("__nv_")
        if arrays[0].dtype == np.float32:
            name = name.removesuffix("f")
        function = getattr(torch, _TORCH_NAMES.get(name, name))
        result = function(*[torch.from_numpy(np.ascontiguousarray(a)) for a in arrays])
        return it.TensorHandle(result.numpy(), args[0].dtype.scalar)

    builder.create_extern_elementwise = extern

    def to_bf16(data: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(data), 0x7FC0, rounded).astype(np.uint16)

    def from_bf16(data: np.ndarray) -> np.ndarray:
        return (data.astype(np.uint32) << 16).view(np.float32)

    def convert(self: Any, src: Any, ty: Any, rounding: Any = None) -> Any:
        source, target = src.dtype.scalar, ty.scalar
        data = from_bf16(src.data) if source == tl.bfloat16 else src.data
        if target == tl.bfloat16:
            return it.TensorHandle(to_bf16(data), target)
        return it.TensorHandle(data.astype(it._get_np_dtype(ty)), target)

    for name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "fp_to_fp"):
        setattr(builder, f"create_{name}", convert)

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        x, y = (from_bf16(v.data) if v.dtype.scalar == tl.bfloat16 else v.data for v in (a, b))
        return it.TensorHandle(np.matmul(x, y, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    builder.create_dot = dot

    def total(self: Any, given: Any) -> Any:
        """Sums by recursive halving, as threads compute them: NumPy adds rows sequentially, which rounds more."""
        data = given.handle.data
        if data.dtype.kind != "f":
            found = np.sum(data, axis=self.axis, keepdims=self.keep_dims)
            return self.to_tensor(found, given.dtype)
        axis, rank = self.axis, data.ndim
        data = data.reshape(1, -1) if axis is None else np.moveaxis(data, axis, -1)
        while (n := data.shape[-1]) > 1:
            data = data[..., : n // 2] + data[..., n // 2 :]
        if axis is None:
            data = data.reshape((1,) * rank) if self.keep_dims else data.reshape(())
        else:
            data = np.moveaxis(data, -1, axis) if self.keep_dims else data[..., 0]
        return self.to_tensor(np.ascontiguousarray(data) if data.shape else data[()], given.dtype)

    it.ReduceOps.sum = total

    def reduce(self: Any, given: Any) -> Any:
        """Neighbours combined, and so on: in order, a logarithm of steps."""
        whole = self.axis is None
        arrays = [x.handle.data.flatten() if whole else x.handle.data for x in given]
        axis = 0 if whole else self.axis
        kinds = [x.dtype for x in given]
        combine = self.combine_fn.fn

        def take(array: np.ndarray, which: slice) -> np.ndarray:
            return array[(slice(None),) * axis + (which,)]

        rank = given[0].handle.data.ndim
        while arrays[0].shape[axis] > 1:
            pairs = [
                [self.to_tensor(np.ascontiguousarray(take(a, slice(k, None, 2))), t)
                 for a, t in zip(arrays, kinds)]
                for k in (0, 1)
            ]  # fmt: skip
            out = combine(*pairs[0], *pairs[1])
            arrays = [o.handle.data for o in (out if isinstance(out, tuple) else (out,))]
        if self.keep_dims:
            if whole:
                arrays = [a.reshape((1,) * rank) for a in arrays]
        else:
            arrays = [np.squeeze(a, axis) for a in arrays]
        return [self.to_tensor(a if a.shape else a.item(), t) for a, t in zip(arrays, kinds)]

    it.ReduceOps.generic_reduce = reduce

    def ones(self: Any, ty: Any) -> Any:
        return it.TensorHandle(~np.zeros(1, dtype=it._get_np_dtype(ty)), ty.scalar)

    builder.get_all_ones_value = ones

    def splat(self: Any, ty: Any, value: Any) -> Any:
        return it.TensorHandle(np.full(ty.shape, value.data.ravel()[0]), value.dtype.scalar)

    builder.create_splat = splat
    _check_accesses(it)


def _check_accesses(it: Any) -> None:
    """Make loads and stores check the builder's `gflow_regions` and `gflow_owners` first, where it has them."""
    builder: Any = it.InterpreterBuilder
    builder.gflow_regions = builder.gflow_owners = None

    def check(self: Any, pointers: Any, mask: Any, what: str) -> None:
        if self.gflow_regions is None:
            return
        begin, end = self.gflow_regions
        size = np.uint64(max(pointers.get_element_ty().primitive_bitwidth // 8, 1))
        addresses = pointers.data
        if mask is not None:
            addresses, wanted = np.broadcast_arrays(addresses, mask.data)
            addresses = addresses[wanted.astype(bool)]
        addresses = addresses.astype(np.uint64).ravel()
        at = np.searchsorted(begin, addresses, side="right") - 1
        bad = (at < 0) | (addresses + size > end[at])
        if bad.any():
            where = tuple(int(i) for i in self.grid_idx)
            raise IndexError(
                f"{what} of {size} bytes at address {int(addresses[bad][0])} in program {where}, which is "
                "outside of every tensor"
            )
        if self.gflow_owners is not None and what != _ATOMIC:
            (self.gflow_owners.load if what == _LOAD else self.gflow_owners.store)(addresses)

    def wrapped(name: str, what: str, mask_at: int | None) -> None:
        own = getattr(builder, name)

        def checked(self: Any, pointers: Any, *rest: Any, **named: Any) -> Any:
            check(self, pointers, None if mask_at is None else rest[mask_at], what)
            return own(self, pointers, *rest, **named)

        setattr(builder, name, checked)

    wrapped("create_masked_load", _LOAD, 0)
    wrapped("create_masked_store", _STORE, 1)
    own = builder.create_atomic_rmw

    def atomic(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(self, pointers, mask, _ATOMIC)
        return own(self, op, pointers, value, mask, *rest)

    builder.create_atomic_rmw = atomic
    wrapped("create_atomic_cas", _ATOMIC, None)
