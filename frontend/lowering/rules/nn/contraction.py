"""Matrix products. A transposed operand is a `gflow.transpose`, which later becomes a view."""

from __future__ import annotations

import math
from typing import Any

from ...dtypes import result_dtype
from ...emitter import Emitter, Value, broadcast_shapes
from ...registry import lowers
from ..elementwise import scaled
from ..shape import t


def matmul(em: Emitter, a: Value, b: Value) -> Value:
    """[..., M, K] times [..., K, N]; a zero-sized contraction gives zeros."""
    if a.shape[-1] == 0 or a.numel == 0 or b.numel == 0:
        return em.full(0, (*a.shape[:-1], b.shape[-1]), a.dtype)
    return em("matmul", a, b)


@lowers("aten.mm.default", "aten.bmm.default")
def mm(em: Emitter, a: Value, b: Value) -> Value:
    """a @ b: [m, k] by [k, n], or a batch of such."""
    return matmul(em, a, b)


@lowers("aten.mv")
def mv(em: Emitter, a: Value, x: Value) -> Value:
    """a @ x: [m, k] by [k]."""
    return matmul(em, a, x.reshape((*x.shape, 1))).reshape((a.shape[0],))


@lowers("aten.dot", "aten.vdot")
def dot(em: Emitter, a: Value, b: Value) -> Value:
    """The sum of products of two vectors, 0-d."""
    return matmul(em, a.reshape((1, a.numel)), b.reshape((b.numel, 1))).reshape(())


def _accumulated(em: Emitter, x: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """beta * x + alpha * product; beta = 0 ignores x, including its NaN."""
    dtype = product.dtype
    total = scaled(product.compute(), alpha)
    if isinstance(beta, Value) or beta != 0:
        total = scaled(em.broadcast(x.compute(), product.shape), beta) + total
    return total.to(dtype)


@lowers("aten.addmm.default", "aten.baddbmm.default")
def addmm(em: Emitter, x: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta · x + alpha · a @ b; x is broadcast."""
    return _accumulated(em, x, matmul(em, a, b), beta, alpha)


@lowers("aten.addmv")
def addmv(em: Emitter, x: Value, a: Value, v: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta · x + alpha · a @ v."""
    return _accumulated(em, x, mv(em, a, v), beta, alpha)


@lowers("aten.addr")
def addr(em: Emitter, x: Value, u: Value, v: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta · x + alpha · u vᵀ; booleans by `and` and `or`."""
    dtype = result_dtype([x, u, v])
    if dtype == "i1":
        product = u.reshape((u.numel, 1)) & v
        return product if beta is False or beta == 0 else product | x
    product = u.to(dtype).reshape((u.numel, 1)) * v.to(dtype)
    return _accumulated(em, x.to(dtype), product, beta, alpha)


@lowers("aten.addbmm")
def addbmm(em: Emitter, x: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta · x + alpha · the sum of a[i] @ b[i] over the batch, as one product."""
    batch, rows, inner = a.shape
    wide = em.transpose(a, (1, 0, 2)).reshape((rows, batch * inner))
    tall = b.reshape((batch * inner, b.shape[-1]))
    return _accumulated(em, x, matmul(em, wide, tall), beta, alpha)


@lowers("aten.linear")
def linear(em: Emitter, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x @ weightᵀ + bias: [.., k] by [n, k] gives [.., n]."""
    if weight.rank == 1:
        y = mv(
            em, x.reshape((-1 if not x.numel else x.numel // weight.numel, weight.numel)), weight
        )
        y = y.reshape(x.shape[:-1])
    else:
        rows = math.prod(x.shape[:-1])
        y = matmul(em, x.reshape((rows, x.shape[-1])), t(em, weight))
        y = y.reshape((*x.shape[:-1], weight.shape[0]))
    return y if bias is None else (y.compute() + bias.compute()).to(y.dtype)


@lowers("aten.matmul")
def matmul_any(em: Emitter, a: Value, b: Value) -> Value:
    """PyTorch's matmul: vectors are rows or columns, batch dimensions are broadcast."""
    left = a if a.rank > 1 else a.reshape((1, *a.shape))
    right = b if b.rank > 1 else b.reshape((*b.shape, 1))
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = em.broadcast(left, (*batch, *left.shape[-2:]))
    right = em.broadcast(right, (*batch, *right.shape[-2:]))
    y = matmul(em, left, right)
    if a.rank == 1:
        y = y.reshape((*y.shape[:-2], y.shape[-1]))
    return y.reshape(y.shape[:-1]) if b.rank == 1 else y
